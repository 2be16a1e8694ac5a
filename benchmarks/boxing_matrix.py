"""Every change of layout: bytes against the lower bound, and time against torch's DTensor on gloo.

    python benchmarks/boxing_matrix.py [--sets 2,4,2x2] [--shape 512,512] [--rounds 7]

Each pair over {S0, S1, B, P} on two and on four ranks, each pair of pairs on a 2x2 grid, between
four ranks in a line and in a grid, between disjoint and between overlapping ranks. Bytes are those
that the transport of all ranks counted in one `to_global`, of the given shape and of one that
nothing divides. DTensor redistributes the same tensors in the same processes, in turns, where it
knows the pair (one mesh). Values of both are compared with NumPy's. The time of a call is that of
the slowest rank; paired medians with 10th and 90th percentile.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measure import REST_S, arguments, paired, report

import oneflow as flow
from oneflow.boxing.bound import lower_bound_nbytes
from oneflow.boxing.boxes import shard_box
from oneflow.core.dtype import float32
from oneflow.core.placement import Placement, coordinates
from oneflow.core.sbp import BROADCAST, PARTIAL, NdSbp, Split
from oneflow.core.tensor_type import TensorType
from oneflow.distributed.world import world
from oneflow.scheduler.ports import free_port

ONE = (Split(0), Split(1), BROADCAST, PARTIAL)
TWO = tuple(itertools.product(ONE, repeat=2))
REPEAT = 3  # calls in one turn
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Set:
    """Pairs of layouts between two placements."""

    ranks: int
    source: list[Any]
    target: list[Any]

    def pairs(self) -> Iterator[tuple[NdSbp, Placement, NdSbp, Placement]]:
        p, q = Placement("cpu", self.source), Placement("cpu", self.target)
        for a, b in itertools.product(_layouts(p), _layouts(q)):
            if (a, p) != (b, q):
                yield a, p, b, q


def _layouts(placement: Placement) -> list[NdSbp]:
    return list(TWO) if placement.ndim == 2 else [(s,) for s in ONE]


GRID = [[0, 1], [2, 3]]
SETS = {
    "2": Set(2, [0, 1], [0, 1]),
    "4": Set(4, [0, 1, 2, 3], [0, 1, 2, 3]),
    "2x2": Set(4, GRID, GRID),
    "4 to 2x2": Set(4, [0, 1, 2, 3], GRID),
    "2x2 to 4": Set(4, GRID, [0, 1, 2, 3]),
    "disjoint": Set(4, [0, 1], [2, 3]),
    "overlapping": Set(4, [0, 1, 2], [1, 2, 3]),
}


@dataclass(frozen=True)
class Case:
    """One change of layout with its data. addends: one whole array for each addend of the source;
    integers, so that sums are exact in any order."""

    src: NdSbp
    src_placement: Placement
    dst: NdSbp
    dst_placement: Placement
    addends: list[Array]

    @property
    def whole(self) -> Array:
        return np.sum(self.addends, axis=0, dtype=np.float32)

    def shard(self) -> Array:
        """This rank's part of the source."""
        rank, p = world().rank, self.src_placement
        if rank not in p:
            return np.empty((0, 0), np.float32)
        at = coordinates(p.hierarchy)[p.rank_ids.index(rank)]
        index = 0
        for s, i, n in zip(self.src, at, p.hierarchy, strict=True):
            index = index * n + i if s.is_partial else index
        return np.ascontiguousarray(_part(self.addends[index], self.src, p, rank))

    def is_right(self, shard: Array) -> bool:
        """Whether the shards of all ranks make up the whole; the ranks meet in it, over gloo."""
        import torch.distributed as dist

        shards: list[Any] = [None] * world().world_size
        dist.all_gather_object(shards, shard)
        q, whole = self.dst_placement, self.whole
        sums = {rank: _part(whole, self.dst, q, rank) for rank in q.rank_ids}
        found: dict[Any, Array] = {}
        for rank, at in zip(q.rank_ids, coordinates(q.hierarchy), strict=True):
            key = tuple(
                -1 if s.is_partial else i for s, i in zip(self.dst, at, strict=True)
            )  # ranks that hold addends of the same part
            if shards[rank].shape != sums[rank].shape:
                return False
            found[key] = found.get(key, 0) + shards[rank]
        return all(
            np.array_equal(
                found[tuple(-1 if s.is_partial else i for s, i in zip(self.dst, at, strict=True))],
                sums[rank],
            )
            for rank, at in zip(q.rank_ids, coordinates(q.hierarchy), strict=True)
        )


