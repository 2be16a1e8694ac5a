"""Pipelines: steps of stages that sleep against theory, and of stages that compute against torch.

    python benchmarks/pipeline.py [--seconds 0.03] [--rounds 3] [--stages 4,8] [--pieces 8,16,32]
    python benchmarks/pipeline.py --only real [--rounds 7]
    python benchmarks/pipeline.py --only sleeping --json FILE

Sleeping: p ranks whose stages sleep for F, B and W = `--seconds` in a forward pass, an input's
gradient and a weight's gradient; ranks that sleep need no core of their own. m micro-batches. All
ranks begin a step together, and it ends with the last of them. Its time is divided by the formula:

    1f1b         (m + p - 1)(F + B + W): Narayanan et al., "Efficient large-scale language model
                 training on GPU clusters using Megatron-LM", SC 2021, section 2.2
    interleaved  (m + (p - 1) / v)(F + B + W), v = 2 stages a rank, each of half the time: the same
    zero_bubble  m(F + B + W) + (p - 1)(F + B - W): ZB-H1 of Qi et al., "Zero bubble pipeline
                 parallelism", ICLR 2024, table 2

Real: a training step of 8 x (Linear 512 and ReLU), micro-batches of 64 rows, on 2 ranks of one
thread, against torch's `Schedule1F1B` over gloo. Each side has processes of its own, which run in
turns; losses must agree.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure import arguments, paired, report

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.core.op import Op, declare
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import BROADCAST, SbpSignature
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import kernel
from oneflow.nn.graph import GraphModule
from oneflow.scheduler.ports import free_port

HERE = Path(__file__).resolve()
CHUNKS = 2
WIDTH, ROWS, LAYERS, RATE = 512, 64, 8, 0.05
REAL_PIECES, REAL_STEPS, WARM_STEPS, AGREED_STEPS = (4, 8, 16), 10, 2, 5
TOLERANCE = 1e-4

# ---- stages that sleep ---------------------------------------------------------------------------


def _whole(count: int) -> list[SbpSignature]:
    return [SbpSignature((BROADCAST,) * count, (BROADCAST,))]


class SleepInput(Op):
    """x, a gradient, after a time."""

    name = "sleep_input"

    @staticmethod
    def infer(x: Operand, w: Operand, *, seconds: float) -> TensorType:
        return x.meta

    @staticmethod
    def sbp(x: TensorType, w: TensorType, *, seconds: float) -> list[SbpSignature]:
        return _whole(2)


class SleepWeight(Op):
    """A gradient for w, after a time. It reads x, which a stage so has to keep."""

    name = "sleep_weight"

    @staticmethod
    def infer(d: Operand, x: Operand, w: Operand, *, seconds: float) -> TensorType:
        return w.meta

    @staticmethod
    def sbp(d: TensorType, x: TensorType, w: TensorType, *, seconds: float) -> list[SbpSignature]:
        return _whole(3)


sleep_input, sleep_weight = declare(SleepInput), declare(SleepWeight)


class Sleep(SleepInput):
    """x, after a time; the gradients of x and w take as long each."""

    name = "sleep"

    @staticmethod
    def grad(d: Tensor, x: Tensor, w: Tensor, out: Tensor, *, seconds: float) -> Gradients:
        return (
            lambda: sleep_input(d, w, seconds=seconds),
            lambda: sleep_weight(d, x, w, seconds=seconds),
        )


sleep = declare(Sleep)


@kernel("sleep")
@kernel("sleep_input")
def sleep_kernel(xp: ArrayModule, out: Array, x: Array, w: Array, *, seconds: float) -> None:
    time.sleep(seconds)
    out[...] = x


@kernel("sleep_weight")
def sleep_weight_kernel(
    xp: ArrayModule, out: Array, d: Array, x: Array, w: Array, *, seconds: float
) -> None:
    time.sleep(seconds)
    out[...] = w


class Sleeper(nn.Module):
    """A stage. The first one scales its input, which so has a gradient like any other."""

    def __init__(self, seconds: float, is_first: bool) -> None:
        super().__init__()
        self.seconds, self.is_first = seconds, is_first
        self.weight = nn.Parameter(flow.ones(4))

    def forward(self, x: Any) -> Any:
        x = x * self.weight if self.is_first else x
        return sleep(x, self.weight, seconds=self.seconds)


class Train(nn.Graph):
    """A training step of stages, dealt out to the placements."""

    def __init__(self, stages: Any, places: list[Any], pieces: int, schedule: str = "1f1b") -> None:
        super().__init__()
        self.stages = stages
        self.add_optimizer(flow.optim.SGD(stages.parameters(), RATE))
        self.config.set_gradient_accumulation_steps(pieces)
        self.config.set_pipeline_schedule(schedule)
        for i, stage in enumerate(self.stages):
            stage.to(GraphModule).set_stage(i, places[i % len(places)])

    def build(self, x: Any, y: Any) -> Any:
        h = x
        for stage in self.stages:
            h = stage(h)
        loss = F.mse_loss(h, y)
        loss.backward()
        return loss


def formula(schedule: str, p: int, m: int, seconds: float) -> float:
    """Seconds of a step in theory; see the top of the file."""
    if schedule == "interleaved":
        return (m + (p - 1) / CHUNKS) * 3 * seconds
    if schedule == "zero_bubble":
        return (3 * m + p - 1) * seconds
    return (m + p - 1) * 3 * seconds


def sleep_on_rank(options: Any) -> None:
    """Times all schedules on this rank; rank 0 leaves the rows."""
    rank, p = flow.env.get_rank(), flow.env.get_world_size()
    places = [flow.placement("cpu", [r]) for r in range(p)]
    broadcast = flow.sbp.broadcast
    rows = []
    for schedule in options.schedules.split(","):
        for m in (int(m) for m in options.pieces.split(",")):
            chunks = CHUNKS if schedule == "interleaved" else 1
            stages = nn.ModuleList(
                [Sleeper(options.seconds / chunks, i == 0) for i in range(p * chunks)]
            )
            for i, stage in enumerate(stages):
                stage.to_global(places[i % p], broadcast)
            name = "zero_bubble" if schedule == "zero_bubble" else "1f1b"
            graph = Train(stages, places, m, name)
            x = flow.ones(m, 4, placement=places[0], sbp=broadcast)
            y = flow.zeros(m, 4, placement=places[-1], sbp=broadcast)
            spans = []
            for _ in range(1 + options.rounds):
                flow.comm.barrier()
                begin = time.monotonic()
                graph(x, y)
                spans.append((begin, time.monotonic()))
            times = _together(spans[1:], rank, p, Path(options.folder))
            wanted = formula(schedule, p, m, options.seconds)
            rows.append(
                {
                    "schedule": schedule,
                    "p": p,
                    "m": m,
                    "formula_s": wanted,
                    "median": statistics.median(times) / wanted,
                    "least": min(times) / wanted,
                }
            )
    if rank == 0:
        (Path(options.folder) / "rows.json").write_text(json.dumps(rows))


def _together(spans: list[tuple[float, float]], rank: int, p: int, folder: Path) -> list[float]:
    """Seconds from the last begin of a step on any rank to the last end."""
    (folder / f"{rank}.json").write_text(json.dumps(spans))
    flow.comm.barrier()
    every = [json.loads((folder / f"{r}.json").read_text()) for r in range(p)]
    flow.comm.barrier()
    return [
        max(end for _, end in step) - max(begin for begin, _ in step)
        for step in zip(*every, strict=True)
    ]


# ---- stages that compute -------------------------------------------------------------------------


def weights() -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((WIDTH, WIDTH)) / 16).astype(np.float32) for _ in range(LAYERS)]


def batch(m: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(m)
    x, y = (rng.standard_normal((m * ROWS, WIDTH)).astype(np.float32) for _ in range(2))
    return x, y


def ours_on_rank(options: Any) -> None:
    """Leaves the seconds of steps and the losses, by the number of micro-batches."""
    places = [flow.placement("cpu", [r]) for r in range(2)]
    found = {}
    for m in REAL_PIECES:
        halves = []
        for half in np.array_split(weights(), 2):
            layers: list[Any] = []
            for w in half:
                layers += [nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU()]
                layers[-2].weight.data = flow.tensor(w)
            halves.append(nn.Sequential(*layers))
        stages = nn.ModuleList(halves)
        for stage, place in zip(stages, places, strict=True):
            stage.to_global(place, flow.sbp.broadcast)
        graph = Train(stages, places, m)
        x, y = (
            flow.tensor(a, placement=place, sbp=flow.sbp.broadcast)
            for a, place in zip(batch(m), places, strict=True)
        )

        step = partial(graph, x, y)
        losses = [step() for _ in range(AGREED_STEPS)]
        is_last = flow.env.get_rank() == 1
        values = [float(loss.to_local().numpy().mean()) for loss in losses] if is_last else []
        found[m] = {"losses": values, "seconds": _timed(step, flow.comm.barrier)}
    _leave(found, flow.env.get_rank(), options)


def torch_on_rank(options: Any) -> None:
    """The same by torch."""
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    device, found = torch.device("cpu"), {}
    for m in REAL_PIECES:
        layers: list[Any] = []
        for w in np.array_split(weights(), 2)[rank]:
            layers += [torch.nn.Linear(WIDTH, WIDTH, bias=False), torch.nn.ReLU()]
            layers[-2].weight.data = torch.from_numpy(w.copy())
        model = torch.nn.Sequential(*layers)
        stage = PipelineStage(model, rank, 2, device)
        schedule = Schedule1F1B(stage, m, loss_fn=torch.nn.functional.mse_loss)
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        x, y = (torch.from_numpy(a) for a in batch(m))

        args = [x] if rank == 0 else []
        step = partial(_torch_step, schedule, optimizer, args, y if rank == 1 else None)
        values = [[float(loss) for loss in step()] for _ in range(AGREED_STEPS)]
        means = [statistics.mean(v) for v in values] if rank == 1 else []
        found[m] = {"losses": means, "seconds": _timed(step, dist.barrier)}
    _leave(found, rank, options)
    dist.destroy_process_group()


def _torch_step(schedule: Any, optimizer: Any, args: list[Any], target: Any) -> list[Any]:
    optimizer.zero_grad()
    losses: list[Any] = []
    wanted = {} if target is None else {"target": target, "losses": losses}
    schedule.step(*args, **wanted)
    optimizer.step()
    return losses


def _timed(step: Any, barrier: Any) -> float:
    """Seconds of a step: REAL_STEPS in a row, begun together."""
    for _ in range(WARM_STEPS):
        step()
    barrier()
    begin = time.perf_counter()
    for _ in range(REAL_STEPS):
        step()
    barrier()
    return (time.perf_counter() - begin) / REAL_STEPS


def _leave(found: dict[int, Any], rank: int, options: Any) -> None:
    if rank == 1:
        (Path(options.folder) / "rows.json").write_text(json.dumps(found))


# ---- both ----------------------------------------------------------------------------------------


def launched(ranks: int, role: str, options: Any) -> Any:
    """Run this file on ranks and return its result."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        if role == "torch":
            command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1"]
            command += ["--master-port", str(free_port())]
        else:
            command = [sys.executable, "-m", "oneflow.distributed.launch", "--standalone"]
        command += ["--nproc_per_node", str(ranks), str(HERE), *sys.argv[1:]]
        command += ["--role", role, "--folder", folder]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{role} on {ranks} ranks failed:\n{done.stdout}\n{done.stderr}")
        return json.loads((Path(folder) / "rows.json").read_text())


