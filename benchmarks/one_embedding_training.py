"""OneEmbedding in training: look-up, backward pass and sparse Adagrad beside PyTorch's.

    OMP_NUM_THREADS=1 python benchmarks/one_embedding_training.py [--rows 100000]

26 tables, rows of 32 numbers, batches of 4,096 with ids by Zipf's law of exponent 1.05. Ours: one
MultiTableEmbedding; theirs: an EmbeddingBag(sparse=True) for each table and optim.Adagrad. Sides
take turns; a turn is a step on one thread. Every row is there before the clock starts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from measure import arguments, in_turns, paired, report

import oneflow as flow
from oneflow.core.dtype import float32, int64
from oneflow.kernels.threads import set_limit
from oneflow.one_embedding.embedding import MultiTableEmbedding
from oneflow.one_embedding.store.options import make_device_mem_store_options
from oneflow.one_embedding.tables import make_constant_initializer, make_table_options

TABLES, WIDTH, BATCH, ZIPF = 26, 32, 4096, 1.05
BATCHES, ROUNDS = 8, 40
LR = 0.01
Step = Callable[[], None]


def zipf(rng: np.random.Generator, shape: tuple[int, ...], rows: int) -> np.ndarray:
    """Ids 0 .. rows - 1 whose frequency falls with the power ZIPF of their number."""
    shares = np.arange(1, rows + 1) ** -ZIPF
    ends = np.cumsum(shares / shares.sum())
    return np.minimum(np.searchsorted(ends, rng.random(shape)), rows - 1)


def ours(batches: list[np.ndarray], grad: np.ndarray, rows: int) -> Step:
    table = make_table_options(make_constant_initializer(0.1))
    store = make_device_mem_store_options("", TABLES * rows, size_factor=2)
    module = MultiTableEmbedding("training", WIDTH, float32, int64, [table] * TABLES, store)
    optimizer = flow.optim.Adagrad(module.parameters(), lr=LR)
    turn = iter(batches * (3 + ROUNDS))
    for begin in range(0, rows, BATCH):  # every row is made, as PyTorch's are
        ids = np.arange(begin, min(begin + BATCH, rows))
        module(flow.from_numpy(np.repeat(ids[:, None], TABLES, axis=1)))
    d = flow.from_numpy(grad)

    def step() -> None:
        out = module(flow.from_numpy(next(turn)))
        optimizer.zero_grad()
        out.backward(d)
        optimizer.step()

    return step


def theirs(batches: list[np.ndarray], grad: np.ndarray, rows: int) -> Step:
    bags = torch.nn.ModuleList(
        torch.nn.EmbeddingBag(rows, WIDTH, sparse=True, mode="sum") for _ in range(TABLES)
    )
    optimizer = torch.optim.Adagrad(bags.parameters(), lr=LR)
    offsets, d = torch.arange(BATCH), torch.from_numpy(grad)
    turn = iter(batches * (3 + ROUNDS))

    def step() -> None:
        columns = torch.from_numpy(next(turn)).t().contiguous()
        out: Any = torch.stack(
            [bag(ids, offsets) for bag, ids in zip(bags, columns, strict=True)], 1
        )
        optimizer.zero_grad()
        out.backward(d)
        optimizer.step()

    return step


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="of each table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    set_limit(1)
    rng = np.random.default_rng(0)
    batches = [zipf(rng, (BATCH, TABLES), given.rows) for _ in range(BATCHES)]
    grad = rng.normal(size=(BATCH, TABLES, WIDTH)).astype(np.float32)
    sides = {
        "ours": ours(batches, grad, given.rows),
        "torch": theirs(batches, grad, given.rows),
    }
    times = in_turns(sides, ROUNDS, warm_up=BATCHES)
    found = paired(times, "ours", "torch")
    least = {name: min(seconds) for name, seconds in times.items()}
    row = {
        "what": f"look-up + Adagrad, {TABLES} x {given.rows:,} rows of {WIDTH}, batch {BATCH}",
        "ours ms": f"{found['ours_s'] * 1e3:.1f}",
        "torch ms": f"{found['theirs_s'] * 1e3:.1f}",
        "torch / ours": f"{found['ratio']:.2f}",
        "of the least": f"{least['torch'] / least['ours']:.2f}",
        "to reach": ">= 2",
    }
    report("OneEmbedding in training, one thread", [row], given.json)


if __name__ == "__main__":
    main()
