"""Collectives of GPUs: ours, as a library call and as a step of a plan, beside bare NCCL.

    python benchmarks/nccl.py [--ranks 2] [--ops all_reduce,plan] [--sizes 65536,268435456]

`library`: NcclCollectives, which compares calls and watches them. `plan`: an all_reduce by actors,
which read each other's registers through CUDA IPC, as a step of a compiled plan; `plan_call`: one
that the plan leaves to NcclCollectives. `nccl`: CuPy's
binding called directly. All sides run in the same processes, in turns, each after a barrier and
until the GPU is idle; results are compared first. Bus bandwidth is that of nccl-tests: bytes
times 2(n-1)/n over time for an all_reduce, (n-1)/n for the others. Ranks that outnumber the GPUs
share them, which needs NCCL 2.30. Says why and ends with 0 where it cannot run. Not run on a GPU
yet.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import REST_S, arguments, report
from plan_sum import planned

from oneflow.distributed.device_groups import SHARING_VERSION
from oneflow.distributed.world import world

SIZES = [1 << n for n in (10, 16, 20, 24, 28, 30)]  # 1 KiB to 1 GiB
OPS = ("all_reduce", "plan", "plan_call", "all_gather", "reduce_scatter", "all_to_all")
Side = Callable[[], Any]


def bare_communicator(cupy: Any) -> Any:
    """NCCL as a program without us would open it."""
    from cupy.cuda import nccl

    here = world()
    if here.rank == 0:
        here.client.put("benchmark/nccl", bytes(nccl.get_unique_id()))
    unique = here.client.get("benchmark/nccl", 60.0)
    return nccl.NcclCommunicator(here.world_size, unique, here.rank)


def bare(cupy: Any, communicator: Any, op: str, x: Any) -> Side:
    """NCCL's side of an op, into memory that was allocated before."""
    from cupy.cuda import nccl

    p, kind = world().world_size, nccl.NCCL_FLOAT32
    out = cupy.empty(x.size * p if op == "all_gather" else x.size, x.dtype)
    stream = cupy.cuda.get_current_stream().ptr

    def all_reduce() -> Any:
        communicator.allReduce(x.data.ptr, out.data.ptr, x.size, kind, nccl.NCCL_SUM, stream)
        return out

    def all_gather() -> Any:
        communicator.allGather(x.data.ptr, out.data.ptr, x.size, kind, stream)
        return out

    def reduce_scatter() -> Any:
        part = x.size // p
        communicator.reduceScatter(x.data.ptr, out.data.ptr, part, kind, nccl.NCCL_SUM, stream)
        return out[:part]

    def all_to_all() -> Any:
        part = x.size // p
        nccl.groupStart()
        for peer in range(p):
            at = peer * part * x.itemsize
            communicator.send(x.data.ptr + at, part, kind, peer, stream)
            communicator.recv(out.data.ptr + at, part, kind, peer, stream)
        nccl.groupEnd()
        return out

    sides: dict[str, Side] = {
        "all_reduce": all_reduce,
        "plan": all_reduce,
        "plan_call": all_reduce,
        "all_gather": all_gather,
        "reduce_scatter": reduce_scatter,
        "all_to_all": all_to_all,
    }
    return sides[op]


def ours(cupy: Any, op: str, x: Any) -> Side:
    here = world()
    if op in ("plan", "plan_call"):
        return planned(x, "cuda", lowered=op == "plan_call")
    ends: Any = here.device_collectives(tuple(range(here.world_size)))
    if type(ends).__name__ != "NcclCollectives":
        raise SystemExit("our collectives do not use NCCL here: the warning above says why")
    out = cupy.empty_like(x)
    sides: dict[str, Side] = {
        "all_reduce": lambda: ends.all_reduce(x, out=out),
        "all_gather": lambda: ends.all_gather(x),
        "reduce_scatter": lambda: ends.reduce_scatter(x),
        "all_to_all": lambda: ends.all_to_all(x.reshape(here.world_size, -1)).reshape(-1),
    }
    return sides[op]


