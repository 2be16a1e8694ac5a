"""Data, tensor and pipeline parallel training steps on two ranks of one thread each.

    python benchmarks/parallel_steps.py [--models mlp,cnn,gpt,gpt6x384] [--rounds 9]
        [--layouts data,tensor,pipeline] [--json FILE]

Beside ours stand PyTorch's DistributedDataParallel, tensor parallelism of DTensors
(`parallelize_module`) and `torch.distributed.pipelining`, all over gloo, and one process of two
threads of either library. A step is a batch of `benchmarks/models.py`, forward and backward, and
an update; a pipeline has two stages and four micro-batches. Each side has processes of its own that
start with the same weights; their first losses have to agree, then they take turns, and no two work
at once. A step ends with the slower rank. ratio is their time over ours, pair by pair.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import arguments, paired, report
from models import MODELS, TEXTS, batch, make_optimizer, start_values

from oneflow.scheduler.ports import free_port

RANKS, PIECES = 2, 4
CHECKED_STEPS = 5
TOLERANCE = 1e-4
WARM_UP = 2
REST_S = 0.05
STEPS = {"gpt": 5, "gpt6x384": 1}
"""Of a turn; 50 of the other models."""
OURS = {"data": ("graph", "ddp"), "tensor": ("graph",), "pipeline": ("1f1b", "zero_bubble")}
THEIRS = {"data": ("ddp",), "tensor": ("dtensor",), "pipeline": ("gpipe", "1f1b")}
ALONE = "one process"
COLUMNS, ROWS = (".attention.qkv", ".up"), (".attention.out", ".down")
"""Layers whose outputs, and whose inputs, tensor parallelism splits."""
Batch = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
Step = Callable[[], Any]


def make_model(lib: Any, name: str) -> Any:
    return MODELS[name](lib, by_head=True) if name in TEXTS else MODELS[name](lib)


def rows_of(arrays: Batch, rank: int) -> Batch:
    """This rank's part of a batch."""
    x, y = arrays
    return np.split(x, RANKS)[rank].copy(), np.split(y, RANKS)[rank].copy()


