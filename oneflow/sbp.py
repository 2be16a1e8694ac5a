"""`flow.sbp`: split(dim), broadcast, partial_sum, and their class `sbp`."""

from __future__ import annotations

import warnings

from oneflow.core.errors import SbpError
from oneflow.core.sbp import BROADCAST as broadcast
from oneflow.core.sbp import PARTIAL as partial_sum
from oneflow.core.sbp import Sbp as sbp
from oneflow.core.sbp import split_of_user

__all__ = ["broadcast", "partial_sum", "sbp", "split"]


def split(dim: int | None = None, *, axis: int | None = None) -> sbp:
    """Each rank of the axis holds a balanced part of dim `dim`. Raises SbpError unless 0 <= dim <
    6.
    """
    if axis is not None:
        warnings.warn("sbp.split(axis=) is deprecated; use dim=", DeprecationWarning, stacklevel=2)
        dim = axis
    if dim is None:
        raise SbpError("sbp.split needs the dim to split, e.g. sbp.split(0)")
    return split_of_user(dim)