def _part(whole: Array, nd_sbp: NdSbp, placement: Placement, rank: int) -> Array:
    box = shard_box(whole.shape, nd_sbp, placement, rank)
    return whole[tuple(slice(a, b) for a, b in zip(box.starts, box.stops, strict=True))]


def make_case(shape: tuple[int, ...], src: NdSbp, p: Placement, dst: NdSbp, q: Placement) -> Case:
    count = math.prod(n for s, n in zip(src, p.hierarchy, strict=True) if s.is_partial)
    rng = np.random.default_rng(5)
    addends = [rng.integers(-99, 99, shape).astype(np.float32) for _ in range(count)]
    return Case(src, p, dst, q, addends)


def ours(case: Case) -> Callable[[], Array]:
    local = flow.tensor(case.shard())
    x = local.to_global(placement=case.src_placement, sbp=list(case.src))
    q, sbp = case.dst_placement, list(case.dst)

    def run() -> Array:
        result: Array = x.to_global(placement=q, sbp=sbp).to_local().numpy()
        return result

    return run


def dtensor(case: Case) -> Callable[[], Array] | None:
    """The same by DTensor; None where source and target are not one mesh."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    if case.src_placement != case.dst_placement:
        return None
    meshes = dtensor.__dict__.setdefault("meshes", {})
    place = case.src_placement
    if place not in meshes:
        ranks = np.array(place.rank_ids).reshape(place.hierarchy).tolist()
        meshes[place] = DeviceMesh("cpu", ranks)

    def layout(nd_sbp: NdSbp) -> list[Any]:
        kinds = {True: Partial(), False: Replicate()}
        return [Shard(s.dim) if s.is_split else kinds[s.is_partial] for s in nd_sbp]

    local = torch.from_numpy(case.shard())
    x = DTensor.from_local(local, meshes[place], layout(case.src), run_check=False)
    target = layout(case.dst)

    def run() -> Array:
        with torch.no_grad():
            result: Array = x.redistribute(placements=target).to_local().numpy()
            return result

    return run


def counted(run: Callable[[], Array]) -> tuple[Array, int]:
    """The result of a call, and the bytes that all ranks' transports read from others in it."""
    import torch.distributed as dist

    def received() -> int:
        return sum(c.received_nbytes for c in world()._collectives.values())

    run()  # opens the groups of ranks that it needs
    before = received()
    result = run()
    all_ranks: list[Any] = [None] * world().world_size
    dist.all_gather_object(all_ranks, received() - before)
    return result, sum(all_ranks)


def known_to_dtensor(case: Case) -> tuple[Callable[[], Array] | None, str]:
    """DTensor's side if all ranks can run it and it is right, and else why not."""
    import torch.distributed as dist

    run = dtensor(case)
    if run is None:
        return None, "two meshes"
    result, error = np.empty(0), ""
    try:
        result = run()
    except (RuntimeError, NotImplementedError, AssertionError, ValueError) as failure:
        error = type(failure).__name__
    errors: list[Any] = [None] * world().world_size
    dist.all_gather_object(errors, error)
    if any(errors):
        return None, max(errors)
    return (run, "") if case.is_right(result) else (None, "wrong values")


def measure(name: str, shape: tuple[int, ...], pair: Any, rounds: int) -> dict[str, Any]:
    case, uneven = make_case(shape, *pair), make_case(tuple(n - 3 for n in shape), *pair)
    row: dict[str, Any] = {"set": name, "from": _text(pair[0]), "to": _text(pair[2])}
    for suffix, given in (("", case), ("_uneven", uneven)):
        result, nbytes = counted(ours(given))
        if not given.is_right(result):
            raise SystemExit(f"{row}: wrong values")
        bound = lower_bound_nbytes(TensorType(given.whole.shape, float32), *pair)
        row |= {f"bytes{suffix}": nbytes, f"bound{suffix}": bound}
    row["bytes_ratio"] = max(_over(row, ""), _over(row, "_uneven"))
    other, why = known_to_dtensor(case)
    sides = {"ours": ours(case), **({"dtensor": other} if other else {})}
    times = timed(sides, rounds)
    row["ours_s"] = statistics.median(times["ours"])
    row["dtensor_s"] = statistics.median(times["dtensor"]) if other else None
    found = paired(times, "ours", "dtensor") if other else {}
    return row | {k: found.get(k) for k in ("ratio", "ratio_p10", "ratio_p90")} | {"no": why}


