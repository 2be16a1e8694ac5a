"""Training steps on a GPU where launches, not arithmetic, take the time: GPT-2 small, one sequence.

    python benchmarks/launch_bound.py [--rounds 20] [--sequence 128] [--layers 12] [--json FILE]

Sides: our eager mode, our graph (ONEFLOW_CUDA_GRAPHS=0: not replayed as CUDA graphs) and PyTorch's
eager mode, if it is installed with CUDA. Every step ends with a wait for the GPU.
Prints why and ends with 0 where there is no GPU. Not run on a GPU yet.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import arguments, in_turns, report
from models import gpt

Step = Callable[[], Any]
VOCABULARY, WIDTH, HEADS = 50304, 768, 12


def _sizes(settings: argparse.Namespace) -> dict[str, int]:
    return {
        "vocabulary": VOCABULARY,
        "context": settings.sequence,
        "width": WIDTH,
        "heads": HEADS,
        "layers": settings.layers,
    }


def _batch(settings: argparse.Namespace) -> tuple[Any, Any]:
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (1, settings.sequence + 1))
    return ids[:, :-1].copy(), ids[:, 1:].reshape(-1).copy()


def ours(settings: argparse.Namespace, is_graph: bool) -> Step:
    """One step of our library on cuda:0."""
    import cupy

    import oneflow as flow

    flow.manual_seed(0)
    model = gpt(flow, **_sizes(settings)).to("cuda")
    criterion = flow.nn.CrossEntropyLoss()
    optimizer = flow.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = (flow.tensor(a, device="cuda") for a in _batch(settings))

    class Step(flow.nn.Graph):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.criterion = model, criterion
            self.add_optimizer(optimizer)

        def build(self, x: Any, y: Any) -> Any:
            loss = self.criterion(self.model(x), y)
            loss.backward()
            return loss

    def eager(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run: Any = Step() if is_graph else eager

    def step() -> None:
        run(x, y)
        cupy.cuda.get_current_stream().synchronize()

    return step


def torch_eager(settings: argparse.Namespace) -> Step | None:
    """One step of PyTorch on cuda:0; None if it is not there."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.manual_seed(0)
    model = gpt(torch, **_sizes(settings)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = (torch.from_numpy(a).to("cuda") for a in _batch(settings))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--layers", type=int, default=12)
    settings = parser.parse_args()
    from oneflow.tensor.layout import has_cuda

    if not has_cuda():
        print("launch_bound: no CUDA device or no CuPy here, nothing measured")
        return
    sides = {"eager": ours(settings, False), "graph": ours(settings, True)}
    theirs = torch_eager(settings)
    if theirs is not None:
        sides["torch"] = theirs
    times = in_turns(sides, settings.rounds, warm_up=3)
    rows = [
        {"side": name, "median_ms": 1e3 * float(np.median(found)), "best_ms": 1e3 * min(found)}
        for name, found in times.items()
    ]
    report("GPT-2 small, one sequence, forward, backward and AdamW", rows, settings.json)


if __name__ == "__main__":
    main()
