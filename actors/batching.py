"""Calls of one formula in one: the updates of all parameters, and on a GPU, where they are one
launch, their casts, too.

A batch runs where its last call stood, under the rules by which ops join a kernel (fusing.py). All
gradients are then live at once, so a plan that saves memory for time makes no batches.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from oneflow.actors.fusing import Fact, Line, members_of
from oneflow.boxing.bound_op import BoundOp
from oneflow.core.graph import Node
from oneflow.core.op import Op
from oneflow.kernels.expressions.binding import ManyLoops, compiled_kernel, computes_half
from oneflow.kernels.expressions.cuda_form import ManyKernel
from oneflow.kernels.expressions.formula import formula_of
from oneflow.kernels.registry import KernelFunction

if TYPE_CHECKING:
    from oneflow.actors.segment import BoundNode


@dataclass
class Batch:
    """Calls that share a launch.

    members: their positions.  until: where an input of theirs is overwritten.
    """

    until: int
    members: list[int] = field(default_factory=list)


def batch(nodes: list[BoundNode], device: str) -> tuple[list[BoundNode], list[Fact]]:
    """The nodes with batches in place of their calls, and which were made. First the updates: casts
    of gradients wait for them."""
    facts: list[Fact] = []
    for is_update in (True, False) if device != "cpu" else (True,):
        batching = _Batching(nodes, is_update, device)
        nodes = batching.result()
        facts += batching.facts
    return nodes, facts


class _Batching(Line):
    def __init__(self, nodes: list[BoundNode], is_update: bool, device: str) -> None:
        super().__init__(nodes)
        self._device = device
        self._batches: dict[int, Batch] = {}
        self.facts: list[Fact] = []
        open_: dict[Hashable, Batch] = {}
        for i, bound in enumerate(nodes):
            if bool(bound.call.op.mutates) is not is_update:
                continue
            key = _kind(bound, device)
            if key is None:
                continue
            found = open_.get(key)
            if found is None or found.until < i or self.reader_before(i, found.members, ()):
                found = open_[key] = Batch(len(nodes))
            found.members.append(i)
            found.until = min(found.until, self.until(i))
            self._batches[i] = found

    def result(self) -> list[BoundNode]:
        made: list[BoundNode] = []
        for i, bound in enumerate(self._nodes):
            found = self._batches.get(i)
            if found is None or len(found.members) == 1:
                made.append(bound)
            elif found.members[-1] == i:
                calls = [self._nodes[m] for m in found.members]
                made.append(_batched(calls, self._device))
                type_ = f"{sum(c.call.out_types[0].numel for c in calls)} elements"
                self.facts.append(Fact((bound.node.op,) * len(calls), type_, bound.node.location))
        return made


def _kind(bound: BoundNode, device: str) -> Hashable:
    """Equal for calls that may share a launch; None for those that share none."""
    call = bound.call
    if call.op.formula is None or not (call.op.mutates or call.op.name == "cast") or call.view:
        return None
    formula = formula_of(call.op, call.in_types, call.attrs)
    shape = call.out_types[0].shape
    arrays = (*formula.out_types, *formula.array_types)
    if formula.is_row or formula.draws or not formula.can_compile or not formula.arrays:
        return None
    if device == "cpu" and formula.has_half() and not computes_half():
        return None
    if any(t.shape != shape for t in arrays) or not call.out_types[0].numel:
        return None
    fed = tuple(bound.node.inputs[i].id for i in formula.fed.values())
    dtypes = tuple(t.dtype for t in call.in_types), tuple(t.dtype for t in call.out_types)
    return call.op, bound.node.kind_key, dtypes, fed


@lru_cache(64)
def _op_of_many(op: type[Op], calls: int, inputs: int) -> type[Op]:
    """`op` as one that takes the operands of several calls, one after another."""
    outs = op.num_outputs
    mutates = {c * outs + k: c * inputs + i for c in range(calls) for k, i in op.mutates.items()}
    members = {"name": f"{calls} x {op.name}", "mutates": mutates, "formula": None}
    return type(f"Many{op.__name__}", (op,), members)


def _batched(calls: Sequence[BoundNode], device: str) -> BoundNode:
    last = calls[-1]
    own = last.call
    formula = formula_of(own.op, own.in_types, own.attrs)
    op = _op_of_many(own.op, len(calls), len(own.in_types))
    types = tuple(t for c in calls for t in c.call.in_types)
    outs = tuple(t for c in calls for t in c.call.out_types)
    function: KernelFunction
    if device == "cpu":
        bound = [compiled_kernel(c.call.op, c.call.in_types, c.call.attrs) for c in calls]
        function = ManyLoops(formula, bound)
    else:
        function = ManyKernel(formula, [c.call.function for c in calls])
    call: BoundOp = replace(
        own,
        op=op,
        in_types=types,
        out_types=outs,
        workspace=(),
        work=(),
        outs=tuple((t.shape, t.dtype.np) for t in outs),
        out_boxes=tuple(box for c in calls for box in c.call.out_boxes),
        function=function,
        keywords={},
    )
    node = Node(last.node.id, op.name, last.node.placement, last.node.attrs)
    node.inputs = [v for c in calls for v in c.node.inputs]
    node.outputs = [v for c in calls for v in c.node.outputs]
    node.stand_for(last.node)
    members = tuple(member for c in calls for member in members_of(c))
    return replace(last, node=node, call=call, view=None, members=members)
