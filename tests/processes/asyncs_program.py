"""Program of the ranks of test_asyncs_ranks.py: `asyncs_program SCENE ...`; exits 0 if all is
right.

Global tensors in blocks of workers, whose exchanges come in another order on each rank.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

import oneflow as flow
from oneflow.tensor.workers import Call, queueing
from tests.support.launching import play
from tests.support.waiting import WAIT_S

RANK, SIZE = flow.env.get_rank(), flow.env.get_world_size()
PLACE = flow.placement.all("cpu")
LAYOUTS = [flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1)]


@contextmanager
def held(worker: Any) -> Iterator[None]:
    """The worker of a Thread computes nothing inside the with-block."""
    gate = threading.Event()
    with queueing:
        worker._worker.queue(Call(worker._worker, lambda: gate.wait(WAIT_S), (), ""))
    try:
        yield
    finally:
        gate.set()


def is_pending(x: Any) -> bool:
    """Whether calls are remembered for the memory of `x`."""
    return x._extra is not None and x._extra.later is not None


def matrix(seed: int, nd_sbp: Any) -> Any:
    numbers = np.random.default_rng(seed).standard_normal((4, 4))
    return flow.tensor(numbers, placement=PLACE, sbp=nd_sbp)


def program(seed: int, block: Callable[[int], AbstractContextManager[Any]]) -> list[Any]:
    """60 random calls on four matrices, the same on all ranks. block: the context of calls of that
    number."""
    choose = random.Random(seed)
    values = [matrix(i, LAYOUTS[i % 3]) for i in range(4)]
    flow.manual_seed(seed)
    for _ in range(60):
        a, b, to = (choose.randrange(4) for _ in range(3))
        kind, layout = choose.randrange(8), choose.choice(LAYOUTS)
        with block(choose.randrange(2)):
            x, y = values[a], values[b]
            if kind == 0:
                x.mul_(0.5)
            elif kind == 1:
                values[to] = x.to_global(PLACE, layout)
            elif kind == 2:
                values[to] = x.T + 1.0
            elif kind == 3:
                values[to] = flow.rand(4, 4, dtype=flow.float64, placement=PLACE, sbp=layout) - x
            elif kind == 4:
                values[to] = x[[3, 0, 1, 2]].reshape(2, 8).sum(0).reshape(4, 2).repeat(1, 2)
            elif kind == 5:
                values[to] = x - x.mean(dim=0, keepdim=True)
            else:
                values[to] = flow.tanh(x @ y)
    return [v.numpy() for v in values]


def programs() -> None:
    workers = [flow.asyncs.Thread(), flow.asyncs.Thread()]
    for seed in range(3):
        wanted = program(seed, lambda number: nullcontext())
        found = program(seed, lambda number: flow.asyncs.thread(workers[number]))
        for w, f in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(f, w)


def exchanges_in_any_order() -> None:
    """Rank 0 comes to the exchange of the second worker first, rank 1 to that of the first one."""
    one, two = flow.asyncs.Thread(), flow.asyncs.Thread()
    x, y = matrix(0, LAYOUTS[1]), matrix(1, LAYOUTS[1])
    with held(one if RANK == 0 else two):
        with flow.asyncs.thread(one):
            a = x.to_global(PLACE, flow.sbp.broadcast) + 1.0
        with flow.asyncs.thread(two):
            b = y.to_global(PLACE, flow.sbp.broadcast) + 1.0
        assert is_pending(a) and is_pending(b)
        flow.comm.barrier()  # the calling thread has its own channel
    np.testing.assert_array_equal(a.to_local().numpy(), x.numpy() + 1.0)
    np.testing.assert_array_equal(b.to_local().numpy(), y.numpy() + 1.0)


def gradients() -> None:
    """Gradients of results of workers, inside a block and behind it."""
    worker = flow.asyncs.Thread()
    found = []
    for block in (nullcontext(), flow.asyncs.thread(worker)):
        w = matrix(3, LAYOUTS[1]).requires_grad_()
        with block:
            for _ in range(2):
                y = (matrix(2, LAYOUTS[2]) @ w).to_global(PLACE, flow.sbp.broadcast)
                y.square().sum().backward()
        found.append(w.grad.numpy())
    np.testing.assert_array_equal(*found)


def queued_at_the_end() -> None:
    """Rank 0 ends with calls in its queue that rank 1 waits in."""
    worker = flow.asyncs.Thread()
    x = matrix(0, LAYOUTS[1])
    with flow.asyncs.thread(worker):
        for _ in range(20):
            x = x.to_global(PLACE, flow.sbp.broadcast).to_global(PLACE, LAYOUTS[1]) * 0.5
    if RANK:
        x.to_local().numpy()


if __name__ == "__main__":
    play([globals()[name] for name in sys.argv[1:]])
