"""Kernels that only move memory, beside the copy speed of the GPU; and a small op beside PyTorch.

    python benchmarks/gpu_kernels.py [--rows 16384] [--columns 4096] [--dtype bfloat16]
        [--small 10000] [--rounds 20] [--torch-device cuda] [--json FILE]

bytes: the least that must be read and written, once each. share: of the speed of a copy on the GPU,
which is timed in the same turns. The chain and the update are graphs, the others eager ops. small:
microseconds of an addition of 16 floats, of that many one after another. Prints why and ends with 0
where there is no GPU. Not run on a GPU yet.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import arguments, in_turns, report

Run = Callable[[], Any]
SMALL = 16
REPEAT = 10
"""Launches between two waits for the GPU, which would take as long as a kernel."""


def chain(flow: Any) -> Any:
    """A graph of six elementwise ops."""

    class Chain(flow.nn.Graph):  # type: ignore[misc,name-defined]
        def build(self, x: Any, y: Any) -> Any:
            return flow.tanh((x + y) * 2 - x * y) + 1

    return Chain()


def update(flow: Any, parameter: Any) -> Any:
    """A graph of an AdamW update of a parameter whose gradient costs nothing to know."""
    optimizer = flow.optim.AdamW([parameter], lr=1e-3)
    module = flow.nn.Module()
    module.register_parameter("weight", parameter)

    class Update(flow.nn.Graph):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.module = module
            self.add_optimizer(optimizer)

        def build(self, g: Any) -> Any:
            loss = (self.module.weight * g).sum()
            loss.backward()
            return loss

    return Update()


def sides(settings: argparse.Namespace) -> dict[str, tuple[Run, int]]:
    """The timed call, and the bytes that it moves at least."""
    import cupy

    import oneflow as flow

    rows, columns = settings.rows, settings.columns
    dtype = getattr(flow, settings.dtype)
    rng = np.random.default_rng(0)

    def made(*shape: int) -> Any:
        return flow.tensor(rng.standard_normal(shape).astype(np.float32), device="cuda").to(dtype)

    F = flow.nn.functional
    x, y, weight = made(rows, columns), made(rows, columns), made(columns)
    labels = flow.tensor(rng.integers(0, columns, rows), device="cuda")
    nbytes = x.numel() * x.element_size()
    source, target = (cupy.zeros(nbytes, cupy.uint8) for _ in range(2))
    parameter = flow.nn.Parameter(made(rows, columns).float())
    graph, adamw, gradient = chain(flow), update(flow, parameter), made(rows, columns).float()
    return {
        "copy": (lambda: cupy.copyto(target, source), 2 * nbytes),
        "chain of 6 ops": (lambda: graph(x, y), 3 * nbytes),
        "softmax": (lambda: F.softmax(x, -1), 2 * nbytes),
        "layer norm": (lambda: F.layer_norm(x, (columns,), weight, weight), 2 * nbytes),
        "rms norm": (lambda: F.rms_norm(x, (columns,), weight), 2 * nbytes),
        "cross entropy": (lambda: F.cross_entropy(x, labels), nbytes),
        # Gradient, weight and two states are read, weight and states are written; the loss reads
        # weight and gradient once more.
        "AdamW": (lambda: adamw(gradient), 9 * parameter.numel() * 4),
    }


def small(settings: argparse.Namespace) -> dict[str, Run]:
    """Additions of a few floats, one after another, of both libraries."""
    import cupy

    import oneflow as flow

    def additions(x: Any, wait: Run) -> Run:
        def run() -> None:
            y = x
            for _ in range(settings.small):
                y = y + x
            wait()

        return run

    found = {"oneflow": additions(flow.ones(SMALL, device="cuda"), cupy.cuda.Device().synchronize)}
    try:
        import torch
    except ImportError:
        return found
    wait = torch.cuda.synchronize if settings.torch_device == "cuda" else lambda: None
    if settings.torch_device != "cuda" or torch.cuda.is_available():
        found["torch"] = additions(torch.ones(SMALL, device=settings.torch_device), wait)
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--small", type=int, default=10000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--torch-device", default="cuda")
    settings = parser.parse_args()
    from oneflow.tensor.layout import has_cuda

    if not has_cuda():
        print("gpu_kernels: no CUDA device or no CuPy here, nothing measured")
        return
    import cupy

    found = sides(settings)

    def waited(run: Run) -> Run:
        def whole() -> None:
            for _ in range(REPEAT):
                run()
            cupy.cuda.Device().synchronize()

        return whole

    times = in_turns({n: waited(run) for n, (run, _) in found.items()}, settings.rounds, warm_up=3)
    speeds = {n: nbytes / statistics.median(times[n]) * REPEAT for n, (_, nbytes) in found.items()}
    rows = [
        {"what": n, "us": 1e6 * statistics.median(times[n]) / REPEAT, "tb_s": speed / 1e12,
         "share": speed / speeds["copy"]}
        for n, speed in speeds.items()
    ]  # fmt: skip
    report(f"Kernels that only move memory, {settings.dtype}", rows, settings.json)
    ops = in_turns(small(settings), 5)
    each = {name: 1e6 * statistics.median(found) / settings.small for name, found in ops.items()}
    lines = [
        {"side": n, "us_an_op": t, "over_torch": t / each.get("torch", t)} for n, t in each.items()
    ]
    report(f"An addition of {SMALL} floats, eagerly", lines, None)


if __name__ == "__main__":
    main()
