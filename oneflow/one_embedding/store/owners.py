"""The ranks that ids belong to: a hash of id and table names one of BUCKETS, which ranks share
evenly and in order.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from oneflow.ops.one_embedding import BUCKETS

Array: TypeAlias = "np.ndarray[Any, Any]"

_TABLE = np.uint64(0x9E3779B97F4A7C15)
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_HALF = np.uint64(32)


def owners_of(keys: Array, tables: Array, num_ranks: int) -> Array:
    """int64[n], the rank of each id.

    keys: uint64[n].  tables: integers[n].  The hash ends as splitmix64 does (Steele, Lea and Flood,
    OOPSLA 2014), as the one that finds the distinct ids of a batch.
    """
    x = keys ^ (tables.astype(np.uint64) + np.uint64(1)) * _TABLE
    for shift, factor in _STEPS:
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x ^= x >> np.uint64(31)
    buckets = (x >> _HALF) * np.uint64(BUCKETS) >> _HALF
    owners: Array = buckets.astype(np.int64) * num_ranks // BUCKETS
    return owners
