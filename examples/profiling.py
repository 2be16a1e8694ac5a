"""Where a training step spends its time: by op, by module and by source line.

    python examples/profiling.py [--steps 5] [--folder trace]

The same small language model is profiled as a graph and as eager code. The files in the folder are
for ui.perfetto.dev (`trace-rank0.json.gz`: a row for each actor, a slice for each kernel), and for
TensorBoard (`*.pt.trace.json`: tensorboard --logdir trace).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import oneflow as flow
from oneflow import nn
from oneflow.nn import functional as F

LETTERS, CONTEXT, WIDTH, LAYERS, ROWS = 32, 32, 64, 2, 8


class Block(nn.Module):
    """Each place adds its attention to the places before it, then its own feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        q, k, v = self.qkv(self.norm1(x)).split(WIDTH, dim=2)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """Letters of a text to scores of the letters that follow."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.head(self.blocks(self.letters(x))).reshape(-1, LETTERS)


class Train(nn.Graph):
    """A step of training."""

    def __init__(self, model: Model, optimizer: flow.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x: flow.Tensor, y: flow.Tensor) -> flow.Tensor:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def make() -> tuple[Model, flow.optim.Optimizer, flow.Tensor, flow.Tensor]:
    """Return a model, its optimizer, and a batch."""
    flow.manual_seed(0)
    model = Model()
    text = np.random.default_rng(0).integers(0, LETTERS, (ROWS, CONTEXT + 1))
    x, y = flow.tensor(text[:, :-1]), flow.tensor(text[:, 1:].reshape(-1))
    return model, flow.optim.Adam(model.parameters(), lr=1e-3), x, y


def profile_graph(steps: int, folder: Path) -> None:
    """Print the kernels and modules that the steps of a graph spend their time on."""
    model, optimizer, x, y = make()
    graph = Train(model, optimizer)
    graph(x, y)  # traced and compiled before anything is recorded
    profile = graph.profile(steps, folder)
    for _ in range(steps):
        graph(x, y)
    print(profile)
    slowest = profile.sums().kernels.of("line")[0]
    print(f"\nmost time goes to {slowest.name}, {slowest.gflops_per_second:.1f} GFLOP/s")


def profile_eager(steps: int, folder: Path) -> None:
    """Print the same of eager code, of whose steps the first are not recorded."""
    model, optimizer, x, y = make()
    with flow.profiler.profile(
        schedule=flow.profiler.schedule(wait=1, warmup=1, active=steps, repeat=1),
        on_trace_ready=flow.profiler.tensorboard_trace_handler(folder),
        record_shapes=True,
    ) as profile:
        for _ in range(2 + steps):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            profile.step()
    print(profile)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5, help="how many are profiled (5)")
    parser.add_argument(
        "--folder", type=Path, default=Path("trace"), help="where the traces are written (trace)"
    )
    options = parser.parse_args()
    print("---- nn.Graph ----")
    profile_graph(options.steps, options.folder)
    print("\n---- eager ----")
    profile_eager(options.steps, options.folder)


if __name__ == "__main__":
    main()