def timed(cupy: Any, run: Side, repeat: int) -> float:
    """Seconds of one call, of `repeat` in a row until the GPU is idle."""
    time.sleep(REST_S)
    world().everyone.barrier()
    start = time.perf_counter()
    for _ in range(repeat):
        run()
    cupy.cuda.get_current_stream().synchronize()
    return (time.perf_counter() - start) / repeat


def measure(cupy: Any, communicator: Any, op: str, nbytes: int, rounds: int) -> dict[str, Any]:
    """One row. nbytes: of one rank's input."""
    p = world().world_size
    values = np.random.default_rng(world().rank).standard_normal(nbytes // 4).astype(np.float32)
    x = cupy.asarray(values)
    sides = {"ours": ours(cupy, op, x), "nccl": bare(cupy, communicator, op, x)}
    mine, theirs = (cupy.asnumpy(run()).reshape(-1) for run in sides.values())
    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
    repeat = max(1, min(50, (64 << 20) // nbytes))
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 3):
        for name, run in sides.items():
            seconds = timed(cupy, run, repeat)
            if turn >= 3:
                times[name].append(seconds)
    ratios = sorted(b / a for a, b in zip(times["ours"], times["nccl"], strict=True))
    moved = nbytes * (p if op == "all_gather" else 1)  # the whole, as nccl-tests counts
    factor = (2 if op in ("all_reduce", "plan", "plan_call") else 1) * (p - 1) / p
    bandwidth = {n: moved * factor / statistics.median(t) / 1e9 for n, t in times.items()}
    return {
        "op": op,
        "bytes": nbytes,
        "ours_us": statistics.median(times["ours"]) * 1e6,
        "nccl_us": statistics.median(times["nccl"]) * 1e6,
        "ratio": statistics.median(ratios),
        "ratio_p10": ratios[len(ratios) // 10],
        "ratio_p90": ratios[-1 - len(ratios) // 10],
        "ours_bus_GB/s": bandwidth["ours"],
        "nccl_bus_GB/s": bandwidth["nccl"],
    }


def run_rank(options: Any) -> None:
    from cupy.cuda import nccl

    from oneflow.kernels.cuda_device import own_device

    cupy = own_device()
    communicator = bare_communicator(cupy)
    sizes = [int(s) for s in options.sizes.split(",")] if options.sizes else SIZES
    rows = [
        measure(cupy, communicator, op, nbytes, options.rounds)
        for op in options.ops.split(",")
        for nbytes in sizes
    ]
    if world().rank == 0:
        gpus = cupy.cuda.runtime.getDeviceCount()
        title = f"{world().world_size} ranks on {gpus} GPUs, NCCL {nccl.get_version()}"
        report(f"{title}: ours against bare NCCL", rows, options.json)
    communicator.destroy()


def why_not(ranks: int) -> str:
    """Why it cannot run here; empty if it can."""
    try:
        import cupy
        from cupy.cuda import nccl
    except ImportError as error:
        return f"no CuPy ({error})"
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no CUDA device ({error})"
    if count == 0:
        return "no CUDA device"
    if not nccl.available:
        return "CuPy finds no NCCL (pip install oneflow-actors[cuda] or [cuda13])"
    version = int(nccl.get_version())
    if count < ranks and version < SHARING_VERSION:
        return f"{ranks} ranks on {count} GPUs need NCCL 2.30 ({SHARING_VERSION}), not {version}"
    return ""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--sizes", default="", help="bytes, comma-separated")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    if "RANK" in os.environ:
        run_rank(options)
        return
    reason = why_not(options.ranks)
    if reason:
        print(f"benchmarks/nccl.py: nothing measured: {reason}")
        return
    flags = ["--standalone", "--nproc_per_node", str(options.ranks)]
    script = [str(Path(__file__).resolve()), *sys.argv[1:]]
    command = [sys.executable, "-m", "oneflow.distributed.launch", *flags, *script]
    env = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", **os.environ}
    raise SystemExit(subprocess.run(command, env=env).returncode)


if __name__ == "__main__":
    main()
