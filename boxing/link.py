"""The latency-bandwidth model of what joins two ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """latency_s: from "written" on one rank to "read" on another.  bytes_per_s: into one rank."""

    latency_s: float
    bytes_per_s: float

    def seconds(self, hops: int, nbytes: float) -> float:
        """Time of `hops` dependent exchanges that move `nbytes` in all through the busiest rank."""
        return hops * self.latency_s + nbytes / self.bytes_per_s


SHARED_MEMORY = Link(latency_s=4e-6, bytes_per_s=9e9)
"""Ranks of one host: mapped pages and a wake-up; a read in place at memory speed."""

TCP = Link(latency_s=60e-6, bytes_per_s=1.1e9)
"""Ranks of different hosts over sockets on a 10 Gbit/s network."""

DEVICE = Link(latency_s=10e-6, bytes_per_s=200e9)
"""GPUs of one host through NCCL."""
