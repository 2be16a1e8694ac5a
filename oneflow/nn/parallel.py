"""Data parallel training of an unchanged module."""

from __future__ import annotations

from typing import TypeVar

from oneflow.distributed.ddp import MEBIBYTE, data_parallel
from oneflow.nn.module import Module
from oneflow.nn.modules.ranks import DataParallel
from oneflow.surfaces import accept_paths

__all__ = ["DataParallel", "DistributedDataParallel"]

M = TypeVar("M", bound=Module)


def DistributedDataParallel(
    module: M,
    *,
    broadcast_buffers: bool = True,
    broadcast_parameters: bool = True,
    bucket_size: int = 10,
    use_bucket: bool = True,
) -> M:
    """Makes gradients of `module` the average over all ranks; returns the same module.

    broadcast_parameters: all take rank 0's parameters now.  broadcast_buffers: and its buffers
    before each forward.
    bucket_size: MiB of gradients sent together (use_bucket=False: each alone).  Parameters must be
    local and real floats; gradients are averaged in their dtype.
    """
    nbytes = bucket_size * MEBIBYTE if use_bucket else 0
    data_parallel(module, broadcast_buffers, broadcast_parameters, nbytes)
    return module


accept_paths(__name__)
