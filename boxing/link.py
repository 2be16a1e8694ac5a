"""The latency-bandwidth model of the links between ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """The speed of a link between two ranks.

    latency_s: from "written" on one rank to "read" on another. bytes_per_s: into one rank.
    """

    latency_s: float
    bytes_per_s: float


SHARED_MEMORY = Link(latency_s=7e-6, bytes_per_s=12e9)
"""Ranks of one host: mapped pages and a wake-up. Measured by benchmarks/links.py on two cores of an
AMD EPYC: 6.9 us, 12.1 GB/s."""

TCP = Link(latency_s=60e-6, bytes_per_s=1.1e9)
"""Ranks of different hosts over sockets on a 10 Gbit/s network, which is what limits the bytes; the
same script measures 44 us and 4.1 GB/s on the loopback device."""

DEVICE = Link(latency_s=10e-6, bytes_per_s=200e9)
"""GPUs of one host through NCCL."""


@dataclass(frozen=True)
class Network:
    """The links between the ranks of a world.

    hosts: a number for the host of each rank; () if there is only one.  near: between ranks of one
    host.  far: from host to host; all ranks of a host share it.
    """

    hosts: tuple[int, ...] = ()
    near: Link = SHARED_MEMORY
    far: Link = TCP

    def host(self, rank: int) -> int:
        """Ranks that are not known yet are taken for ranks of the first host."""
        return self.hosts[rank] if rank < len(self.hosts) else 0

    def spans(self, ranks: Iterable[int]) -> bool:
        """Do these ranks lie on more than one host?"""
        return bool(self.hosts) and len({self.host(rank) for rank in ranks}) > 1

    def seconds(self, hops: int, near_nbytes: float, far_nbytes: float, is_far: bool) -> float:
        """Time of `hops` dependent exchanges. near_nbytes: into one rank of its own host;
        far_nbytes: into one host."""
        latency = (self.far if is_far else self.near).latency_s
        near, far = near_nbytes / self.near.bytes_per_s, far_nbytes / self.far.bytes_per_s
        return hops * latency + near + far


ONE_HOST = Network()
GPUS_OF_ONE_HOST = Network(near=DEVICE)


def network_of(identities: Sequence[str], near: Link = SHARED_MEMORY) -> Network:
    """The network of ranks by where they run: equal identities are one host."""
    numbers: dict[str, int] = {}
    hosts = tuple(numbers.setdefault(identity, len(numbers)) for identity in identities)
    return Network(hosts if len(numbers) > 1 else (), near)
