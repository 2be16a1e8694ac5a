"""Counters of a store: look-ups, hits and bytes by tier, what waits to be written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StoreStatistics:
    """Counters of one store since it was opened.

    lookups: rows asked for.  created: of them, those that were not there.  memory_hits, disk_hits:
    the others, by where they lay.  memory_nbytes, disk_nbytes_read, disk_nbytes_written: moved.
    evicted: rows that left the cache.  queued: changed rows that wait to be written to the disk.
    stall_s: seconds for which look-ups waited for the disk.
    """

    lookups: int = 0
    created: int = 0
    memory_hits: int = 0
    disk_hits: int = 0
    memory_nbytes: int = 0
    disk_nbytes_read: int = 0
    disk_nbytes_written: int = 0
    evicted: int = 0
    queued: int = 0
    stall_s: float = 0.0
