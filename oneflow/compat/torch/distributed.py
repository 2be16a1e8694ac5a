"""Names of `torch.distributed` beyond those of `flow.distributed`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from oneflow import distributed
from oneflow.compat.torch.stores import (
    FileStore,
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)
from oneflow.core.config import current_config, set_config
from oneflow.core.device import Device, DeviceLike
from oneflow.core.errors import HangError, OneFlowError, TransportError
from oneflow.core.whole_files import write_whole
from oneflow.distributed.process_groups import (
    ALL_RANKS,
    GroupMember,
    ProcessGroup,
    Work,
    rank_in,
    rank_of,
)
from oneflow.distributed.world import close_world, world
from oneflow.kernels.cuda_device import gpu_count
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:  # it brings grpc, which one rank alone does not need
    from oneflow.actors.control import ControlClient

__all__ = ["FileStore", "GroupMember", "HashStore", "PrefixStore", "Store", "TCPStore", "Work"]

BACKENDS = ("undefined", "gloo", "nccl", "xccl", "ucc", "mpi")
LOOK_S = 0.02

DistError, DistBackendError = OneFlowError, TransportError
DistNetworkError = DistStoreError = TransportError
QueueEmptyError = HangError


class Backend(str):
    """The name of a library that PyTorch sends with."""

    __slots__ = ()

    UNDEFINED, GLOO, NCCL, XCCL, UCC, MPI = BACKENDS
    backend_list = list(BACKENDS)
    default_device_backend_map = {"cpu": "gloo", "cuda": "nccl"}
    backend_capability = {"gloo": ["cpu", "cuda"], "nccl": ["cuda"], "mpi": ["cpu", "cuda"]}

    def __new__(cls, name: str) -> Backend:
        if not isinstance(name, str):
            raise ValueError(f"Backend constructor parameter must be string-ish, got {name!r}")
        return super().__new__(cls, name.lower())


class group(GroupMember):
    """The group of all ranks, under the name that collectives take it by."""


class _State:
    is_begun = False
    has_joined = False
    """Whether `init_process_group` has made this process a rank."""
    backend = ""
    store: Store | None = None
    num_groups = 0


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Store | None = None,
    group_name: str = "",
    pg_options: object = None,
    device_id: object = None,
) -> None:
    """Make this process a rank of its job, or confirm that the environment has made it one.

    Ranks find each other at MASTER_ADDR and MASTER_PORT, or at the `init_method`:
    `tcp://host:port` of rank 0, or `file:///path` of a file that all can write, which is not there
    yet. With a `store` rank 0 tells there where it is. Raises OneFlowError for a second call, and
    for a rank or a number of ranks that are not as the environment says.

    Example::

        torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29500", rank=0, world_size=2)
    """
    if _State.is_begun:
        raise ValueError("trying to initialize the default process group twice!")
    query = parse_qs(urlsplit(init_method or "").query)
    rank = int(query["rank"][0]) if "rank" in query else rank
    world_size = int(query["world_size"][0]) if "world_size" in query else world_size
    config = current_config()
    if config.launched:
        _check("rank", rank, config.rank)
        _check("world_size", world_size, config.world_size)
    else:
        _join(init_method or "env://", store, rank, world_size, timeout)
    _State.is_begun, _State.backend = True, (backend or "").lower()
    _State.store = store
    if current_config().world_size > 1:
        _open_store(world().client)


def _check(name: str, asked: int, is_so: int) -> None:
    if asked not in (-1, is_so):
        raise OneFlowError(
            f"init_process_group: {name}={asked}, but it is {is_so}: the environment says so"
        )


def _join(
    method: str, store: Store | None, rank: int, world_size: int, timeout: timedelta | None
) -> None:
    """Let the environment name this process as a rank of a job."""
    env = os.environ
    rank = int(env.get("RANK", "0")) if rank < 0 else rank
    world_size = int(env.get("WORLD_SIZE", "1")) if world_size < 0 else world_size
    parts = urlsplit(method)
    if store is not None:
        address = _told(rank, _by_store(store))
    elif parts.scheme == "tcp":
        address = str(parts.hostname), parts.port or 0
    elif parts.scheme == "file":
        address = _told(rank, _by_file(Path(parts.netloc + parts.path), timeout))
    elif parts.scheme == "env":
        address = env.get("MASTER_ADDR", "127.0.0.1"), int(env.get("MASTER_PORT", "0"))
    else:
        raise ValueError(f"init_process_group: init_method is env, tcp or file, got {method!r}")
    if world_size == 1:
        return
    if not address[1]:
        raise ValueError("init_process_group: MASTER_PORT names no port at which rank 0 listens")
    named = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": env.get("LOCAL_RANK", rank)}
    named |= {"MASTER_ADDR": address[0], "MASTER_PORT": address[1]}
    close_world()
    env.update({name: str(value) for name, value in named.items()})
    set_config(None)
    _State.has_joined = True


Tell = Callable[[str], str]
"""Takes the address of rank 0, or "" to ask for it, and returns it."""


def _told(rank: int, tell: Tell) -> tuple[str, int]:
    if rank == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        mine = os.environ.get("MASTER_ADDR", "127.0.0.1")
        host, _, text = tell(f"{mine}:{port}").rpartition(":")
    else:
        host, _, text = tell("").rpartition(":")
    return host, int(text)


def _by_store(store: Store) -> Tell:
    def tell(address: str) -> str:
        if address:
            store.set("/address", address)
        return store.get("/address").decode()

    return tell


def _by_file(path: Path, timeout: timedelta | None) -> Tell:
    seconds = (timeout or distributed.default_pg_timeout).total_seconds()

    def tell(address: str) -> str:
        if address:
            write_whole(path, address.encode())
        end = time.monotonic() + seconds
        while not path.exists() or not (text := path.read_text()):
            if time.monotonic() > end:
                raise HangError(f"init_process_group: rank 0 wrote nothing to {path}")
            time.sleep(LOOK_S)
        return text

    return tell


def _open_store(client: ControlClient) -> None:
    """Let rank 0 keep the store of the job, and tell the others where. client: of a rank that has
    met all others, as PyTorch's have after this call even if they never meet again.
    """
    if _State.store is not None:
        return
    config = current_config()
    if config.rank == 0:
        made = TCPStore(config.master_addr, 0, is_master=True, wait_for_workers=False)
        client.put("torch/store", f"{made.host}:{made.port}".encode())
        _State.store = made


def _get_default_store() -> Store:
    """Return the store of the job's ranks."""
    if _State.store is None:
        if current_config().world_size == 1:
            _State.store = HashStore()
        else:
            host, _, port = world().client.get("torch/store").decode().rpartition(":")
            _State.store = TCPStore(host, int(port), wait_for_workers=False)
    return _State.store


