"""The tape and the backward pass."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.errors import AutogradError


def leaf(*values: float) -> flow.Tensor:
    return flow.tensor(list(values), dtype=flow.float64, requires_grad=True)


def test_gradients_add_up_and_are_not_shared() -> None:
    a, b = leaf(1, 2), leaf(3, 4)
    (a + b).sum().backward()
    assert a.grad is not None and b.grad is not None
    a.grad.mul_(5)
    assert b.grad.tolist() == [1, 1]
    (a * b).sum().backward()
    assert a.grad.tolist() == [8, 9] and b.grad.tolist() == [2, 3]


def test_second_backward_needs_retain_graph() -> None:
    x = leaf(2)
    y = x * x
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad is not None and x.grad.tolist() == [8]
    with pytest.raises(AutogradError, match="backward through the graph a second time"):
        y.backward()


def test_grad_of_grad() -> None:
    x = leaf(2, 3)
    (first,) = flow.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = flow.autograd.grad(first.sum(), x)
    assert second.tolist() == [12, 18] and x.grad is None


def test_grad_of_inner_tensors_and_unused_ones() -> None:
    x, other = leaf(2), leaf(1)
    y = x * 3
    assert flow.autograd.grad((y * y).sum(), y)[0].tolist() == [12]
    with pytest.raises(AutogradError, match="allow_unused"):
        flow.autograd.grad((x * x).sum(), other)
    assert flow.autograd.grad((x * x).sum(), [x, other], allow_unused=True)[1] is None


def test_hooks_and_kept_gradients() -> None:
    x = leaf(1)
    seen: list[Any] = []
    handle = x.register_hook(lambda g: g * 10)
    y = x * 2
    y.retain_grad()
    y.register_hook(seen.append)
    (y * 3).backward()
    assert y.grad is not None and y.grad.tolist() == [3] and seen[0].tolist() == [3]
    assert x.grad is not None and x.grad.tolist() == [60]
    handle.remove()
    x.grad = None
    (x * 2).backward()
    assert x.grad.tolist() == [2]


def test_no_grad_as_context_and_decorator() -> None:
    x = leaf(1)
    with flow.no_grad():
        assert not (x * 2).requires_grad
        with flow.enable_grad():
            assert (x * 2).requires_grad

    @flow.no_grad()
    def twice(v: flow.Tensor) -> flow.Tensor:
        return v * 2

    assert not twice(x).requires_grad and flow.is_grad_enabled()
    with flow.set_grad_enabled(False):
        assert not flow.is_grad_enabled()
    with flow.inference_mode():
        assert not flow.is_grad_enabled()
    assert flow.is_grad_enabled() and (x.detach() * 2).requires_grad is False


def test_in_place_on_a_leaf_is_refused() -> None:
    x = leaf(1, 2)
    message = "a leaf Tensor that requires grad is being used in an in-place operation."
    for change in (lambda: x.add_(1), lambda: x[0].add_(1), lambda: x.__setitem__(0, 1.0)):
        with pytest.raises(RuntimeError, match=message):
            change()
    with flow.no_grad():
        x.add_(1)
    assert x.tolist() == [2, 3] and x.is_leaf


def test_in_place_through_views_has_the_gradient_of_the_functional_program() -> None:
    x = leaf(1, 2, 3)
    y = x * 2
    y[0] = y[1] * 3
    y.add_(1)
    y[1:].mul_(y[:2].clone())
    y.sum().backward()
    # y = [6b+1, (2b+1)(6b+1), (2c+1)(2b+1)]
    b, c = 2.0, 3.0
    assert x.grad is not None
    np.testing.assert_allclose(
        x.grad.numpy(), [0, 6 + 24 * b + 8 + 2 * (2 * c + 1), 2 * (2 * b + 1)]
    )


def test_a_saved_tensor_that_was_written_to_is_found_out() -> None:
    x, w = leaf(1), leaf(2)
    y = x * 2
    z = y * w
    y.add_(1)
    with pytest.raises(AutogradError, match="modified by an inplace operation"):
        z.backward()


def test_function_with_its_own_backward() -> None:
    class Cube(flow.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, scale: float) -> Any:
            ctx.save_for_backward(x)
            ctx.scale = scale
            return x * x * x * scale

        @staticmethod
        def backward(ctx: Any, d: Any) -> Any:
            (x,) = ctx.saved_tensors
            return d * 3 * x * x * ctx.scale, None

    x = leaf(2)
    Cube.apply(x, 2.0).backward()
    assert x.grad is not None and x.grad.tolist() == [24]


@pytest.mark.parametrize("way", ["plain", "values", "parts", "checkpoint"])
def test_second_derivatives_pass_what_was_saved_through_hooks(way: str) -> None:
    found = []
    for lib in (torch, flow):
        x, w = (lib.tensor(v, requires_grad=True) for v in ([0.3, 0.7], [2.0, 3.0]))

        def function(x: Any, w: Any = w, lib: Any = lib) -> Any:
            return lib.tanh(x * w) * (x * x).exp() * w

        hooks = {
            "plain": (lambda t: t, lambda t: t),
            "values": (lambda t: t.detach().numpy().copy(), lib.tensor),
            "parts": (lambda t: t.detach(), lambda t: t),
        }
        if way in hooks:
            with lib.autograd.graph.saved_tensors_hooks(*hooks[way]):
                y = function(x)
        else:
            y = lib.utils.checkpoint.checkpoint(function, x, use_reentrant=False)
        (g,) = lib.autograd.grad(y.sum(), x, create_graph=True)
        (g**2).sum().backward()
        found.append([*x.grad.tolist(), *w.grad.tolist()])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_saved_tensors_hooks() -> None:
    x, log = leaf(3), []

    def pack(t: Any) -> Any:
        log.append("pack")
        return t.detach().numpy().copy()

    with flow.autograd.graph.saved_tensors_hooks(pack, flow.from_numpy):
        y = x * x
    y.backward()
    assert x.grad is not None and x.grad.tolist() == [6] and log


@pytest.mark.parametrize("lib", [flow, torch])
def test_the_last_operand_is_packed_first(lib: Any) -> None:
    x, y = lib.ones(2, 2).requires_grad_(), lib.zeros(2, 2).requires_grad_()
    for call in (lambda: x * y, lambda: x @ y):
        sums: list[float] = []

        def pack(t: Any, sums: list[float] = sums) -> Any:
            sums.append(t.sum().item())
            return t

        with lib.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            made = call()
        made.sum().backward()
        assert sums == [0.0, 4.0]


def test_jacobian_hessian_and_products() -> None:
    x = leaf(1, 2)
    f = flow.autograd.functional
    assert f.jacobian(lambda v: v * v, x).tolist() == [[2, 0], [0, 4]]
    assert f.hessian(lambda v: (v**3).sum(), x).tolist() == [[6, 0], [0, 12]]
    ones = flow.ones(2, dtype=flow.float64)
    assert f.vjp(lambda v: v * v, x, ones)[1].tolist() == [2, 4]
    assert f.jvp(lambda v: v * v, x, ones)[1].tolist() == [2, 4]
    assert f.hvp(lambda v: (v**3).sum(), x, ones)[1].tolist() == [6, 12]


def test_the_graph_is_freed_without_the_collector() -> None:
    gc.disable()
    try:
        y = (leaf(1, 2) * 2).exp()
        watch = weakref.ref(y.grad_fn)
        del y
        assert watch() is None
    finally:
        gc.enable()


def test_batched_gradients_need_batches_of_one_size() -> None:
    x = flow.ones(2, requires_grad=True)
    y = x * 3
    (found,) = flow.autograd.grad([y], [x], flow.eye(2), is_grads_batched=True)
    assert found.tolist() == [[3, 0], [0, 3]]
    with pytest.raises(AutogradError, match="as the batch dimension"):
        flow.autograd.grad([y], [x], is_grads_batched=True)


@pytest.mark.parametrize(
    ("compute", "first", "second"),
    [
        (lambda m, x, y: x**y, [0.0, 0.0, 0.0, 2.0], [-1.0, 2.0, 0.0, 3.0]),
        (lambda m, x, y: 0.0**y + x, [1.0, 1.0, 1.0], [-1.0, 0.0, 2.0]),
        (lambda m, x, y: m.atan2(x, y), [0.0, 0.0, 1.0], [0.0, -0.0, 2.0]),
        (lambda m, x, y: m.maximum(x, y), [1.0, np.nan, 3.0, 2.0], [1.0, 2.0, np.nan, 1.0]),
    ],
    ids=["powers of zero", "zero to a power", "angle of the origin", "larger of ties and NaN"],
)
def test_gradients_where_formulas_divide_zero_by_zero_are_pytorchs(
    compute: Any, first: list[float], second: list[float]
) -> None:
    found = []
    for library in (flow, torch):
        x, y = (library.tensor(v, requires_grad=True) for v in (first, second))
        compute(library, x, y).sum().backward()
        found.append([x.grad.numpy(), y.grad.numpy()])
    np.testing.assert_array_equal(*found)
