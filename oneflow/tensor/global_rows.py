"""Ops that move rows between ranks (boxing/rows.py), eagerly."""

from __future__ import annotations

from collections.abc import Sequence

from oneflow.boxing.boxes import local_type
from oneflow.boxing.row_moves import exchange_rows
from oneflow.core.operand import Attrs
from oneflow.core.placement import Placement
from oneflow.core.sbp import Split
from oneflow.core.tensor_type import TensorType
from oneflow.distributed.world import world
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.exchange_rows import row_list

Types = tuple[TensorType, ...]


class BoundRows:
    """An exchange as one rank of the placement makes it. what: says of the op all that ranks must
    agree on."""

    def __init__(
        self, types: Types, out_types: Types, attrs: Attrs, placement: Placement, what: str
    ) -> None:
        self._kind = placement.type
        self._ranks = placement.rank_ids
        self._lead, self._is_padded = attrs["lead"], attrs["is_padded"]
        self._what = f"{what} on {placement.notation}"
        nd_sbp = (Split(0),) * placement.ndim
        rank = world().rank
        self._made = [local_type(t, nd_sbp, placement, rank) for t in out_types]

    def run(self, shards: Sequence[Array], xp: ArrayModule) -> list[Array]:
        """This rank's part of the results. All ranks of the placement must call it."""
        here = world()
        outs = [xp.empty(t.shape, t.dtype.np) for t in self._made]
        exchange_rows(
            here.collectives_on(self._kind, self._ranks),
            xp,
            xp.ascontiguousarray(shards[0]),
            [row_list(xp.ascontiguousarray(x), self._lead) for x in shards[1:]],
            outs[0],
            [row_list(x, self._lead) for x in outs[1:]],
            is_padded=self._is_padded,
            what=self._what,
        )
        return outs
