"""OneEmbedding over ranks: a DLRM step beside PyTorch's DDP, and the cost of fewer bytes.

    python benchmarks/one_embedding_ranks.py [--ranks 2] [--rows 50000] [--rounds 15]
        [--parts steps,bytes,auc]

The step: 26 tables with rows of 32 numbers, split over the ranks; ids by Zipf's law of exponent
1.05, 4,096 rows a step; dense layers as in DLRM; Adagrad. Ours is a graph; theirs DDP over gloo
with tables on every rank, EmbeddingBag(sparse=True), or dense gradients with --dense. Both have the
same weights and batches, and their losses must agree. They share the processes, one thread a rank,
and take turns. Bytes are those that all ranks read of others in a step.

The AUC: examples/recsys' DLRM on the same log, once in each form in which rows may travel.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import arguments, in_turns, launch_ranks, paired, report
from one_embedding_training import BATCH, TABLES, WIDTH, zipf

import oneflow as flow
from oneflow.core.metrics import METRICS
from oneflow.kernels.threads import set_limit
from oneflow.ops.one_embedding import COMMUNICATIONS

NUMBERS, BATCHES, LR, FIRST = 13, 8, 0.01, 0.05
CHECKED_STEPS = 5
AUC_STEPS, AUC_BATCH, AUC_ROWS = 600, 512, 80_000
one = flow.one_embedding
Array = np.ndarray[Any, Any]
Batch = tuple[Array, Array, Array]


def dlrm(library: Any, embedding: Any) -> Any:
    """The model, of either library. embedding: a module, ids (rows, TABLES) -> (rows, TABLES,
    WIDTH)."""
    nn = library.nn
    count = TABLES + 1
    first, second = np.tril_indices(count, -1)

    class Model(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = embedding
            self.bottom = nn.Sequential(
                nn.Linear(NUMBERS, 64), nn.ReLU(), nn.Linear(64, WIDTH), nn.ReLU()
            )
            width = WIDTH + len(first)
            self.top = nn.Sequential(
                nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1)
            )

        def forward(self, numbers: Any, ids: Any) -> Any:
            vector = self.bottom(numbers)
            if library is flow:
                parts = [vector.unsqueeze(1), self.embedding(ids)]
                features = flow._C.fused_dot_feature_interaction(parts, output_concat=vector)
                return self.top(features).squeeze(1)
            vectors = torch.cat([vector.unsqueeze(1), self.embedding(ids)], 1)
            products = torch.bmm(vectors, vectors.transpose(1, 2))[:, first, second]
            return self.top(torch.cat([vector, products], 1)).squeeze(1)

    return Model()


def dense_values(model: Any) -> dict[str, Array]:
    """The same for both libraries: by name, of all parameters but those of tables."""
    rng = np.random.default_rng(7)
    return {
        name: rng.normal(0, p.shape[-1] ** -0.5, tuple(p.shape)).astype(np.float32)
        for name, p in model.named_parameters()
        if not name.startswith("embedding")
    }


class Bags(torch.nn.Module):
    """A table on this rank for each field."""

    def __init__(self, rows: int, is_sparse: bool) -> None:
        super().__init__()
        self.bags = torch.nn.ModuleList(
            torch.nn.EmbeddingBag(rows, WIDTH, sparse=is_sparse, mode="sum") for _ in range(TABLES)
        )
        for bag in self.bags:
            torch.nn.init.constant_(bag.weight, FIRST)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        offsets, columns = torch.arange(len(ids)), ids.t().contiguous()
        found = [bag(x, offsets) for bag, x in zip(self.bags, columns, strict=True)]
        return torch.stack(found, 1)


def theirs(batches: list[Batch], rows: int, is_sparse: bool) -> Callable[[], float]:
    model = dlrm(torch, Bags(rows, is_sparse))
    values = dense_values(model)
    for name, p in model.named_parameters():
        if name in values:
            p.data = torch.from_numpy(values[name].copy())
    spread = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=LR)
    mine = [tuple(map(torch.from_numpy, part_of(b))) for b in batches]
    turn = iter(mine * 1000)
    loss_of = torch.nn.functional.binary_cross_entropy_with_logits

    def step() -> float:
        numbers, ids, labels = next(turn)
        optimizer.zero_grad()
        loss = loss_of(spread(numbers, ids), labels)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def part_of(batch: Batch) -> Batch:
    """This rank's rows."""
    rank, ranks = flow.env.get_rank(), flow.env.get_world_size()
    numbers, ids, labels = (np.array_split(x, ranks)[rank].copy() for x in batch)
    return numbers, ids, labels


