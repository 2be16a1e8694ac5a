"""The ranks of this job, in the shape that users of `torch.distributed` expect.

A process belongs to its job from the start; `init_process_group` only says so. Collectives are
those of `oneflow.comm`, on local tensors; see there for the errors. Ranks are numbers in the job,
also with a `group` of `new_group`. With `async_op=True` a call returns at
once, with an object whose `wait` returns when the call is done: until then its tensors belong to
the call.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from oneflow.core.config import current_config
from oneflow.core.errors import OneFlowError, ShapeError
from oneflow.surfaces import accept_paths
from oneflow.tensor.grad_mode import no_grad

if TYPE_CHECKING:
    from oneflow.distributed.process_groups import Work
    from oneflow.tensor.tensor import Tensor


default_pg_timeout = timedelta(minutes=30)
"""The time after which PyTorch gives up on other ranks; here scheduler settings say so."""


class ReduceOp(Enum):
    """The ways in which `all_reduce`, `reduce` and `reduce_scatter` combine. Sums of bool
    are "or"; AVG is the sum divided by the number of ranks. Those of bits work in `all_reduce`.
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


WORDS = {"sum": "sum", "avg": "sum", "prod": "prod", "min": "min", "max": "max"}
"""Names that the reductions have in `oneflow.comm`."""


def is_available() -> bool:
    """Always True."""
    return True


def get_rank(group: object = None) -> int:
    """This process's number, 0 to `get_world_size() - 1`; in a group, and -1 outside of it."""
    if group is None:
        return current_config().rank
    return int(group.rank()) if hasattr(group, "rank") else -1


def get_world_size(group: object = None) -> int:
    """Number of processes of the job, or of a group; -1 outside of it."""
    if group is None:
        return current_config().world_size
    return int(group.size()) if get_rank(group) >= 0 and hasattr(group, "size") else -1


def get_local_rank() -> int:
    """This process's number among those of its machine."""
    return current_config().local_rank


def all_reduce(
    tensor: Tensor, op: ReduceOp = ReduceOp.SUM, group: object = None, async_op: bool = False
) -> Work | None:
    """Reduces `tensor` over all ranks, in place."""
    if op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
        return _made("all_reduce", group, async_op, tensor, op.value)
    return _reduced("all_reduce", group, async_op, op, tensor, tensor)


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, group: object = None, async_op: bool = False
) -> Work | None:
    """Fills `tensor_list` with every rank's `tensor`, by rank."""
    return _made("all_gather", group, async_op, tensor_list, tensor)


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: object = None, async_op: bool = False
) -> Work | None:
    """Every rank's input, one after the other along dim 0, into the output."""
    return _made("all_gather_into_tensor", group, async_op, output_tensor, input_tensor)


def reduce_scatter(
    output: Tensor,
    input_list: list[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: object = None,
    async_op: bool = False,
) -> Work | None:
    """Reduces the lists over all ranks and leaves this rank's entry in `output`."""
    return _reduced("reduce_scatter", group, async_op, op, output, output, input_list)


def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,
    op: ReduceOp = ReduceOp.SUM,
    group: object = None,
    async_op: bool = False,
) -> Work | None:
    """Reduces `input` over all ranks and leaves this rank's equal part of dim 0 in `output`."""
    return _reduced("reduce_scatter_tensor", group, async_op, op, output, output, input)


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: object = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copies rank `src`'s `tensor` into everybody's. group_src: its number in the group instead."""
    return _made("broadcast", group, async_op, tensor, _root(src, group, group_src))


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: ReduceOp = ReduceOp.SUM,
    group: object = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Reduces `tensor` over all ranks into rank `dst`'s; the others keep theirs."""
    to = _root(dst, group, group_dst)
    out = tensor if get_rank() == to else None
    return _reduced("reduce", group, async_op, op, out, tensor, to)


