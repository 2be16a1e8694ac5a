"""Collectives of ranks on one host: ours through shared memory against torch's gloo.

    python benchmarks/allreduce.py [--ops all_reduce,all_gather] [--sizes 64,4194304] [--pin]
    python benchmarks/allreduce.py --ranks 4

All sides run in the same processes, in turns, each turn after a barrier; results are compared
first. Ours twice: with waits that spin for a while (50 us) before they sleep, and with waits that
sleep at once (--spin or --block: only one of them). Both sides write into arrays that are there.
Paired medians with 10th and 90th percentile; bytes are those of one rank's input. The op `plan` is
an all_reduce through the runtime: actors, registers and mailboxes, a step of a compiled plan, and
`plan_call` one that the plan leaves to the library's collectives; the plan's
waits are as configured.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import REST_S, arguments, paired, report
from plan_sum import planned

from oneflow.boxing.collectives.exchange import (
    all_to_all_exchange,
    gather_exchange,
    scatter_exchange,
)
from oneflow.boxing.collectives.shared_memory import SharedMemoryCollectives
from oneflow.core.config import current_config
from oneflow.distributed.world import world
from oneflow.scheduler.ports import free_port

SIZES = [64 << 2 * i for i in range(11)]  # 64 B to 64 MiB
OPS = ("all_reduce", "plan", "all_gather", "reduce_scatter", "all_to_all")
IN_A_ROW_NBYTES = 64 << 20  # a turn makes several calls until so much has been summed; at most 20
Array = np.ndarray[Any, Any]
Side = Callable[[], Array]


def ours(op: str, x: Array, c: Any) -> Side:
    """One call of ours, returning its result. x: this rank's input."""
    p, n = c.size, x.size
    if op == "all_reduce":
        out = np.empty_like(x)
        return lambda: c.all_reduce(x, out=out)
    exchange = {
        "all_gather": lambda: gather_exchange(c.ranks, (n,) * p),
        "reduce_scatter": lambda: scatter_exchange(c.ranks, n, 1),
        "all_to_all": lambda: all_to_all_exchange(c.ranks, n // p),
    }[op]()
    sizes = {"all_gather": n * p, "reduce_scatter": n // p, "all_to_all": n}
    target = np.empty(sizes[op], x.dtype)
    what = f"{op} float32[{n}]"

    def run() -> Array:
        c.transfer(what, x, target, exchange)
        return target

    return run


def gloo(op: str, x: Array) -> Side:
    """The same by torch."""
    import torch
    import torch.distributed as dist

    given, p = torch.from_numpy(x.copy()), dist.get_world_size()
    sizes = {"all_gather": x.size * p, "reduce_scatter": x.size // p}
    target = torch.empty(sizes.get(op, x.size))

    def run() -> Array:
        if op == "all_gather":
            dist.all_gather_into_tensor(target, given)
        elif op == "reduce_scatter":
            dist.reduce_scatter_tensor(target, given)
        elif op == "all_to_all":
            dist.all_to_all_single(target, given)
        else:
            target.copy_(given)  # gloo sums in place; ours reads x and writes out
            dist.all_reduce(target)
        return target.numpy()

    return run


def open_groups(options: Any) -> dict[str, SharedMemoryCollectives]:
    """Our groups of all ranks, by how they wait."""
    here = world()
    ranks = tuple(range(here.world_size))
    modes = {"spin": current_config().spin_s, "block": 0.0}
    if options.spin != options.block:
        modes.pop("block" if options.spin else "spin")
    return {
        mode: SharedMemoryCollectives(
            f"benchmark/{mode}", here.rank, ranks, here.client, here.client.check, spin_s=spin_s
        )
        for mode, spin_s in modes.items()
    }


def measure(
    op: str, nbytes: int, rounds: int, groups: dict[str, SharedMemoryCollectives]
) -> dict[str, Any]:
    x = np.random.default_rng(world().rank).standard_normal(nbytes // 4).astype(np.float32)
    sides: dict[str, Side] = {}
    if op in ("plan", "plan_call"):
        lowered = op == "plan_call"
        sides["spin" if "spin" in groups else "block"] = planned(x, "cpu", lowered)
    else:
        sides = {mode: ours(op, x, group) for mode, group in groups.items()}
    sides["gloo"] = gloo(op, x)
    modes = [name for name in sides if name != "gloo"]
    expected = sides["gloo"]().copy()
    for mode in modes:
        np.testing.assert_allclose(sides[mode](), expected, rtol=1e-6, atol=1e-6)
    repeat = max(1, min(20, IN_A_ROW_NBYTES // nbytes))
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 3):
        for name, run in sides.items():
            time.sleep(REST_S)
            world().everyone.barrier()
            start = time.perf_counter()
            for _ in range(repeat):
                run()
            if turn >= 3:
                times[name].append((time.perf_counter() - start) / repeat)
    row: dict[str, Any] = {"op": op, "bytes": nbytes}
    row["gloo_s"] = statistics.median(times["gloo"])
    for mode in groups:
        found: dict[str, Any] = paired(times, mode, "gloo") if mode in modes else {}
        keys = {"ours_s": "s", "ratio": "ratio", "ratio_p10": "p10", "ratio_p90": "p90"}
        row |= {f"{mode}_{short}": found.get(key) for key, short in keys.items()}
    return row


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
    groups = open_groups(options)
    sizes = [int(s) for s in options.sizes.split(",")] if options.sizes else SIZES
    rows = []
    for op in options.ops.split(","):
        for nbytes in sizes:
            rounds = options.rounds if nbytes < 1 << 24 else min(options.rounds, 15)
            rows.append(measure(op, nbytes, rounds, groups))
    if world().rank == 0:
        title = f"ours (shared memory) against torch gloo, {options.ranks} ranks, seconds per call"
        report(title, rows, options.json)
    for group in groups.values():
        group.close()
    dist.destroy_process_group()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--sizes", default="", help="bytes, comma-separated")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--pin", action="store_true", help="one core for each rank")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--spin", action="store_true", help="only waits that spin, then sleep")
    parser.add_argument("--block", action="store_true", help="only waits that sleep at once")
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
