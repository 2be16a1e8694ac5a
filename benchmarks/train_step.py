"""Training steps: our graph and our eager mode beside PyTorch's eager mode and torch.compile, and
data-parallel beside DDP over gloo.

    python benchmarks/train_step.py [--models mlp,cnn,gpt,gpt6x384,lstm] [--rounds 15]
        [--threads 2] [--compile] [--mixed] [--inference] [--json FILE]
    python benchmarks/train_step.py --ranks 2 ...      # both sides in the same two processes, one
    thread each

Same starting weights, same batches; the losses of the first steps must agree before anything is
timed. ratio is PyTorch's time over ours by the clock, pair by pair; cpu_ratio the same of the least
processor time of any turn, which other programs disturb less. first_s: the first step, with tracing
and compiling, in empty caches. In one process the threads of two libraries get in each other's way
(PyTorch's GPT step takes 87 ms beside ours, 34 alone), so each side has a process of its own and
they take turns; with --ranks both have one thread a rank and share the processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from measure import arguments, in_turns, launch_ranks, paired, report
from models import MODELS, TEXTS, batch, make_optimizer, start_values
from vision_models import IMAGES

CHECKED_STEPS = 5
WARM_UP = 2
FOLLOWING = 6e-2
"""Relative difference allowed between losses of images after updates. Batch norm of few images
amplifies rounding: gradients of ResNet-50 in float32 are 1.6e-2 (PyTorch) and 1.9e-2 (ours) away
from those in float64, the median of all parameters, and PyTorch's losses of one and of two threads
differ by 1.4e-2 at the fifth step."""
OURS = ("graph", "compiled", "eager")
THEIRS = {"torch": "torch eager", "compile": "torch.compile"}
REST_S = 0.05  # the other side's idle threads (OpenBLAS's above all) spin for up to 30 ms


@dataclass(frozen=True)
class Mode:
    """mixed: products in bfloat16. inference: losses of a model in `eval()`, without gradients."""

    mixed: bool = False
    inference: bool = False


class Torch:
    """PyTorch's eager mode or torch.compile; wrapped in DDP if there are several ranks."""

    def __init__(
        self, name: str, rank: int, world_size: int, mode: Mode, *, is_compiled: bool = False
    ) -> None:
        import torch

        self._autocast = torch.autocast("cpu", torch.bfloat16, enabled=mode.mixed)
        self._f = torch.nn.functional
        model = MODELS[name](torch)
        values = start_values(model)
        for key, parameter in model.named_parameters():
            parameter.data = torch.from_numpy(values[key].copy())
        self._model, self._is_inference = model.train(not mode.inference), mode.inference
        self._no_grad = torch.no_grad
        if world_size > 1:
            self._model = torch.nn.parallel.DistributedDataParallel(model)
        self._loss = torch.compile(self._mean_loss) if is_compiled else self._mean_loss
        self._optimizer = make_optimizer(torch, name, model)
        self._x, self._y = (torch.from_numpy(a) for a in shard(batch(name), rank, world_size))

    def _mean_loss(self, x: Any, y: Any) -> Any:
        with self._autocast:
            return self._f.cross_entropy(self._model(x), y)

    def step(self) -> Any:
        if self._is_inference:
            with self._no_grad():
                return self._loss(self._x, self._y)
        self._optimizer.zero_grad()
        loss = self._loss(self._x, self._y)
        loss.backward()
        self._optimizer.step()
        return loss

    def loss(self) -> float:
        return float(self.step().item())


