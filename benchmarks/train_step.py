"""Training steps: our graph and our eager mode beside PyTorch's eager mode and torch.compile.

    python benchmarks/train_step.py [--models mlp,cnn,gpt,gpt6x384,lstm] [--rounds 15]
        [--threads 2] [--compile] [--mixed] [--inference] [--json FILE]

Same starting weights, same batches; the losses of the first steps must agree before anything is
timed. ratio is PyTorch's time over ours by the clock, pair by pair; cpu_ratio the same of the least
processor time of any turn, which other programs disturb less. first_s: the first step, with tracing
and compiling, in empty caches. In one process the threads of two libraries get in each other's way
(PyTorch's GPT step takes 87 ms beside ours, 34 alone), so each side has a process of its own and
they take turns.
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
from measure import arguments, paired, report
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
    """PyTorch's eager mode or torch.compile."""

    def __init__(self, name: str, mode: Mode, *, is_compiled: bool = False) -> None:
        import torch

        self._autocast = torch.autocast("cpu", torch.bfloat16, enabled=mode.mixed)
        self._f = torch.nn.functional
        model = MODELS[name](torch)
        values = start_values(model)
        for key, parameter in model.named_parameters():
            parameter.data = torch.from_numpy(values[key].copy())
        self._model, self._is_inference = model.train(not mode.inference), mode.inference
        self._no_grad = torch.no_grad
        self._loss = torch.compile(self._mean_loss) if is_compiled else self._mean_loss
        self._optimizer = make_optimizer(torch, name, model)
        self._x, self._y = (torch.from_numpy(a) for a in batch(name))

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
    """Our graph, our eager mode, or a compiled loss with an eager update (kind: of OURS)."""

    def __init__(self, name: str, mode: Mode, kind: str) -> None:
        import oneflow as flow

        self._flow, self._mode = flow, mode
        model = MODELS[name](flow)
        state = dict(model.state_dict())
        state.update(start_values(model))
        model.load_state_dict(state)
        self._model = model.train(not mode.inference)
        self._x, self._y = (flow.tensor(a) for a in batch(name))
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


def check(losses: dict[str, list[float]], name: str, mode: Mode) -> None:
    want, following = losses["torch"], FOLLOWING if name in IMAGES else 1e-2 if mode.mixed else 1e-4
    first = 1e-3 if mode.mixed else 1e-5
    for key, found in losses.items():
        is_same = np.allclose(found[0], want[0], rtol=first)
        if not (is_same and np.allclose(found, want, rtol=following)):
            raise SystemExit(f"{name}: losses differ: {key} {found}, torch {want}")


def make_side(key: str, name: str, mode: Mode) -> Any:
    """key: of OURS or THEIRS."""
    if key in THEIRS:
        return Torch(name, mode, is_compiled=key == "compile")
    return Ours(name, mode, key)


def serve(key: str, name: str, mode: Mode) -> None:
    """One side in a process of its own: prints the seconds of its first step and its first losses,
    then the seconds of each turn that it is asked for, by the clock and of this process."""
    side = make_side(key, name, mode)
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


def add_modes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mixed", action="store_true", help="products in bfloat16 (autocast)")
    parser.add_argument("--inference", action="store_true", help="no gradients, model.eval()")


def mode_of(args: argparse.Namespace) -> Mode:
    return Mode(args.mixed, args.inference)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--models", default="mlp,cnn,gpt,gpt6x384,lstm")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=None, help="of both sides")
    parser.add_argument("--compile", action="store_true", help="torch.compile, too (needs g++)")
    add_modes(parser)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        import torch

        torch.set_num_threads(args.threads or 1)
        return serve(args.serve, args.models, mode_of(args))
    rows = [row for name in args.models.split(",") for row in measure_alone(name, args)]
    report("training step", rows, args.json)


if __name__ == "__main__":
    main()
