"""Small methods and functions of PyTorch, beside PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.errors import ShapeError

X = np.arange(6, dtype=np.float32).reshape(2, 3)

SAME: dict[str, Callable[[Any, Any], Any]] = {
    "promote_types": lambda m, x: str(m.promote_types(m.int8, m.uint8)).split(".")[1],
    "can_cast": lambda m, x: [m.can_cast(m.float32, m.int32), m.can_cast(m.int64, m.int8)],
    "result_type": lambda m, x: [
        str(m.result_type(*pair)).split(".")[1]
        for pair in ((x, 1j), (x.int(), 1.5), (x.int(), x.double()), (2, x.int()), (1, 2.0))
    ],
    "is_signed": lambda m, x: [m.is_signed(x), x.byte().is_signed()],
    "is_nonzero": lambda m, x: [m.is_nonzero(x[0, :1]), x[1, 1:2].is_nonzero()],
    "scalar_tensor": lambda m, x: m.scalar_tensor(3),
    "empty_strided": lambda m, x: m.empty_strided((2, 3), (1, 2)).stride(),
    "is_set_to": lambda m, x: [x.is_set_to(x[:]), x.is_set_to(x.clone()), x.is_set_to(x[0])],
    "fill_diagonal_": lambda m, x: x.clone().fill_diagonal_(9),
    "fill_diagonal_ wrap": lambda m, x: m.zeros(7, 3).fill_diagonal_(1, wrap=True),
    "apply_": lambda m, x: x.clone().apply_(lambda v: v * v),
    "map_": lambda m, x: x.clone().map_(x[:1], lambda a, b: a - b),
    "resize_": lambda m, x: x.clone().resize_(3, 2),
    "resize_ smaller": lambda m, x: x.clone().resize_((2, 2)),
    "resize_as_": lambda m, x: x.clone().resize_as_(m.zeros(6)),
    "set_": lambda m, x: m.zeros(1).set_(x),
    "set_ to nothing": lambda m, x: x.clone().set_().shape[0],
    "transpose_": lambda m, x: x.clone().transpose_(0, 1),
    "swapaxes_": lambda m, x: x.clone().swapaxes_(1, 0),
    "t_": lambda m, x: x.clone().t_(),
    "moveaxis": lambda m, x: m.moveaxis(x, 0, 1),
    "concatenate": lambda m, x: m.concatenate([x, x], dim=1),
    "ger": lambda m, x: m.ger(x[0], x[1]),
    "fix": lambda m, x: m.fix(x - 2.5),
    "arctan2": lambda m, x: m.arctan2(x, x + 1),
    "in place": lambda m, x: m.exp_(x.clone()).log10_().sinh_().atan_().logit_(0.1),
    "nbytes": lambda m, x: [x.nbytes, x.itemsize, x.is_meta, x.is_sparse, x.is_quantized],
    "detach_": lambda m, x: (y := (x.clone().requires_grad_() * 2)).detach_().requires_grad or y,
}


def plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.parametrize("name", SAME)
def test_it_is_as_in_pytorch(name: str) -> None:
    own = SAME[name](flow, flow.from_numpy(X.copy()))
    other = SAME[name](torch, torch.from_numpy(X.copy()))
    if isinstance(other, torch.Tensor):
        np.testing.assert_allclose(own.numpy(), other.numpy(), rtol=1e-5, equal_nan=True)
        assert own.shape == tuple(other.shape)
    else:
        assert plain(own) == plain(other)


def test_numbers_follow_their_distributions() -> None:
    flow.manual_seed(0)
    n = 20_000
    trials = flow.zeros(n).geometric_(0.25).numpy()
    assert trials.min() == 1 and abs(trials.mean() - 4) < 4 * np.sqrt(12 / n)
    logs = np.log(flow.zeros(n).log_normal_(0.5, 2.0).numpy().astype(np.float64))
    assert abs(logs.mean() - 0.5) < 4 * 2 / np.sqrt(n) and abs(logs.std() - 2) < 0.06
    wide = flow.zeros(n).cauchy_(3.0, 2.0).numpy()
    quarters = np.quantile(wide, [0.25, 0.5, 0.75])  # median -/+ sigma
    assert np.abs(quarters - [1, 3, 5]).max() < 0.2


def test_uses_that_make_no_sense_are_refused() -> None:
    x = flow.from_numpy(X.copy())
    with pytest.raises(RuntimeError, match="more than one value"):
        x.is_nonzero()
    with pytest.raises(ShapeError, match="no diagonal"):
        x[0].fill_diagonal_(1)
    with pytest.raises(ShapeError, match="2 sizes, but 1 strides"):
        flow.empty_strided((2, 3), (1,))
    assert not x.is_shared() and not x.is_inference() and x.contiguous_() is x
    assert x.t().contiguous_().stride() == (2, 1)
    with pytest.warns(UserWarning, match="offload has no effect"):
        x.offload()
    assert x.load() is None and x.record_stream(None) is None


def test_a_leaf_is_not_written() -> None:
    leaf = flow.zeros(2, 2, requires_grad=True)
    for write in (lambda: leaf.resize_(4), lambda: leaf.apply_(float), lambda: leaf.log2_()):
        with pytest.raises(RuntimeError, match="leaf"):
            write()
