"""Processors, memory, disk and network of a node, for the beats of its daemons."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from oneflow.core.host_memory import host_capacity
from oneflow.protos import cluster_pb2 as pb

LOOK_S = 3.0
# Traffic that is counted where it leaves the node, too, or that never does.
TWICE = ("lo", "veth", "docker", "br-", "virbr", "cni", "bond", "team", "tun", "tap", "wg")


class NodeMeter:
    """Looks at a node now and then. folder: on the disk that is meant."""

    def __init__(
        self,
        folder: Path,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._proc, self._clock = folder, proc, clock
        self._looked_at = -LOOK_S
        self._traffic: tuple[float, int, int] | None = None

    def look(self) -> pb.NodeUse | None:
        """Look at the node; None if that was done a moment ago. Unknown numbers stay out."""
        now = self._clock()
        if now - self._looked_at < LOOK_S:
            return None
        self._looked_at = now
        use = pb.NodeUse(processors=os.cpu_count() or 0)
        with suppress(OSError, ValueError, IndexError):
            use.load = float((self._proc / "loadavg").read_text().split()[0])
        with suppress(OSError, ValueError):
            memory = host_capacity(meminfo=self._proc / "meminfo")
            use.memory_nbytes, use.memory_free_nbytes = memory["limit"], memory["free"]
        with suppress(OSError):
            disk = os.statvfs(self._folder)
            use.disk_nbytes = disk.f_blocks * disk.f_frsize
            use.disk_free_nbytes = disk.f_bavail * disk.f_frsize
        with suppress(OSError, ValueError, IndexError):
            self._look_at_network(use, now)
        return use

    def _look_at_network(self, use: pb.NodeUse, now: float) -> None:
        received, sent = traffic((self._proc / "net/dev").read_text())
        if self._traffic is not None and now > self._traffic[0]:
            at, received_before, sent_before = self._traffic
            use.received_nbytes_per_s = max(received - received_before, 0) / (now - at)
            use.sent_nbytes_per_s = max(sent - sent_before, 0) / (now - at)
        self._traffic = now, received, sent


def traffic(text: str) -> tuple[int, int]:
    """Return the bytes received and sent by all interfaces of /proc/net/dev that are not TWICE."""
    received = sent = 0
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        if not name.strip().startswith(TWICE) and "." not in name:  # a VLAN of another interface
            words = numbers.split()
            received, sent = received + int(words[0]), sent + int(words[8])
    return received, sent