def scatter(
    tensor: Tensor,
    scatter_list: list[Tensor] | None = None,
    src: int | None = None,
    group: object = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Entry r of rank `src`'s list goes into the `tensor` of rank r."""
    return _made("scatter", group, async_op, tensor, scatter_list, _root(src, group, group_src))


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int | None = None,
    group: object = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Fills rank `dst`'s `gather_list` with every rank's `tensor`."""
    return _made("gather", group, async_op, tensor, gather_list, _root(dst, group, group_dst))


def all_to_all(
    output_tensor_list: list[Tensor],
    input_tensor_list: list[Tensor],
    group: object = None,
    async_op: bool = False,
) -> Work | None:
    """Sends entry r of the input list to rank r; entry r of the output list comes from rank r."""
    return _made("all_to_all", group, async_op, output_tensor_list, input_tensor_list)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: object = None,
    async_op: bool = False,
) -> Work | None:
    """Sends rows of `input` to each rank, as many as `input_split_sizes` says; `output` gets those
    that came, by rank."""
    sizes = output_split_sizes, input_split_sizes
    return _made("all_to_all_single", group, async_op, output, input, *sizes)


def isend(
    tensor: Tensor,
    dst: int | None = None,
    group: object = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work:
    """Begins to send `tensor` to rank `dst`. tag: sends and receipts of one tag belong together."""
    to = _peer(dst, group, group_dst)
    way = _groups().one_way(get_rank(), to, group, "isend", tag)
    return _later(way, lambda: _comm().send(tensor, to, ranks=way))


def irecv(
    tensor: Tensor,
    src: int | None = None,
    group: object = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work:
    """Begins to receive the tensor of rank `src` into `tensor`."""
    source = _peer(src, group, group_src)
    way = _groups().one_way(source, get_rank(), group, "irecv", tag)
    return _later(way, lambda: _comm().recv(source, out=tensor, ranks=way), source)


def send(
    tensor: Tensor,
    dst: int | None = None,
    group: object = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Sends `tensor` to rank `dst`; returns when it has been received."""
    to = _peer(dst, group, group_dst)
    way = _groups().one_way(get_rank(), to, group, "send", tag)
    _groups().line_of(way).now(lambda: _comm().send(tensor, to, ranks=way))


def recv(
    tensor: Tensor,
    src: int | None = None,
    group: object = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receive into `tensor` the tensor that rank `src` sends; return `src`."""
    source = _peer(src, group, group_src)
    way = _groups().one_way(source, get_rank(), group, "recv", tag)
    _groups().line_of(way).now(lambda: _comm().recv(source, out=tensor, ranks=way))
    return source


def barrier(group: object = None, async_op: bool = False, device_ids: object = None) -> Work | None:
    """Waits until every rank is here."""
    return _made("barrier", group, async_op)


# ---- Python values: see `oneflow.comm` ----------------------------------------------------------


def all_gather_object(object_list: list[Any], obj: object, group: object = None) -> None:
    """Fills `object_list` with every rank's `obj`, by rank."""
    _check_room(object_list, "all_gather_object", group)
    if (found := _answer("all_gather_object", group, obj)) is not None:
        object_list[:] = found


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: object = None,
    device: object = None,
    group_src: int | None = None,
) -> None:
    """Rank `src`'s entries into everybody's list; all lists have one length."""
    _made("broadcast_object_list", group, False, object_list, _root(src, group, group_src))


def gather_object(
    obj: object,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: object = None,
    group_dst: int | None = None,
) -> None:
    """Fills rank `dst`'s `object_gather_list` with every rank's `obj`."""
    to = _root(dst, group, group_dst)
    if get_rank() == to:
        _check_room(object_gather_list, "gather_object", group)
    gathered = _answer("gather_object", group, obj, to)
    if object_gather_list is not None and gathered is not None:
        object_gather_list[:] = gathered


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: object = None,
    group_src: int | None = None,
) -> None:
    """Entry r of rank `src`'s input list becomes the first entry of the output list of rank r."""
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise ShapeError("distributed.scatter_object_list: the output needs a list of an entry")
    source = _root(src, group, group_src)
    scatter_object_output_list[0] = _answer(
        "scatter_object", group, scatter_object_input_list, source
    )


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: object = None,
    device: object = None,
    group_dst: int | None = None,
) -> None:
    """Sends the entries of a list to rank `dst`."""
    to = _peer(dst, group, group_dst)
    way = _groups().one_way(get_rank(), to, group, "send_object_list", 0)
    for entry in object_list:
        _groups().line_of(way).now(lambda entry=entry: _comm().send_object(entry, to, ranks=way))


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: object = None,
    device: object = None,
    group_src: int | None = None,
) -> int:
    """Receives the entries of a list from rank `src`; returns `src`."""
    source = _peer(src, group, group_src)
    way = _groups().one_way(source, get_rank(), group, "recv_object_list", 0)
    for at in range(len(object_list)):
        object_list[at] = _groups().line_of(way).now(lambda: _comm().recv_object(source, ranks=way))
    return source