class Ours:
    """Our graph, our eager mode, or a compiled loss with an eager update (kind: of OURS);
    data-parallel by placement if there are several ranks (graph only).
    """

    def __init__(self, name: str, rank: int, world_size: int, mode: Mode, kind: str) -> None:
        import oneflow as flow

        self._flow, self._mode = flow, mode
        model = MODELS[name](flow)
        state = dict(model.state_dict())
        state.update(start_values(model))
        model.load_state_dict(state)
        x, y = (flow.tensor(a) for a in shard(batch(name), rank, world_size))
        if world_size > 1:
            everywhere = flow.placement("cpu", list(range(world_size)))
            model.to_global(everywhere, flow.sbp.broadcast)
            x, y = (t.to_global(everywhere, flow.sbp.split(0), check_meta=False) for t in (x, y))
        self._model, self._x, self._y = model.train(not mode.inference), x, y
        self._optimizer = make_optimizer(flow, name, model)
        self._graph = self._make_graph() if kind == "graph" else None
        self._loss = flow.compile(self._mean_loss) if kind == "compiled" else self._mean_loss

    def _mean_loss(self, x: Any, y: Any) -> Any:
        flow = self._flow
        with flow.autocast("cpu", flow.bfloat16, enabled=self._mode.mixed):
            return flow.nn.functional.cross_entropy(self._model(x), y)

    def _make_graph(self) -> Any:
        flow, model, optimizer = self._flow, self._model, self._optimizer
        mode = self._mode

        class Train(flow.nn.Graph):  # type: ignore[name-defined,misc]
            def __init__(self) -> None:
                super().__init__()
                self.model = model
                if not mode.inference:
                    self.add_optimizer(optimizer)
                if mode.mixed:
                    self.config.enable_amp(True, dtype=flow.bfloat16)

            def build(self, x: Any, y: Any) -> Any:
                loss = flow.nn.functional.cross_entropy(self.model(x), y)
                if not mode.inference:
                    loss.backward()
                return loss

        return Train()

    def step(self) -> Any:
        if self._mode.inference:
            with self._flow.no_grad():
                return (self._graph or self._loss)(self._x, self._y)
        if self._graph is not None:
            return self._graph(self._x, self._y)
        loss = self._loss(self._x, self._y)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss

    def loss(self) -> float:
        return float(self.step().numpy())


def shard(arrays: tuple[Any, Any], rank: int, world_size: int) -> tuple[Any, Any]:
    """This rank's rows."""
    x, y = arrays
    return np.array_split(x, world_size)[rank].copy(), np.array_split(y, world_size)[rank].copy()


def mean_over_ranks(value: float, world_size: int) -> float:
    """DDP reports each rank's own loss."""
    if world_size == 1:
        return value
    import torch

    total = torch.tensor(value)
    torch.distributed.all_reduce(total)
    return float(total) / world_size


def check(losses: dict[str, list[float]], name: str, mode: Mode) -> None:
    want, following = losses["torch"], FOLLOWING if name in IMAGES else 1e-2 if mode.mixed else 1e-4
    first = 1e-3 if mode.mixed else 1e-5
    for key, found in losses.items():
        is_same = np.allclose(found[0], want[0], rtol=first)
        if not (is_same and np.allclose(found, want, rtol=following)):
            raise SystemExit(f"{name}: losses differ: {key} {found}, torch {want}")


def first_losses(side: Any) -> list[float]:
    return [side.loss() for _ in range(CHECKED_STEPS)]


def make_side(key: str, name: str, rank: int, world_size: int, mode: Mode) -> Any:
    """key: of OURS or THEIRS."""
    if key in THEIRS:
        return Torch(name, rank, world_size, mode, is_compiled=key == "compile")
    return Ours(name, rank, world_size, mode, "graph" if world_size > 1 else key)


def serve(key: str, name: str, mode: Mode) -> None:
    """One side in a process of its own: prints the seconds of its first step and its first losses,
    then the seconds of each turn that it is asked for, by the clock and of this process."""
    side = make_side(key, name, 0, 1, mode)
    start = time.perf_counter()
    first = side.loss()
    taken = time.perf_counter() - start
    losses = [first, *(side.loss() for _ in range(CHECKED_STEPS - 1))]
    print(json.dumps([taken, losses]), flush=True)
    for line in sys.stdin:
        repeat = int(line)
        start, used = time.perf_counter(), time.process_time()
        for _ in range(repeat):
            side.step()
        taken = time.perf_counter() - start, time.process_time() - used
        print(json.dumps([seconds / repeat for seconds in taken]), flush=True)


