"""Facts of each kernel that a segment calls, for profiles: its ops, shapes, work, module and line.

One kernel may compute several ops, and several kernels one op. The time of a kernel is shared among
its ops by the bytes that each would read and write if it ran alone; an op that is computed by
several kernels is called in the first of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from oneflow.actors.fusing import kernel_name, members_of
from oneflow.boxing.bound_op import BoundOp
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.work import Work, work_of

if TYPE_CHECKING:
    from oneflow.actors.segment import BoundNode

MOST_SHAPES = 6
"""Operands of a kernel whose shapes are told; an update of all parameters has hundreds."""


def describe_kernels(nodes: Sequence[BoundNode]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and facts of the kernel of each call, as a trace file holds them. nodes: of the calls.

    A node that comes twice in a row is followed by the copy of its result to a register.
    """
    describing = _Describing()
    last = None
    for bound in nodes:
        yield _copy(bound) if bound is last else describing.kernel(bound)
        last = bound


class _Describing:
    """Kernels of one segment. Nodes of repeated blocks share their calls, and so the facts about
    them."""

    def __init__(self) -> None:
        self._works: dict[int, Work] = {}
        self._shapes: dict[int, str] = {}
        self._begun: set[int] = set()
        """The ops of which a kernel computed a part, by id of their nodes."""

    def kernel(self, bound: BoundNode) -> tuple[str, dict[str, Any]]:
        members = members_of(bound)
        works = [self._work(member.call) for member in members]
        alone = sum(w.nbytes for w in works)
        parts = []
        for member, work in zip(members, works, strict=True):
            share = work.nbytes / alone if alone else 1 / len(members)
            is_first = member.part_of is None or member.part_of.id not in self._begun
            if member.part_of is not None:
                self._begun.add(member.part_of.id)
            parts.append(
                {
                    "op": member.node.op if member.part_of is None else member.part_of.op,
                    "module": member.node.module,
                    "line": member.node.location,
                    "share": round(share, 6),
                    "calls": int(is_first),
                    "flops": work.flops,
                }
            )
        key = id(bound.call)
        if key not in self._shapes:
            self._shapes[key] = _shapes(bound.call)
        facts = {"shapes": self._shapes[key], "bytes": self._work(bound.call).nbytes}
        return kernel_name(bound), facts | (parts[0] if len(parts) == 1 else {"parts": parts})

    def _work(self, call: BoundOp) -> Work:
        work = self._works.get(id(call))
        if work is None:
            work = work_of(call.op, call.in_types, call.out_types, call.attrs)
            self._works[id(call)] = work
        return work


def _copy(bound: BoundNode) -> tuple[str, dict[str, Any]]:
    (type_, *_), node = bound.call.out_types, bound.node
    return "copy", {
        "shapes": str(type_), "bytes": 2 * type_.nbytes, "op": "copy", "module": node.module,
        "line": node.location, "share": 1.0, "calls": 1, "flops": 0,
    }  # fmt: skip


def _shapes(call: BoundOp) -> str:
    """`float32[2, 3], float32[3] -> float32[2, 3]`."""
    return f"{_listed(call.in_types)} -> {_listed(call.out_types)}"


def _listed(types: Sequence[TensorType]) -> str:
    rest = len(types) - MOST_SHAPES
    more = [f"and {rest} more"] if rest > 0 else []
    return ", ".join([*map(str, types[:MOST_SHAPES]), *more])
