"""The other side of the cluster benchmark: its training, written for PyTorch, on ranks over gloo.

    torchrun --nproc_per_node 2 benchmarks/sides/ddp_digits.py SETUP.npz RESULT.json STEPS
    python benchmarks/sides/ddp_digits.py SETUP.npz RESULT.json STEPS --ranks 2

With --ranks it starts the other ranks itself, as plainly as can be: for users that run a command
once and starts no ranks. Rank 0 leaves the time of its first finished step and all losses.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist


def make_model(setup: Any) -> torch.nn.Module:
    """Two dense layers with the weights of the setup."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Tanh(), torch.nn.Linear(96, 10))
    model.load_state_dict({name: torch.from_numpy(setup[name]) for name in model.state_dict()})
    return model


def train(setup: Any, steps: int) -> dict[str, Any]:
    """Rows in order, a rank's part of each batch; losses are those of whole batches."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(make_model(setup))
    lr, momentum, batch = (setup[name].item() for name in ("lr", "momentum", "batch"))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    images, labels = torch.from_numpy(setup["images"]), torch.from_numpy(setup["labels"])
    losses, first_step_at, part = [], 0.0, batch // world_size
    for step in range(steps):
        begin = step % (len(labels) // batch) * batch + rank * part
        rows = slice(begin, begin + part)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        first_step_at = first_step_at or time.time()
        losses.append(mean_over_ranks(loss.detach(), world_size))
    return {"first_step_at": first_step_at, "losses": losses}


def mean_over_ranks(loss: torch.Tensor, world_size: int) -> float:
    dist.all_reduce(loss)
    return float(loss) / world_size


def start_others(ranks: int) -> list[subprocess.Popen[bytes]]:
    """This process is rank 0 from now on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    os.environ.update(place | {"RANK": "0"})
    command = [sys.executable, *sys.argv]
    return [
        subprocess.Popen(command, env={**os.environ, "RANK": str(rank)}) for rank in range(1, ranks)
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("setup", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--ranks", type=int, default=0)
    args = parser.parse_args()
    is_alone = args.ranks and "RANK" not in os.environ
    others = start_others(args.ranks) if is_alone else []
    dist.init_process_group("gloo")
    found = train(np.load(args.setup), args.steps)
    if dist.get_rank() == 0:
        part = args.result.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.rename(args.result)
    dist.destroy_process_group()
    if any(process.wait() for process in others):
        raise SystemExit("a rank failed")


if __name__ == "__main__":
    main()
