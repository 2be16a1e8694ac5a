"""Functions that only upstream's own code calls, against PyTorch or written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import oneflow as flow
from tests.parity.values import compare, to_flow

C = flow._C
F = torch.nn.functional


def tensors(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.from_numpy(rng.normal(size=shape).astype(np.float32)) for shape in shapes]


def test_reductions_over_some_dims_and_over_all(rng: np.random.Generator) -> None:
    (x,) = tensors(rng, (2, 3, 4))
    y = to_flow(x)
    compare(x.sum((1, 2), True), C.reduce_sum(y, [1, 2], True))
    compare(x.sum(dtype=torch.float64), C.reduce_sum(y, dtype=flow.float64))
    compare(x.sum(), C.reduce_sum(y, []))
    compare(x.mean(0), C.reduce_mean(y, 0))


def test_losses_of_upstreams_names(rng: np.random.Generator) -> None:
    x, w, d = tensors(rng, (4, 3), (4, 3), (4,))
    t = w.softmax(-1)
    for reduction in ("none", "sum"):
        compare(
            F.binary_cross_entropy_with_logits(x, t, w, pos_weight=t[0], reduction=reduction),
            C.binary_cross_entropy_with_logits_loss(*to_flow([x, t, w, t[0]]), reduction),
        )
    label = torch.tensor([0, 2, 1, 1])
    compare(
        d[:, None] * (t - F.one_hot(label)),
        C.softmax_cross_entropy_grad(*to_flow([d, F.one_hot(label).float(), t])),
    )


def test_normalization_with_channels_anywhere(rng: np.random.Generator) -> None:
    x, w, b = tensors(rng, (2, 4, 3), (3,), (3,))
    mean, var = torch.zeros(3), torch.ones(3)
    wanted = F.batch_norm(x.transpose(1, 2), mean, var, w, b, True, 0.1, 1e-3).transpose(1, 2)
    own = to_flow([torch.zeros(3), torch.ones(3)])
    found = C.normalization(to_flow(x), *own, *to_flow([w, b]), 2, 1e-3, 0.1, True)
    compare([wanted, mean, var], [found, *own])


def test_small_ones(rng: np.random.Generator) -> None:
    a, b = tensors(rng, (2, 3, 4), (2, 3, 4))
    compare(
        2 * a @ b.transpose(1, 2), C.batch_matmul(*to_flow([a, b]), transpose_b=True, alpha=2.0)
    )
    assert C.constant([2], 3, dtype=flow.int64).tolist() == [3, 3]
    assert C.eye_(flow.ones(2, 3)).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert C.expand_dims(flow.ones(2), 0).shape == (1, 2)
    x = flow.tensor([1.0, 2.0])
    assert C.noncontiguous_binary_op(x, x, "mul", True) is x and x.tolist() == [1, 4]
    turned = flow.arange(6).reshape(2, 3).t()
    assert C.contiguous_(turned).is_contiguous() and turned.tolist() == [[0, 3], [1, 4], [2, 5]]
    ema = [flow.ones(2)]
    C.multi_tensor_yolov5_weight_update(ema, [flow.zeros(2)], 0.9)
    assert ema[0].tolist() == pytest.approx([0.9, 0.9])
    assert C.local_all_reduce(x).tolist() == [1, 4]
    assert C.local_reduce(x) is x and C.local_reduce(x, inplace=False) is not x
    assert C.comm_broadcast([x])[0] is x


def test_all_functions_of_tensors_are_there_too() -> None:
    """`flow._C` has the functions of the other surfaces, and its own ones where they differ."""
    assert flow._C.abs is flow.abs and flow._C.conv2d is flow.nn.functional.conv2d
    assert flow._C.relu_ is flow.relu_ and flow._C.rfft is flow.fft.rfft
    assert flow._C.gather is not flow.gather
    assert not hasattr(flow._C, "Module")


def test_one_dim_is_stretched_to_that_of_another_tensor(rng: np.random.Generator) -> None:
    (x,) = tensors(rng, (1, 3))
    like = flow.ones(5, 3, 4)
    compare(x.expand(5, 3), C.broadcast_dim_like(to_flow(x), like, dim=0))
    compare(x.expand(4, 3), C.broadcast_dim_like(to_flow(x), like, 0, like_dim=-1))
    with pytest.raises(ValueError):
        C.broadcast_dim_like(to_flow(x), like, dim=1, like_dim=0)
