"""The training that all models share: `main(Model)` is the whole program of each.

On several ranks batches are cut between them and each rank holds its part of the rows; the losses
are those of one rank, up to rounding, which grows from step to step. The AUC on rows that no step
saw stands beside that of the true probabilities, which is the most that any model can reach.

Tables may be larger than the memory given to them, here 20 times, with their rows on a disk:

    python examples/recsys/dlrm.py --ids 21000 --rows 400000 --steps 400 --batch-size 1000 \
        --budget-mb 1

A cluster trains them as well: `--job` writes the job, whose rows go to a data root of its hosts.

    oneflow cluster up --data-root /data
    python examples/recsys/dlrm.py --path /data/rows --job dlrm.job
    oneflow job submit dlrm.job --devices 2 --wait
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import gettempdir

import numpy as np
from clicks import FIELDS, IDS, NUMBERS, Array, Batch, auc, read, write
from layers import Store

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn

ADAGRAD_STATES = 1


class Step(nn.Graph):
    """One step: forward, backward, update of layers and rows."""

    def __init__(self, model: nn.Module, optimizer: flow.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, numbers: flow.Tensor, ids: flow.Tensor, labels: flow.Tensor) -> flow.Tensor:
        loss = loss_of(self.model(numbers, ids), labels)
        loss.backward()
        return loss


def loss_of(logits: flow.Tensor, labels: flow.Tensor) -> flow.Tensor:
    """logits, labels: (rows, tasks)."""
    return F.binary_cross_entropy_with_logits(logits, labels)


def spread(x: Array) -> flow.Tensor:
    """A batch on all ranks, each with its part of the rows; every rank has read all of it."""
    whole = flow.from_numpy(np.ascontiguousarray(x))
    world = flow.env.get_world_size()
    if world == 1:
        return whole
    everyone = flow.placement("cpu", list(range(world)))
    return whole.to_global(everyone, flow.sbp.broadcast).to_global(sbp=flow.sbp.split(0))


def labels_of(batch: Batch, tasks: int) -> Array:
    """Clicks, and purchases for a model of two tasks."""
    return np.stack([batch.click, batch.buy][:tasks], axis=1)


def batches(path: Path, rows: int, steps: int) -> Iterator[Batch]:
    """As many batches as asked for; the file is read again where it ends."""
    left = steps
    while left:
        for batch in read(path, rows):
            yield batch
            left -= 1
            if not left:
                return


def train(
    model: nn.Module, optimizer: flow.optim.Optimizer, log: Iterator[Batch], is_graph: bool
) -> tuple[list[float], float]:
    """The losses of all batches, and the seconds of those behind the first, which compiles."""
    step, losses = Step(model, optimizer) if is_graph else None, []
    begin = time.perf_counter()
    for number, batch in enumerate(log):
        if number == 1:
            losses[0].numpy()
            begin = time.perf_counter()
        given = (batch.numbers, batch.ids, labels_of(batch, model.tasks))
        numbers, ids, labels = map(spread, given)
        if step is not None:
            losses.append(step(numbers, ids, labels))
            continue
        loss = loss_of(model(numbers, ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    found = [float(loss.numpy()) for loss in losses]
    return found, time.perf_counter() - begin


def main(make_model: Callable[[Store], nn.Module]) -> None:
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--log", type=Path, help="a file of clicks.py; default: one is written")
    parser.add_argument("--rows", type=int, default=80_000, help="of the log that is written")
    parser.add_argument("--ids", type=int, default=IDS, help="in each field of that log")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=512, help="of one step, all ranks")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--eager", action="store_true", help="without nn.Graph")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--path", default="", help="folder of the rows; default: a temporary one")
    parser.add_argument("--budget-mb", type=int, default=0, help="MiB of rows in memory, 0: all")
    parser.add_argument("--json", type=Path, help="write losses and figures here")
    parser.add_argument("--job", type=Path, help="write a job file here instead of training")
    args = parser.parse_args()
    if args.batch_size % flow.env.get_world_size():
        parser.error(f"--batch-size must be a multiple of {flow.env.get_world_size()} ranks")
    if "OMP_NUM_THREADS" not in os.environ:
        # Products this small gain nothing by more, and wait where other programs have the cores.
        flow.set_num_threads(1)
    train_log, test_log = log_files(args)
    flow.manual_seed(args.seed)
    model = make_model(Store(args.path, args.budget_mb, size_factor=1 + ADAGRAD_STATES))
    if flow.env.get_world_size() > 1:
        everyone = flow.placement("cpu", list(range(flow.env.get_world_size())))
        model = model.to_global(everyone, flow.sbp.broadcast)
    optimizer = flow.optim.Adagrad(model.parameters(), lr=args.lr)
    if args.job is not None:
        data = job_data(train_log, model.tasks).batch(args.batch_size).repeat()
        Step(model, optimizer).export(args.job, data=data, steps=args.steps, checkpoint_every=50)
        return
    losses, seconds = train(
        model, optimizer, batches(train_log, args.batch_size, args.steps), not args.eager
    )
    report(args, model, losses, seconds, test_log)


def job_data(log: Path, tasks: int) -> flow.jobs.data.Data:
    """A log of clicks, put into a job file as what `Step` is fed with."""
    return flow.jobs.data.csv(
        log,
        numbers=[f"number_{i}" for i in range(NUMBERS)],
        ids=[f"field_{i}" for i in range(FIELDS)],
        labels=["click", "buy"][:tasks],
        types={"ids": flow.int64},
    )


def log_files(args: argparse.Namespace) -> tuple[Path, Path]:
    """The log to learn from, and another one of the same law, to test on."""
    if args.log is not None:
        return args.log, args.log.with_stem(args.log.stem + "-test")
    folder = Path(gettempdir()) / "oneflow-clicks"
    found = tuple(
        folder / f"{args.seed}-{args.rows}-{args.ids}{kind}-{flow.env.get_rank()}.csv"
        for kind in ("", "-test")
    )
    for number, path in enumerate(found):
        if not path.exists():
            rows = args.rows if number == 0 else 16_384
            part = path.with_suffix(".part")
            write(part, rows, args.seed, first_part=number * 1_000_000, num_ids=args.ids)
            part.rename(path)
    return found


def report(
    args: argparse.Namespace, model: nn.Module, losses: list[float], seconds: float, test_log: Path
) -> None:
    model.eval()
    with flow.no_grad():
        tested = [
            (batch, model(spread(batch.numbers), spread(batch.ids)).numpy())
            for batch in read(test_log, args.batch_size)
        ]
    clicks = np.concatenate([batch.click for batch, _ in tested])
    found = auc(clicks, np.concatenate([scores[:, 0] for _, scores in tested]))
    best = auc(clicks, np.concatenate([batch.probability for batch, _ in tested]))
    if flow.env.get_rank() != 0:
        return
    print(
        f"{type(model).__name__}: loss {np.mean(losses[:10]):.4f} -> {np.mean(losses[-10:]):.4f}, "
        f"AUC {found:.4f} (of the truth {best:.4f}), "
        f"{(len(losses) - 1) * args.batch_size / seconds:.0f} rows a second"
    )
    if args.budget_mb:
        print(beyond_memory(model, args.budget_mb))
    if args.json is not None:
        args.json.write_text(json.dumps({"losses": losses, "auc": found, "best": best}))


def beyond_memory(model: nn.Module, budget_mb: int) -> str:
    """How much more than the memory given the rows of this rank are."""
    rows = [m for m in model.modules() if isinstance(m, flow.one_embedding.Embedding)]
    counted = [(m.statistics(), m.one_embedding.sizes[0]) for m in rows]
    mib = sum(said["rows"] * 4 * line for said, line in counted) / 2**20
    looked_up = sum(said["lookups"] for said, _ in counted)
    from_disk = sum(said["disk_hits"] for said, _ in counted)
    return (
        f"{mib:.1f} MiB of rows, {mib / (budget_mb * len(rows)):.1f} times the memory given; "
        f"{from_disk / looked_up:.0%} of look-ups read the disk"
    )