def halves(lib: Any, model: Any) -> list[Any]:
    """A GPT as two stages."""
    nn, blocks = lib.nn, list(model.blocks)

    class Front(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.token, self.place = model.token, model.place
            self.blocks = nn.Sequential(*blocks[: len(blocks) // 2])
            self.register_buffer("places", model.places)

        def forward(self, ids: Any) -> Any:
            return self.blocks(self.token(ids) + self.place(self.places))

    class Back(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(*blocks[len(blocks) // 2 :])
            self.norm, self.head = model.norm, model.head

        def forward(self, x: Any) -> Any:
            logits = self.head(self.norm(self.blocks(x)))
            return logits.reshape(-1, logits.shape[-1])

    return [Front(), Back()]


# ---- ours ----------------------------------------------------------------------------------------


def our_step(name: str, layout: str, side: str, rank: int) -> Step:
    import oneflow as flow

    model, arrays = make_model(flow, name), batch(name)
    model.load_state_dict(dict(model.state_dict()) | start_values(model))
    if side == "ddp":
        return _our_eager_step(flow, name, model, rows_of(arrays, rank))
    ranks = list(range(RANKS))
    both, whole = flow.placement("cpu", ranks), flow.sbp.broadcast
    if layout == "pipeline":
        model = flow.nn.Sequential(*halves(flow, model))
        places = [flow.placement("cpu", [r]) for r in ranks]
        for stage, place in zip(model, places, strict=True):
            stage.to_global(place, whole)
        x, y = (flow.tensor(a, placement=p, sbp=whole) for a, p in zip(arrays, places, strict=True))
        return _graph_step(flow, name, model, x, y, places, side)
    if layout == "data":
        model.to_global(both, whole)
        parts = map(flow.tensor, rows_of(arrays, rank))
        x, y = (a.to_global(both, flow.sbp.split(0), check_meta=False) for a in parts)
    elif layout == "tensor":
        model.to_global(both, whole)
        for path, module in model.named_modules():
            if path.endswith(COLUMNS):
                module.to_global(both, flow.sbp.split(0))
            if path.endswith(ROWS):
                module.weight = flow.nn.Parameter(module.weight.to_global(sbp=flow.sbp.split(1)))
        x, y = (flow.tensor(a, placement=both, sbp=whole) for a in arrays)
    else:
        x, y = map(flow.tensor, arrays)
    return _graph_step(flow, name, model, x, y)


def _graph_step(
    flow: Any, name: str, model: Any, x: Any, y: Any, stages: Any = (), schedule: str = ""
) -> Step:
    """stages: their placements, if it is a pipeline; then schedule says which."""

    class Train(flow.nn.Graph):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(make_optimizer(flow, name, model))
            for i, place in enumerate(stages):
                self.model[i].to(flow.nn.graph.GraphModule).set_stage(i, place)
            if stages:
                self.config.set_gradient_accumulation_steps(PIECES)
                self.config.set_pipeline_schedule(schedule)

        def build(self, x: Any, y: Any) -> Any:
            loss = flow.nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            return loss

    graph = Train()
    return lambda: graph(x, y)


def _our_eager_step(flow: Any, name: str, model: Any, arrays: Batch) -> Step:
    model = flow.nn.parallel.DistributedDataParallel(model)
    optimizer = make_optimizer(flow, name, model)
    x, y = map(flow.tensor, arrays)

    def step() -> Any:
        optimizer.zero_grad()
        loss = flow.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def our_loss(loss: Any) -> float:
    return float(loss.numpy().mean())


# ---- PyTorch -------------------------------------------------------------------------------------


def their_step(name: str, layout: str, side: str, rank: int) -> Step:
    import torch

    model, arrays = make_model(torch, name), batch(name)
    values = start_values(model)
    for path, parameter in model.named_parameters():
        parameter.data = torch.from_numpy(values[path].copy())
    if layout != ALONE:
        torch.distributed.init_process_group("gloo")
    if layout == "pipeline":
        return _pipeline_step(torch, name, model, arrays, side, rank)
    if layout == "data":
        model = torch.nn.parallel.DistributedDataParallel(model)
        arrays = rows_of(arrays, rank)
    if layout == "tensor":
        _split_layers(model)
    x, y = map(torch.from_numpy, arrays)
    optimizer = make_optimizer(torch, name, model)

    def step() -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _split_layers(model: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan: dict[str, Any] = {f"blocks.*{path}": ColwiseParallel() for path in COLUMNS}
    plan |= {f"blocks.*{path}": RowwiseParallel() for path in ROWS}
    parallelize_module(model, init_device_mesh("cpu", (RANKS,)), plan)


def _pipeline_step(torch: Any, name: str, model: Any, arrays: Batch, side: str, rank: int) -> Step:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    kind = Schedule1F1B if side == "1f1b" else ScheduleGPipe
    part = halves(torch, model)[rank]
    stage = PipelineStage(part, rank, RANKS, torch.device("cpu"))
    schedule = kind(stage, PIECES, loss_fn=torch.nn.functional.cross_entropy)
    optimizer = make_optimizer(torch, name, part)
    x, y = map(torch.from_numpy, arrays)

    def step() -> Any:
        optimizer.zero_grad()
        losses: list[Any] = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=losses)
        optimizer.step()
        return losses

    return step


def their_loss(loss: Any) -> float | None:
    """The mean of this rank's losses; None: a stage without losses."""
    losses = loss if isinstance(loss, list) else [loss]
    return sum(part.item() for part in losses) / len(losses) if losses else None


# ---- a side in processes of its own --------------------------------------------------------------


def serve(library: str, name: str, layout: str, side: str) -> None:
    """A rank of a side: prints its first losses, then the seconds of the steps it is asked for."""
    if library == "torch":
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    make, read = (our_step, our_loss) if library == "ours" else (their_step, their_loss)
    step = make(name, layout, side, int(os.environ.get("RANK", "0")))
    print(json.dumps([read(step()) for _ in range(CHECKED_STEPS)]), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            step()
        print(json.dumps((time.perf_counter() - start) / int(line)), flush=True)


class Side:
    """The other end of `serve`, of all ranks of a side."""

    def __init__(self, library: str, name: str, layout: str, side: str) -> None:
        self._name = f"{library} {layout} {side}"
        ranks = 1 if layout == ALONE else RANKS
        threads = str(RANKS // ranks)
        counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
        env = {**os.environ, **dict.fromkeys(counts, threads)}
        if ranks > 1:
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            env |= {"WORLD_SIZE": str(ranks), "ONEFLOW_JOB_TOKEN": uuid.uuid4().hex * 2}
        command = [sys.executable, __file__, "--models", name, "--serve", library, layout, side]
        self._ranks = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=env | ({"RANK": str(r), "LOCAL_RANK": str(r)} if ranks > 1 else {}),
            )
            for r in range(ranks)
        ]
        known = [losses for losses in self._answers() if None not in losses]
        self.losses = np.mean(known, axis=0)

    def seconds(self, steps: int) -> float:
        """Of a step, the mean of some; the slower rank's."""
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write(f"{steps}\n")
            rank.stdin.flush()
        return float(max(self._answers()))

    def close(self) -> None:
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.close()
        for rank in self._ranks:
            rank.wait()

    def _answers(self) -> list[Any]:
        return [self._answer(rank) for rank in self._ranks]

    def _answer(self, rank: subprocess.Popen[str]) -> Any:
        assert rank.stdout is not None
        line = rank.stdout.readline()
        if not line:
            raise SystemExit(f"a rank of the side {self._name} ended early")
        return json.loads(line)


def measure(name: str, layout: str, rounds: int) -> list[dict[str, Any]]:
    ours = {f"ours {s}": Side("ours", name, layout, s) for s in OURS[layout]}
    theirs = {f"torch {s}": Side("torch", name, layout, s) for s in THEIRS[layout]}
    alone = {f"{lib} {ALONE}": Side(lib, name, ALONE, "graph") for lib in ("ours", "torch")}
    sides = ours | theirs | alone
    for key, side in sides.items():
        want = sides[f"torch {ALONE}"].losses
        np.testing.assert_allclose(side.losses, want, rtol=TOLERANCE, err_msg=f"{name}: {key}")
    times: dict[str, list[float]] = {key: [] for key in sides}
    for turn in range(WARM_UP + rounds):
        for key, side in sides.items():
            time.sleep(REST_S)
            seconds = side.seconds(STEPS.get(name, 50))
            if turn >= WARM_UP:
                times[key].append(seconds)
    for side in sides.values():
        side.close()
    return [
        {"model": name, "layout": layout, "ours": one, "beside": other, **paired(times, one, other)}
        for one in ours
        for other in (theirs | alone)
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--models", default="gpt,gpt6x384")
    parser.add_argument("--layouts", default=",".join(OURS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        library, layout, side = args.serve
        return serve(library, args.models, layout, side)
    rows = []
    for name in args.models.split(","):
        for layout in args.layouts.split(","):
            if layout == "data" or name.startswith("gpt"):
                rows += measure(name, layout, args.rounds)
    report("parallel training steps, two ranks of one thread", rows, args.json)


if __name__ == "__main__":
    main()
