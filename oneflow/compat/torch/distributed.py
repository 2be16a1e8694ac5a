"""Names of `torch.distributed` beyond those of `flow.distributed`.

A process belongs to its job from the start, so that `init_process_group` only says so and there is
one group: that of all ranks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn

from oneflow import distributed
from oneflow.core.config import current_config
from oneflow.core.errors import OneFlowError
from oneflow.kernels.cuda_device import gpu_count
from oneflow.tensor.tensor import Tensor

BACKENDS = ("undefined", "gloo", "nccl", "xccl", "ucc", "mpi")


class Backend(str):
    """The name of a library that PyTorch sends with."""

    __slots__ = ()

    UNDEFINED, GLOO, NCCL, XCCL, UCC, MPI = BACKENDS
    backend_list = list(BACKENDS)

    def __new__(cls, name: str) -> Backend:
        if not isinstance(name, str):
            raise ValueError(f"Backend constructor parameter must be string-ish, got {name!r}")
        return super().__new__(cls, name.lower())


class ProcessGroup:
    """The group of all ranks."""

    is_everyone = True

    def rank(self) -> int:
        """Return this process's number."""
        return current_config().rank

    def size(self) -> int:
        """Return the number of ranks."""
        return current_config().world_size

    @property
    def group_name(self) -> str:
        """The name of the group."""
        return "world"

    def name(self) -> str:
        """Return the name of the library that would send."""
        return get_backend()

    def __repr__(self) -> str:
        return f"<group of all {self.size()} ranks>"


ALL_RANKS = ProcessGroup()


class GroupMember:
    """Groups of which a process is or is not a member."""

    WORLD = ALL_RANKS
    NON_GROUP_MEMBER = -100


class group(GroupMember):
    """The group of all ranks, under the name that collectives take it by."""


class _State:
    is_begun = False


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: object = None,
    group_name: str = "",
    pg_options: object = None,
    device_id: object = None,
) -> None:
    """Confirm that this process is part of its job, which the environment has made it.

    rank, world_size: checked if given.  The others are accepted: ranks find each other by the
    environment of `oneflow.distributed.launch`. Raises OneFlowError for a second call, and for a
    rank or a number of ranks that are not so.
    """
    if _State.is_begun:
        raise ValueError("trying to initialize the default process group twice!")
    config = current_config()
    wanted = (rank, world_size)
    found = (config.rank, config.world_size)
    for name, asked, is_so in zip(("rank", "world_size"), wanted, found, strict=True):
        if asked not in (-1, is_so):
            raise OneFlowError(
                f"init_process_group: {name}={asked}, but it is {is_so}: the environment says so; "
                "start the processes with python -m oneflow.distributed.launch"
            )
    _State.is_begun = True


def destroy_process_group(group: object = None) -> None:
    """Take `init_process_group` back; the process stays part of its job."""
    _State.is_begun = False


def is_initialized() -> bool:
    """Return whether `init_process_group` was called, or the process is one of several."""
    return _State.is_begun or current_config().world_size > 1


def get_backend(group: object = None) -> str:
    """Return "nccl" in a process with a GPU and "gloo" elsewhere: the nearest of PyTorch's."""
    return "nccl" if distributed_gpus() else "gloo"


def distributed_gpus() -> int:
    """Return the number of GPUs that this process sees."""
    return gpu_count()


def get_backend_config(group: object = None) -> str:
    """Return the library for each kind of device."""
    return "cpu:gloo,cuda:nccl"


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: object = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: object = None,
) -> Any:
    """Return the group of all ranks; a single rank of one process is the same.

    Raises OneFlowError for fewer ranks than there are: placements name parts of them.
    """
    size = current_config().world_size
    if ranks is not None and sorted(ranks) != list(range(size)):
        raise OneFlowError(
            f"new_group: {list(ranks)} are not all {size} ranks; for fewer make global tensors on "
            "flow.placement(type, ranks)"
        )
    return ALL_RANKS


def get_process_group_ranks(group: object = None) -> list[int]:
    """Return the ranks of the group of all."""
    return list(range(current_config().world_size))


def get_global_rank(group: object, group_rank: int) -> int:
    """Return the number itself: the group is that of all ranks."""
    return group_rank


def get_group_rank(group: object, global_rank: int) -> int:
    """Return the number itself: the group is that of all ranks."""
    return global_rank


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """Return this process's number among those of its machine."""
    return current_config().local_rank


def _rank_not_in_group(group: object) -> bool:
    """Return whether this rank is no member of a group."""
    return group == GroupMember.NON_GROUP_MEMBER


def _is_absent() -> bool:
    """Return False: that library sends nothing here."""
    return False


is_gloo_available = is_mpi_available = is_ucc_available = is_xccl_available = _is_absent


def is_nccl_available() -> bool:
    """Return whether there are GPUs, between which NCCL sends where it is installed."""
    return distributed_gpus() > 0


def is_torchelastic_launched() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def monitored_barrier(
    group: object = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Wait until every rank is here; the error of a rank that does not come names it."""
    distributed.barrier()


class Work:
    """A transfer that is done."""

    def __init__(self, source: int = -1) -> None:
        self._source = source

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return True: it is done."""
        return True

    def is_completed(self) -> bool:
        """Return True: it is done."""
        return True

    is_success = is_completed

    def source_rank(self) -> int:
        """Return the rank that sent."""
        return self._source

    def result(self) -> list[Tensor]:
        """Return an empty list: results are in the tensors that were given."""
        return []


def isend(tensor: Tensor, dst: int, group: object = None, tag: int = 0) -> NoReturn:
    """Refuse: a send returns when the other rank has received."""
    raise OneFlowError(
        "distributed.isend: a send returns when the other rank has received; use send and recv in "
        "one order on both ranks, or all_to_all"
    )


irecv = batch_isend_irecv = isend


class P2POp:
    """A send or receive of `batch_isend_irecv`, which is refused."""

    def __init__(self, op: object, tensor: Tensor, peer: int, *_: object, **__: object) -> None:
        self.op, self.tensor, self.peer = op, tensor, peer


def get_default_group() -> ProcessGroup:
    """Return the group of all ranks."""
    return ALL_RANKS


_get_default_group = get_default_group


def send_object_list(object_list: list[Any], dst: int, *_: object, **__: object) -> None:
    """Send the entries of a list to rank `dst`."""
    for entry in object_list:
        distributed._comm().send_object(entry, dst)


def recv_object_list(object_list: list[Any], src: int = 0, *_: object, **__: object) -> int:
    """Receive the entries of a list from rank `src`; returns `src`."""
    for at in range(len(object_list)):
        object_list[at] = distributed._comm().recv_object(src)
    return src
