"""Collectives of two ranks on one host: ours through shared memory against torch's gloo.

    python benchmarks/allreduce.py [--ops all_reduce,all_gather] [--sizes 64,4194304] [--pin]

Both run in the same two processes, in turns, each turn after a barrier; results are compared first.
Paired medians with 10th and 90th percentile; bytes are those of one rank's input. The op `plan` is
an all_reduce through the runtime:
actors, registers and mailboxes, a step of a compiled plan.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import REST_S, arguments, paired, report

from oneflow.distributed.world import world
from oneflow.scheduler.ports import free_port

SIZES = [64 << 2 * i for i in range(11)]  # 64 B to 64 MiB
OPS = ("all_reduce", "plan", "all_gather", "reduce_scatter", "all_to_all")
Side = Callable[[], np.ndarray[Any, Any]]


def sides_of(op: str, x: np.ndarray[Any, Any]) -> tuple[Side, Side]:
    """Ours and gloo's, each returning its result. x: this rank's input."""
    import torch
    import torch.distributed as dist

    here = world().everyone
    given, p = torch.from_numpy(x.copy()), here.size
    if op in ("all_reduce", "plan"):
        out, theirs = np.empty_like(x), torch.empty_like(given)

        def gloo_sum() -> np.ndarray[Any, Any]:
            theirs.copy_(given)  # gloo sums in place; ours reads x and writes out
            dist.all_reduce(theirs)
            return theirs.numpy()

        return (planned(x) if op == "plan" else lambda: here.all_reduce(x, out=out)), gloo_sum
    if op == "all_gather":
        gathered = torch.empty(p * x.size)

        def gloo_gather() -> np.ndarray[Any, Any]:
            dist.all_gather_into_tensor(gathered, given)
            return gathered.numpy()

        return lambda: here.all_gather(x), gloo_gather
    if op == "reduce_scatter":
        part = torch.empty(x.size // p)

        def gloo_scatter() -> np.ndarray[Any, Any]:
            dist.reduce_scatter_tensor(part, given)
            return part.numpy()

        return lambda: here.reduce_scatter(x), gloo_scatter
    swapped = torch.empty_like(given)

    def gloo_swap() -> np.ndarray[Any, Any]:
        dist.all_to_all_single(swapped, given)
        return swapped.numpy()

    return lambda: here.all_to_all(x.reshape(p, -1)).reshape(-1), gloo_swap


PLAN = """graph sum pieces=1 {{
  %0: float32[{n}] P = variable(; name='x') @{ranks}
  %1: float32[{n}] B = to_global(%0) @{ranks}
  %2: float32[16] B = slice(%1; starts=(0,), stops=(16,), steps=(1,)) @{ranks}
  output(%{output}; index=0) @{ranks}
}}"""


def planned(x: np.ndarray[Any, Any]) -> Side:
    """The same through the runtime: a compiled plan whose step copies x to a register, sums it over
    the ranks and hands out 16
    elements (the whole sum, for comparing, comes from a second plan)."""
    whole, few = job_of(x, 1), job_of(x, 2)
    first = [True]

    def run() -> np.ndarray[Any, Any]:
        job, first[0] = (whole if first[0] else few), False
        result: np.ndarray[Any, Any] = job.run({})[0]
        return result

    return run


def job_of(x: np.ndarray[Any, Any], output: int) -> Any:
    from oneflow.actors.job import Job
    from oneflow.actors.link import open_link
    from oneflow.core.graph_text import parse_graph
    from oneflow.core.job_config import Cluster, JobConfig
    from oneflow.core.plan import Plan
    from oneflow.scheduler.compiler.pipeline import compile_graph

    here = world()
    ranks = list(range(here.world_size))
    text = PLAN.format(n=x.size, ranks=f"cpu{ranks}", output=output)
    plan = compile_graph(parse_graph(text), JobConfig("sum"), Cluster(here.world_size))
    name = f"sum.{here.next_job_number()}"
    return Job(
        Plan.from_bytes(plan.to_bytes()),
        here.rank,
        {"x": x},
        open_link=lambda p, r: open_link(p, r, ranks, name, here.client),
        check=here.client.check,
    )


def measure(op: str, nbytes: int, rounds: int) -> dict[str, Any]:
    x = np.random.default_rng(world().rank).standard_normal(nbytes // 4).astype(np.float32)
    ours, theirs = sides_of(op, x)
    np.testing.assert_allclose(ours(), theirs(), rtol=1e-6, atol=1e-6)
    repeat = max(1, min(20, (1 << 20) // nbytes))
    times: dict[str, list[float]] = {"ours": [], "gloo": []}
    for turn in range(rounds + 3):
        for name, run in (("ours", ours), ("gloo", theirs)):
            time.sleep(REST_S)
            world().everyone.barrier()
            start = time.perf_counter()
            for _ in range(repeat):
                run()
            if turn >= 3:
                times[name].append((time.perf_counter() - start) / repeat)
    found = paired(times, "ours", "gloo")
    return {"op": op, "bytes": nbytes, **found, "GB/s": nbytes / found["ours_s"] / 1e9}


def run_rank(options: Any) -> None:
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore", FutureWarning)  # torch renames its collectives now and then
    torch.set_num_threads(1)
    if options.pin:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[world().rank % len(cores)]})
    address = f"tcp://127.0.0.1:{os.environ['BENCHMARK_GLOO_PORT']}"
    dist.init_process_group("gloo", address, rank=world().rank, world_size=world().world_size)
    sizes = [int(s) for s in options.sizes.split(",")] if options.sizes else SIZES
    rows = []
    for op in options.ops.split(","):
        for nbytes in sizes:
            rows.append(measure(op, nbytes, options.rounds if nbytes < 1 << 24 else 15))
    if world().rank == 0:
        report("ours (shared memory) against torch gloo, seconds per call", rows, options.json)
    dist.destroy_process_group()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--sizes", default="", help="bytes, comma-separated")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--pin", action="store_true", help="one core for each rank")
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    if "RANK" in os.environ:
        run_rank(options)
        return
    flags = ["--standalone", "--nproc_per_node", str(options.ranks)]
    script = [str(Path(__file__).resolve()), *sys.argv[1:]]
    command = [sys.executable, "-m", "oneflow.distributed.launch", *flags, *script]
    env = {**os.environ, "BENCHMARK_GLOO_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    raise SystemExit(subprocess.run(command, env=env).returncode)


if __name__ == "__main__":
    main()
