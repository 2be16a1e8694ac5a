"""OneEmbedding with 20 times more rows than its budget of memory, beside all rows in memory.

    python benchmarks/one_embedding_budget.py [--rows 200000] [--times 20] [--folder DIR]
                                              [--prefetch]

A click model: 26 tables, rows of 32 numbers with their Adagrad, ids by Zipf's law of exponent 1.05,
batches of 4,096, dense layers of 512 and 256. Sides take turns; a turn is four training steps, as a
graph. Every row is there before the clock starts, and each step draws ids that it has not seen.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import arguments, in_turns, paired, report
from one_embedding_training import BATCH, TABLES, WIDTH, zipf

import oneflow as flow
from oneflow import nn
from oneflow.core.dtype import float32, int64
from oneflow.one_embedding.embedding import MultiTableEmbedding
from oneflow.one_embedding.store.options import (
    make_cached_ssd_store_options,
    make_device_mem_store_options,
)
from oneflow.one_embedding.tables import make_constant_initializer, make_table_options

ROUNDS, FIRST, STEPS = 8, 2, 4
"""Turns that count, those before them, and the steps of a turn."""
HIDDEN = (512, 256)
Options = dict[str, Any]


class Clicks(nn.Module):
    """Rows of all fields, side by side, through dense layers."""

    def __init__(self, name: str, options: Options) -> None:
        super().__init__()
        table = make_table_options(make_constant_initializer(0.01))
        self.fields = MultiTableEmbedding(name, WIDTH, float32, int64, [table] * TABLES, options)
        self.top = nn.FusedMLP(TABLES * WIDTH, list(HIDDEN), 1, skip_final_activation=True)

    def forward(self, ids: flow.Tensor) -> flow.Tensor:
        return self.top(self.fields(ids).flatten(1))


class Step(nn.Graph):
    """Forward, backward, Adagrad of layers and rows."""

    def __init__(self, model: Clicks) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.Adagrad(model.parameters(), lr=0.01))

    def build(self, ids: flow.Tensor, clicks: flow.Tensor) -> flow.Tensor:
        loss = nn.functional.binary_cross_entropy_with_logits(self.model(ids), clicks)
        loss.backward()
        return loss


def made(name: str, options: Options, rows: int) -> Clicks:
    """The model with all rows of all tables."""
    model = Clicks(name, options)
    for begin in range(0, rows, BATCH):
        ids = np.arange(begin, min(begin + BATCH, rows))
        model.fields(flow.from_numpy(np.repeat(ids[:, None], TABLES, axis=1)))
    return model


def side(model: Clicks, rows: int, reads_ahead: bool) -> Callable[[], None]:
    step, rng = Step(model), np.random.default_rng(0)
    drawn = [zipf(rng, (BATCH, TABLES), rows) for _ in range((FIRST + ROUNDS) * STEPS + 1)]
    batches = iter([flow.from_numpy(ids) for ids in drawn])
    clicks = flow.from_numpy(rng.integers(0, 2, (BATCH, 1)).astype(np.float32))
    coming = next(batches)

    def run() -> None:
        nonlocal coming
        ids, coming = coming, next(batches)
        if reads_ahead:
            model.fields.prefetch(coming)
        step(ids, clicks).numpy()

    return run


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="of each table")
    parser.add_argument("--times", type=int, default=20, help="rows over the budget of memory")
    parser.add_argument("--folder", type=Path, help="on the disk to use; else the temporary one")
    parser.add_argument("--prefetch", action="store_true", help="read rows beside the step before")
    given = parser.parse_args()
    count, nbytes = TABLES * given.rows, TABLES * given.rows * 2 * WIDTH * 4
    budget_mb = max(1, nbytes // given.times >> 20)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        on_disk = make_cached_ssd_store_options(budget_mb, folder, count, size_factor=2)
        models = {
            "memory": made("memory", make_device_mem_store_options("", count, 2), given.rows),
            "disk": made("disk", on_disk, given.rows),
        }
        before = models["disk"].fields.statistics()
        sides = {
            name: side(model, given.rows, given.prefetch and name == "disk")
            for name, model in models.items()
        }
        times = in_turns(sides, ROUNDS, warm_up=FIRST, repeat=STEPS)
        after = models["disk"].fields.statistics()
    found = paired(times, "disk", "memory")
    moved = {name: after[name] - before[name] for name in before}
    steps = (ROUNDS + FIRST) * STEPS
    row = {
        "what": f"{count:,} rows of {2 * WIDTH}, {nbytes >> 20:,} MiB, {budget_mb} in memory"
        + (", read ahead" if given.prefetch else ""),
        "disk ms": f"{found['ours_s'] * 1e3:.1f}",
        "memory ms": f"{found['theirs_s'] * 1e3:.1f}",
        "ratio": f"{found['ratio']:.2f}",
        "of distinct ids in memory": f"{1 - moved['disk_hits'] / moved['lookups']:.2f}",
        "rows read a step": f"{moved['disk_hits'] / steps:,.0f}",
        "written": f"{moved['evicted'] / steps:,.0f}",
        "stalls ms": f"{moved['stall_s'] / steps * 1e3:.1f}",
        "to reach": ">= 0.5",
    }
    report("OneEmbedding beyond its budget", [row], given.json)


if __name__ == "__main__":
    main()
