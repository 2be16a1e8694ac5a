"""Data parallel training of an unchanged module."""

from __future__ import annotations

from typing import TypeVar

from oneflow.distributed.ddp import MEBIBYTE, data_parallel, is_data_parallel
from oneflow.nn.module import Module
from oneflow.nn.modules.ranks import DataParallel
from oneflow.surfaces import accept_paths

__all__ = ["DataParallel", "DistributedDataParallel"]

M = TypeVar("M", bound=Module)


class _WiredUp(type):
    """`isinstance(x, DistributedDataParallel)`: whether the module x has been wired up."""

    def __instancecheck__(cls, instance: object) -> bool:
        return is_data_parallel(instance)


class DistributedDataParallel(metaclass=_WiredUp):
    """Makes gradients of `module` the average over all ranks; returns the same module.

    broadcast_parameters: all take rank 0's parameters now.  broadcast_buffers: and its buffers
    before each forward.
    bucket_size: MiB of gradients sent together (use_bucket=False: each alone).  Parameters must be
    local and real floats; gradients are averaged in their dtype.

    The module gets `no_sync()`, inside of which gradients add up on each rank alone until the next
    pass outside averages them, and `module`, which is the module itself.
    """

    def __new__(  # type: ignore[misc]
        cls,
        module: M,
        *,
        broadcast_buffers: bool = True,
        broadcast_parameters: bool = True,
        bucket_size: int = 10,
        use_bucket: bool = True,
    ) -> M:
        nbytes = bucket_size * MEBIBYTE if use_bucket else 0
        data_parallel(module, broadcast_buffers, broadcast_parameters, nbytes)
        return module


accept_paths(__name__)
