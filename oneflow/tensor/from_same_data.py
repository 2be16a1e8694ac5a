"""Global tensors of data that every rank has whole, which is checked."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from oneflow.core.dtype import dtype_of
from oneflow.core.errors import DesyncError
from oneflow.core.location import user_location
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.core.tensor_type import TensorType
from oneflow.tensor import on_ranks
from oneflow.tensor.layout import check_layout
from oneflow.tensor.tensor import Tensor


def from_same_data(
    array: np.ndarray[Any, Any], placement: Placement, nd_sbp: NdSbp, who: str
) -> Tensor:
    """The global tensor of an array that every rank of the placement brings; each takes its part.
    Raises DesyncError on all of them if the arrays differ. who: for messages.
    """
    on_ranks.check_placement(placement)
    check_layout(TensorType(array.shape, dtype_of(array.dtype)), nd_sbp, who)
    _check(array, placement, who)
    return on_ranks.from_whole(array, placement, nd_sbp)


def _check(array: np.ndarray[Any, Any], placement: Placement, who: str) -> None:
    """Raises DesyncError on all ranks of the placement unless they bring the same data."""
    if placement.size == 1 or on_ranks.world().rank not in placement:
        return
    said = f"{array.dtype.name}{list(array.shape)} {_checksum(array):x}\n{user_location()}"
    here = on_ranks.world().collectives(placement.rank_ids)
    everyone = here.gather_bytes(said.encode(), f"{who} on {placement.notation}")
    (first, line), *others = (text.decode().split("\n") for text in everyone)
    for rank, (other, where) in zip(placement.rank_ids[1:], others, strict=True):
        if other != first:
            raise DesyncError(
                "Each rank must have same input sequence or numpy array, but what rank "
                f"{placement.rank_ids[0]} has (type and checksum: {first}; at {line}) is not what "
                f"rank {rank} has ({other}; at {where}). Make each rank's part global with "
                "to_global(placement, sbp) if they are meant to differ"
            )


def _checksum(array: np.ndarray[Any, Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