def destroy_process_group(group: object = None) -> None:
    """Take `init_process_group` back; a process that it has made a rank leaves the job."""
    if group is not None and group is not ALL_RANKS:
        return
    if _State.has_joined:
        distributed.barrier()
        close_world()
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            os.environ.pop(name, None)
        set_config(None)
    _State.is_begun = _State.has_joined = False
    _State.store, _State.num_groups = None, 0


def is_initialized() -> bool:
    """Return whether `init_process_group` was called."""
    return _State.is_begun


def get_backend(group: object = None) -> str:
    """Return the name that `init_process_group` was given, or the nearest of PyTorch's."""
    return _State.backend or ("nccl" if gpu_count() else "gloo")


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
    """Return the group of some ranks, or of all; `GroupMember.NON_GROUP_MEMBER` on other ranks.

    All ranks of the job make groups in one order. Raises OneFlowError for a rank that there is not.
    """
    _State.num_groups += 1
    size = current_config().world_size
    for rank in ranks or ():
        if not 0 <= rank < size:
            raise OneFlowError(f"new_group: rank {rank} is not in a world of {size}")
    if ranks is not None and len(set(ranks)) < len(ranks):
        raise OneFlowError(f"new_group: a rank is named twice in {list(ranks)}")
    made = ProcessGroup(ranks, _State.num_groups, group_desc or "")
    return made if made.rank() >= 0 else GroupMember.NON_GROUP_MEMBER


def new_subgroups(
    group_size: int | None = None, group: object = None, *_: object, **__: object
) -> tuple[Any, list[Any]]:
    """Return this rank's group and all groups of `group_size` ranks that follow each other."""
    size = current_config().world_size
    width = group_size or size
    if size % width:
        raise ValueError(f"new_subgroups: {size} ranks are not divisible by {width}")
    made = [new_group(range(start, start + width)) for start in range(0, size, width)]
    return made[current_config().rank // width], made


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]], *_: object, **__: object
) -> tuple[Any, list[Any]]:
    """Return this rank's group and all groups of these ranks; None if it is in none. Raises
    ValueError for a rank in two.
    """
    everyone = [rank for ranks in ranks_per_subgroup_list for rank in ranks]
    if len(everyone) != len(set(everyone)):
        raise ValueError(f"new_subgroups_by_enumeration: {everyone} has a rank twice")
    made = [new_group(ranks) for ranks in ranks_per_subgroup_list]
    own = [g for g, ranks in zip(made, ranks_per_subgroup_list, strict=True) if _me() in ranks]
    return (own[0] if own else None), made


