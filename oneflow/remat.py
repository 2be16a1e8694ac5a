"""`flow.remat`: upstream computes tensors again when a budget of memory is used up. Nothing is
dropped and computed again here, so a budget changes nothing; `flow.utils.checkpoint` recomputes
what a script chooses.
"""

from __future__ import annotations

import re

from oneflow.core.no_effect import without_effect

__all__ = [
    "get_budget",
    "is_small_pieces_optimization_enabled",
    "parse_size",
    "set_budget",
    "set_small_pieces_optimization",
]

UNITS = {"b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40}
REASON = "tensors are kept, not computed again; see flow.utils.checkpoint"

_budget = 0


def parse_size(size: str) -> int:
    """Number of bytes of a text such as "500MB" or "1.5 GB". Raises ValueError."""
    found = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?b?)\s*", size.lower())
    unit = found[2] if found else ""
    if found is None or (unit and f"{unit.removesuffix('b')}b" not in UNITS):
        raise ValueError(f'a size looks like "500MB" or "1.5 GB", got {size!r}')
    return int(float(found[1]) * UNITS[f"{unit.removesuffix('b')}b"])


def set_budget(budget: str) -> None:
    """Remember a budget and warn once that it limits nothing."""
    global _budget
    _budget = parse_size(budget)
    without_effect("remat.set_budget", REASON)


def get_budget() -> int:
    """The budget that was set, in bytes; 0 before."""
    return _budget


def set_small_pieces_optimization(enabled: bool = True) -> None:
    """Warn once: there is nothing to optimize."""
    if enabled:
        without_effect("remat.set_small_pieces_optimization", REASON)


def is_small_pieces_optimization_enabled() -> bool:
    """False: there is nothing to optimize."""
    return False
