"""Opens the collectives of a set of ranks: shared memory if all run on one host, sockets if each
has its own, both if some share one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oneflow.boxing.transport.rendezvous import own_address
from oneflow.core.errors import PlacementError
from oneflow.core.job_tls import job_tls
from oneflow.distributed.waits import Meeting, place_of

if TYPE_CHECKING:
    from oneflow.boxing.collectives.base import Collectives
    from oneflow.distributed.world import World


def open_collectives(world: World, ranks: tuple[int, ...], channel: str) -> Collectives:
    """This rank's end of a channel of `ranks` (ascending); all of them must call it.

    Raises PlacementError for a rank that the world does not have.
    """
    if ranks[-1] >= world.world_size:
        raise PlacementError(
            "Placement is invalid because rank must be less than world size! "
            f"Rank {ranks[-1]} was asked for, the world has {world.world_size}"
        )
    if ranks == (world.rank,):
        from oneflow.boxing.collectives.in_process import InProcessGroup

        return InProcessGroup(ranks).collectives(world.rank)
    meeting = Meeting(world.client, world.long_waits, ranks, channel)
    found = _open(world, ranks, meeting, f"eager/{place_of(ranks)}{channel}")
    meeting.watch(found)
    return found


def _open(world: World, ranks: tuple[int, ...], meeting: Meeting, name: str) -> Collectives:
    hosts = [world.places[rank] for rank in ranks]
    if len(set(hosts)) == 1:
        from oneflow.boxing.collectives.shared_memory import SharedMemoryCollectives

        return SharedMemoryCollectives(
            name, world.rank, ranks, meeting, meeting.check, world.timeout_s
        )
    address, tls = own_address(world.config.master_address), job_tls(world.config)
    if len(set(hosts)) < len(hosts):
        from oneflow.boxing.collectives.spanning import SpanningCollectives

        return SpanningCollectives(
            name,
            world.rank,
            ranks,
            hosts,
            meeting,
            meeting.check,
            world.timeout_s,
            address,
            tls,
        )
    from oneflow.boxing.collectives.tcp import TcpCollectives

    return TcpCollectives(
        name, world.rank, ranks, meeting, meeting.check, world.timeout_s, address, tls
    )
