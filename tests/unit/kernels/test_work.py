"""Bytes and arithmetic of calls, against PyTorch's counter and closed forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from oneflow.core.dtype import float32, int64
from oneflow.core.op import REGISTRY, find_op, infer_types
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.work import Work, work_of

CONV = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 1}
SAME = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}


def work(name: str, *shapes: tuple[int, ...], **attrs: Any) -> Work:
    op = find_op(name)
    types = tuple(TensorType(shape, float32) for shape in shapes)
    attrs = op.defaults | attrs
    return work_of(op, types, infer_types(op, types, attrs), attrs)


def counted(run: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def backward_counted(run: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> int:
    """Operations of the backward pass of all inputs, besides those of the forward pass."""
    inputs = [torch.ones(shape, requires_grad=True) for shape in shapes]
    forward = counted(lambda: run(*inputs))
    return counted(lambda: run(*inputs).sum().backward()) - forward


def ones(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.ones(shape) for shape in shapes]


def test_products_are_counted_as_pytorch_counts_them() -> None:
    a, b = (3, 2, 5, 7), (2, 7, 4)
    assert work("matmul", a, b).flops == counted(lambda: torch.matmul(*ones(a, b)))
    a, b = (3, 7, 5), (3, 4, 7)
    assert work("matmul", a, b, transpose_a=True, transpose_b=True).flops == counted(
        lambda: torch.bmm(*(t.transpose(1, 2) for t in ones(a, b)))
    )
    x, w = (3, 5, 7), (4, 7)
    product = counted(lambda: F.linear(*ones(x, w)))
    assert work("linear", x, w, (4,)).flops == product + 3 * 5 * 4  # and the bias
    assert work("matmul_weight_grad", x, (3, 5, 4)).flops == product


def test_convolutions_are_counted_as_pytorch_counts_them() -> None:
    x, w = (2, 3, 9, 8), (6, 3, 3, 2)
    assert work("conv", x, w, **CONV).flops == counted(lambda: F.conv2d(*ones(x, w), **SAME))
    d_out = tuple(F.conv2d(*ones(x, w), **SAME).shape)
    gradients = (
        work("conv_data_grad", d_out, w, spatial=x[2:], **CONV).flops
        + work("conv_filter_grad", d_out, x, kernel=w[2:], **CONV).flops
    )
    assert gradients == backward_counted(lambda *t: F.conv2d(*t, **SAME), x, w)
    groups = CONV | {"groups": 3}
    assert work("conv", x, (6, 1, 3, 2), **groups).flops * 3 == work("conv", x, w, **CONV).flops


def test_attention_is_counted_as_pytorch_counts_it() -> None:
    q, k, v = (2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4)
    forward = 2 * 2 * 3 * 5 * 7 * (8 + 4)  # scores, then a mean of v for each row
    assert work("attention", q, k, v, scale=1.0).flops == forward
    out, lse = (2, 3, 5, 4), (2, 3, 5)
    scores, values = 2 * 2 * 3 * 5 * 7 * 8, 2 * 2 * 3 * 5 * 7 * 4
    backward = work("attention_grad", out, q, k, v, out, lse, scale=1.0).flops
    assert backward == 3 * scores + 2 * values  # the scores again, d_q and d_k; d_v and d_scores


@pytest.mark.parametrize(
    ("name", "shapes", "functions", "elements"),
    [
        ("add", [(4, 6), (4, 6)], 1, 24),
        ("exp", [(4, 6)], 1, 24),
        ("reduce_sum", [(4, 6)], 1, 24),
        ("sum_rows", [(4, 6)], 1, 24),
        ("transpose", [(4, 6)], 0, 24),
    ],
)
def test_elements_have_one_operation_a_function(
    name: str, shapes: list[tuple[int, ...]], functions: int, elements: int
) -> None:
    attrs = {"reduce_sum": {"dims": (0, 1)}, "transpose": {"dims": (1, 0)}}.get(name, {})
    assert work(name, *shapes, **attrs).flops == functions * elements


def test_bytes_are_those_of_operands_and_results() -> None:
    assert work("add", (4, 6), (4, 6)).nbytes == 3 * 24 * 4
    op, table, ids = find_op("gather"), TensorType((1000, 8), float32), TensorType((5,), int64)
    out = TensorType((5, 8), float32)
    found = work_of(op, (table, ids), (out,), {"dim": 0})
    assert found.nbytes == 2 * out.nbytes + ids.nbytes  # only the rows that are read


def test_every_product_says_its_operations() -> None:
    find_op("matmul")  # loads all ops
    silent = [
        name
        for name, op in REGISTRY.items()
        if op.precision == "lower" and op.formula is None and op.flops is None
    ]
    assert not silent, f"ops that run in half precision without `flops`: {silent}"
