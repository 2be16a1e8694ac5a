"""`flow.env`: which rank this is, of how many."""

from __future__ import annotations

from oneflow.core.config import current_config
from oneflow.core.errors import TransportError
from oneflow.core.placement import Placement


def get_rank() -> int:
    """Number of this process among all of the job."""
    return current_config().rank


def get_world_size() -> int:
    """Number of processes of the job."""
    return current_config().world_size


def get_local_rank() -> int:
    """Number of this process among those of its host."""
    return current_config().local_rank


def get_node_size() -> int:
    """Number of hosts of the job; joins it if there are other ranks."""
    from oneflow.distributed.world import world

    return len(set(world().hosts)) if get_world_size() > 1 else 1


def all_device_placement(type: str) -> Placement:
    """Every rank's device of this type, in one row; the same as `placement.all(type)`."""
    return Placement(type, list(range(get_world_size())))


def rdma_is_initialized() -> bool:
    """False: register contents travel through shared memory, TCP or NCCL."""
    return False


def init_rdma() -> None:
    """Raises TransportError: there is no RDMA transport."""
    raise TransportError("there is no RDMA transport; hosts are connected by TCP or NCCL")


def destory_rdma() -> None:
    """Nothing to do: there is no RDMA transport (the name is upstream's)."""
