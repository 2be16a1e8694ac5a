"""Rows that move between ranks by an all_to_all of uneven sizes (oneflow/ops/exchange_rows.py): the
layout, and its consequences for a plan.

Part i of the op is rank i of the placement. Only the ranks know the sizes, when they run; the
compiler knows that every rank may read of every other, and how much room there is. row_moves.py
moves them.
"""

from __future__ import annotations

from collections.abc import Sequence

from oneflow.core.graph import Node
from oneflow.core.op import Op
from oneflow.core.operand import Attrs
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp, Split
from oneflow.core.tensor_type import TensorType


def rows_layout(op: type[Op], attrs: Attrs, placement: Placement) -> NdSbp | None:
    """The layout of all tensors of an op that moves rows between these ranks; None for any other
    op, and for other numbers of ranks."""
    if not op.moves_rows or attrs["num_parts"] != placement.size or placement.size == 1:
        return None
    return (Split(0),) * placement.ndim


def has_rows_of_one_node(node: Node) -> bool:
    """Whether all that an exchange reads was made by one node for it alone, so that it lies in one
    register: far ranks send rows of which sizes beside them tell the number."""
    source = node.inputs[0].node
    return not source.is_structural and all(
        v.node is source and all(user is node for user in v.users) for v in node.inputs
    )


def likely_nbytes(types: Sequence[TensorType], placement: Placement) -> int:
    """Bytes that all ranks together read from others if parts are full and rows go anywhere; how
    many do is known only when they move. types: of the sizes and the tensors."""
    n = placement.size
    return sum(t.nbytes for t in types) * (n - 1) // n
