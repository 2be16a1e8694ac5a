"""LiBai's DefaultTrainer, run from a configuration file on an indexed data set of made-up text.

`python -m tests.clients.libai_trainer FOLDER OVERRIDE...` trains with the values of
libai_config.py, but for the overrides (`train.amp.enabled=True`), and prints the total loss of each
iteration from rank 0. FOLDER keeps the data set, checkpoints and metrics: a second run with
`train.resume=True resume_from=2` goes on behind iteration 2.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import oneflow as flow

vars(np)["float"] = float  # a name that LiBai reads and NumPy 1.24 dropped

WORDS = 64
FOUND: dict[int, float] = {}
"""The total loss of each iteration, by its number, on rank 0."""


def write_text(prefix: Path) -> None:
    """Documents of sentences whose words follow from each other, in the format of Megatron."""
    from libai.data.data_utils.indexed_dataset import MMapIndexedDatasetBuilder

    rng = np.random.default_rng(0)
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for _ in range(40):
        for _ in range(3):
            start, step = rng.integers(0, WORDS, 2)
            words = (start + step * np.arange(rng.integers(6, 20))) % WORDS
            builder.add_item(flow.tensor(words))
        builder.end_document()
    builder.finalize(f"{prefix}.idx")


def config_of(folder: Path, overrides: list[str]) -> Any:
    """The configuration file with this folder's paths."""
    from libai.config import LazyConfig

    cfg = LazyConfig.load(str(Path(__file__).with_name("libai_config.py")))
    data = cfg.dataloader.train.dataset[0]
    data.data_prefix = data.indexed_dataset.data_prefix = str(folder / "text")
    cfg.train.output_dir = str(folder / "out")
    return LazyConfig.apply_overrides(cfg, overrides)


def write_metrics(losses: dict[str, Any], data_time: float, prefix: str = "") -> None:
    """LiBai's own, for CPUs: that one moves the losses to GPU 0."""
    from libai.utils import distributed as dist
    from libai.utils.events import get_event_storage

    first = next(iter(losses.values())).placement
    rank0 = flow.placement(first.type, np.zeros((1,) * first.ranks.ndim, int))
    whole = [flow.sbp.broadcast] * first.ranks.ndim
    values = [loss.to_global(rank0, whole).to_local().numpy() for loss in losses.values()]
    if dist.is_main_process():
        storage = get_event_storage()
        storage.put_scalar("data_time", data_time)
        storage.put_scalar(f"{prefix}total_loss", float(sum(values)))
        FOUND[storage.iter] = float(sum(values))


def train(folder: Path, overrides: list[str]) -> None:
    """Train, into FOUND."""
    from libai.engine import DefaultTrainer
    from libai.engine.default import _check_batch_size
    from libai.utils import distributed as dist

    if flow.env.get_rank() == 0 and not (folder / "text.idx").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "text")
    flow.comm.barrier()
    resume_from = [o.partition("=")[2] for o in overrides if o.startswith("resume_from=")]
    cfg = config_of(folder, [o for o in overrides if not o.startswith("resume_from=")])
    dist.setup_dist_util(cfg.train.dist)
    _check_batch_size(cfg)
    out = folder / "out"
    out.mkdir(exist_ok=True)
    if flow.env.get_rank() == 0:
        for number in resume_from:  # as if the run had been cut off behind that checkpoint
            (out / "last_checkpoint").write_text(f"model_{int(number):07d}")
    flow.comm.barrier()
    flow.manual_seed(cfg.train.seed)
    trainer = DefaultTrainer(cfg)
    trainer._trainer.write_metrics = write_metrics
    trainer.train()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    train(given.folder, given.overrides)
    if flow.env.get_rank() == 0:
        print(json.dumps({"overrides": given.overrides, "losses": FOUND}))


if __name__ == "__main__":
    main()
