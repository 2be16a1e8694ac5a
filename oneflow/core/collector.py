"""The collector of circles of objects, switched off where it would find nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_has_frozen = False
"""Whether frozen objects were ever seen: to count them takes 12 ms in a rank that was forked."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector while a graph is traced, compiled or bound. Its nodes, values and tensors
    refer to each other and live on, and each search through all of them would find nothing: not
    the one that would follow at once either, so that all young objects count as old ones from here
    on. Unless the program has frozen some, which must stay so.
    """
    global _has_frozen
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            _has_frozen = _has_frozen or gc.get_freeze_count() > 0
            if not _has_frozen:
                gc.freeze()
                gc.unfreeze()  # into the oldest generation
            gc.enable()
