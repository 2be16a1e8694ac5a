"""Processes that hold tokens leave no image of their memory behind."""

from __future__ import annotations

import resource
from contextlib import suppress


def forbid_core_dumps() -> None:
    """Forbid core dumps of this process and of its children; those may ask for one again."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, most))