# ---- shared by all -------------------------------------------------------------------------------


def _check_room(entries: list[Any] | None, name: str, group: object) -> None:
    size = get_world_size(group)
    if not isinstance(entries, list) or size not in (-1, len(entries)):
        raise ShapeError(f"distributed.{name}: the list needs one entry per rank ({size})")


def _comm() -> Any:
    """The collectives, loaded when the first one is called."""
    return importlib.import_module("oneflow.comm")


def _groups() -> Any:
    """Groups of ranks, loaded like them."""
    return importlib.import_module("oneflow.distributed.process_groups")


def _call(who: str, group: object, is_async: bool, call: Callable[[Any], object]) -> Work | None:
    made: Work | None = _groups().call_on(group, who, is_async, call)
    return made


def _made(who: str, group: object, is_async: bool, *args: object) -> Work | None:
    """Call a collective of `oneflow.comm`."""
    return _call(who, group, is_async, lambda ranks: getattr(_comm(), who)(*args, ranks=ranks))


def _answer(who: str, group: object, *args: object) -> Any:
    """The result of a call of `oneflow.comm`; None outside of the group."""
    found: list[Any] = []
    _call(who, group, False, lambda ranks: found.append(getattr(_comm(), who)(*args, ranks=ranks)))
    return found[0] if found else None


def _later(way: Sequence[int], call: Callable[[], object], source: int = -1) -> Work:
    made: Work = _groups().Work(_groups().line_of(way).later(call), source)
    return made


def _root(given: int | None, group: object, in_group: int | None) -> int:
    """The rank of the job that is meant, 0 if none is named."""
    if in_group is not None:
        return int(_groups().rank_of(group, in_group))
    return 0 if given is None else given


def _peer(given: int | None, group: object, in_group: int | None) -> int:
    if given is None and in_group is None:
        raise OneFlowError("distributed: name the other rank; a receipt from any is not supported")
    return _root(given, group, in_group)


def _reduced(
    who: str, group: object, is_async: bool, op: ReduceOp, out: Tensor | None, *args: object
) -> Work | None:
    """Call a collective of `oneflow.comm` that reduces. out: its result, None on ranks without."""
    if not isinstance(op, ReduceOp):
        raise OneFlowError(f"distributed.{who}: op is a ReduceOp, got {op!r}")
    if op.value not in WORDS:
        raise OneFlowError(
            f"distributed.{who}: {op.name} is not supported; use SUM, PRODUCT, MIN, MAX or AVG"
        )

    def call(ranks: Sequence[int]) -> None:
        getattr(_comm(), who)(*args, WORDS[op.value], ranks=ranks)
        if op is ReduceOp.AVG and out is not None:
            with no_grad():
                out.div_(len(ranks))

    return _call(who, group, is_async, call)


accept_paths(__name__)
