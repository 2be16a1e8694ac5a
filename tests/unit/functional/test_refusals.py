"""Values and operands that functions refuse, by the class of errors that PyTorch has for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow.amp import GradScaler
from oneflow.io.assemble import moved

Call = Callable[[], Any]

INTEGERS = flow.tensor([[3, 5], [7, 9]])
FLOATS = flow.tensor([[0.5, 1.5], [2.5, 3.5]])
ZEROS = flow.tensor([1, 0])

VALUES: tuple[tuple[type[Exception], str, Call], ...] = (
    (RuntimeError, "must be non-negative", lambda: F.one_hot(flow.tensor([-1, 2]), 3)),
    (RuntimeError, "must be non-negative", lambda: F.one_hot(flow.tensor([-1, -1]))),
    (RuntimeError, "smaller than num_classes", lambda: F.one_hot(flow.tensor([3, 2]), 3)),
    (RuntimeError, "empty tensor", lambda: F.one_hot(flow.zeros(0, dtype=flow.int64))),
    (RuntimeError, "not in", lambda: flow.bernoulli(flow.tensor([0.5, 1.5]))),
    (RuntimeError, "not in", lambda: flow.bernoulli(flow.tensor([float("nan")]))),
    (RuntimeError, "p to be in", lambda: flow.ones(2).bernoulli_(1.5)),
    (RuntimeError, "floating-point", lambda: flow.bernoulli(ZEROS)),
    (RuntimeError, "element < 0", lambda: flow.multinomial(flow.tensor([0.5, -0.5]), 1)),
    (RuntimeError, "`nan`", lambda: flow.multinomial(flow.tensor([0.5, float("inf")]), 1)),
    (RuntimeError, "sum 0", lambda: flow.multinomial(flow.zeros(2, 2), 1, True)),
    (RuntimeError, "floating-point", lambda: flow.multinomial(ZEROS, 1)),
    (RuntimeError, "without overflow", lambda: flow.tensor([300], dtype=flow.uint8)),
    (RuntimeError, "without overflow", lambda: flow.tensor(float("nan"), dtype=flow.int32)),
    (ValueError, "without overflow", lambda: flow.tensor([2**70])),
    (RuntimeError, "without overflow", lambda: flow.full((2,), 200, dtype=flow.int8)),
    (RuntimeError, "without overflow", lambda: flow.zeros(2, dtype=flow.uint8).fill_(-256)),
    (RuntimeError, "without overflow", lambda: INTEGERS.byte().masked_fill(INTEGERS > 3, 256)),
    (RuntimeError, "-0.5 cannot be", lambda: flow.zeros(2, dtype=flow.uint8).fill_(-0.5)),
    (RuntimeError, "-1.5 cannot be", lambda: INTEGERS.byte().__setitem__(0, -1.5)),
    (RuntimeError, "-1.0 cannot be", lambda: flow.tensor([-1.0], dtype=flow.uint8)),
    (RuntimeError, "ZeroDivisionError", lambda: INTEGERS // ZEROS),
    (RuntimeError, "ZeroDivisionError", lambda: INTEGERS % ZEROS),
    (RuntimeError, "ZeroDivisionError", lambda: flow.fmod(INTEGERS, ZEROS)),
    (RuntimeError, "ZeroDivisionError", lambda: flow.div(INTEGERS, ZEROS, rounding_mode="trunc")),
    (RuntimeError, "divided by zero", lambda: INTEGERS // 0),
    (IndexError, "no elements", lambda: flow.median(flow.zeros(0, 3), 0)),
    (IndexError, "to have elements", lambda: flow.amax(flow.zeros(2, 0), 1)),
    (ValueError, "no elements along dim 1", lambda: flow.quantile(flow.zeros(2, 0), 0.5, 1)),
    (ValueError, "no elements along dim 0", lambda: flow.nanquantile(flow.zeros(0, 2), 0.5, 0)),
    (IndexError, "start out of range", lambda: flow.narrow(FLOATS, 0, 3, 0)),
)


@pytest.mark.parametrize(("error", "words", "run"), VALUES, ids=[words for _, words, _ in VALUES])
def test_values_are_refused(error: type[Exception], words: str, run: Call) -> None:
    with pytest.raises(error, match=words):
        run()


ARGUMENTS: tuple[tuple[type[Exception], str, Call], ...] = (
    (TypeError, "'other' .* must be Tensor", lambda: flow.maximum(FLOATS, 1)),
    (TypeError, "'input' .* must be Tensor", lambda: flow.hypot(1, FLOATS)),
    (TypeError, "'input' .* must be Tensor", lambda: flow.clamp_max(1, FLOATS)),
    (TypeError, "must be an integer", lambda: flow.linspace(0, 1, 2.5)),
    (RuntimeError, "unsupported range", lambda: flow.arange(0, float("inf"))),
    (RuntimeError, "floating-point or complex", lambda: flow.mean(INTEGERS)),
    (RuntimeError, "dtype of the input", lambda: FLOATS.scatter(0, INTEGERS * 0, INTEGERS)),
    (RuntimeError, "0-dimension", lambda: FLOATS.masked_fill(FLOATS > 1, flow.ones(1))),
    (RuntimeError, "greater than or equal to 0", lambda: F.adaptive_avg_pool2d(FLOATS, (-1, 1))),
    (RuntimeError, "must be at least 1", lambda: F.max_pool1d(flow.ones(1, 4), 2, dilation=0)),
    (RuntimeError, "needs a weight", lambda: F.conv2d(flow.ones(1, 1, 4, 4), flow.ones(1, 1, 2))),
    (ValueError, "margin", lambda: F.triplet_margin_loss(FLOATS, FLOATS, FLOATS, margin=-1.0)),
    (RuntimeError, "lambda", lambda: F.softshrink(FLOATS, -0.5)),
    (RuntimeError, "2-D", lambda: F.embedding(ZEROS, flow.ones(3))),
    (RuntimeError, "lambda > 0", lambda: flow.ones(2).exponential_(0)),
    (RuntimeError, "`shifts` required", lambda: flow.roll(FLOATS, ())),
    (ValueError, "init_scale must be a finite", lambda: GradScaler(init_scale=float("nan"))),
    (ValueError, "growth_factor must be a", lambda: GradScaler(growth_factor="a")),
    (TypeError, "v_level must be an integer, got 'a'", lambda: flow.nn.Graph().debug("a")),
    (RuntimeError, "an integer >= 1, got True", lambda: _accumulating(True)),
    (RuntimeError, "device type at .* nodev", lambda: moved(FLOATS, "nodev")),
    (TypeError, "map_location is a device", lambda: moved(FLOATS, 5)),
)


def _accumulating(steps: Any) -> None:
    flow.nn.Graph().config.set_gradient_accumulation_steps(steps)


def test_a_target_of_smooth_l1_loss_is_broadcast() -> None:
    x = flow.tensor([[1.0, 2.5], [0.5, 0.0]]).requires_grad_()
    loss = F.smooth_l1_loss(x, flow.tensor([0.5, 0.0]), reduction="none")
    loss.sum().backward()
    assert loss.tolist() == [[0.125, 2.0], [0.0, 0.0]]
    assert x.grad is not None and x.grad.tolist() == [[0.5, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("error", "words", "run"), ARGUMENTS, ids=[words for _, words, _ in ARGUMENTS]
)
def test_arguments_are_refused(error: type[Exception], words: str, run: Call) -> None:
    with pytest.raises(error, match=words):
        run()


def test_divisors_are_looked_at_in_graphs() -> None:
    class Quotient(flow.nn.Graph):
        def build(self, a: flow.Tensor, b: flow.Tensor) -> flow.Tensor:
            return a // b

    graph = Quotient()
    assert graph(INTEGERS, flow.tensor([2, 4])).tolist() == [[1, 1], [3, 2]]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        graph(INTEGERS, ZEROS)


def test_small_negative_numbers_wrap_in_unsigned_dtypes() -> None:
    assert flow.tensor([-1], dtype=flow.uint8).tolist() == [255]
    assert flow.full((1,), -3, dtype=flow.uint8).tolist() == [253]
    assert (flow.tensor([255], dtype=flow.uint8) & 300).tolist() == [44]


def test_unsigned_integers_are_made_floats_before_they_wrap() -> None:
    x = np.array([200, 100, 2, 255], np.uint8)
    ours = flow.tensor(x)
    assert flow.trapezoid(ours).item() == 329.5
    assert flow.trapezoid(ours, flow.tensor(x[::-1].copy())).item() == -20102.0
    logit = flow.logit(flow.tensor([1, 3], dtype=flow.uint8)).numpy()
    assert np.isposinf(logit[0]) and np.isnan(logit[1])


def test_integers_are_divided_exactly() -> None:
    large = 2**62 + 1
    quotient = flow.div(flow.tensor([large, -large]), flow.tensor([2, 2]), rounding_mode="trunc")
    assert quotient.tolist() == [large // 2, -(large // 2)]


def test_nothing_has_these_values() -> None:
    assert flow.logsumexp(flow.zeros(0, 3), 0).tolist() == [-np.inf] * 3
    assert np.isnan(flow.median(flow.zeros(0)).item())
    assert np.isnan(flow.nanmedian(flow.zeros(0)).item())


def test_quantiles_of_a_tensor_that_is_split_along_its_columns() -> None:
    where = flow.placement("cpu", ranks=[0])
    x = FLOATS.to_global(where, flow.sbp.split(1))
    np.testing.assert_allclose(flow.quantile(x, 0.25, 1).numpy(), [0.75, 2.75])
    np.testing.assert_allclose(flow.quantile(x, 0.5).numpy(), 2.0)