def real_rows(options: Any) -> list[dict[str, Any]]:
    times: dict[str, dict[str, list[float]]] = {str(m): {} for m in REAL_PIECES}
    for _ in range(options.rounds):
        sides = {role: launched(2, role, options) for role in ("ours", "torch")}
        for m in times:
            losses = [sides[role][m]["losses"] for role in sides]
            np.testing.assert_allclose(*losses, rtol=TOLERANCE)
            for role in sides:
                times[m].setdefault(role, []).append(sides[role][m]["seconds"])
    return [
        {"schedule": "1f1b", "p": 2, "m": int(m), **paired(times[m], "ours", "torch")}
        for m in times
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=("sleeping", "real"))
    parser.add_argument("--seconds", type=float, default=0.03, help="of F, B and W")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stages", default="4,8")
    parser.add_argument("--pieces", default="8,16,32")
    parser.add_argument("--schedules", default="1f1b,interleaved,zero_bubble")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    roles = {"sleeping": sleep_on_rank, "ours": ours_on_rank, "torch": torch_on_rank}
    if options.role:
        return roles[options.role](options)
    rows: list[dict[str, Any]] = []
    if options.only != "real":
        for p in options.stages.split(","):
            rows += launched(int(p), "sleeping", options)
        report("stages that sleep: time over formula", rows, None)
    computed = [] if options.only == "sleeping" else real_rows(options)
    if computed:
        report("stages that compute: torch's time over ours", computed, None)
    if options.json:
        report("pipelines", [*rows, *computed], options.json)


if __name__ == "__main__":
    main()
