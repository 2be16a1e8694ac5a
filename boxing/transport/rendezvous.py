"""The rendezvous of ranks before they are connected: keys that all of a job can put and get."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from oneflow.core.config import split_address
from oneflow.core.errors import PeerLostError

if TYPE_CHECKING:
    from oneflow.boxing.transport.pages import SharedPage

SLICE_S = 0.05
"""Sleep of a waiting rank before it looks whether its peers still live."""

Check = Callable[[Iterable[int]], None]
"""Raises if the job is over or one of the given ranks has left."""


class KeyValueStore(Protocol):
    """Keys of a job. A name under which ranks meet was never used before in this job."""

    def put(self, key: str, value: bytes) -> None: ...

    def get(self, key: str, timeout_s: float) -> bytes: ...


class Rendezvous(KeyValueStore, Protocol):
    """The keys of a job, pages of its ranks, and news of it."""

    def page(self, rank: int, name: str, timeout_s: float) -> SharedPage:
        """Map the page that `rank`, on this host, publishes as `name`; wait for it. Raises
        TransportError after `timeout_s`, or as `check` does.
        """

    def check(self, ranks: Iterable[int]) -> None:
        """Raise if the job is over or one of `ranks` has left."""


def own_address(scheduler: str) -> str:
    """Return this host's address on the network that leads to the scheduler (host:port): peers
    reach it there too.

    Sends nothing: the socket only asks the kernel for the route.
    """
    host, port = split_address(scheduler)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port or 1))
        return str(probe.getsockname()[0])


def wait_for_news(check: Check | None, ranks: Sequence[int], patience_s: float) -> None:
    """Give the scheduler `patience_s` to report the end of `ranks`: `check` raises if it does.

    A peer that cannot be reached has mostly died, or only left because of another rank; the
    scheduler knows better than the rank that meets the broken connection.
    """
    deadline = time.monotonic() + patience_s
    while check is not None and time.monotonic() < deadline:
        check(ranks)
        time.sleep(SLICE_S)


def peer_gone(rank: int, peer: int, cause: object) -> PeerLostError:
    """The error of `rank` when its connection to `peer` is broken and nobody knows better."""
    return PeerLostError(f"rank {peer} is gone: its connection to rank {rank} broke ({cause})")