def _me() -> int:
    return current_config().rank


def all_reduce_coalesced(
    tensors: Sequence[Tensor],
    op: distributed.ReduceOp = distributed.ReduceOp.SUM,
    group: object = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce each tensor over all ranks, in place."""
    works = [distributed.all_reduce(x, op, group, async_op) for x in tensors]
    return works[-1] if async_op and works else None


def get_pg_count() -> int:
    """Return the number of groups, with that of all ranks."""
    return _State.num_groups + 1


def get_default_backend_for_device(device: DeviceLike) -> str:
    """Return the name of the library that PyTorch would send with from such a device."""
    return Backend.default_device_backend_map[Device(device).type]


def is_backend_available(backend: str) -> bool:
    """Return whether ranks can be asked for under that name."""
    return backend.lower() in ("gloo", "nccl") and (backend.lower() == "gloo" or gpu_count() > 0)


def supports_complex(reduceOp: distributed.ReduceOp) -> bool:
    """Return whether complex numbers can be reduced so."""
    op = distributed.ReduceOp
    return reduceOp in (op.SUM, op.AVG)


class DebugLevel(IntEnum):
    """Levels of TORCH_DISTRIBUTED_DEBUG: ranks compare their calls at every level."""

    OFF, INFO, DETAIL = range(3)


_level = {"now": DebugLevel.OFF}


def get_debug_level() -> DebugLevel:
    """Return the level that was set."""
    return _level["now"]


def set_debug_level(level: DebugLevel) -> None:
    """Set the level, which changes nothing."""
    _level["now"] = DebugLevel(level)


def set_debug_level_from_env() -> None:
    """Set the level that TORCH_DISTRIBUTED_DEBUG names. Raises ValueError for other words."""
    word = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "OFF").upper()
    if word not in DebugLevel.__members__:
        raise ValueError(f"TORCH_DISTRIBUTED_DEBUG={word}: one of {list(DebugLevel.__members__)}")
    set_debug_level(DebugLevel[word])


def split_group(*_: object, **__: object) -> Any:
    """Refuse: `new_group` makes groups of any ranks."""
    raise OneFlowError("distributed.split_group: call new_group with the ranks of each part")


def get_process_group_ranks(group: object = None) -> list[int]:
    """Return the ranks of a group."""
    return (group if isinstance(group, ProcessGroup) else ALL_RANKS).ranks


def get_global_rank(group: object, group_rank: int) -> int:
    """Return the number in the job of a rank of a group."""
    return rank_of(group, group_rank)


def get_group_rank(group: object, global_rank: int) -> int:
    """Return the number in a group of a rank of the job."""
    return rank_in(group, global_rank)


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """Return this process's number among those of its machine."""
    return current_config().local_rank


def _rank_not_in_group(group: object) -> bool:
    """Return whether this rank is no member of a group."""
    if group is None:
        return False
    return not isinstance(group, ProcessGroup) or group.rank() < 0


def _is_absent() -> bool:
    """Return False: that library sends nothing here."""
    return False


def is_gloo_available() -> bool:
    """Return True: CPU tensors travel between ranks."""
    return True


is_mpi_available = is_ucc_available = is_xccl_available = _is_absent


def is_nccl_available() -> bool:
    """Return whether there are GPUs, between which NCCL sends where it is installed."""
    return gpu_count() > 0


def is_torchelastic_launched() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def monitored_barrier(
    group: object = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Wait until every rank is here; the error of a rank that does not come names it."""
    work = distributed.barrier(group, async_op=timeout is not None)
    if work is not None:
        work.wait(timeout)


class P2POp:
    """A send or receipt of `batch_isend_irecv`. op: `isend` or `irecv`."""

    def __init__(
        self,
        op: Callable[..., Work],
        tensor: Tensor,
        peer: int | None = None,
        group: object = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op not in (distributed.isend, distributed.irecv):
            raise ValueError("Invalid ``op``. Expected isend or irecv of torch.distributed")
        self.op, self.tensor, self.group, self.tag = op, tensor, group, tag
        self.peer = rank_of(group, group_peer) if peer is None and group_peer is not None else peer


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work]:
    """Begin some sends and receipts, in any order on either side."""
    return [p.op(p.tensor, p.peer, p.group, p.tag) for p in p2p_op_list]


def get_default_group() -> ProcessGroup:
    """Return the group of all ranks."""
    return ALL_RANKS


_get_default_group = get_default_group
