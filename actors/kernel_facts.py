"""Facts of each kernel that a segment calls, for profiles: its ops, shapes, work, module and line.

One kernel may compute several ops, and several kernels one op. The time of a kernel is shared among
its ops by the bytes that each would read and write if it ran alone; an op that is computed by
several kernels is called in the first of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from oneflow.actors.fusing import members_of, sum_of
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
    begun: set[int] = set()
    last = None
    for bound in nodes:
        yield _copy(bound) if bound is last else _kernel(bound, begun)
        last = bound


def _kernel(bound: BoundNode, begun: set[int]) -> tuple[str, dict[str, Any]]:
    """begun: ids of the ops of which a kernel computed a part."""
    members = members_of(bound)
    works = [_work(member.call) for member in members]
    whole = _work(bound.call)
    alone = sum(w.nbytes for w in works)
    parts = []
    for member, work in zip(members, works, strict=True):
        share = work.nbytes / alone if alone else 1 / len(members)
        is_first = member.part_of is None or id(member.part_of) not in begun
        begun.add(id(member.part_of))
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
    name = sum_of([_name(member) for member in members])
    facts = {"shapes": _shapes(bound.call), "bytes": whole.nbytes}
    return name, facts | (parts[0] if len(parts) == 1 else {"parts": parts})


def _copy(bound: BoundNode) -> tuple[str, dict[str, Any]]:
    (type_, *_), node = bound.call.out_types, bound.node
    return "copy", {
        "shapes": str(type_), "bytes": 2 * type_.nbytes, "op": "copy", "module": node.module,
        "line": node.location, "share": 1.0, "calls": 1, "flops": 0,
    }  # fmt: skip


def _name(bound: BoundNode) -> str:
    return bound.node.op if bound.part_of is None else f"{bound.part_of.op}.{bound.node.op}"


def _work(call: BoundOp) -> Work:
    return work_of(call.op, call.in_types, call.out_types, call.attrs)


def _shapes(call: BoundOp) -> str:
    """`float32[2, 3], float32[3] -> float32[2, 3]`."""
    return f"{_listed(call.in_types)} -> {_listed(call.out_types)}"


def _listed(types: Sequence[TensorType]) -> str:
    rest = len(types) - MOST_SHAPES
    more = [f"and {rest} more"] if rest > 0 else []
    return ", ".join([*map(str, types[:MOST_SHAPES]), *more])
