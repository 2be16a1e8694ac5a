"""Trains a small GPT to write Python, letter by letter, on the text of the standard library.

    python examples/gpt_stdlib.py --steps 300 --sample 400
    python -m oneflow.distributed.launch --nproc_per_node 4 examples/gpt_stdlib.py --parallel 2d

The layouts are those of digits.py. Under tensor parallelism attention is split by heads and the
feed-forward layers by columns and rows; under pipeline parallelism each stage has two of the four
blocks.
"""

from __future__ import annotations

import argparse
import math
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
from parallel import (
    Array,
    Clock,
    ColumnLinear,
    Layout,
    Progress,
    RowLinear,
    add_arguments,
    load_checkpoint,
    make_layout,
    positive,
    read,
    save_checkpoint,
    write_json,
)

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))  # 96 characters; the text has no others
LAYERS, HEADS, WIDTH, CONTEXT = 4, 4, 128, 64
MAX_BYTES = 1_000_000
SKIP = (
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "ensurepip",
)


class Attention(nn.Module):
    """Causal self-attention. x: (rows, CONTEXT, WIDTH).

    Heads are independent of each other, so splitting the columns of the weights splits the heads.
    """

    def __init__(self) -> None:
        super().__init__()
        self.query = ColumnLinear(WIDTH, WIDTH, bias=False)
        self.key = ColumnLinear(WIDTH, WIDTH, bias=False)
        self.value = ColumnLinear(WIDTH, WIDTH, bias=False)
        self.out = RowLinear(WIDTH, WIDTH)
        future = np.triu(np.full((CONTEXT, CONTEXT), -1e9, np.float32), k=1)
        self.register_buffer("future", flow.from_numpy(future))

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        query, key, value = (
            self._heads(self.query(x)),
            self._heads(self.key(x)),
            self._heads(self.value(x)),
        )
        scores = flow.matmul(query, key.transpose(-2, -1)) * (1.0 / math.sqrt(WIDTH // HEADS))
        mixed = flow.matmul(flow.softmax(scores + self.future, dim=-1), value)
        return self.out(mixed.permute(0, 2, 1, 3).reshape(-1, CONTEXT, WIDTH))

    @staticmethod
    def _heads(x: flow.Tensor) -> flow.Tensor:
        return x.reshape(-1, CONTEXT, HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)


class Block(nn.Module):
    """Attention and feed-forward, each behind a LayerNorm and beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm_2 = nn.LayerNorm(WIDTH)
        self.feed_forward = nn.Sequential(
            ColumnLinear(WIDTH, 4 * WIDTH), nn.GELU(), RowLinear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.feed_forward(self.norm_2(x))


class Embed(nn.Module):
    """Letters and their positions. tokens: int64 (rows, CONTEXT) -> (rows, CONTEXT, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(len(ALPHABET), WIDTH)
        self.position = nn.Parameter(flow.randn(CONTEXT, WIDTH) * 0.02)

    def forward(self, tokens: flow.Tensor) -> flow.Tensor:
        return self.token(tokens) + self.position


class Gpt(nn.Module):
    """Two halves, which pipeline parallelism makes its two stages.

    tokens: int64 (rows, CONTEXT).  Returns scores (rows, CONTEXT, len(ALPHABET)).
    """

    def __init__(self) -> None:
        super().__init__()
        blocks = [Block() for _ in range(LAYERS)]
        half = LAYERS // 2
        self.front = nn.Sequential(Embed(), *blocks[:half])
        self.head = nn.Sequential(
            *blocks[half:], nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(ALPHABET))
        )

    def forward(self, tokens: flow.Tensor) -> flow.Tensor:
        return self.head(self.front(tokens))


class Train(nn.Graph):
    """One step on (rows, CONTEXT) letters and the letters that follow each of them."""

    def __init__(self, model: Gpt, layout: Layout, optimizer: Any, schedule: Any) -> None:
        super().__init__()
        self.model = model
        self.layout = layout
        self.add_optimizer(optimizer, lr_sch=schedule)
        layout.set_stages((self.model.front, self.model.head))
        if layout.micro_batches > 1:
            self.config.set_gradient_accumulation_steps(layout.micro_batches)

    def build(self, tokens: flow.Tensor, following: flow.Tensor) -> flow.Tensor:
        scores = self.model(tokens)
        loss = F.cross_entropy(scores.reshape(-1, len(ALPHABET)), following.reshape(-1))
        loss.backward()
        return self.layout.everywhere(loss)


class Predict(nn.Graph):
    """Scores of the letter after each position of one text, whole on every rank."""

    def __init__(self, model: Gpt, layout: Layout) -> None:
        super().__init__()
        self.model = model
        self.layout = layout
        layout.set_stages((self.model.front, self.model.head))

    def build(self, tokens: flow.Tensor) -> flow.Tensor:
        return self.layout.everywhere(self.model(tokens))


def read_text(max_bytes: int = MAX_BYTES) -> str:
    """Library modules in order of their names, at most max_bytes, in letters of ALPHABET only."""
    root = Path(sysconfig.get_paths()["stdlib"])
    parts: list[str] = []
    size = 0
    for path in sorted(root.rglob("*.py")):
        if size >= max_bytes or any(part in SKIP for part in path.relative_to(root).parts):
            continue
        text = path.read_text(encoding="utf-8", errors="ignore").expandtabs(4)
        text = "".join(c for c in text if c in ALPHABET)
        parts.append(text)
        size += len(text)
    return "".join(parts)[:max_bytes]


def encode(text: str) -> Array:
    return np.array([ALPHABET.index(c) for c in text], dtype=np.int64)


def batch_of(letters: Array, size: int, seed: int, step: int) -> tuple[Array, Array]:
    """Random pieces of the text, the same in every layout, and the letters one further on."""
    starts = np.random.default_rng((seed, step)).integers(0, len(letters) - CONTEXT, size)
    pieces = letters[starts[:, None] + np.arange(CONTEXT + 1)]
    return pieces[:, :-1], pieces[:, 1:]


def write_text(graph: Predict, length: int, seed: int, start: str = "def ") -> str:
    """Lets the model continue `start` by `length` letters; all ranks draw with the same seed."""
    rng = np.random.default_rng(seed)
    text = start
    for _ in range(length):
        seen = encode(text[-CONTEXT:])
        padded = np.zeros(
            (1, CONTEXT), np.int64
        )  # what follows a letter cannot influence its scores
        padded[0, : len(seen)] = seen
        scores = read(graph(graph.layout.feed_whole(padded, 0)))[0, len(seen) - 1].astype(
            np.float64
        )
        odds = np.exp((scores - scores.max()) / 0.8)
        text += ALPHABET[rng.choice(len(ALPHABET), p=odds / odds.sum())]
    return text


class Trainer:
    """Everything a run needs, made in the same order in every layout."""

    def __init__(self, args: argparse.Namespace, layout: Layout) -> None:
        self.args, self.layout = args, layout
        self.letters = encode(read_text())
        flow.manual_seed(args.seed)
        model = Gpt()
        layout.place((model.front, model.head))
        optimizer = flow.optim.AdamW(
            model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01
        )
        schedule = flow.optim.lr_scheduler.CosineDecayLR(
            optimizer, decay_steps=args.steps, alpha=0.1
        )
        warm = flow.optim.lr_scheduler.WarmUpLR(
            schedule, warmup_factor=0.1, warmup_iters=max(1, args.steps // 20)
        )
        self.train = Train(model, layout, optimizer, warm)
        self.predict = Predict(model, layout)
        self.losses: list[float] = []
        self.clock = Clock()

    def run(self) -> None:
        size, seed = self.args.batch_size, self.args.seed
        first = load_checkpoint(self.train, self.args.resume)
        last = min(self.args.steps, self.args.stop_after or self.args.steps)
        progress = Progress(last, "step", first)
        self.clock.restart()
        for step in range(first, last):
            tokens, following = batch_of(self.letters, size, seed, step)
            x, y = self.layout.feed(tokens, 0), self.layout.feed(following, -1)
            self.losses.append(float(read(self.train(x, y)).mean()))  # the mean over micro-batches
            self.clock.step()
            progress.step(loss=self.losses[-1], letters_per_s=self.clock.per_second(size * CONTEXT))
        progress.close()
        save_checkpoint(self.train, self.args.save, last)

    def report(self) -> dict[str, Any]:
        args = self.args
        return {
            "example": "gpt_stdlib",
            "layout": self.layout.name,
            "world_size": flow.env.get_world_size(),
            "device": args.device,
            "steps": args.steps,
            "batch_size": args.batch_size,
            "seed": args.seed,
            "losses": self.losses,
            "samples_per_s": self.clock.per_second(args.batch_size),
            "letters_per_s": self.clock.per_second(args.batch_size * CONTEXT),
            "compile_s": self.clock.compile_s,
        }


def parse_arguments() -> tuple[argparse.Namespace, Layout]:
    parser = argparse.ArgumentParser(
        description="Trains a small GPT on the text of Python's standard library."
    )
    add_arguments(parser, batch_size=12, lr=2e-3)
    parser.add_argument("--steps", type=positive, default=300)
    parser.add_argument(
        "--stop-after",
        type=positive,
        metavar="N",
        help="stop after N steps of the schedule, to resume later",
    )
    parser.add_argument(
        "--sample",
        type=positive,
        default=0,
        metavar="N",
        help="let the model write N letters at the end",
    )
    args = parser.parse_args()
    layout = make_layout(args, parser)
    if layout.tensor_axis is not None:
        parts = layout.stages[0].ranks.shape[layout.tensor_axis]
        if HEADS % parts:
            parser.error(f"{HEADS} heads cannot be divided between {parts} ranks; use 1, 2 or 4")
    return args, layout


def main() -> None:
    args, layout = parse_arguments()
    trainer = Trainer(args, layout)
    trainer.run()
    report = trainer.report()
    if args.sample:
        report["text"] = write_text(trainer.predict, args.sample, args.seed)
    write_json(args.json, report)
    if flow.env.get_rank() != 0:
        return
    if args.sample:
        print(report["text"])
    if report["losses"]:
        print(
            f"{layout.name} on {report['world_size']} rank(s): loss {report['losses'][-1]:.4f}, "
            f"{report['letters_per_s']:.0f} letters/s, compiled in {report['compile_s']:.2f} s"
        )


if __name__ == "__main__":
    main()
