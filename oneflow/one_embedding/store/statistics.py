"""Counters of a store: look-ups, hits and bytes by tier, rows that wait to be written."""

from __future__ import annotations

from dataclasses import dataclass

from oneflow.core.metrics import METRICS


@dataclass
class StoreStatistics:
    """Counters of one store since it was opened.

    lookups: rows asked for.  created: of them, those that were not there.  device_hits,
    memory_hits, disk_hits: the others, by where they lay.  .._nbytes_read, .._nbytes_written: moved
    by look-ups, updates and snapshots, but for those on a GPU.  evicted: rows that left the cache.
    queued: changed rows that wait to be written to the disk.  stall_s: seconds for which look-ups
    waited for the disk.
    """

    lookups: int = 0
    created: int = 0
    device_hits: int = 0
    memory_hits: int = 0
    disk_hits: int = 0
    memory_nbytes_read: int = 0
    memory_nbytes_written: int = 0
    disk_nbytes_read: int = 0
    disk_nbytes_written: int = 0
    evicted: int = 0
    queued: int = 0
    stall_s: float = 0.0

    def tell(self, before: StoreStatistics) -> None:
        """Add the counts since `before` to this process's metrics."""
        lookups, nbytes = METRICS.lookups, METRICS.row_nbytes
        lookups["device", "hit"] += self.device_hits - before.device_hits
        lookups["host", "hit"] += self.memory_hits - before.memory_hits
        lookups["disk", "hit"] += self.disk_hits - before.disk_hits
        lookups["host", "miss"] += self.created - before.created
        for tier, kept in (("host", "memory"), ("disk", "disk")):
            for way, ending in (("read", "read"), ("write", "written")):
                name = f"{kept}_nbytes_{ending}"
                nbytes[tier, way] += getattr(self, name) - getattr(before, name)
        METRICS.rows_queued[()] += self.queued - before.queued
        METRICS.row_stall_seconds[()] += self.stall_s - before.stall_s