def embedding(rows: int, communication: str) -> Any:
    table = one.make_table_options(one.make_constant_initializer(FIRST))
    store = one.make_device_mem_store_options("", TABLES * rows, size_factor=2)
    name = f"ranks {communication}"
    kinds = flow.float, flow.int64
    return one.MultiTableEmbedding(
        name, WIDTH, *kinds, [table] * TABLES, store, communication=communication
    )


def ours(batches: list[Batch], rows: int, communication: str) -> Callable[[], float]:
    everyone = flow.placement("cpu", list(range(flow.env.get_world_size())))
    model = dlrm(flow, embedding(rows, communication))
    for name, p in model.named_parameters():
        if name in (values := dense_values(model)):
            p.data = flow.from_numpy(values[name].copy())
    model.to_global(everyone, flow.sbp.broadcast)
    optimizer = flow.optim.Adagrad(model.parameters(), lr=LR)

    class Train(flow.nn.Graph):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, numbers: Any, ids: Any, labels: Any) -> Any:
            scores = self.model(numbers, ids)
            loss = flow.nn.functional.binary_cross_entropy_with_logits(scores, labels)
            loss.backward()
            return loss

    graph = Train()
    given = [
        [
            flow.from_numpy(x).to_global(everyone, flow.sbp.split(0), check_meta=False)
            for x in part_of(b)
        ]
        for b in batches
    ]
    turn = iter(given * 1000)

    def step() -> float:
        return float(graph(*next(turn)).numpy())

    return step


def mean_over_ranks(value: float) -> float:
    total = torch.tensor(value)
    torch.distributed.all_reduce(total)
    return float(total) / flow.env.get_world_size()


def read_nbytes() -> int:
    """Bytes that our ranks have read of others so far."""
    own = sum(METRICS.collective_bytes.values())
    total = torch.tensor(own)
    torch.distributed.all_reduce(total)
    return int(total)


def measure_steps(rows: int, rounds: int, is_sparse: bool) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    batches = [
        (
            rng.normal(size=(BATCH, NUMBERS)).astype(np.float32),
            zipf(rng, (BATCH, TABLES), rows),
            (rng.random(BATCH) < 0.3).astype(np.float32),
        )
        for _ in range(BATCHES)
    ]
    sides = {"ours": ours(batches, rows, "float32"), "torch": theirs(batches, rows, is_sparse)}
    losses = {name: [side() for _ in range(CHECKED_STEPS)] for name, side in sides.items()}
    losses["torch"] = [mean_over_ranks(x) for x in losses["torch"]]
    if not np.allclose(losses["ours"], losses["torch"], rtol=1e-4):
        raise SystemExit(f"losses differ: {losses}")
    times = in_turns(sides, rounds, warm_up=BATCHES)
    found = paired(times, "ours", "torch")
    return {
        "what": f"DLRM step, {flow.env.get_world_size()} ranks, {TABLES} x {rows:,} rows",
        "beside": "torch DDP, " + ("sparse" if is_sparse else "dense"),
        "ours ms": f"{found['ours_s'] * 1e3:.1f}",
        "theirs ms": f"{found['theirs_s'] * 1e3:.1f}",
        "ratio": f"{found['ratio']:.2f}",
        "of the least": f"{min(times['torch']) / min(times['ours']):.2f}",
        "to reach": ">= 2",
    }


