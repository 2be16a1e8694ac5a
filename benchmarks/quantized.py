"""Products of a few rows by weights in float32 and as integers of 8 and 4 bits.

    python benchmarks/quantized.py [--threads 2] [--rows 1] [--rounds 5] [--json FILE]

The shapes are of models of 512, 2048 and 4096 channels. Every turn reads other copies of a weight
than the one before, more than the caches hold. Beside PyTorch's float32, in turns; all have to
agree first. `copied` is the share of the bytes that a copy of 256 MB reads and writes in that time.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import cycle
from typing import Any

import measure
import numpy as np
from measure import arguments, in_turns, paired, report

SHAPES = [(512, 512), (2048, 512), (2048, 2048), (4096, 4096), (11008, 4096), (4096, 11008)]
"""(outputs, inputs)."""

NBYTES = 96 << 20
"""Bytes of all copies of a weight, of each kind."""

NUMBERS = 3 << 29
"""Weights that a side multiplies by in a turn, one layer after another as in decoding."""

COPIED = 1 << 26


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    import torch

    import oneflow as flow

    torch.set_num_threads(args.threads)
    flow.set_num_threads(args.threads)
    measure.REST_S = 0.12  # idle threads of BLAS spin for a tenth of a second
    rows = []
    with flow.no_grad(), torch.no_grad():
        copy = _copy_rate(flow, args.rounds)
        for outs, columns in SHAPES:
            rows += _shape(flow, torch, outs, columns, args, copy)
    title = f"{args.rows} rows, {args.threads} threads; a copy moves {copy / 1e9:.1f} GB/s"
    report(title, rows, args.json)


def _copy_rate(flow: Any, rounds: int) -> float:
    source, target = flow.ones(COPIED), flow.zeros(COPIED)
    times = in_turns({"copy": lambda: target.copy_(source)}, rounds)["copy"]
    return 2 * COPIED * 4 / float(np.median(times))


def _shape(
    flow: Any, torch: Any, outs: int, columns: int, args: Any, copy: float
) -> list[dict[str, Any]]:
    quantized, size = flow.nn.quantized, outs * columns
    x = np.random.default_rng(0).normal(size=(args.rows, columns)).astype(np.float32)
    ours, theirs = flow.tensor(x), torch.from_numpy(x)
    layer = flow.nn.Linear(columns, outs, bias=False)
    eight = quantized.Linear.from_float(layer, quantized.Int8WeightOnlyConfig())
    four = quantized.Linear.from_float(layer, quantized.Int4WeightOnlyConfig(128))
    _compare(ours, [layer, eight, four])
    nbytes = {"float32": size * 4, "int8": size + outs * 4, "int4": size // 2 + size // 128 * 4}
    made = {
        side: [deepcopy(one) for _ in range(2 + NBYTES // nbytes[side])]
        for side, one in zip(nbytes, (layer, eight, four), strict=True)
    }
    sides: dict[str, Callable[[], Any]] = {
        side: _next(layers, lambda one: one(ours)) for side, layers in made.items()
    }
    weights = [torch.from_numpy(one.weight.numpy()) for one in made["float32"]]
    sides["torch"] = _next(weights, lambda w: torch.nn.functional.linear(theirs, w))
    times = in_turns(sides, args.rounds, warm_up=1, repeat=max(8, NUMBERS // size // 4))
    rows = []
    for side, moved in nbytes.items():
        found = paired(times, side, "torch")
        row: dict[str, Any] = {"shape": f"{columns} x {outs}", "weights": side}
        row |= {"us": found["ours_s"] * 1e6, "GB/s": moved / found["ours_s"] / 1e9}
        row["copied"] = moved / found["ours_s"] / copy
        row["of float32"] = paired(times, side, "float32")["ratio"]
        row |= {f"torch {k}": found[k] for k in ("ratio", "ratio_p10", "ratio_p90")}
        rows.append(row)
    return rows


def _next(layers: list[Any], run: Callable[[Any], Any]) -> Callable[[], Any]:
    turns = cycle(layers)
    return lambda: run(next(turns))


def _compare(x: Any, layers: list[Any]) -> None:
    """Each layer against the product with its own weight."""
    for layer in layers:
        want = x.numpy() @ layer.weight.detach().numpy().T
        if not np.allclose(layer(x).numpy(), want, atol=1e-4 * np.abs(want).max()):
            raise SystemExit("the sides do not agree")


if __name__ == "__main__":
    main()
