"""Calls of one formula in one launch: which are joined, and where they run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.actors.batching import batch
from oneflow.actors.random_rows import random_rows
from oneflow.actors.segment import Segment
from oneflow.core.actor_kinds import ActorKind
from oneflow.core.dtype import float32, float64
from oneflow.core.op import find_op
from oneflow.core.plan import Plan
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.expressions.binding import numpy_kernel
from oneflow.kernels.expressions.cuda_form import ManyKernel
from oneflow.kernels.expressions.formula import Formula
from oneflow.kernels.hardware import hardware_for

F = flow.nn.functional


class Train(flow.nn.Graph):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        flow.manual_seed(0)
        self.model = flow.nn.Sequential(flow.nn.Linear(6, 5), flow.nn.Tanh(), flow.nn.Linear(5, 3))
        self.add_optimizer(flow.optim.AdamW(self.model.parameters(), lr=1e-2))

    def build(self, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


@pytest.fixture(scope="module")
def trained() -> Iterator[tuple[Plan, list[Any]]]:
    graph = Train()
    x = flow.tensor(np.random.default_rng(0).standard_normal((4, 6)), dtype=flow.float32)
    graph(x, flow.tensor([0, 1, 2, 0]))
    plan = graph._spec.plans.now.job.bound.plan
    yield plan, [graph]


def segment_of(plan: Plan) -> Segment:
    (spec,) = [a for a in plan.actors if a.kind is ActorKind.SEGMENT]
    published = frozenset(v.id for r in spec.outputs for v in r.values)
    return Segment(spec.nodes, 0, hardware_for("cpu", 0), published, random_rows(plan.graph))


def test_all_updates_of_an_optimizer_are_one_call(trained: tuple[Plan, list[Any]]) -> None:
    nodes = segment_of(trained[0]).nodes
    made, facts = batch(nodes, "cpu")
    ops = [bound.node.op for bound in made]
    assert ops.count("4 x adam_update") == 1 and "adam_update" not in ops
    assert [f.ops for f in facts] == [("adam_update",) * 4]
    (update,) = [bound for bound in made if bound.node.op == "4 x adam_update"]
    single = [bound for bound in nodes if bound.node.op == "adam_update"]
    assert update.node.inputs == [v for bound in single for v in bound.node.inputs]
    assert update.node.outputs == [v for bound in single for v in bound.node.outputs]
    for k, i in update.call.op.mutates.items():
        assert update.node.outputs[k].type == update.node.inputs[i].type
    made_before = {v.id for b in made[: made.index(update)] for v in b.node.outputs}
    gradients = update.node.inputs[1 :: len(single[0].node.inputs)]
    assert {g.id for g in gradients} <= made_before


def test_a_batch_writes_what_its_calls_write_one_by_one() -> None:
    op, rng = find_op("adam_update"), np.random.default_rng(1)
    shapes = ((3, 4), (7,))
    types = [
        (*(TensorType(s, float32),) * 4, TensorType((), float64), TensorType((), flow.int64))
        for s in shapes
    ]
    calls = [numpy_kernel(op, t, {}) for t in types]
    lr, step = np.array(0.1), np.array(3)
    work = [[rng.random(s).astype(np.float32) for _ in range(4)] for s in shapes]
    # With a gap in one gradient: such calls run one by one, on whatever device.
    work[0][1] = np.asfortranarray(work[0][1])
    single = [[a.copy() for a in arrays] for arrays in work]

    def outs(arrays: list[Any]) -> list[Any]:
        return [arrays[0], arrays[2], arrays[3]]

    roomy = [_with_room(c, s) for c, s in zip(calls, shapes, strict=True)]
    kernel = ManyKernel(Formula(op, types[0], {}), roomy)
    kernel(np, *outs(work[0]), *outs(work[1]), *work[0], lr, step, *work[1], lr, step)
    for call, arrays in zip(roomy, single, strict=True):
        call(np, *outs(arrays), *arrays, lr, step)
    for arrays, expected in zip(work, single, strict=True):
        for a, b in zip(arrays, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def _with_room(kernel: Any, shape: tuple[int, ...]) -> Any:
    """A NumPy kernel with its workspace."""
    room = [np.empty(shape, np.float32) for _ in range(8)]
    count = kernel.__code__.co_argcount - 1 - 9
    return lambda xp, *arrays: kernel(xp, *arrays, *room[:count])