def measure_bytes(rows: int) -> list[dict[str, Any]]:
    """Bytes that ranks read of others. Those of ids and sizes are the same in each form: the
    savings of a form tell how many rows and gradients were sent, and so their share."""
    rng = np.random.default_rng(1)
    everyone = flow.placement("cpu", list(range(flow.env.get_world_size())))
    ids = [zipf(rng, (BATCH, TABLES), rows) for _ in range(3)]
    found = {}
    for form in COMMUNICATIONS:
        module = embedding(rows, form).to_global(everyone, flow.sbp.broadcast)
        before = read_nbytes()
        for x in ids:
            mine = np.array_split(x, everyone.ranks.size)[flow.env.get_rank()]
            given = flow.from_numpy(mine.copy())
            out = module(given.to_global(everyone, flow.sbp.split(0), check_meta=False))
            out.backward(out.detach())
            module.shadow.grad = None
        found[form] = read_nbytes() - before
    width = {"float32": 4 * WIDTH, "float16": 2 * WIDTH, "int8": WIDTH + 2}
    sent = (found["float32"] - found["int8"]) / (width["float32"] - width["int8"])
    return [
        {
            "form": form,
            "bytes a row": width[form],
            "rows and gradients": f"{sent * width[form] / len(ids):,.0f}",
            "of float32": f"{width[form] / width['float32']:.3f}",
            "with ids": f"{found[form] / len(ids):,.0f}",
            "of float32, with ids": f"{found[form] / found['float32']:.3f}",
        }
        for form in COMMUNICATIONS
    ]


def measure_auc() -> list[dict[str, Any]]:
    """DLRM of the examples on one log, with each form."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "recsys"))
    import clicks
    import dlrm as example
    import layers
    import train

    truth, found = clicks.Truth(0), []
    test = truth.draw(65_536, 1_000_000)
    for form in COMMUNICATIONS:
        flow.manual_seed(0)
        everyone = flow.placement("cpu", list(range(flow.env.get_world_size())))
        model = example.Dlrm(layers.Store())
        model.embedding.communication = form
        model = model.to_global(everyone, flow.sbp.broadcast)
        optimizer = flow.optim.Adagrad(model.parameters(), lr=0.05)
        log = (truth.draw(AUC_BATCH, part) for part in range(AUC_STEPS))
        losses, _ = train.train(model, optimizer, log, True)
        with flow.no_grad():
            scores = model(train.spread(test.numbers), train.spread(test.ids)).numpy()[:, 0]
        told = model.embedding.statistics()
        found.append(
            {
                "form": form,
                "loss": f"{np.mean(losses[-50:]):.5f}",
                "AUC": f"{clicks.auc(test.click, scores):.5f}",
                "of the truth": f"{clicks.auc(test.click, test.probability):.5f}",
                "error of rows": f"{told['row_error']:.1e}",
                "error of gradients": f"{told['gradient_error']:.1e}",
                "to reach": "AUC within 0.0005",
            }
        )
        del model, optimizer  # the next one has tables of the same name
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, default=50_000, help="of each table")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dense", action="store_true", help="dense gradients of their tables")
    parser.add_argument("--parts", default="steps,bytes,auc")
    given = parser.parse_args()
    if "WORLD_SIZE" not in os.environ:
        raise SystemExit(launch_ranks(__file__, given.ranks, sys.argv[1:]))
    torch.set_num_threads(1)
    set_limit(1)
    rank, size = flow.env.get_rank(), flow.env.get_world_size()
    os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})
    store = f"tcp://127.0.0.1:{os.environ['TORCH_PORT']}"
    torch.distributed.init_process_group("gloo", store, rank=rank, world_size=size)
    parts: dict[str, tuple[str, Callable[[], list[dict[str, Any]]]]] = {
        "steps": (
            "OneEmbedding over ranks, one thread each",
            lambda: [measure_steps(given.rows, given.rounds, not given.dense)],
        ),
        "bytes": ("bytes of a look-up and its gradient", lambda: measure_bytes(given.rows)),
        "auc": ("what is learned", measure_auc),
    }
    for name in given.parts.split(","):
        title, measure = parts[name]
        rows = measure()
        if rank == 0:
            path = given.json and given.json.with_stem(f"{given.json.stem}-{name}")
            report(title, rows, path)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
