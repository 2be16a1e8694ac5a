"""Training steps on a GPU beside PyTorch: GPT-2 124M, ResNet-50, GPT-2 with one short sequence.

    python benchmarks/gpu_training.py [--models gpt2,resnet50,launch_bound] [--batch N]
        [--sequence N] [--layers N] [--precision mixed] [--rounds 20] [--sides graph,torch,...]
        [--torch-device cuda] [--peak-tflops 989] [--json FILE]

Sides: `eager` and `graph` are ours; `torch` eager; `compiled` torch.compile; `torch_graphs`
torch.compile with CUDA graphs. All begin with the same weights and take the same batch, in turns;
every turn ends with a wait for the GPU. mixed: float32 weights, computing in bfloat16, as PyTorch's
autocast. Printed: median time, samples a second (tokens of GPT-2), how many times faster than each
side of PyTorch, the share of --peak-tflops that a GPT-2 step uses, memory (ours: held by CuPy's
pools; theirs: the peak of allocated memory), and the largest relative difference between the
losses of our side and PyTorch's eager ones over the steps. --torch-device cpu compares losses only.
That difference says little of ResNet-50 in float32 with few values a channel: AdamW's first steps
take but the signs of gradients, and rounding decides those. Of 2 images of 64 pixels the losses of
four steps are off PyTorch's in float64 by up to 5.5e-2 for PyTorch in float32 (5.7e-2 in
channels_last) and 3.5e-2 for our CPU kernels; in float64 ours are by 2e-11 on a CPU and 1e-9 under
the emulated CUDA. So compare in float64, or the first step.
Prints why and ends with 0 where there is no GPU. Not run on a GPU yet.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
from measure import arguments, in_turns, report
from models import MODELS, gpt, start_values

Step = Callable[[], float]
GPT2 = {"vocabulary": 50304, "width": 768, "heads": 12}
SIZES = {"gpt2": (32, 1024), "launch_bound": (1, 128), "resnet50": (256, 224)}
"""Samples of a batch; tokens of each, or pixels of a side."""
OURS = ("eager", "graph")
THEIRS = {"torch": None, "compiled": "default", "torch_graphs": "reduce-overhead"}
CLASSES = 1000
MIB = 1 << 20


class Task:
    """A model, its first weights and a batch, for both libraries."""

    def __init__(self, name: str, settings: argparse.Namespace) -> None:
        self.name, self.is_text = name, name != "resnet50"
        rows, size = SIZES[name]
        self.rows, self.size = settings.batch or rows, settings.sequence or size
        self.layers, self.is_mixed = settings.layers, settings.precision == "mixed"
        rng = np.random.default_rng(0)
        if self.is_text:
            ids = rng.integers(0, GPT2["vocabulary"], (self.rows, self.size + 1))
            self.x, self.y = ids[:, :-1].copy(), ids[:, 1:].reshape(-1).copy()
        else:
            shape = self.rows, 3, self.size, self.size
            self.x = rng.standard_normal(shape).astype(np.float32)
            self.y = rng.integers(0, CLASSES, self.rows)
        self.samples = self.x.size if self.is_text else self.rows
        self.values: dict[str, Any] = {}

    def model(self, lib: Any) -> Any:
        """The model on the CPU, with the same weights in every library."""
        made = (
            gpt(lib, **GPT2, context=self.size, layers=self.layers, gelu="tanh")
            if self.is_text
            else MODELS[self.name](lib)
        )
        self.values = self.values or start_values(made)
        with lib.no_grad():
            for name, parameter in made.named_parameters():
                parameter.copy_(lib.tensor(self.values[name]))
        return made

    def flops(self) -> float:
        """Floating-point operations of a step of GPT-2, forward and backward; 0 for others."""
        if not self.is_text:
            return 0.0
        weights = sum(v.size for v in self.values.values())
        attention = 12 * self.layers * GPT2["width"] * self.size
        return float((6 * weights + attention) * self.x.size)


def ours(task: Task, kind: str) -> Step:
    """One step of our library on cuda:0, which returns its loss."""
    import oneflow as flow

    model = task.model(flow).to("cuda")
    criterion = flow.nn.CrossEntropyLoss()
    optimizer = flow.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    x, y = (flow.tensor(a, device="cuda") for a in (task.x, task.y))
    half = flow.autocast("cuda", dtype=flow.bfloat16) if task.is_mixed else nullcontext()

    class Training(flow.nn.Graph):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.criterion = model, criterion
            self.add_optimizer(optimizer)
            if task.is_mixed:
                self.config.enable_amp(True, dtype=flow.bfloat16)

        def build(self, x: Any, y: Any) -> Any:
            loss = self.criterion(self.model(x), y)
            loss.backward()
            return loss

    def eager(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        with half:
            loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run: Any = Training() if kind == "graph" else eager
    return lambda: float(run(x, y).numpy())


def theirs(task: Task, kind: str, device: str) -> Step:
    """One step of PyTorch, which returns its loss."""
    import torch

    model: Any = task.model(torch).to(device)
    x, y = (torch.from_numpy(a).to(device) for a in (task.x, task.y))
    if not task.is_text:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    mode = THEIRS[kind]
    called = torch.compile(model, mode=mode) if mode else model

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=task.is_mixed):
            loss = torch.nn.functional.cross_entropy(called(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


class Measured:
    """A side: its losses, and the memory that it took."""

    def __init__(self, name: str, step: Step) -> None:
        self.name, self.losses = name, list[float]()
        self._step = step

    def __call__(self) -> None:
        self.losses.append(self._step())

    def mib(self) -> float:
        if self.name in OURS:
            import cupy

            return float(cupy.get_default_memory_pool().total_bytes()) / MIB
        import torch

        return torch.cuda.max_memory_allocated() / MIB if torch.cuda.is_available() else 0.0


def measure(task: Task, settings: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each side."""
    sides = {}
    for name in settings.sides.split(","):
        make = ours(task, name) if name in OURS else theirs(task, name, settings.torch_device)
        sides[name] = Measured(name, make)
    times = in_turns(sides, settings.rounds, warm_up=3)
    reference = sides.get("torch")
    rows = []
    for name, found in times.items():
        seconds = statistics.median(found)
        row: dict[str, Any] = {
            "model": task.name,
            "side": name,
            "median_ms": 1e3 * seconds,
            "samples_s": task.samples / seconds,
            "mfu": task.flops() / seconds / (settings.peak_tflops * 1e12),
            "memory_mib": sides[name].mib(),
        }
        for other in THEIRS:
            if other in times:
                row[f"over_{other}"] = statistics.median(times[other]) / seconds
        if reference is not None:
            pairs = zip(sides[name].losses, reference.losses, strict=True)
            row["loss_off"] = max(abs(a - b) / abs(b) for a, b in pairs)
        rows.append(row)
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--models", default=",".join(SIZES))
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--sequence", type=int, default=0, help="or pixels of an image's side")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--precision", choices=("mixed", "float32"), default="mixed")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sides", default=",".join((*OURS, *THEIRS)))
    parser.add_argument("--torch-device", default="cuda")
    parser.add_argument("--peak-tflops", type=float, default=989.0)
    settings = parser.parse_args()
    from oneflow.tensor.layout import has_cuda

    if not has_cuda():
        print("gpu_training: no CUDA device or no CuPy here, nothing measured")
        return
    rows = []
    for name in settings.models.split(","):
        rows += measure(Task(name, settings), settings)
    report("Training steps on a GPU", rows, settings.json)


if __name__ == "__main__":
    main()
