"""Every pair of two calls of the table, one on each of two ranks: a DesyncError that names both.

The error comes on both ranks before any data moves, so the ranks go on with the next pair.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import oneflow as flow
from oneflow import comm, nn
from oneflow.core.errors import DesyncError

RANK = flow.env.get_rank()
RANKS, S, B = flow.placement("cpu", [0, 1]), flow.sbp.split, flow.sbp.broadcast
FOLDER = Path(sys.argv[1])
ONES = flow.ones(2)
EMBEDDED = flow.ones(4, 2, placement=RANKS, sbp=S(0))


def lists() -> list[Any]:
    return [flow.empty(2), flow.empty(2)]


def synced() -> None:
    nn.SyncBatchNorm(2)(flow.ones(3, 2, 2))


def checked() -> None:
    flow.ones(2).to_global(RANKS, S(0)).check_meta_consistency()


def saved(**options: int) -> None:
    flow.save({"a": EMBEDDED}, FOLDER / f"saved{len(options)}", **options)


CALLS: dict[str, tuple[str, Callable[[], object]]] = {
    "to_global": ("to_global of a local", lambda: ONES.to_global(RANKS, S(0))),
    "to_global, checked": (
        "to_global of a global",
        lambda: EMBEDDED.to_global(sbp=B, check_meta=True),
    ),
    "boxing": ("boxing", lambda: EMBEDDED.to_global(sbp=S(1))),
    "numpy": ("boxing", lambda: flow.ones(6, placement=RANKS, sbp=S(0)).numpy()),
    "item": ("boxing", lambda: flow.ones(8, placement=RANKS, sbp=S(0)).sum().item()),
    "print": ("print", lambda: repr(EMBEDDED)),
    "write": ("slice", lambda: EMBEDDED.clone().__setitem__(slice(0, 2), EMBEDDED[2:])),
    "tensor": ("tensor", lambda: flow.tensor([1.0], placement=RANKS, sbp=B)),
    "random": ("seed of uniform", lambda: flow.rand(4, placement=RANKS, sbp=S(0))),
    "dropout": ("seed of dropout", lambda: nn.functional.dropout(EMBEDDED)),
    "nonzero": ("boxing", lambda: EMBEDDED.nonzero()),
    "save": ("save,", saved),
    "save on 0": ("save(global_dst_rank=0)", lambda: saved(global_dst_rank=0)),
    "save on 1": ("save(global_dst_rank=1)", lambda: saved(global_dst_rank=1)),
    "load": ("load of a folder", lambda: flow.load(FOLDER / "shards")),
    "load from 0": ("load(global_src_rank=0)", lambda: flow.load(FOLDER / "0", global_src_rank=0)),
    "check_meta_consistency": ("check_meta_consistency", lambda: EMBEDDED.check_meta_consistency()),
    "barrier": ("barrier", comm.barrier),
    "all_reduce": ("all_reduce(sum)", lambda: comm.all_reduce(flow.ones(2))),
    "all_reduce max": ("all_reduce(max)", lambda: comm.all_reduce(flow.ones(2), "max")),
    "all_reduce of another shape": ("all_reduce(sum)", lambda: comm.all_reduce(flow.ones(3))),
    "all_gather": ("all_gather ", lambda: comm.all_gather(lists(), ONES)),
    "all_gather_into_tensor": (
        "all_gather_into_tensor",
        lambda: comm.all_gather_into_tensor(flow.empty(4), ONES),
    ),
    "reduce_scatter": ("reduce_scatter(sum)", lambda: comm.reduce_scatter(flow.empty(2), lists())),
    "reduce_scatter_tensor": (
        "reduce_scatter_tensor",
        lambda: comm.reduce_scatter_tensor(flow.empty(2), flow.ones(4)),
    ),
    "broadcast": ("broadcast(from rank 0)", lambda: comm.broadcast(flow.ones(2), 0)),
    "broadcast from 1": ("broadcast(from rank 1)", lambda: comm.broadcast(flow.ones(2), 1)),
    "broadcast int64": (
        "broadcast(from rank 0)",
        lambda: comm.broadcast(flow.ones(2, dtype=flow.int64), 0),
    ),
    "scatter": (
        "scatter(from rank 0)",
        lambda: comm.scatter(flow.empty(2), lists() if RANK == 0 else None, 0),
    ),
    "gather": (
        "gather(to rank 0)",
        lambda: comm.gather(ONES, lists() if RANK == 0 else None, 0),
    ),
    "reduce": ("reduce(sum, to rank 0)", lambda: comm.reduce(flow.ones(2), 0)),
    "all_to_all": ("all_to_all", lambda: comm.all_to_all(lists(), lists())),
    "all_to_all_single": (
        "all_to_all_single",
        lambda: comm.all_to_all_single(flow.empty(4), flow.ones(4)),
    ),
    "send": (
        "send(",
        lambda: comm.send(ONES, 1) if RANK == 0 else comm.recv(0),
    ),
    "send_object": (
        "send_object(",
        lambda: comm.send_object(ONES, 1) if RANK == 0 else comm.recv_object(0),
    ),
    "all_gather_object": ("all_gather_object", lambda: comm.all_gather_object({"a": 1})),
    "broadcast_object": ("broadcast_object(", lambda: comm.broadcast_object([1], 0)),
    "broadcast_object_list": ("broadcast_object_list", lambda: comm.broadcast_object_list([1], 0)),
    "gather_object": ("gather_object", lambda: comm.gather_object(1, 0)),
    "scatter_object": ("scatter_object", lambda: comm.scatter_object([1, 2], 0)),
    "AllReduce": ("AllReduce", lambda: nn.AllReduce()(ONES)),
    "SyncBatchNorm": ("SyncBatchNorm", synced),
    "DistributedDataParallel": (
        "DistributedDataParallel",
        lambda: nn.parallel.DistributedDataParallel(nn.Linear(2, 2)),
    ),
}
"""The words of each call in the error, and a call that waits for the other rank."""


def try_pair(names: tuple[str, str]) -> str:
    """The fault of the error that a pair of calls gives; "": it has none."""
    try:
        CALLS[names[RANK]][1]()
    except DesyncError as error:
        said = str(error)
        missing = [CALLS[name][0] for name in names if CALLS[name][0] not in said]
        return f"no {' and no '.join(missing)} in: {said}" if missing else ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def main() -> None:
    flow.save({"a": EMBEDDED}, FOLDER / "shards")
    flow.save({"a": EMBEDDED}, FOLDER / "0", global_dst_rank=0)
    for _, call in CALLS.values():  # all are right where both ranks make them
        call()
        comm.barrier()
    wrong = []
    for names in combinations(CALLS, 2):
        if found := try_pair(names):
            wrong.append(f"{names[0]} and {names[1]}: {found}")
        comm.barrier()
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"rank {RANK}: done", flush=True)


main()
