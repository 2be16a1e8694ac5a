"""Offsets of temporaries against the peak of live bytes, and bytes of the modes of order.

    python benchmarks/memory_plan.py --json FILE

Graphs are training steps of a GPT of 12 layers, ResNet-50 and an unrolled LSTM, traced, compiled
and planned, but not run: their shapes are small, their graphs whole. Instances are lists of
buffers: those in benchmarks/buffers/ are of MiniMalloc's public benchmark; generated ones are cut
out of a full rectangle, so that an arena of exactly the peak exists. 100,000 registers have the
nested lives of a training step.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import arguments, report
from models import gpt
from vision_models import IMAGE_MODELS

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.actors.offset_search import search_offsets
from oneflow.actors.offsets import Blocks, least_offsets

BUFFERS = Path(__file__).parent / "buffers"
ORDER_MODES = ("MemoryFirst", "SpeedFirst", "OverlapCpuGpu", "DelayShortGpu", "Disable")
GENERATED = 8
MANY = 100_000


class Train(nn.Graph):
    """A training step with AdamW."""

    def __init__(self, model: Any, mode: str, *, compress: bool = False) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.AdamW(model.parameters(), lr=1e-3))
        self.config.enable_straighten_algorithm(mode)
        self.config.enable_compress_memory(compress)

    def build(self, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


class Lstm(nn.Module):
    """Two LSTMs written as cells, one op after another."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.width = width
        self.cells = nn.ModuleList([nn.Linear(2 * width, 4 * width) for _ in range(2)])
        self.head = nn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        steps = [x[:, i] for i in range(x.shape[1])]
        for cell in self.cells:
            h = c = flow.zeros(x.shape[0], self.width)
            made = []
            for step in steps:
                i, f, g, o = cell(flow.cat([step, h], 1)).split(self.width, dim=1)
                c = flow.sigmoid(f) * c + flow.sigmoid(i) * flow.tanh(g)
                h = flow.sigmoid(o) * flow.tanh(c)
                made.append(h)
            steps = made
        return self.head(steps[-1])


def models() -> dict[str, tuple[Callable[[], Any], tuple[Any, Any]]]:
    """A network, and a batch of inputs and labels."""

    def labels(rows: int) -> Any:
        return flow.zeros(rows, dtype=flow.int64)

    ids = flow.zeros(4, 64, dtype=flow.int64)
    return {
        "gpt-12": (lambda: gpt(flow, layers=12), (ids, labels(256))),
        "resnet-50": (
            lambda: IMAGE_MODELS["resnet50"](flow),
            (flow.zeros(2, 3, 64, 64), labels(2)),
        ),
        "lstm-2x50": (Lstm, (flow.zeros(8, 50, 64), labels(8))),
    }


def graphs() -> list[dict[str, Any]]:
    """Bytes of each graph in each mode."""
    rows = []
    for name, (make, batch) in models().items():
        for mode in ORDER_MODES:
            graph = Train(make(), mode)
            start = time.process_time()
            graph._compile(*batch)
            seconds = time.process_time() - start
            found = graph.memory_report()
            rows.append(
                {
                    "graph": name,
                    "mode": mode,
                    "temporaries": sum(not b.is_register for b in found.blocks),
                    "arena_bytes": found.arena_nbytes,
                    "peak_bytes": found.lower_bound,
                    "ratio": found.arena_nbytes / found.lower_bound,
                    "trace_and_compile_s": seconds,
                }
            )
    return rows


def cut_rectangle(count: int, seed: int) -> Blocks:
    """Buffers that fill 1024 units for 1024 moments without a gap."""
    rng = np.random.default_rng(seed)
    pieces = [(0, 1024, 0, 1024)]  # offsets and moments: begin, end
    while len(pieces) < count:
        areas = np.array([(b - a) * (d - c) for a, b, c, d in pieces], float)
        i = int(rng.choice(len(pieces), p=areas / areas.sum()))
        a, b, c, d = pieces.pop(i)
        if rng.random() < 0.5 and b - a > 1:
            cut = int(rng.integers(a + 1, b))
            pieces += [(a, cut, c, d), (cut, b, c, d)]
        elif d - c > 1:
            cut = int(rng.integers(c + 1, d))
            pieces += [(a, b, c, cut), (a, b, cut, d)]
        else:
            pieces.append((a, b, c, d))
    return Blocks.of([(b - a, c, d - 1) for a, b, c, d in pieces])


def instances() -> dict[str, Blocks]:
    """Lists of buffers by name."""
    found = {}
    for path in sorted(BUFFERS.glob("*.csv")):
        rows = np.loadtxt(path, delimiter=",", comments="#", dtype=np.int64).tolist()
        found[f"minimalloc-{path.stem}"] = Blocks.of([(n, a, b - 1) for a, b, n in rows])
    for seed in range(GENERATED):
        found[f"generated-{seed}"] = cut_rectangle(150 + 40 * seed, seed)
    return found


def hard() -> list[dict[str, Any]]:
    """Arenas over the peak: found at once, and with a search."""
    rows = []
    for name, blocks in instances().items():
        at_once = least_offsets(blocks).max_end
        start = time.process_time()
        searched = search_offsets(blocks).max_end
        rows.append(
            {
                "instance": name,
                "buffers": len(blocks.sizes),
                "at_once": at_once / blocks.peak,
                "searched": searched / blocks.peak,
                "search_s": time.process_time() - start,
            }
        )
    return rows


def many() -> dict[str, Any]:
    """The time that offsets of 100,000 registers take."""
    rng, half, lives = np.random.default_rng(0), MANY // 2, []
    for k in range(half):
        size = int(rng.choice([1, 4, 16, 64, 128]))
        end = 2 * half - k
        lives.append((size, k, end if rng.random() < 0.5 else k + int(rng.integers(1, 12))))
        lives.append((size, end, end + int(rng.integers(1, 12))))
    blocks = Blocks.of(lives)
    start = time.process_time()
    end = least_offsets(blocks).max_end
    return {
        "registers": MANY,
        "ratio": end / blocks.peak,
        "cpu_s": time.process_time() - start,
    }


def main() -> int:
    given = arguments(__doc__).parse_args()
    found = graphs()
    report("training steps", found, given.json)
    lists = hard()
    report("lists of buffers", lists, given.json and given.json.with_suffix(".lists.json"))
    for column in ("at_once", "searched"):
        for kind in ("minimalloc", "generated"):
            values = [row[column] for row in lists if row["instance"].startswith(kind)]
            mean = math.exp(sum(map(math.log, values)) / len(values))
            print(f"{column}, {len(values)} {kind}: geometric mean {mean:.4f}")
    report("many registers", [many()], given.json and given.json.with_suffix(".many.json"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
