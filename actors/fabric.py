"""Connects the ranks of one job, once, before the first step: shared memory within a host, TCP
between hosts.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from oneflow.actors.bind import shared_nbytes
from oneflow.actors.bus import Bus
from oneflow.actors.mailbox import SharedMemoryBus, areas_nbytes, register_bytes
from oneflow.actors.tcp import Connection, Mirrors, TcpBus, make_mirrors
from oneflow.boxing.transport.gpu_memory import GpuMemory
from oneflow.boxing.transport.mesh import Mesh
from oneflow.boxing.transport.rank_pages import RankPages, open_rank_pages
from oneflow.boxing.transport.rendezvous import Rendezvous, own_address, wait_for_news
from oneflow.core.errors import InternalError, TransportError
from oneflow.core.plan import Plan
from oneflow.kernels.array import Array
from oneflow.kernels.hardware import hardware_class, hardware_for

if TYPE_CHECKING:
    from oneflow.boxing.collectives.base import Collectives
    from oneflow.boxing.transport.gpu_memory import GpuMemory
    from oneflow.core.job_tls import JobTls

    OpenCollectives = Callable[[tuple[int, ...]], Collectives]

FAR_POLL_S = 0.0005
"""Longest sleep of a rank that waits for peers both near and far before it looks at its
sockets.
"""
CONNECT_S = 60.0
"""A peer that takes longer to come is an error."""


class MixedBus:
    """Near peers through shared memory, far ones through TCP."""

    def __init__(self, near: SharedMemoryBus, far: TcpBus, far_ranks: set[int]) -> None:
        self._near, self._far, self._far_ranks = near, far, far_ranks

    def post(self, rank: int, code: int) -> None:
        (self._far if rank in self._far_ranks else self._near).post(rank, code)

    def poll(self) -> list[tuple[int, int]]:
        return self._near.poll() + self._far.poll()

    def flush(self) -> bool:
        return self._near.flush() and self._far.flush()

    def wait(self, timeout_s: float) -> None:
        self._far.give_up()
        self._near.wait(FAR_POLL_S)

    def watch(self, file: int) -> bool:
        return True  # it never waits for longer than FAR_POLL_S

    def sample_latency(self) -> None:
        self._far.sample_latency()

    def close(self) -> None:
        self._near.close()
        self._far.close()


class RankFabric:
    """The means of `Job` to reach the other ranks: see `Fabric`.

    pages: of the ranks of this host.  mirrors: of the others.  on_device: the registers, where they
    are not in the pages.  collectives: see `open_fabric`.
    """

    def __init__(
        self,
        pages: RankPages,
        mirrors: dict[int, Array],
        far_bus: TcpBus | None,
        on_device: GpuMemory | OwnMemory | None = None,
        collectives: OpenCollectives | None = None,
    ) -> None:
        self.peers = self
        self._collectives = collectives
        self._pages = pages
        self._on_device = on_device
        self._registers: dict[int, Any] = dict(mirrors)
        if on_device is not None:
            self._registers.update(on_device.arrays)
        else:
            self._registers.update({r: register_bytes(pages, r) for r in pages.ranks})
        near_bus = SharedMemoryBus(pages)
        self.bus: Bus = near_bus
        if far_bus is not None:
            alone = len(pages.ranks) == 1
            self.bus = far_bus if alone else MixedBus(near_bus, far_bus, set(mirrors))

    def shared(self, rank: int) -> Any:
        return self._registers[rank]

    def collectives(self, ranks: tuple[int, ...]) -> Collectives:
        if self._collectives is None:
            raise InternalError(f"no backend was given for a sum over ranks {list(ranks)}")
        return self._collectives(ranks)

    def close(self) -> None:
        """Unmaps; memory goes when the last rank has done so. Nothing has a name, so nothing is
        left behind.
        """
        self.bus.close()
        self._registers.clear()
        if self._on_device is not None:
            self._on_device.close()  # the pages, too, once the peers need them no more
        else:
            self._pages.close()


def open_fabric(
    plan: Plan,
    rank: int,
    ranks: list[int],
    name: str,
    kv: Rendezvous,
    *,
    places: Sequence[str],
    patience_s: float = 15.0,
    tls: JobTls | None = None,
    collectives: OpenCollectives | None = None,
) -> RankFabric:
    """Connect `rank` to the other `ranks` of a plan; all of them call it.

    name: of this job, the same on all ranks and never used before.
    places: where each rank of the world runs; those in one place share memory.
    patience_s: the scheduler gets so long to say that a rank is lost before a broken connection is
    an error of its own.
    tls: for connections between hosts; None: in the clear.
    collectives: opens the backend of a set of ranks, for the exchanges that the plan leaves to it.
    Raises TransportError, or the error of `kv.check`.
    """
    maps = hardware_class(plan.device_type).maps_peers
    near = [r for r in ranks if r == rank or (maps and places[r] == places[rank])]
    far = [r for r in ranks if r not in near]
    try:
        pages, on_device = _open_near(plan, rank, near, name, kv)
        try:
            mirrors = {r: make_mirrors(plan, r) for r in far}
            bus: TcpBus | None = None
            if far:
                host = own_address(getattr(kv, "address", "127.0.0.1:1"))
                own = on_device.arrays[rank] if on_device else register_bytes(pages, rank)
                common = rank, ranks, far, kv, kv.check, CONNECT_S, host, tls
                sockets = [Mesh(mesh, *common).open() for mesh in (name, f"{name}/freed")]
                bus = _far_bus(plan, rank, sockets, own, mirrors, patience_s)
        except BaseException:
            (on_device or pages).close()
            raise
    except TransportError:
        wait_for_news(kv.check, [r for r in ranks if r != rank], patience_s)
        raise
    return RankFabric(pages, mirrors, bus, on_device, collectives)


class OwnMemory:
    """A rank's registers on a kind of device whose memory no peer can map."""

    def __init__(self, plan: Plan, rank: int, pages: RankPages) -> None:
        nbytes = max(shared_nbytes(plan, rank), 1)
        self.arrays = {rank: hardware_for(plan.device_type).allocate(nbytes)}
        self._pages = pages

    def close(self) -> None:
        """Forget the memory."""
        self.arrays.clear()
        self._pages.close()


def _open_near(
    plan: Plan, rank: int, near: list[int], name: str, kv: Rendezvous
) -> tuple[RankPages, GpuMemory | OwnMemory | None]:
    """The pages of the ranks of this host, and their registers if those are on devices."""
    if plan.device_type == "cpu":
        nbytes = areas_nbytes(len(near), shared_nbytes(plan, rank))
        return open_rank_pages(name, rank, near, nbytes, kv), None

    pages = open_rank_pages(name, rank, near, areas_nbytes(len(near), 0), kv)
    if plan.device_type == "cuda":
        return pages, GpuMemory(partial(shared_nbytes, plan), pages, name, kv)
    return pages, OwnMemory(plan, rank, pages)


def _far_bus(
    plan: Plan,
    rank: int,
    sockets: list[dict[int, socket.socket]],
    own: Array,
    mirrors: dict[int, Array],
    patience_s: float,
) -> TcpBus:
    """sockets: by peer, for messages that carry contents, and for Freed messages."""
    mine = Mirrors(plan, rank, own)
    theirs = {r: Mirrors(plan, r, array) for r, array in mirrors.items()}
    for_ready, for_freed = (
        [Connection(plan, rank, r, sock, mine, theirs[r]) for r, sock in some.items()]
        for some in sockets
    )
    return TcpBus(for_ready, patience_s, for_freed)
