"""Trains a small network to read digits on ranks that may come and go.

    python -m oneflow.distributed.launch --nnodes 1:4 --rdzv-backend c10d \\
        --rdzv-endpoint localhost:29500 --rdzv-conf last_call_timeout=5 \\
        examples/elastic_digits.py --folder /tmp/digits

Start the same line again, or several times at once, for more ranks, and stop any but the first for
fewer: the training goes on from its last step, and the losses are those of a run that nobody
disturbed. Start it on a folder that holds a state, and it goes on from there.
"""

from __future__ import annotations

import argparse
import gzip
import time
from pathlib import Path

import numpy as np

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.nn.parallel import DistributedDataParallel

DATA = Path(__file__).parent / "data" / "digits.txt.gz"


def read_digits() -> tuple[flow.Tensor, flow.Tensor]:
    """Pixels, float32 (1797, 64) from 0 to 1, and labels, int64 (1797,)."""
    lines = gzip.decompress(DATA.read_bytes()).decode().split()
    values = np.array([[int(c, 17) for c in line] for line in lines])
    return flow.tensor(values[:, :64].astype(np.float32) / 16), flow.tensor(values[:, 64])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True, help="of the state")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=48, help="rows, of all ranks together")
    parser.add_argument("--pause", type=float, default=0.05, help="seconds after each step")
    args = parser.parse_args()

    x, y = read_digits()
    flow.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))
    optimizer = flow.optim.Adam(model.parameters(), lr=3e-3)
    sampler = flow.elastic.Sampler(x, args.batch, seed=1)
    state = flow.elastic.State(args.folder, model=model, optimizer=optimizer, sampler=sampler)
    state.resume()
    replica = DistributedDataParallel(model)

    while sampler.epoch < args.epochs:
        for rows in sampler:
            loss = F.cross_entropy(replica(x[rows]), y[rows]) * sampler.weight
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            state.commit()
            total = loss.detach().clone()
            flow.distributed.all_reduce(total)
            if flow.env.get_rank() == 0:
                ranks = flow.env.get_world_size()
                print(
                    f"step {state.step} ranks {ranks} loss {total.item() / ranks:.6f}", flush=True
                )
            time.sleep(args.pause)


if __name__ == "__main__":
    main()
