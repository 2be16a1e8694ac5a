"""The part that each op plays in mixed precision: declared or derived, and kept to by graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.dtype import bfloat16, float32
from oneflow.core.expression import (
    Expression,
    absolute,
    apply,
    exp,
    log,
    maximum,
    symbols,
    tanh,
    where,
)
from oneflow.core.op import REGISTRY, Op, find_op, infer_types
from oneflow.core.precision import of_expression, precision_of
from oneflow.core.tensor_type import TensorType
from oneflow.ops.unary import amp_white_identity
from tests.unit.graph.spread import lowered

from .numpy_mode import type_of
from .sample import Sample
from .samples import SAMPLES


def types_of(sample: Sample) -> tuple[TensorType, ...]:
    return tuple(type_of(x) for x in sample.inputs_as(np.float32))


def attrs_of(sample: Sample) -> dict[str, Any]:
    return find_op(sample.op).defaults | sample.attrs


def makes_floats(sample: Sample) -> bool:
    """Whether floats come in and go out."""
    made = infer_types(find_op(sample.op), types_of(sample), attrs_of(sample))
    given = types_of(sample)
    return all(any(t.dtype.is_floating_point for t in side) for side in (given, made))


def is_internal(op: type[Op]) -> bool:
    """Whether only backward passes, updates, tables of rows and the compiler call it."""
    gradients = "_grad" in op.name and op.precision is None
    made = op.name.startswith(("one_embedding", "fused")) or op.name.endswith("_step")
    return bool(op.mutates) or gradients or made or op.name == "product"


FORWARD = {s.op: s for s in reversed(SAMPLES) if not is_internal(find_op(s.op)) and makes_floats(s)}
"""One sample of each op of the forward pass."""
READS_ANY = ("amp_white_identity", "cast", "batch_sums", "depend")
"""Ops that the graph's own casts are, or whose operands may be of both precisions."""


@pytest.mark.parametrize("name", FORWARD)
def test_an_op_without_a_formula_says_its_precision(name: str) -> None:
    op = REGISTRY[name]
    follows = op.formula is not None or op.is_view or op.parts is not None
    assert op.precision is not None or follows, f"say `precision` in the declaration of {name}"


class Between(nn.Graph):
    """An op between two that lower."""

    def __init__(self, sample: Sample) -> None:
        super().__init__()
        self.sample = sample
        self.config.enable_amp(True, dtype=bfloat16)

    def build(self, *inputs: Any) -> Any:
        floats = [amp_white_identity(x) if x.dtype is float32 else x for x in inputs]
        made = find_op(self.sample.op)(*floats, **self.sample.attrs)
        outputs = made if isinstance(made, tuple) else (made,)
        return tuple(amp_white_identity(y) if y.dtype is float32 else y for y in outputs)


@pytest.mark.parametrize("name", FORWARD)
def test_graphs_run_each_op_in_the_precision_that_it_says(name: str) -> None:
    sample = FORWARD[name]
    op = find_op(name)
    graph = Between(sample)
    given = tuple(flow.tensor(x) for x in sample.inputs_as(np.float32))
    traced = lowered(graph, (given, {}))
    part = precision_of(op, types_of(sample), attrs_of(sample))
    found = [n for n in traced if n.op == name and n.location]
    for node in found[:1] if name not in READS_ANY else []:
        kinds = {
            v.type.dtype
            for i, v in enumerate(node.inputs)
            if v.type.dtype.is_floating_point and i not in op.stays_wide
        }
        assert kinds == {float32 if part == "keep" else bfloat16}
    assert found
    if not op.is_random:  # a graph's generators draw for it, not the seed of a sample
        assert all(y.dtype is not bfloat16 for y in graph(*given))


X, Y = symbols("x y")


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        (tanh(X / 30.0) * 30.0, "follow"),
        (tanh(exp(X)), "follow"),
        (X * apply("sigmoid", X), "follow"),
        (exp(X * 2.0) - 1.0, "keep"),
        (log(1.0 + absolute(X)), "keep"),
        (where(X > 0, X, exp(X) - 1.0), "keep"),
        (where(exp(X) > 2.0, X, 0.0), "either"),
        (maximum(X, 0.0), "either"),
        (maximum(X, Y), "follow"),
        (-X, "follow"),
    ],
)
def test_formulas_tell_their_precision(root: Expression, expected: str) -> None:
    assert of_expression(root) == expected
