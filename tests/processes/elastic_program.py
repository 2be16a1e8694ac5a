"""Trains digits on ranks that come and go: elastic_program.py STATE MOMENTS STEPS [SIZE:STEP ...]

At step STEP of SIZE ranks all wait to be ended. Each rank appends to MOMENTS/<rank>-<attempt> the
rows of a step and the loss when the step is committed, and where the library lies in its memory.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import oneflow as flow
import oneflow.nn.functional as F
from examples.elastic_digits import read_digits
from oneflow import nn
from oneflow.nn.parallel import DistributedDataParallel

WAIT_S = 300.0
BATCH = 48


def main() -> None:
    folder, moments, steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    holds = {tuple(map(int, word.split(":"))) for word in sys.argv[4:]}
    rank, size = flow.env.get_rank(), flow.env.get_world_size()
    x, y = read_digits()
    flow.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    optimizer = flow.optim.Adam(model.parameters(), lr=3e-3)
    sampler = flow.elastic.Sampler(x, BATCH, seed=1)
    state = flow.elastic.State(folder, model=model, optimizer=optimizer, sampler=sampler)
    state.resume()
    replica = DistributedDataParallel(model)
    attempt = os.environ.get("ONEFLOW_ATTEMPT", "0")
    with open(moments / f"{rank}-{attempt}", "a", encoding="utf-8") as said:
        while state.step < steps:
            rows = next(iter(sampler))
            loss = F.cross_entropy(replica(x[rows]), y[rows]) * sampler.weight
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total = loss.detach().clone()
            flow.distributed.all_reduce(total)
            found = {"epoch": sampler.epoch, "rows": rows, "size": size}
            found |= {"rank": rank, "imported_at": id(flow)}
            state.commit()
            found |= {"step": state.step, "loss": total.item() / size}
            print(json.dumps(found), file=said, flush=True)
            if (size, state.step) in holds:
                time.sleep(WAIT_S)


if __name__ == "__main__":
    main()
