"""`flow.remat`: a budget of memory for tensors on the device "cpu+remat".

    flow.remat.set_budget("500MB")
    model, x = model.to("cpu+remat"), x.to("cpu+remat")

Results of ops on such tensors are dropped when memory beyond the budget would be taken, and
computed again when they are read (kernels/remat_memory.py says which and how). Parameters, and
results of which a part was written in place, are never dropped. With ONEFLOW_DEBUG_MODE the counts
are printed at exit.
"""

from __future__ import annotations

import atexit
import re

from oneflow.core.config import current_config
from oneflow.core.errors import ArgumentError
from oneflow.kernels.remat_array import RematArray
from oneflow.kernels.remat_memory import MEMORY
from oneflow.tensor.tensor import Tensor

__all__ = [
    "get_budget",
    "is_small_pieces_optimization_enabled",
    "parse_size",
    "set_budget",
    "set_small_pieces_optimization",
]

UNITS = {"b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40}


def parse_size(size: str) -> int:
    """Return the number of bytes of a text such as "500MB" or "1.5 GB". Raises ValueError."""
    found = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?b?)\s*", str(size).lower())
    unit = found[2] if found else ""
    if found is None or (unit and f"{unit.removesuffix('b')}b" not in UNITS):
        raise ValueError(f'a size looks like "500MB" or "1.5 GB", got {size!r}')
    return int(float(found[1]) * UNITS[f"{unit.removesuffix('b')}b"])


def set_budget(budget: str) -> None:
    """Limit the memory of tensors on "cpu+remat", e.g. to "500MB"; "0" lifts the limit.

    Tensors that cannot be dropped are kept beyond the budget, with a warning. Raises ValueError.
    """
    MEMORY.budget = parse_size(budget)
    MEMORY.make_room(0)


def get_budget() -> int:
    """Return the budget in bytes; 0: none was set."""
    return MEMORY.budget


def set_small_pieces_optimization(enabled: bool = True) -> None:
    """Keep results of less than 64 KiB, which are rarely worth computing again (the default)."""
    MEMORY.drops_small = not enabled


def is_small_pieces_optimization_enabled() -> bool:
    """Return whether results of less than 64 KiB are kept."""
    return not MEMORY.drops_small


# ---- `flow._oneflow_internal.remat`: state and counts, as upstream's tests read them -----------


def _array(x: Tensor) -> RematArray:
    array = x._array
    if not isinstance(array, RematArray):
        raise ArgumentError(f"remat: {x.meta} is on {x.device}, not on cpu+remat")
    return array


def evict(x: Tensor) -> None:
    """Drop the values of a tensor, unless they are in use or cannot be made again."""
    storage = _array(x).storage
    with MEMORY.lock:
        if storage.can_drop:
            storage.drop()


def is_in_memory(x: Tensor) -> bool:
    """Return whether the values are there."""
    return _array(x).storage.is_present


def disable_eviction(x: Tensor) -> None:
    """Never drop the values of this tensor."""
    _array(x).read()
    _array(x).storage.is_kept = True


def allocated_memory(device: str) -> int:
    """Return the bytes of the tensors that are in memory. device: its type, "cpu"."""
    return MEMORY.allocated if device.startswith("cpu") else 0


def display(device: str) -> None:
    """Print the tensors in memory, largest first."""
    if device.startswith("cpu"):
        for one in sorted(MEMORY.storages, key=lambda s: -s.nbytes):
            state = "in memory" if one.is_present else "dropped"
            print(f"{one.nbytes:12,} bytes, {state}, {one.arrays} arrays, last used {one.used_at}")


def clear_stats() -> None:
    """Begin to count evictions and recomputations anew."""
    MEMORY.clear_stats()


def recomputation_num() -> int:
    """Return how many kernel calls were made again."""
    return MEMORY.recomputation_num


def forced_eviction_num() -> int:
    """Return how many results were dropped to make room."""
    return MEMORY.forced_eviction_num


def eager_eviction_num() -> int:
    """Return how many results were dropped when a program had no name for them any more."""
    return MEMORY.eager_eviction_num


def _tell() -> None:
    print(
        f"forced eviction num: {MEMORY.forced_eviction_num}\n"
        f"eager eviction num: {MEMORY.eager_eviction_num}\n"
        f"recomputation num: {MEMORY.recomputation_num}\n"
        f"duration: {MEMORY.recomputation_seconds:.3f} s"
    )


if current_config().debug:
    atexit.register(_tell)
