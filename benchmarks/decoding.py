"""Decoding token by token with a static cache of keys and values: tokens a second.

    python benchmarks/decoding.py [--rounds 3] [--tokens 24] [--rows 1 8] [--json FILE]

A decoder of Llama's form (RMSNorm, RoPE, grouped heads, SwiGLU), random float32 weights, greedy.
One module serves all sides: PyTorch eagerly, ours eagerly, and ours as an `nn.Graph` of one call a
token, whose cache is the module's buffers. Each row of a batch is at a position of its own. Sides
run in processes of their own, in turns, with one thread; their tokens have to be the same. Share:
bytes of the weights that a token reads a second, over those that a copy of memory reads and writes.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any, NamedTuple

import numpy as np
from measure import arguments, report


class Size(NamedTuple):
    """Facts of a decoder."""

    layers: int
    width: int
    heads: int
    shared: int
    inner: int
    words: int


SIZES = {
    "8 x 512": Size(8, 512, 8, 4, 1408, 32000),
    "6 x 384": Size(6, 384, 6, 6, 1536, 50257),
}
LENGTH = 128
FILLED = 16
SIDES = ("torch", "eager", "graph")


def decoder(lib: Any, size: Size, rows: int) -> Any:
    """The module of a library; `forward(words, at)` gives the next words and positions."""
    nn, F = lib.nn, lib.nn.functional
    depth = size.width // size.heads

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(lib.ones(size.width))

        def forward(self, x: Any) -> Any:
            return x * lib.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = Norm(), Norm()
            self.q = nn.Linear(size.width, size.width, bias=False)
            self.k = nn.Linear(size.width, size.shared * depth, bias=False)
            self.v = nn.Linear(size.width, size.shared * depth, bias=False)
            self.o = nn.Linear(size.width, size.width, bias=False)
            self.gate = nn.Linear(size.width, size.inner, bias=False)
            self.up = nn.Linear(size.width, size.inner, bias=False)
            self.down = nn.Linear(size.inner, size.width, bias=False)
            shape = rows, size.shared, LENGTH, depth
            self.register_buffer("keys", lib.zeros(shape))
            self.register_buffer("values", lib.zeros(shape))

        def forward(self, x: Any, at: Any, mask: Any, cos: Any, sin: Any) -> Any:
            def turned(x: Any) -> Any:
                a, b = x.chunk(2, -1)
                return lib.cat([a * cos - b * sin, b * cos + a * sin], -1)

            y = self.before(x)
            q = turned(self.q(y).view(rows, size.heads, 1, depth))
            k = turned(self.k(y).view(rows, size.shared, 1, depth))
            v = self.v(y).view(rows, size.shared, 1, depth)
            places = at.view(rows, 1, 1, 1).expand(rows, size.shared, 1, depth)
            self.keys.scatter_(2, places, k)
            self.values.scatter_(2, places, v)
            seen = F.scaled_dot_product_attention(q, self.keys, self.values, mask, enable_gqa=True)
            x = x + self.o(seen.reshape(rows, size.width))
            y = self.between(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(size.words, size.width)
            self.layers = nn.ModuleList([Layer() for _ in range(size.layers)])
            self.last = Norm()
            self.head = nn.Linear(size.width, size.words, bias=False)
            angles = 1e4 ** (-np.arange(depth // 2) / (depth // 2))
            self.register_buffer("angles", lib.tensor(angles.astype(np.float32)))

        def forward(self, words: Any, at: Any) -> Any:
            with lib.no_grad():
                turns = at.view(rows, 1, 1, 1) * self.angles
                mask = lib.arange(LENGTH) <= at.view(rows, 1, 1, 1)
                x, cos, sin = self.words(words), turns.cos(), turns.sin()
                for layer in self.layers:
                    x = layer(x, at, mask, cos, sin)
                return self.head(self.last(x)).argmax(-1), at + 1

    model, drawn = Decoder(), np.random.default_rng(0)
    with lib.no_grad():
        for name, p in model.named_parameters():
            if p.ndim > 1:
                scale = 1.0 if name == "words.weight" else p.shape[1] ** -0.5
                values = drawn.standard_normal(tuple(p.shape), np.float32) * scale
                p.copy_(lib.tensor(values))
        for layer in model.layers:  # as if FILLED tokens had been read
            for cache in (layer.keys, layer.values):
                cache[:, :, :FILLED].copy_(
                    lib.tensor(
                        drawn.standard_normal((rows, size.shared, FILLED, depth), np.float32)
                    )
                )
    return model


def run_side(side: str, size: Size, rows: int, tokens: int) -> dict[str, Any]:
    """The words that a side gives, and its seconds a step."""
    lib: Any
    if side == "torch":
        import torch as lib
    else:
        import oneflow as lib
    lib.set_num_threads(1)
    model: Any = decoder(lib, size, rows)
    step = _as_graph(lib, model) if side == "graph" else model
    words = lib.tensor(np.arange(rows) + 1)
    at = lib.tensor(FILLED - np.arange(rows) % 8)
    made, times = [], []
    for _ in range(tokens):
        start = time.perf_counter()
        words, at = step(words, at)
        made.append(words.tolist())
        times.append(time.perf_counter() - start)
    return {"words": made, "step_s": statistics.median(times[4:])}


def _as_graph(lib: Any, model: Any) -> Any:
    class Step(lib.nn.Graph):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model  # a graph writes to the buffers of its modules

        def build(self, words: Any, at: Any) -> Any:
            return self.model(words, at)

    return Step()


def copy_speed() -> float:
    """Bytes that a copy of memory reads and writes in a second."""
    a = np.ones(1 << 25, np.float32)
    b, times = np.empty_like(a), []
    for _ in range(5):
        start = time.perf_counter()
        np.copyto(b, a)
        times.append(time.perf_counter() - start)
    return 2 * a.nbytes / min(times)


def nbytes_read(size: Size) -> int:
    """Bytes of the weights that a token reads: all but the other rows of the embedding."""
    depth = size.width // size.heads
    attention = 2 * size.width * (size.width + size.shared * depth)
    layer = attention + 3 * size.width * size.inner
    return 4 * (size.layers * layer + size.words * size.width)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES))
    parser.add_argument("--side", nargs=3, help="run one side: its name, size and rows")
    args = parser.parse_args()
    if args.side:
        side, size, count = args.side
        print(json.dumps(run_side(side, SIZES[size], int(count), args.tokens)))
        return
    rows: list[dict[str, Any]] = []
    for name in args.sizes:
        for count in args.rows:
            rows.append(_compare(name, count, args.rounds, args.tokens))
    report("Decoding with a static cache, float32, one thread", rows, args.json)


def _compare(name: str, count: int, rounds: int, tokens: int) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    speeds = []
    for _ in range(rounds):
        speeds.append(copy_speed())
        for side in SIDES:
            more = ["--side", side, name, str(count), "--tokens", str(tokens)]
            done = subprocess.run(
                [sys.executable, __file__, *more], check=True, capture_output=True, text=True
            )
            found[side].append(json.loads(done.stdout.splitlines()[-1]))
    words = [one["words"] for each in found.values() for one in each]
    if any(x != words[0] for x in words):
        raise SystemExit(f"{name}, {count} rows: the sides gave different words")
    seconds = {s: statistics.median(one["step_s"] for one in each) for s, each in found.items()}
    row: dict[str, Any] = {"decoder": name, "rows": count}
    row |= {f"{side}_tokens_s": count / s for side, s in seconds.items()}
    row["graph_ratio"] = seconds["torch"] / seconds["graph"]
    row["eager_ratio"] = seconds["torch"] / seconds["eager"]
    row["share"] = nbytes_read(SIZES[name]) / seconds["graph"] / statistics.median(speeds)
    return row


if __name__ == "__main__":
    main()
