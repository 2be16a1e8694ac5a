"""Gradients that are replayed are those of the plain way, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.autograd import engine, replay
from oneflow.core.dispatch import call
from oneflow.core.op import find_op
from oneflow.tensor.tape import OpNode
from tests.unit.ops.sample import Sample, named
from tests.unit.ops.samples import SAMPLES


def is_differentiable(sample: Sample) -> bool:
    op = find_op(sample.op)
    has_one = op.has_gradient and sample.wrt != () and not op.mutates
    return has_one and any(x.dtype == np.float64 for x in sample.inputs)


def gradients(sample: Sample) -> list[Any]:
    """Gradients of all floating-point outputs with regard to all floating-point inputs."""
    inputs = [flow.tensor(x) for x in sample.inputs_as(np.float32)]
    leaves = [
        x.requires_grad_()
        for i, x in enumerate(inputs)
        if x.dtype.is_floating_point and i not in sample.refused
    ]
    made = call(find_op(sample.op), *inputs, **sample.attrs)
    outs = [y for y in (made if isinstance(made, tuple) else (made,)) if y.requires_grad]
    if not outs:
        return []
    rng = np.random.default_rng(0)
    weights = [flow.tensor(rng.normal(size=y.shape).astype(y.dtype.np)) for y in outs]
    found = flow.autograd.grad(outs, leaves, weights, allow_unused=True)
    return [None if g is None else g.detach().numpy() for g in found]


@pytest.mark.parametrize("sample", named(s for s in SAMPLES if is_differentiable(s)))
def test_a_gradient_that_is_replayed_is_the_plain_one(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setattr(engine, "replay", lambda *_: None)
        plain = gradients(sample)
    for _ in range(3):  # plain; sketched; from the sketch
        for wanted, got in zip(plain, gradients(sample), strict=True):
            assert (wanted is None) == (got is None)
            if wanted is not None:
                assert got.dtype == wanted.dtype
                np.testing.assert_array_equal(got, wanted)


def sketched(x: Any) -> bool:
    """Whether the last call that made `x` has a program."""
    node: OpNode = x.grad_fn
    return any(p.call is node.call and p.function for p in replay._programs.values())


def test_the_second_pass_makes_the_sketch_and_further_ones_use_it() -> None:
    x = flow.randn(3, 17, requires_grad=True)
    seen = []
    for _ in range(3):
        y = flow.tanh(x)
        y.sum().backward()
        seen.append(sketched(y))
    assert seen == [False, True, True]
    np.testing.assert_allclose(x.grad.numpy(), 3 * (1 - np.tanh(x.numpy()) ** 2), rtol=1e-5)


def test_a_tensor_that_was_overwritten_is_still_an_error() -> None:
    def passes(overwrites: bool) -> None:
        x = flow.ones(2, 19, requires_grad=True)
        y = flow.exp(x * 1.0)
        if overwrites:
            with flow.no_grad():
                y.add_(1.0)
        y.sum().backward()

    for _ in range(3):
        passes(overwrites=False)
    with pytest.raises(flow.core.errors.AutogradError, match="modified"):
        passes(overwrites=True)


def test_saved_tensor_hooks_are_asked() -> None:
    asked = []

    def passes() -> Any:
        x = flow.ones(2, 23, requires_grad=True)
        flow.exp(x).sum().backward()
        return x.grad.numpy()

    for _ in range(3):
        passes()
    with flow.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: asked.append(x) or x * 2):
        found = passes()
    assert asked
    np.testing.assert_allclose(found, np.full((2, 23), 2 * np.e), rtol=1e-6)


def test_gradients_of_gradients_take_the_plain_way() -> None:
    for _ in range(3):
        x = flow.tensor([2.0, 3.0, 5.0, 7.0, 11.0], requires_grad=True)
        (first,) = flow.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = flow.autograd.grad(first.sum(), x)
        np.testing.assert_allclose(second.numpy(), 6 * x.detach().numpy(), rtol=1e-6)


def test_each_draw_has_a_gradient_of_its_own() -> None:
    drop = flow.nn.Dropout(0.5)
    for _ in range(4):
        x = flow.ones(8, 29, requires_grad=True)
        y = drop(x)
        y.sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), y.detach().numpy())
