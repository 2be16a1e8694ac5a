"""LiBai's DefaultTrainer, run from a configuration file on an indexed data set of made-up text.

`python -m tests.clients.libai_trainer FOLDER OVERRIDE...` trains with the values of
libai_config.py, but for the overrides (`train.amp.enabled=True`), and prints the total loss of each
iteration from rank 0. FOLDER keeps the data set, checkpoints and metrics: a second run with
`train.resume=True resume_from=2` goes on behind iteration 2; `text=bert` and `text=t5` train these
on their own data sets.
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


def config_of(folder: Path, text: str, overrides: list[str]) -> Any:
    """The configuration file with this folder's paths.  text: gpt, bert or t5."""
    from libai.config import LazyConfig

    cfg = LazyConfig.load(str(Path(__file__).with_name("libai_config.py")))
    data = cfg.dataloader.train.dataset[0]
    data.data_prefix = data.indexed_dataset.data_prefix = str(folder / "text")
    cfg.train.output_dir = str(folder / "out")
    if text != "gpt":
        cfg.dataloader.train.dataset = [masked(text, folder, dict(data))]
        cfg.model = masked_model(text)
    return LazyConfig.apply_overrides(cfg, overrides)


def masked(text: str, folder: Path, data: dict[str, Any]) -> Any:
    """LiBai's data set of masked words for BERT or T5, with its tokenizer and made-up words."""
    from libai.config import LazyCall
    from libai.data.datasets import BertDataset, T5Dataset
    from libai.tokenizer import BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(WORDS - 5))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    tokenizer = BertTokenizer(str(folder / "vocab.txt"), do_lower_case=False)
    shared = {"data_prefix": data["data_prefix"], "indexed_dataset": data["indexed_dataset"]}
    if text == "bert":
        return LazyCall(BertDataset)(tokenizer=tokenizer, max_seq_length=32, **shared)
    more = [f"<extra_id_{i}>" for i in range(10)]
    tokenizer.add_special_tokens(
        {"bos_token": "[BOS]", "eos_token": "[EOS]", "additional_special_tokens": more}
    )
    lengths = {"max_seq_length": 24, "max_seq_length_dec": 16}
    return LazyCall(T5Dataset)(tokenizer=tokenizer, **lengths, **shared)


def masked_model(text: str) -> Any:
    """A small BERT or T5 without dropout."""
    from libai.config import LazyCall
    from libai.models.bert_model import BertForPreTraining
    from libai.models.t5_model import T5ForPreTraining

    from .libai_models import usual_config

    sizes = {
        "vocab_size": 96, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
        "embedding_dropout_prob": 0.0, "max_position_embeddings": 32, "num_tokentypes": 2,
    }  # fmt: skip
    kind, layers = (BertForPreTraining, 4) if text == "bert" else (T5ForPreTraining, 2)
    return LazyCall(kind)(cfg=dict(usual_config({**sizes, "hidden_layers": layers})))


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
    texts = [o.partition("=")[2] for o in overrides if o.startswith("text=")]
    own = [o for o in overrides if not o.startswith(("resume_from=", "text="))]
    cfg = config_of(folder, texts[0] if texts else "gpt", own)
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
