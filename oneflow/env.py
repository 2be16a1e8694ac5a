"""The knowledge of this process about its job. Nothing here contacts another rank but
`get_node_size`.
"""

from __future__ import annotations

from oneflow.core.config import current_config
from oneflow.core.placement import Placement
from oneflow.core.spelling import also_called
from oneflow.distributed.world import world
from oneflow.tensor.layout import placement as _placement


def get_rank() -> int:
    """This process's number, 0 to `get_world_size() - 1`."""
    return current_config().rank


def get_world_size() -> int:
    """Number of processes of the job."""
    return current_config().world_size


def get_local_rank() -> int:
    """This process's number among those of its machine."""
    return current_config().local_rank


def get_node_size() -> int:
    """Number of machines of the job. Joins the job if there are other ranks."""
    if current_config().world_size == 1:
        return 1

    return len(set(world().hosts))


@also_called(device_type="type")
def all_device_placement(type: str) -> Placement:
    """Every device of that type, in one row."""
    return _placement.all(type)


def init_rdma() -> None:
    """Accepted for scripts that call it: transports are chosen by the networks that hosts share."""


def rdma_is_initialized() -> bool:
    """False: no transport uses RDMA."""
    return False


def destory_rdma() -> None:
    """Accepted, as `init_rdma` is. The name is upstream's."""
