"""Trains on four ranks, then three, then four: python benchmarks/elastic.py [--model digits|gpt]

Four launchers of one elastic job start; one is told to end, and later a new one comes, while the
ranks train. Prints how long the training stood still each time, the share of a step that `commit`
takes, and how far the losses are from those of runs that are stopped and resumed by hand in the
same sizes, and from those of one process that nobody disturbed.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.nn.parallel import DistributedDataParallel

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
ENDLESS = 10**9
WAIT_S = 180.0  # without any step
LAUNCH = (sys.executable, "-m", "oneflow.distributed.launch")
ENV = os.environ | {"OMP_NUM_THREADS": "1"}
Steps = list[dict[str, Any]]


def digits() -> tuple[nn.Module, flow.Tensor, flow.Tensor]:
    from elastic_digits import read_digits

    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10)), *read_digits()


def gpt() -> tuple[nn.Module, flow.Tensor, flow.Tensor]:
    from gpt_stdlib import CONTEXT, Gpt, encode, read_text

    letters = encode(read_text(100_000))
    starts = np.arange(0, len(letters) - CONTEXT - 1, CONTEXT)
    windows = letters[starts[:, None] + np.arange(CONTEXT + 1)]
    return Gpt(), flow.tensor(windows[:, :-1]), flow.tensor(windows[:, 1:])


MODELS: dict[str, Callable[[], tuple[nn.Module, flow.Tensor, flow.Tensor]]]
MODELS = {"digits": digits, "gpt": gpt}


def train(name: str, folder: str, said: str, steps: int) -> None:
    """Train as a rank; rank 0 appends a line for each step to `said`."""
    sys.path.insert(0, str(EXAMPLES))
    flow.manual_seed(1)
    model, x, y = MODELS[name]()
    optimizer = flow.optim.Adam(model.parameters(), lr=1e-3)
    sampler = flow.elastic.Sampler(len(x), 12, seed=1)
    state = flow.elastic.State(folder, model=model, optimizer=optimizer, sampler=sampler)
    state.resume()
    replica, size = DistributedDataParallel(model), flow.env.get_world_size()
    with open(said, "a", encoding="utf-8") as file:
        while state.step < steps:
            began = time.time()
            rows = next(iter(sampler))
            scores = replica(x[rows])
            loss = F.cross_entropy(scores.reshape(-1, scores.shape[-1]), y[rows].reshape(-1))
            (loss * sampler.weight).backward()
            optimizer.step()
            optimizer.zero_grad()
            total = loss.detach() * sampler.weight
            flow.distributed.all_reduce(total)
            at = time.time()
            state.commit()
            found = {"step": state.step, "size": size, "loss": total.item() / size, "at": at}
            found |= {"step_s": at - began, "commit_s": time.time() - at}
            if flow.env.get_rank() == 0:
                print(json.dumps(found), file=file, flush=True)


def words(name: str, steps: int, said: Path, state: Path) -> list[str]:
    """Arguments of a rank: this program, and its folders."""
    own = ["--model", name, "--steps", str(steps), "--said", str(said), "--state", str(state)]
    return [__file__, *own]


def read(said: Path) -> Steps:
    return [json.loads(line) for line in said.read_text().splitlines()] if said.exists() else []


def wait_for(said: Path, size: int, count: int) -> None:
    """Return when so many steps of a size are done."""
    seen, since = 0, time.monotonic()
    found: Steps = []
    while sum(one["size"] == size for one in found) < count:
        found = read(said)
        if len(found) > seen:
            seen, since = len(found), time.monotonic()
        if time.monotonic() > since + WAIT_S:
            raise SystemExit(f"no step within {WAIT_S:g} s, where {size} ranks were to go on")
        time.sleep(0.05)


def disturbed(name: str, folder: Path, steps: int) -> Steps:
    """Steps of a job that loses a rank and gets another, each time after so many steps."""
    said, port = folder / "said", 15_000 + secrets.randbelow(15_000)
    meeting = ["--nnodes=3:4", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
    meeting += ["--rdzv-conf=last_call_timeout=1,join_timeout=60"]
    launchers: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        number = len(launchers)
        argv = [*LAUNCH, *meeting, f"--node-rank={min(number, 1)}"]
        argv += words(name, ENDLESS, said, folder / f"state{number}")
        launchers.append(subprocess.Popen(argv, env=ENV, stderr=subprocess.DEVNULL))

    for _ in range(4):
        start()
    try:
        wait_for(said, 4, steps)
        launchers[3].terminate()
        wait_for(said, 3, steps)
        before = sum(one["size"] == 4 for one in read(said))
        start()
        wait_for(said, 4, before + steps)
    finally:
        for launcher in launchers:
            launcher.terminate()
            launcher.wait()
    return read(said)


def resumed(name: str, folder: Path, found: Steps) -> Steps:
    """The same steps, of runs in the sizes of those found, each resumed from the one before."""
    parts = [(size, next(steps)["step"]) for size, steps in groupby(found, lambda one: one["size"])]
    lasts = [first - 1 for _, first in parts[1:]] + [found[-1]["step"]]
    said = folder / "resumed"
    for (size, _), last in zip(parts, lasts, strict=True):
        argv = [*LAUNCH, "--standalone", f"--nproc-per-node={size}"]
        argv += words(name, last, said, folder / "by_hand")
        subprocess.run(argv, env=ENV, check=True)
    return read(said)


def alone(name: str, folder: Path, found: Steps) -> Steps:
    """The same steps of one process that nobody disturbs."""
    said = folder / "alone"
    argv = [sys.executable, *words(name, found[-1]["step"], said, folder / "one")]
    subprocess.run(argv, check=True)
    return read(said)


def farthest(found: Steps, others: Steps) -> str:
    """Say how far losses are from others. A step may be missing: another rank had done it when rank
    0 was ended, and lent its state.
    """
    by_step = {one["step"]: one["loss"] for one in found}
    apart = [abs(by_step[o["step"]] - o["loss"]) for o in others if o["step"] in by_step]
    return f"{max(apart):.1e} over {len(apart)} steps"


def report(name: str, found: Steps) -> None:
    runs: list[str] = []
    for one, after in pairwise(found):
        if one["size"] != after["size"]:
            still_s = after["at"] - after["step_s"] - one["at"]
            runs.append(
                f"{one['size']} -> {after['size']} ranks after step {one['step']}: {still_s:.1f} s"
            )
    spent = np.median([one["commit_s"] for one in found]) * 1e3
    step = np.median([one["step_s"] for one in found]) * 1e3
    print(f"{name}: stood still {'; '.join(runs)}")
    print(f"{name}: commit {spent:.2f} ms of a step of {step:.1f} ms (medians, rank 0)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--steps", type=int, default=30, help="before each change")
    parser.add_argument("--state", help=argparse.SUPPRESS)
    parser.add_argument("--said", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.said:
        train(args.model, args.state, args.said, args.steps)
        return
    for name in [args.model] if args.model else MODELS:
        with tempfile.TemporaryDirectory() as folder:
            found = disturbed(name, Path(folder), args.steps)
            report(name, found)
            by_hand = farthest(found, resumed(name, Path(folder), found))
            print(f"{name}: losses at most {by_hand} from those resumed by hand", flush=True)
            one = farthest(found, alone(name, Path(folder), found))
            print(f"{name}: losses at most {one} from those of one process", flush=True)


if __name__ == "__main__":
    main()
