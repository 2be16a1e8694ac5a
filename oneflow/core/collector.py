"""The collector of circles of objects, switched off where it would find nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector while a graph is traced, compiled or bound. Its nodes, values and tensors
    refer to each other and live on, and each search through all of them would find nothing: not
    the one that would follow at once either, so that all young objects count as old ones from here
    on. Unless the program has frozen some, which must stay so.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()  # into the oldest generation
            gc.enable()
