"""Compilation by numba whose machine code is kept on disk where there is a place for it.

The first call imports numba, which takes a moment: modules that call it as they are imported are
imported where they are needed only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oneflow.core.log import get_logger

_log = get_logger(__name__)


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """`function` compiled on its first call. Where neither the folder of its source nor the user's
    cache folder can be written (a container with a foreign user id, say), every process compiles
    anew; a folder in NUMBA_CACHE_DIR ends that.
    """
    from numba import njit

    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder for its cache
        _log.info("no folder for compiled kernels: set NUMBA_CACHE_DIR to one that can be written")
        return njit(**options)(function)
