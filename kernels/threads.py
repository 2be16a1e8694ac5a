"""The number of threads that the compiled kernels of this process may use."""

from __future__ import annotations

_limit: int | None = None


def set_limit(count: int) -> None:
    """Use at most `count` threads from now on; at least 1."""
    global _limit
    _limit = count


def allowed(available: int) -> int:
    """Threads for a large loop on a machine with `available`."""
    return available if _limit is None else min(available, _limit)
