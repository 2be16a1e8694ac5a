"""Attention of a few rows over a cache, on a CPU: beside PyTorch's in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.nn import functional as F

SIZES = ((1, 4, 4), (13, 16, 24), (100, 64, 64), (37, 20, 7))
"""Columns, and the numbers of a key and of a value."""


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def expected(q: Any, k: Any, v: Any, mask: Any, times: int) -> Any:
    k, v = (np.repeat(x, times, -3) if x.ndim > 2 else x for x in (k, v))
    given = [torch.tensor(x, dtype=torch.float64) for x in (q, k, v)]
    if mask is not None:
        mask = torch.tensor(mask, dtype=None if mask.dtype == np.bool_ else torch.float64)
    made = torch.nn.functional.scaled_dot_product_attention(*given, attn_mask=mask)
    return torch.nan_to_num(made).numpy()  # a row that sees nothing


def masks(lead: tuple[int, ...], rows: int, columns: int) -> dict[str, Any]:
    some = draw(rows, columns, seed=3)
    filled = np.arange(columns) <= np.arange(lead[0] if lead else 1)[:, None] * 3
    ones = (1,) * max(len(lead) - 1, 0)
    own = filled.reshape(-1, *ones, 1, columns) if lead else filled
    return {
        "none": None,
        "bool": some > 0,
        "float": np.where(some > 0.5, -np.inf, some).astype(np.float32),
        "a part is filled, of each sample": own,
        "nothing": np.zeros((rows, columns), bool),
    }


@pytest.mark.parametrize("columns, depth, width", SIZES)
@pytest.mark.parametrize("lead, times", [((), 1), ((2, 3), 1), ((2, 3), 5)])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_few_rows_see_what_the_mask_lets_them(
    rows: int, lead: tuple[int, ...], times: int, columns: int, depth: int, width: int
) -> None:
    more = (*lead[:-1], lead[-1] * times) if lead else ()
    q, k, v = draw(*more, rows, depth), draw(*lead, columns, depth), draw(*lead, columns, width)
    for mask in masks(more, rows, columns).values():
        given = None if mask is None else flow.tensor(mask)
        with flow.no_grad():
            made = F.scaled_dot_product_attention(
                *map(flow.tensor, (q, k, v)), given, enable_gqa=times > 1
            )
        wanted = expected(q, k, v, mask, times)
        np.testing.assert_allclose(made.numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_what_lies_behind_the_filled_part_is_not_read() -> None:
    q, k, v = draw(1, 2, 1, 16), draw(1, 2, 40, 16), draw(1, 2, 40, 16)
    k[:, :, 30:], v[:, :, 30:] = np.nan, np.nan
    mask = flow.arange(40) < 30
    made = F.scaled_dot_product_attention(*map(flow.tensor, (q, k, v)), mask)
    wanted = expected(q, k[:, :, :30], v[:, :, :30], None, 1)
    np.testing.assert_allclose(made.numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_strides_and_gradients_are_those_of_the_other_ways() -> None:
    q, k, v = draw(2, 1, 4, 16), draw(2, 20, 4, 16), draw(2, 20, 4, 16)
    turned = [flow.tensor(x).transpose(1, 2) for x in (q, k, v)]
    wanted = expected(*(x.transpose(0, 2, 1, 3) for x in (q, k, v)), None, 1)
    made = F.scaled_dot_product_attention(*turned)
    np.testing.assert_allclose(made.numpy(), wanted, rtol=1e-4, atol=1e-5)
    needs = [x.contiguous().requires_grad_() for x in turned]
    F.scaled_dot_product_attention(*needs).square().sum().backward()
    theirs = [torch.tensor(x.numpy(force=True), requires_grad=True) for x in needs]
    torch.nn.functional.scaled_dot_product_attention(*theirs).square().sum().backward()
    for own, other in zip(needs, theirs, strict=True):
        np.testing.assert_allclose(own.grad.numpy(), other.grad.numpy(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("has_mask", [False, True])
def test_repeated_heads_of_a_compiled_function_are_read_once(has_mask: bool) -> None:
    def repeated(x: Any) -> Any:
        return x[:, :, None].expand(2, 3, 4, 20, 16).reshape(2, 12, 20, 16)

    def function(q: Any, k: Any, v: Any, mask: Any) -> Any:
        given = mask if has_mask else None
        return F.scaled_dot_product_attention(q, repeated(k), repeated(v), given)

    q, k, v = draw(2, 12, 1, 16), draw(2, 3, 20, 16), draw(2, 3, 20, 16)
    mask = np.arange(20)[None] < 9
    compiled = flow.compile(function, fullgraph=True)
    with flow.no_grad():
        made = compiled(*map(flow.tensor, (q, k, v, mask)))
    wanted = expected(q, k, v, mask if has_mask else None, 4)
    np.testing.assert_allclose(made.numpy(), wanted, rtol=1e-4, atol=1e-5)
    ((plan,),) = compiled.calls._compiled._plans.values()
    ops = [node.op for node in plan._forward.bound.plan.graph]
    assert "attention" in ops and "expand" not in ops
