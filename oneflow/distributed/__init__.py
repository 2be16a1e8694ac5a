"""The ranks of this job, in the shape that users of `torch.distributed` expect.

A process belongs to its job from the start; `init_process_group` only says so. Collectives are
those of `oneflow.comm`, on local tensors; see there for the errors. `group`, `async_op` and `tag`
are accepted where scripts pass them; only their defaults work, and the group of all ranks.
"""

from __future__ import annotations

import importlib
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from oneflow.core.config import current_config
from oneflow.core.errors import OneFlowError, ShapeError
from oneflow.surfaces import accept_paths
from oneflow.tensor.grad_mode import no_grad

if TYPE_CHECKING:
    from oneflow.tensor.tensor import Tensor


default_pg_timeout = timedelta(minutes=30)
"""The time after which PyTorch gives up on other ranks; here scheduler settings say so."""


class ReduceOp(Enum):
    """The ways in which `all_reduce`, `reduce` and `reduce_scatter` combine. Sums of bool
    are "or"; AVG is the sum divided by the number of ranks. Those of bits are refused.
    """

    SUM = "sum"
    PRODUCT = "prod"
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"
    PREMUL_SUM = "premul_sum"


setattr(ReduceOp, "RedOpType", ReduceOp)  # noqa: B010 - PyTorch's name of the enumeration itself


REFUSED = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR, ReduceOp.PREMUL_SUM)


def is_available() -> bool:
    """Always True."""
    return True


def get_rank(group: object = None) -> int:
    """This process's number, 0 to `get_world_size() - 1`."""
    return current_config().rank


def get_world_size(group: object = None) -> int:
    """Number of processes of the job."""
    return current_config().world_size


def get_local_rank() -> int:
    """This process's number among those of its machine."""
    return current_config().local_rank


def all_reduce(
    tensor: Tensor, op: ReduceOp = ReduceOp.SUM, group: object = None, async_op: bool = False
) -> None:
    """Reduces `tensor` over all ranks, in place."""
    _check("all_reduce", group=group, async_op=async_op)
    _reduced("all_reduce", op, tensor, tensor)


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, group: object = None, async_op: bool = False
) -> None:
    """Fills `tensor_list` with every rank's `tensor`, by rank."""
    _check("all_gather", group=group, async_op=async_op)
    _comm().all_gather(tensor_list, tensor)


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: object = None, async_op: bool = False
) -> None:
    """Every rank's input, one after the other along dim 0, into the output."""
    _check("all_gather_into_tensor", group=group, async_op=async_op)
    _comm().all_gather_into_tensor(output_tensor, input_tensor)


def reduce_scatter(
    output: Tensor,
    input_list: list[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: object = None,
    async_op: bool = False,
) -> None:
    """Reduces the lists over all ranks and leaves this rank's entry in `output`."""
    _check("reduce_scatter", group=group, async_op=async_op)
    _reduced("reduce_scatter", op, output, output, input_list)


def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,
    op: ReduceOp = ReduceOp.SUM,
    group: object = None,
    async_op: bool = False,
) -> None:
    """Reduces `input` over all ranks and leaves this rank's equal part of dim 0 in `output`."""
    _check("reduce_scatter_tensor", group=group, async_op=async_op)
    _reduced("reduce_scatter_tensor", op, output, output, input)


def broadcast(tensor: Tensor, src: int, group: object = None, async_op: bool = False) -> None:
    """Copies rank `src`'s `tensor` into everybody's."""
    _check("broadcast", group=group, async_op=async_op)
    _comm().broadcast(tensor, src)


def reduce(
    tensor: Tensor,
    dst: int,
    op: ReduceOp = ReduceOp.SUM,
    group: object = None,
    async_op: bool = False,
) -> None:
    """Reduces `tensor` over all ranks into rank `dst`'s; the others keep theirs."""
    _check("reduce", group=group, async_op=async_op)
    _reduced("reduce", op, tensor if get_rank() == dst else None, tensor, dst)


def scatter(
    tensor: Tensor,
    scatter_list: list[Tensor] | None = None,
    src: int = 0,
    group: object = None,
    async_op: bool = False,
) -> None:
    """Entry r of rank `src`'s list goes into the `tensor` of rank r."""
    _check("scatter", group=group, async_op=async_op)
    _comm().scatter(tensor, scatter_list, src)


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int = 0,
    group: object = None,
    async_op: bool = False,
) -> None:
    """Fills rank `dst`'s `gather_list` with every rank's `tensor`."""
    _check("gather", group=group, async_op=async_op)
    _comm().gather(tensor, gather_list, dst)