def timed(sides: dict[str, Callable[[], Array]], rounds: int) -> dict[str, list[float]]:
    """Seconds of a call in each turn, of the slowest rank."""
    import torch.distributed as dist

    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, run in sides.items():
            time.sleep(REST_S)
            world().everyone.barrier()
            start = time.perf_counter()
            for _ in range(REPEAT):
                run()
            if turn:
                times[name].append((time.perf_counter() - start) / REPEAT)
    of_all: list[Any] = [None] * world().world_size
    dist.all_gather_object(of_all, times)
    return {name: np.max([t[name] for t in of_all], axis=0).tolist() for name in sides}


def _over(row: dict[str, Any], suffix: str) -> float:
    nbytes, bound = row[f"bytes{suffix}"], row[f"bound{suffix}"]
    return float(nbytes / bound) if bound else 1.0 + nbytes


def _text(nd_sbp: NdSbp) -> str:
    return ",".join(f"S{s.dim}" if s.is_split else "P" if s.is_partial else "B" for s in nd_sbp)


def run_rank(options: Any) -> None:
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{os.environ['BENCHMARK_GLOO_PORT']}"
    here = world()
    dist.init_process_group("gloo", address, rank=here.rank, world_size=here.world_size)
    shape = tuple(int(n) for n in options.shape.split(","))
    rows = [
        measure(name, shape, pair, options.rounds)
        for name in options.sets.split(",")
        if SETS[name].ranks == here.world_size
        for pair in SETS[name].pairs()
    ]
    if here.rank == 0:
        Path(os.environ["BENCHMARK_ROWS"]).write_text(json.dumps(rows))
    here.everyone.barrier()
    dist.destroy_process_group()


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line for each set, for pairs that move data and for those that need not."""
    lines = []
    for name, moves in itertools.product(dict.fromkeys(r["set"] for r in rows), (True, False)):
        of_set = [r for r in rows if r["set"] == name and (r["bound"] > 0) == moves]
        ratios = sorted(r["ratio"] for r in of_set if r["ratio"] is not None)
        if of_set:
            lines.append(
                {
                    "set": name,
                    "data": "move" if moves else "stay",
                    "pairs": len(of_set),
                    "bytes_ratio_max": max(r["bytes_ratio"] for r in of_set),
                    "ours_s": statistics.median(r["ours_s"] for r in of_set),
                    "known_to_dtensor": len(ratios),
                    "ratio": statistics.median(ratios) if ratios else None,
                    "ratio_min": ratios[0] if ratios else None,
                }
            )
    return lines


def launch(num_ranks: int, rows: Path) -> None:
    flags = ["--standalone", "--nproc_per_node", str(num_ranks)]
    script = [str(Path(__file__).resolve()), *sys.argv[1:]]
    command = [sys.executable, "-m", "oneflow.distributed.launch", *flags, *script]
    env = {
        **os.environ,
        "BENCHMARK_GLOO_PORT": str(free_port()),
        "BENCHMARK_ROWS": str(rows),
        "OMP_NUM_THREADS": "1",
    }
    subprocess.run(command, env=env, check=True)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sets", default=",".join(SETS), help=f"of {', '.join(SETS)}")
    parser.add_argument("--shape", default="512,512", help="of the whole float32 tensor")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if "RANK" in os.environ:
        run_rank(options)
        return
    rows: list[dict[str, Any]] = []
    for num_ranks in sorted({SETS[name].ranks for name in options.sets.split(",")}):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.json"
            launch(num_ranks, path)
            rows += json.loads(path.read_text())
    report("our to_global against DTensor.redistribute on gloo, seconds", rows, options.json)
    report("all in all (medians over pairs)", summary(rows), None)
    over = [r for r in rows if r["bytes_ratio"] != 1.0]
    print(f"{len(rows) - len(over)} of {len(rows)} pairs move exactly the lower bound")


if __name__ == "__main__":
    main()
