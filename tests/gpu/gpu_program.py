"""What the ranks of test_gpu_ranks.py run: `gpu_program.py SCENE`; exits 0 if all is right."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

import oneflow as flow
from oneflow import nn

# The environment is read at the first question: a far scene must speak before.
if sys.argv[-1].endswith("_far"):  # each rank says that it is on a host of its own
    os.environ["ONEFLOW_HOST_IDENTITY"] = f"host{os.environ['RANK']}"

RANK, SIZE = flow.env.get_rank(), flow.env.get_world_size()
S0, B = flow.sbp.split(0), flow.sbp.broadcast
ROWS, STEPS = 8, 4


def losses(kind: str, split: bool) -> list[float]:
    """Of a graph trained on all ranks of placement type `kind`: data-parallel, or whole on each."""
    everyone = flow.placement(kind, list(range(SIZE)))
    flow.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    model.to_global(placement=everyone, sbp=B)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    class Step(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.criterion = model, nn.CrossEntropyLoss()
            self.add_optimizer(optimizer)

        def build(self, x: Any, labels: Any) -> Any:
            loss = self.criterion(self.model(x), labels)
            loss.backward()
            return loss

    step, rng, found = Step(), np.random.default_rng(2), []
    for _ in range(STEPS):
        x = rng.normal(size=(ROWS * SIZE, 6)).astype(np.float32)
        labels = rng.integers(0, 3, ROWS * SIZE)
        sbp = S0 if split else B
        loss = step(
            flow.tensor(x, placement=everyone, sbp=sbp),
            flow.tensor(labels, placement=everyone, sbp=sbp),
        )
        found.append(float(loss.numpy()))
    return found


def data_parallel() -> None:
    """Ranks that may share one GPU reduce gradients in each other's memory."""
    np.testing.assert_allclose(losses("cuda", True), losses("cpu", False), rtol=1e-4)


def layouts() -> None:
    """Eager global tensors on GPUs, in every layout."""
    everyone = flow.placement("cuda", list(range(SIZE)))
    a = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
    for sbp in (S0, flow.sbp.split(1), B, flow.sbp.partial_sum):
        x = flow.tensor(a, placement=everyone, sbp=sbp)
        got = flow.relu(flow.matmul(x, flow.tensor(a.T.copy(), placement=everyone, sbp=B)))
        np.testing.assert_allclose(got.numpy(), np.maximum(a @ a.T, 0), rtol=1e-4, atol=1e-4)


def nccl() -> None:
    """The five primitives against NumPy."""
    import cupy

    from oneflow.boxing.collectives.nccl import NcclCollectives
    from oneflow.distributed.world import world
    from oneflow.kernels.cuda_device import own_device

    own_device()
    here = world()
    ends = NcclCollectives("test", RANK, list(range(SIZE)), here.client, here.everyone)
    parts = [np.random.default_rng(r).normal(size=(2 * SIZE, 3)) for r in range(SIZE)]
    mine, total = cupy.asarray(parts[RANK]), sum(parts)
    np.testing.assert_allclose(cupy.asnumpy(ends.all_reduce(mine)), total)
    np.testing.assert_allclose(
        cupy.asnumpy(ends.reduce_scatter(mine)), total[2 * RANK : 2 * RANK + 2]
    )
    gathered = cupy.asnumpy(ends.all_gather(mine)).reshape(SIZE, 2 * SIZE, 3)
    np.testing.assert_array_equal(gathered, np.stack(parts))
    swapped = cupy.asnumpy(ends.all_to_all(mine.reshape(SIZE, 2, 3)))
    np.testing.assert_array_equal(swapped, np.stack([p.reshape(SIZE, 2, 3)[RANK] for p in parts]))
    ends.close()


SCENES = {
    "data_parallel": data_parallel,
    "data_parallel_far": data_parallel,
    "layouts": layouts,
    "nccl": nccl,
}

if __name__ == "__main__":
    SCENES[sys.argv[1]]()
    print("done", flush=True)