def all_to_all(
    output_tensor_list: list[Tensor],
    input_tensor_list: list[Tensor],
    group: object = None,
    async_op: bool = False,
) -> None:
    """Sends entry r of the input list to rank r; entry r of the output list comes from rank r."""
    _check("all_to_all", group=group, async_op=async_op)
    _comm().all_to_all(output_tensor_list, input_tensor_list)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: object = None,
    async_op: bool = False,
) -> None:
    """Sends rows of `input` to each rank, as many as `input_split_sizes` says; `output` gets those
    that came, by rank."""
    _check("all_to_all_single", group=group, async_op=async_op)
    _comm().all_to_all_single(output, input, output_split_sizes, input_split_sizes)


def send(tensor: Tensor, dst: int, group: object = None, tag: int = 0) -> None:
    """Sends `tensor` to rank `dst`."""
    _check("send", group=group, tag=tag)
    _comm().send(tensor, dst)


def recv(tensor: Tensor, src: int, group: object = None, tag: int = 0) -> int:
    """Receives into `tensor` what rank `src` sends; returns `src`."""
    _check("recv", group=group, tag=tag)
    _comm().recv(src, out=tensor)
    return src


def barrier(group: object = None, async_op: bool = False, device_ids: object = None) -> None:
    """Waits until every rank is here."""
    _check("barrier", group=group, async_op=async_op)
    _comm().barrier()


# ---- Python values: see `oneflow.comm` ----------------------------------------------------------


def all_gather_object(object_list: list[Any], obj: object, group: object = None) -> None:
    """Fills `object_list` with every rank's `obj`, by rank."""
    _check("all_gather_object", group=group)
    _check_room(object_list, "all_gather_object")
    object_list[:] = _comm().all_gather_object(obj)


def broadcast_object_list(
    object_list: list[Any], src: int = 0, group: object = None, device: object = None
) -> None:
    """Rank `src`'s entries into everybody's list; all lists have one length."""
    _check("broadcast_object_list", group=group)
    _comm().broadcast_object_list(object_list, src)


def gather_object(
    obj: object, object_gather_list: list[Any] | None = None, dst: int = 0, group: object = None
) -> None:
    """Fills rank `dst`'s `object_gather_list` with every rank's `obj`."""
    _check("gather_object", group=group)
    if get_rank() == dst:
        _check_room(object_gather_list, "gather_object")
    gathered = _comm().gather_object(obj, dst)
    if object_gather_list is not None and gathered is not None:
        object_gather_list[:] = gathered


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int = 0,
    group: object = None,
) -> None:
    """Entry r of rank `src`'s input list becomes the first entry of the output list of rank r."""
    _check("scatter_object_list", group=group)
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise ShapeError("distributed.scatter_object_list: the output needs a list of an entry")
    scatter_object_output_list[0] = _comm().scatter_object(scatter_object_input_list, src)


def _check_room(entries: list[Any] | None, name: str) -> None:
    if not isinstance(entries, list) or len(entries) != get_world_size():
        raise ShapeError(
            f"distributed.{name}: the list needs one entry per rank ({get_world_size()})"
        )


def _comm() -> Any:
    """The collectives, loaded when the first one is called."""
    return importlib.import_module("oneflow.comm")


def _reduced(who: str, op: ReduceOp, out: Tensor | None, *args: object) -> None:
    """Call a collective of `oneflow.comm` that reduces. out: its result, None on ranks without."""
    if not isinstance(op, ReduceOp):
        raise OneFlowError(f"distributed.{who}: op is a ReduceOp, got {op!r}")
    if op in REFUSED:
        raise OneFlowError(
            f"distributed.{who}: {op.name} is not supported; use SUM, PRODUCT, MIN, MAX or AVG"
        )
    is_mean = op is ReduceOp.AVG
    getattr(_comm(), who)(*args, ReduceOp.SUM.value if is_mean else op.value)
    if is_mean and out is not None:
        with no_grad():
            out.div_(get_world_size())


def _check(name: str, **given: object) -> None:
    """Refuses what is accepted for the sake of the signature but does not work."""
    for argument, value in given.items():
        if value and not (argument == "group" and getattr(value, "is_everyone", False)):
            raise OneFlowError(
                f"distributed.{name}: {argument}={value!r} is not supported; leave it out"
            )


accept_paths(__name__)
