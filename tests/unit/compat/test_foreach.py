"""`torch._foreach_*`: targets in place equal the function's results, and PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.api.compat import FOREACH
from oneflow.core.errors import AutogradError

SIZES = (5, 3000, 400_000)
"""Sizes that NumPy's functions, a compiled loop, and one on several threads compute."""


def _lists(m: Any, number: int) -> list[Any]:
    """Tensors of numbers within 0 and 1, where every function is defined."""
    rng = np.random.default_rng(number)
    return [m.from_numpy(rng.uniform(0.1, 0.9, n).astype(np.float32)) for n in SIZES]


OTHERS = {"addcdiv": 2, "addcmul": 2, "lerp": 1, "add": 1, "sub": 1, "mul": 1, "div": 1, "pow": 1}
OTHERS |= dict.fromkeys(("maximum", "minimum", "clamp_max", "clamp_min"), 1)


def _calls(name: str) -> list[Callable[[Any, str, list[Any]], Any]]:
    """Calls of one function with lists, and with numbers where it takes them."""
    count = OTHERS.get(name, 0)

    def of_lists(m: Any, tail: str, xs: list[Any]) -> Any:
        more = [_lists(m, k + 1) for k in range(count)] + ([0.25] if name == "lerp" else [])
        return getattr(m, f"_foreach_{name}{tail}")(xs, *more)

    def of_numbers(m: Any, tail: str, xs: list[Any]) -> Any:
        return getattr(m, f"_foreach_{name}{tail}")(xs, 0.7)

    def of_a_number_each(m: Any, tail: str, xs: list[Any]) -> Any:
        return getattr(m, f"_foreach_{name}{tail}")(xs, [0.5, 2.0, 1.5])

    def scaled(m: Any, tail: str, xs: list[Any]) -> Any:
        call = getattr(m, f"_foreach_{name}{tail}")
        if name in ("add", "sub"):
            return call(xs, _lists(m, 1), alpha=0.3)
        return call(xs, _lists(m, 1), _lists(m, 2), 0.3)

    found: list[Callable[[Any, str, list[Any]], Any]] = [of_lists]
    if count == 1 and name != "lerp":
        found += [of_numbers, of_a_number_each]
    return [*found, scaled] if name in ("add", "sub", "addcdiv", "addcmul") else found


@pytest.mark.parametrize("name", FOREACH.split())
def test_in_place_equals_pytorchs_for_every_size(name: str) -> None:
    for call in _calls(name):
        theirs, ours = _lists(torch, 0), _lists(flow, 0)
        kept = [x.data_ptr() for x in ours]
        made = call(flow, "", ours)
        assert call(flow, "_", ours) is None
        call(torch, "_", theirs)
        assert [x.data_ptr() for x in ours] == kept
        for x, y, want in zip(ours, made, theirs, strict=True):
            np.testing.assert_allclose(x.numpy(), want.numpy(), rtol=4e-6, atol=1e-6)
            np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=2e-6, atol=1e-6)


def test_every_name_of_pytorch_is_there() -> None:
    named = {name for name in dir(torch) if name.startswith(("_foreach_", "_amp_foreach_"))}
    assert not {name for name in named if not hasattr(flow, name)}


def test_histories_and_views_are_what_methods_make_them() -> None:
    x = flow.ones(3, requires_grad=True)
    y = x * 2
    flow._foreach_mul_([y], 3.0)
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [6, 6, 6]
    with pytest.raises(AutogradError, match="a leaf Tensor that requires grad"):
        flow._foreach_add_([x], 1.0)
    with flow.no_grad():
        flow._foreach_add_([x], 1.0)
    assert x.tolist() == [2, 2, 2]


def test_a_backward_pass_notices_what_was_overwritten() -> None:
    x, w = flow.ones(3, requires_grad=True), flow.ones(3)
    y = (x * w).sum()
    flow._foreach_mul_([w], 2.0)
    with pytest.raises(AutogradError, match="modified by an inplace operation"):
        y.backward()


def test_operands_that_overlap_are_read_before_they_are_written() -> None:
    memory = np.arange(6, dtype=np.float32)
    x, y = flow.from_numpy(memory[1:]), flow.from_numpy(memory[:-1])
    flow._foreach_add_([x], [y])
    assert memory.tolist() == [0, 1, 3, 5, 7, 9]
    view = flow.zeros(4)
    flow._foreach_add_([view[1:3]], 2.0)
    flow._foreach_mul_([view, view], 3)
    assert view.tolist() == [0, 18, 18, 0]


def test_gradients_are_unscaled_and_checked() -> None:
    for m in (torch, flow):
        xs, found = [m.tensor([2.0, 4.0]), m.tensor([1.0])], m.zeros(1)
        check = m._amp_foreach_non_finite_check_and_unscale_
        check(xs, found, m.tensor([0.5]))
        assert [x.tolist() for x in xs] == [[1, 2], [0.5]] and found.item() == 0
        check([m.tensor([1.0, float("inf")])], found, m.tensor([0.5]))
        assert found.item() == 1
