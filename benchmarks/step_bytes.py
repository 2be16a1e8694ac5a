"""Bytes that the kernels of a training step read and write in a GPU's memory, and their least.

Moved: each launch reads its operands once and writes its results once; an op that needs a second
launch, as sums over rows do, reads for both; a workspace is written and read; a look-up reads the
rows that it finds. Views move nothing.

Least: the same of the step as traced, with fewer kernels than any library has. Products, attention,
convolutions, norms and other ops over rows, look-ups, pools and updates each read their operands
once, and write the results that others read; none has a workspace. All that goes element by
element, moves elements, or sums up values that a kernel has in hand anyway is done where its last
operand is made, and costs its other reads and writes. An op that needs a whole sum waits for it,
and reads its other operands again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from oneflow.actors.random_rows import random_rows
from oneflow.actors.segment import BoundNode, Segment
from oneflow.core.expression import leaves
from oneflow.core.plan import ActorKind
from oneflow.kernels.expressions.cuda_form import parts_of
from oneflow.kernels.expressions.formula import formula_of
from oneflow.ops.elementwise import INPUT

_READ_TWICE = {"attention_grad"}  # two launches: the gradient of queries, those of keys and values
_MOVES = {"reshape", "transpose", "expand", "concat", "slice", "slice_scatter", "cast", "full_like"}
_SUMS = {"reduce_sum", "reduce_mean", "sum_rows", "reduce_max"}


def step_bytes(graph: Any) -> tuple[int, int]:
    """Bytes that the kernels of a graph's segments move in a step, and the least of them. graph:
    one that has been called, on one rank.
    """
    job = graph._spec.plans.now.job
    segments = job.bound.memory.segments
    rows, total, bound = random_rows(job.bound.plan.graph), 0, 0
    for spec in job.bound.plan.actors:
        if spec.kind is not ActorKind.SEGMENT:
            continue
        published = frozenset(v.id for r in spec.outputs for v in r.values)
        hardware = segments[spec.id].hardware
        plain = Segment(spec.nodes, job.bound.rank, hardware, published, rows, fuses=False)
        total += spec.acts * moved(segments[spec.id])
        bound += spec.acts * least(plain)
    return total, bound


def moved(segment: Segment) -> int:
    """Bytes that the kernels of a segment move in one act."""
    views = segment.views
    return sum(_moved(b) for b in segment.nodes if not _is_view(b, views))


def _is_view(bound: BoundNode, views: set[int]) -> bool:
    return bool(bound.node.outputs) and bound.node.outputs[0].id in views


def _moved(bound: BoundNode) -> int:
    call = bound.call
    outs = sum(t.nbytes for t in call.out_types)
    if call.op.formula is None:
        times = 2 if bound.node.op in _READ_TWICE else 1
        return times * sum(_read(bound)) + outs + 2 * sum(t.nbytes for t in call.workspace)
    formula = formula_of(call.op, call.in_types, call.attrs)
    sizes = dict(zip(formula.arrays, formula.array_types, strict=True))
    for part in parts_of(formula):
        read = set(leaves(INPUT, *(formula.outputs[i] for i in part)))
        outs += sum(t.nbytes for name, t in sizes.items() if name in read)
    return outs


def _read(bound: BoundNode) -> Iterator[int]:
    """Bytes of each operand that an op reads."""
    call = bound.call
    for i, type_ in enumerate(call.in_types):
        is_table = bound.node.op == "gather" and i == 0
        yield min(type_.nbytes, call.out_types[0].nbytes) if is_table else type_.nbytes


def least(segment: Segment) -> int:
    """The least number of bytes, of a segment that was made without fusion."""
    return _Least(segment).nbytes()


class _Least:
    """Nodes in groups, each one kernel. A group is named by the position of its first node."""

    def __init__(self, segment: Segment) -> None:
        self._views, self._published = segment.views, segment.published
        self.nodes: Sequence[BoundNode] = segment.nodes
        self._roots: dict[int, int] = {}  # of views
        self._sizes: dict[int, int] = {}
        self._maker: dict[int, int] = {}  # group, by the root of a value
        self._late: dict[int, int] = {}  # value -> the group whose end it waits for
        self._group: list[int] = []
        for i, bound in enumerate(self.nodes):
            self._group.append(self._place(i, bound))

    # ---- groups ----------------------------------------------------------------------------------

    def _root(self, value: int) -> int:
        return self._roots.get(value, value)

    def _place(self, i: int, bound: BoundNode) -> int:
        node = bound.node
        if _is_view(bound, self._views):
            self._roots[node.outputs[0].id] = self._root(node.inputs[0].id)
            self._inherit(node.inputs[0].id, node.outputs[0].id)
            return self._maker.get(self._root(node.inputs[0].id), i)
        group = self._home(bound) if self._is_light(bound) else i
        group = i if group < 0 else group
        for value, type_ in zip(node.outputs, bound.call.out_types, strict=True):
            self._maker[value.id], self._sizes[value.id] = group, type_.nbytes
            if node.op in _SUMS:
                self._late[value.id] = group
            for read in node.inputs:
                if group == self._maker.get(self._root(read.id)):
                    self._inherit(read.id, value.id)
        return group

    def _inherit(self, read: int, made: int) -> None:
        if read in self._late:
            self._late[made] = self._late[read]

    def _is_light(self, bound: BoundNode) -> bool:
        op = bound.call.op
        if op.mutates or bound.node.op in _SUMS | _MOVES:
            return not op.mutates
        if op.formula is None:
            return False
        formula = formula_of(op, bound.call.in_types, bound.call.attrs)
        return not formula.is_row

    def _home(self, bound: BoundNode) -> int:
        """The last group that makes an operand of a node; -1: none, or one whose end it waits
        for.
        """
        found = -1
        for value in bound.node.inputs:
            group = self._maker.get(self._root(value.id), -1)
            if group > found:
                found = group
        for value in bound.node.inputs:
            if self._late.get(value.id, -1) == found:
                return -1
        return found

    # ---- bytes -----------------------------------------------------------------------------------

    def nbytes(self) -> int:
        reads: dict[tuple[int, int], dict[int, int]] = {}  # (group, memory) -> bytes by view
        written: set[int] = set()
        total = 0
        for i, bound in enumerate(self.nodes):
            if _is_view(bound, self._views):
                continue
            for value, size in zip(bound.node.inputs, _read(bound), strict=True):
                root = self._root(value.id)
                if self._maker.get(root) == self._group[i]:
                    continue
                reads.setdefault((self._group[i], root), {})[value.id] = size
                if root in self._maker:
                    written.add(root)
            for k, value in enumerate(bound.node.outputs):
                if value.id in self._published or k in bound.call.op.mutates:
                    written.add(value.id)
        for (_, root), parts in reads.items():
            total += min(sum(parts.values()), self._sizes.get(root, sum(parts.values())))
        return total + sum(self._sizes[root] for root in written)