class Served:
    """The other end of `serve`."""

    def __init__(self, key: str, name: str, threads: int, mode: Mode) -> None:
        counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
        command = [sys.executable, __file__, "--serve", key, "--models", name]
        command += [f"--{option}" for option, is_set in asdict(mode).items() if is_set]
        self._caches = tempfile.TemporaryDirectory()
        folders = ("TORCHINDUCTOR_CACHE_DIR", "ONEFLOW_PLAN_CACHE", "ONEFLOW_KERNEL_CACHE")
        caches = {folder: os.path.join(self._caches.name, folder) for folder in folders}
        self._process = subprocess.Popen(
            [*command, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **dict.fromkeys(counts, str(threads)), **caches},
        )
        self.first_s: float
        self.losses: list[float]
        self.first_s, self.losses = json.loads(self._answer())

    def seconds(self, repeat: int) -> tuple[float, float]:
        """Seconds of a step by the clock and of the side's process, the means of `repeat`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{repeat}\n")
        self._process.stdin.flush()
        by_clock, of_process = json.loads(self._answer())
        return by_clock, of_process

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._caches.cleanup()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a side of the benchmark ended early")
        return line


def measure_alone(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    threads = args.threads or os.cpu_count() or 1
    theirs = list(THEIRS)[: 1 + args.compile]
    sides = {key: Served(key, name, threads, mode_of(args)) for key in (*OURS, *theirs)}
    check({key: side.losses for key, side in sides.items()}, name, mode_of(args))
    repeat = 1 if name in IMAGES else 5 if name in TEXTS else 50  # after a rest a step is slower
    clock: dict[str, list[float]] = {key: [] for key in sides}
    process: dict[str, list[float]] = {key: [] for key in sides}
    for turn in range(args.rounds + WARM_UP):
        for key, side in sides.items():
            time.sleep(REST_S)
            by_clock, of_process = side.seconds(repeat)
            if turn >= WARM_UP:
                clock[key].append(by_clock)
                process[key].append(of_process)
    for side in sides.values():
        side.close()
    return [
        {
            "model": name,
            "threads": threads,
            "ours": ours,
            "theirs": THEIRS[other],
            **paired(clock, ours, other),
            "ours_cpu_s": min(process[ours]),
            "theirs_cpu_s": min(process[other]),
            "cpu_ratio": min(process[other]) / min(process[ours]),
            "ours_first_s": sides[ours].first_s,
            "theirs_first_s": sides[other].first_s,
        }
        for ours in OURS
        for other in theirs
    ]


def measure_ranks(
    name: str, args: argparse.Namespace, rank: int, world_size: int
) -> list[dict[str, Any]]:
    sides = {
        key: make_side(key, name, rank, world_size, mode_of(args)) for key in ("graph", "torch")
    }
    losses = {key: first_losses(side) for key, side in sides.items()}
    losses["torch"] = [mean_over_ranks(v, world_size) for v in losses["torch"]]
    check(losses, name, mode_of(args))
    repeat = 1 if name in TEXTS else 10
    times = in_turns({k: s.step for k, s in sides.items()}, args.rounds, repeat=repeat)
    theirs = f"torch DDP gloo, {world_size} ranks"
    row = {"model": name, "threads": 1, "ours": "graph", "theirs": theirs}
    return [row | paired(times, "graph", "torch")]


def add_modes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mixed", action="store_true", help="products in bfloat16 (autocast)")
    parser.add_argument("--inference", action="store_true", help="no gradients, model.eval()")


def mode_of(args: argparse.Namespace) -> Mode:
    return Mode(args.mixed, args.inference)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--models", default="mlp,cnn,gpt,gpt6x384,lstm")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=None, help="of both sides (1 with ranks)")
    parser.add_argument("--compile", action="store_true", help="torch.compile, too (needs g++)")
    add_modes(parser)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if args.ranks > 1 and world_size == 1:
        raise SystemExit(launch_ranks(__file__, args.ranks, sys.argv[1:]))
    if args.serve or world_size > 1:
        import torch

        torch.set_num_threads(args.threads or 1)
    if args.serve:
        return serve(args.serve, args.models, mode_of(args))
    names = args.models.split(",")
    if world_size == 1:
        rows = [row for name in names for row in measure_alone(name, args)]
        return report("training step", rows, args.json)
    os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})
    store = f"tcp://127.0.0.1:{os.environ['TORCH_PORT']}"
    torch.distributed.init_process_group("gloo", store, rank=rank, world_size=world_size)
    rows = [row for name in names for row in measure_ranks(name, args, rank, world_size)]
    if rank == 0:
        report("training step", rows, args.json)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
