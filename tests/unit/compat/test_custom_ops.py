"""Ops that programs register with torch.library: values and gradients beside PyTorch's."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow

LIBRARIES = {"oneflow": flow, "torch": torch}


def library_of(name: str) -> Any:
    return importlib.import_module(f"{name}.library")


def ops_of(name: str) -> Any:
    return (
        torch.ops if name == "torch" else importlib.import_module("oneflow.compat.torch.libraries")
    )


def both(run: Any, what: str) -> None:
    """Compare the lists of numbers that a function of (library's name, torch) returns."""
    ours, theirs = (run(name, module) for name, module in LIBRARIES.items())
    assert ours == theirs, what


def test_an_op_without_a_gradient_has_that_of_its_body() -> None:
    @library_of("oneflow").custom_op("c1::double", mutates_args=())
    def double(x: flow.Tensor) -> flow.Tensor:
        return 2 * x

    @double.register_fake
    def _(x: flow.Tensor) -> flow.Tensor:
        return x

    x = flow.tensor([1.0, 2.0], requires_grad=True)
    double(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 2.0]


def test_a_registered_gradient_is_used() -> None:
    """One that the body has not: the slope of a rounding is 1, and three times that."""

    def run(name: str, lib: Any) -> list[Any]:
        def body(x: lib.Tensor, scale: float) -> lib.Tensor:
            assert not lib.is_grad_enabled()
            out = lib.zeros_like(x)
            lib.mul(x.round(), scale, out=out)  # an `out=` that autograd would refuse
            return out

        rounded = library_of(name).custom_op(
            "c2::rounded", body, mutates_args=(), schema="(Tensor x, float scale) -> Tensor"
        )

        def setup(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.scale = inputs[1]
            ctx.save_for_backward(inputs[0])

        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grad * ctx.scale * x, None

        rounded.register_autograd(backward, setup_context=setup)
        x = lib.tensor([1.2, 2.7], dtype=lib.float64, requires_grad=True)
        out = ops_of(name).c2.rounded(x, scale=3.0)
        out.sum().backward()
        return [out.tolist(), x.grad.tolist()]

    both(run, "scaled roundings")


def test_a_library_takes_gradients_by_name() -> None:
    def run(name: str, lib: Any) -> list[Any]:
        made = library_of(name).Library("c3", "DEF")
        made.define("joined(Tensor[] xs, *, float by) -> Tensor")

        def joined(xs: list[Any], *, by: float) -> Any:
            return lib.cat(list(xs)) * by

        made.impl("joined", joined, "CompositeExplicitAutograd")

        def setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
            ctx.sizes, ctx.by = [len(x) for x in inputs[0]], keyword_only_inputs["by"]

        def backward(ctx: Any, grad: Any) -> Any:
            return list((grad * ctx.by + 1).split(ctx.sizes))

        library_of(name).register_autograd("c3::joined", backward, setup_context=setup, lib=made)
        xs = [lib.ones(n, dtype=lib.float64, requires_grad=True) for n in (1, 2)]
        out = ops_of(name).c3.joined(xs, by=0.5)
        (out * lib.arange(3, dtype=lib.float64)).sum().backward()
        kept.append(made)
        return [out.tolist(), *(x.grad.tolist() for x in xs)]

    kept: list[Any] = []  # PyTorch's library ends with its object
    both(run, "joined lists")


def test_a_registered_gradient_is_traced(rng: np.random.Generator) -> None:
    library = library_of("oneflow")

    @library.custom_op("c4::cube", mutates_args=())
    def cube(x: flow.Tensor) -> flow.Tensor:
        return x * x * x

    cube.register_autograd(
        lambda ctx, grad: grad * 7 * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    start = rng.standard_normal(3).astype(np.float32)
    model = flow.nn.ParameterList([flow.tensor(start)])

    class Train(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))

        def build(self, x: flow.Tensor) -> flow.Tensor:
            loss = (cube(self.model[0]) * x).sum()
            loss.backward()
            return loss

    loss = Train()(flow.ones(3))
    assert loss.item() == pytest.approx((start.astype(np.float64) ** 3).sum(), rel=1e-5)
    np.testing.assert_allclose(model[0].numpy(), start - 0.1 * 7 * start, rtol=1e-5)
