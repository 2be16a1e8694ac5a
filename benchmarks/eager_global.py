"""The cost of an eager op on global tensors beyond the same op on the shard: ours against torch's
DTensor.

    python benchmarks/eager_global.py [--ranks 1,2] [--size 64] [--rounds 30] [--json FILE]

Four sides in the same processes, in turns: our op on DTensors, which are global tensors, our local
op on this rank's shard, and the same two of PyTorch (on a gloo mesh), made by the same calls.
Overhead is global minus local, turn by turn. No case needs boxing: x is split along dim 0, weights
are copies. Values are compared first. One thread a rank; all that is left is the work of the front
ends.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import arguments, in_turns, report

OPS = ("add", "matmul", "layer_norm")
Side = Callable[[], Any]
LEAST_US = 0.5  # turns cannot tell a smaller overhead from none


def arrays_of(op: str, size: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    shapes = {
        "add": [(size, size)] * 2,
        "matmul": [(size, size)] * 2,
        "layer_norm": [(size, size), (size,), (size,)],
    }
    return [rng.standard_normal(s).astype(np.float32) for s in shapes[op]]


def splits(op: str) -> list[bool]:
    """Which inputs are split along dim 0; the others are copies."""
    return {"add": [True, True], "matmul": [True, False], "layer_norm": [True, False, False]}[op]


def function_of(library: Any, op: str, size: int) -> Callable[..., Any]:
    if op == "layer_norm":
        norm = library.nn.functional.layer_norm
        return lambda x, w, b: norm(x, (size,), w, b)
    return getattr(library, op)  # type: ignore[no-any-return]


def inputs_of(library: Any, op: str, size: int) -> tuple[list[Any], list[Any]]:
    """DTensors, which are global tensors in ours, and this rank's shards as local ones."""
    dtensor = importlib.import_module(f"{library.__name__}.distributed.tensor")
    meshes = importlib.import_module(f"{library.__name__}.distributed.device_mesh")
    mesh = meshes.init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    whole = [
        dtensor.distribute_tensor(
            library.from_numpy(a), mesh, [dtensor.Shard(0) if s else dtensor.Replicate()]
        )
        for a, s in zip(arrays_of(op, size), splits(op), strict=True)
    ]
    return whole, [x.to_local().clone() for x in whole]


def forward(function: Callable[..., Any], xs: list[Any]) -> Side:
    return lambda: function(*xs)


def training(function: Callable[..., Any], xs: list[Any], ones_like: Any) -> Side:
    """Forward and backward; `function` forgets the gradients each time."""
    xs = [x.detach().requires_grad_() for x in xs]
    d = ones_like(function(*[x.detach() for x in xs]))

    def run() -> Any:
        y = function(*xs)
        y.backward(d)
        grads = [x.grad for x in xs]
        for x in xs:
            x.grad = None
        return y, grads

    return run


def sides_of(op: str, size: int, with_backward: bool) -> dict[str, Side]:
    import torch

    import oneflow as flow

    result: dict[str, Side] = {}
    for name, library in (("ours", flow), ("theirs", torch)):
        function = function_of(library, op, size)
        for where, xs in zip(("global", "local"), inputs_of(library, op, size), strict=True):
            key = f"{name} {where}"
            if with_backward:
                result[key] = training(function, xs, library.ones_like)
            else:
                result[key] = forward(function, xs)
    return result


def check(sides: dict[str, Side], with_backward: bool) -> None:
    """Both libraries compute the same, gradients included."""
    ours, theirs = sides["ours global"](), sides["theirs global"]()
    pairs = [(ours, theirs)]
    if with_backward:
        pairs = [(ours[0], theirs[0]), *zip(ours[1], theirs[1], strict=True)]
    for a, b in pairs:
        np.testing.assert_allclose(
            a.numpy(), b.full_tensor().detach().numpy(), rtol=1e-4, atol=1e-4
        )


def measure(op: str, with_backward: bool, options: argparse.Namespace) -> dict[str, Any]:
    sides = sides_of(op, options.size, with_backward)
    check(sides, with_backward)
    found = in_turns(sides, options.rounds, warm_up=3, repeat=options.repeat)
    micro = {name: [1e6 * t for t in times] for name, times in found.items()}
    row: dict[str, Any] = {"op": op, "pass": "forward+backward" if with_backward else "forward"}
    extra = {}
    for side in ("ours", "theirs"):
        pairs = zip(micro[f"{side} global"], micro[f"{side} local"], strict=True)
        extra[side] = [a - b for a, b in pairs]
        row[f"{side}_local_us"] = statistics.median(micro[f"{side} local"])
        row[f"{side}_overhead_us"] = statistics.median(extra[side])
    row["overhead_ratio"] = row["theirs_overhead_us"] / max(row["ours_overhead_us"], LEAST_US)
    pairs = zip(micro["ours global"], micro["theirs global"], strict=True)
    row["whole_call_ratio"] = statistics.median(b / a for a, b in pairs)
    return row


def run_rank(options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    import oneflow as flow

    warnings.simplefilter("ignore")  # torch warns of its own names
    torch.set_num_threads(1)
    rank, size = flow.env.get_rank(), flow.env.get_world_size()
    with tempfile.TemporaryDirectory() as folder:
        store = os.environ.get("BENCHMARK_STORE") or f"{folder}/store"
        dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=size)
        rows = [
            {"ranks": size, **measure(op, backward, options)}
            for op in OPS
            for backward in (False, True)
        ]
        if rank == 0:
            Path(os.environ["BENCHMARK_ROWS"]).write_text(json.dumps(rows))
        dist.barrier()
        dist.destroy_process_group()


def launched(num_ranks: int, folder: str) -> list[dict[str, Any]]:
    """The rows of one launch."""
    rows = Path(folder) / f"rows.{num_ranks}"
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "BENCHMARK_ROWS": str(rows),
        "BENCHMARK_STORE": f"{folder}/store.{num_ranks}",
    }
    flags = ["--standalone", "--nproc_per_node", str(num_ranks)]
    script = [str(Path(__file__).resolve()), *sys.argv[1:]]
    command = [sys.executable, "-m", "oneflow.distributed.launch", *flags, *script]
    subprocess.run(command, env=env, check=True)
    return json.loads(rows.read_text())  # type: ignore[no-any-return]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ranks", default="1,2", help="world sizes, comma-separated")
    parser.add_argument("--size", type=int, default=64, help="rows and columns of x")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeat", type=int, default=50, help="calls of a turn")
    options = parser.parse_args()
    if "BENCHMARK_ROWS" in os.environ:
        run_rank(options)
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for num_ranks in options.ranks.split(","):
            rows += launched(int(num_ranks), folder)
    report("eager global ops: microseconds beyond the local op, per call", rows, options.json)


if __name__ == "__main__":
    main()
