"""Training steps of networks for images, and of an LSTM, beside PyTorch's eager mode.

    python benchmarks/vision_steps.py [--models resnet18,resnet50,mobilenet,vit,swin,lstm]
        [--rounds 9] [--threads 1] [--json FILE]

ResNet-18 and -50, MobileNet v3 (large), ViT-S/16, Swin-T (`vision_models.py`) with images of
224 x 224, and the LSTM of `models.py`. Same starting weights, same batches; the first losses must
agree to 1e-5, those after updates to 3e-2. Each side has a process of its own, they take turns, and
a turn is a step (five of the LSTM). ratio is PyTorch's time over ours by the clock, pair by pair;
cpu_ratio the same of the least processor time of any turn, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from measure import arguments, paired, report
from models import TEXTS
from train_step import REST_S, Served

WARM_UP = 1
FOLLOWING = 3e-2
"""Relative difference allowed between losses after updates. Batch norm of few images amplifies
rounding: gradients of ResNet-50 in float32 are 1.6e-2 (PyTorch) and 1.9e-2 (ours) away from those
in float64, the median of all parameters."""


def measure_model(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    sides = {key: Served(key, name, args.threads) for key in ("torch", "eager", "graph")}
    want = sides["torch"].losses
    for key, side in sides.items():
        is_same = np.allclose(side.losses[0], want[0], rtol=1e-5)
        if not (is_same and np.allclose(side.losses, want, rtol=FOLLOWING)):
            raise SystemExit(f"{name}: losses differ: {key} {side.losses}, torch {want}")
    repeat = 5 if name in TEXTS else 1
    clock: dict[str, list[float]] = {key: [] for key in sides}
    process: dict[str, list[float]] = {key: [] for key in sides}
    for turn in range(WARM_UP + args.rounds):
        for key, side in sides.items():
            time.sleep(REST_S)
            by_clock, of_process = side.both_seconds(repeat)
            if turn >= WARM_UP:
                clock[key].append(by_clock)
                process[key].append(of_process)
    for side in sides.values():
        side.close()
    return [
        {
            "model": name,
            "ours": key,
            **paired(clock, key, "torch"),
            "ours_cpu_s": min(process[key]),
            "theirs_cpu_s": min(process["torch"]),
            "cpu_ratio": min(process["torch"]) / min(process[key]),
        }
        for key in ("eager", "graph")
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--models", default="resnet18,resnet50,mobilenet,vit,swin,lstm")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1, help="of both sides")
    args = parser.parse_args()
    rows = [row for name in args.models.split(",") for row in measure_model(name, args)]
    report("training step beside torch eager", rows, args.json)


if __name__ == "__main__":
    main()
