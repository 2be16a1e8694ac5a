"""The ranks of this job, in the shape that users of `torch.distributed` expect.

A process belongs to its job from the start, so there is no `init_process_group`. Collectives are
those of `oneflow.comm`, on local tensors. `group`, `async_op` and `tag` are accepted where scripts
pass them; only their defaults work.
"""

from __future__ import annotations

import importlib
from enum import Enum
from typing import TYPE_CHECKING, Any

from oneflow.core.config import current_config
from oneflow.core.errors import OneFlowError

if TYPE_CHECKING:
    from oneflow.tensor.tensor import Tensor


class ReduceOp(Enum):
    """How `all_reduce`, `reduce` and `reduce_scatter` combine. Only SUM is supported."""

    SUM = "sum"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"


def is_available() -> bool:
    """Always True."""
    return True


def is_initialized() -> bool:
    """Always True: the environment alone makes a process part of a job."""
    return True


def get_rank() -> int:
    """This process's number, 0 to `get_world_size() - 1`."""
    return current_config().rank


def get_world_size() -> int:
    """Number of processes of the job."""
    return current_config().world_size


def get_local_rank() -> int:
    """This process's number among those of its machine."""
    return current_config().local_rank


def all_reduce(
    tensor: Tensor, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> None:
    """Sums `tensor` over all ranks, in place."""
    _check("all_reduce", op=op, group=group, async_op=async_op)
    _comm().all_reduce(tensor)


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False
) -> None:
    """Fills `tensor_list` with every rank's `tensor`, by rank."""
    _check("all_gather", group=group, async_op=async_op)
    _comm().all_gather(tensor_list, tensor)


def reduce_scatter(
    output: Tensor,
    input_list: list[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> None:
    """Sums the lists over all ranks and leaves this rank's entry in `output`."""
    _check("reduce_scatter", op=op, group=group, async_op=async_op)
    _comm().reduce_scatter(output, input_list)


def broadcast(tensor: Tensor, src: int, group: Any = None, async_op: bool = False) -> None:
    """Copies rank `src`'s `tensor` into everybody's."""
    _check("broadcast", group=group, async_op=async_op)
    _comm().broadcast(tensor, src)


def reduce(
    tensor: Tensor,
    dst: int,
    op: ReduceOp = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> None:
    """Sums `tensor` over all ranks into rank `dst`'s."""
    _check("reduce", op=op, group=group, async_op=async_op)
    _comm().reduce(tensor, dst)


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int = 0,
    group: Any = None,
    async_op: bool = False,
) -> None:
    """Fills rank `dst`'s `gather_list` with every rank's `tensor`."""
    _check("gather", group=group, async_op=async_op)
    _comm().gather(tensor, gather_list, dst)


def all_to_all(
    output_tensor_list: list[Tensor],
    input_tensor_list: list[Tensor],
    group: Any = None,
    async_op: bool = False,
) -> None:
    """Sends entry r of the input list to rank r; entry r of the output list comes from rank r."""
    _check("all_to_all", group=group, async_op=async_op)
    _comm().all_to_all(output_tensor_list, input_tensor_list)


def send(tensor: Tensor, dst: int, group: Any = None, tag: int = 0) -> None:
    """Sends `tensor` to rank `dst`."""
    _check("send", group=group, tag=tag)
    _comm().send(tensor, dst)


def recv(tensor: Tensor, src: int, group: Any = None, tag: int = 0) -> int:
    """Receives into `tensor` what rank `src` sends; returns `src`."""
    _check("recv", group=group, tag=tag)
    _comm().recv(src, out=tensor)
    return src


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> None:
    """Waits until every rank is here."""
    _check("barrier", group=group, async_op=async_op)
    _comm().barrier()


def _comm() -> Any:
    """The collectives, loaded when the first one is called."""
    return importlib.import_module("oneflow.comm")


def _check(name: str, **given: Any) -> None:
    """Refuses what is accepted for the sake of the signature but does not work."""
    for argument, value in given.items():
        if argument == "op" and value is not ReduceOp.SUM:
            raise OneFlowError(f"distributed.{name}: only ReduceOp.SUM is supported, got {value}")
        if argument != "op" and value:
            raise OneFlowError(
                f"distributed.{name}: {argument}={value!r} is not supported; leave it out"
            )
