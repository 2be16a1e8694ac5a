"""Runs on the ranks of test_collective_failures.py: eager collectives, and one mistake.

Usage: collective_failures_program.py SCENE NEAR_OR_FAR [ARGUMENT...]. far: ranks believe to be on
different hosts, so that their data go over TCP.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

if sys.argv[2] == "far":
    os.environ["ONEFLOW_HOST_IDENTITY"] = f"host{os.environ['RANK']}"

import numpy as np

import oneflow as flow
from oneflow import comm

RANK, SIZE = flow.env.get_rank(), flow.env.get_world_size()
EVERYONE = flow.placement("cpu", list(range(SIZE)))
PAIR = flow.placement("cpu", [0, 1])
S0, S1, B, P = flow.sbp.split(0), flow.sbp.split(1), flow.sbp.broadcast, flow.sbp.partial_sum
SOON_S = 0.3


def whole(rows: int = 6, dtype: flow.dtype = flow.float32) -> flow.Tensor:
    return flow.ones(rows, 6, placement=EVERYONE, sbp=S0, dtype=dtype)


def work() -> None:
    """Global ops and collectives of all kinds and sizes, without end."""
    big, small = flow.ones(300_000), whole()
    while True:
        comm.all_reduce(big)
        small.to_global(sbp=B)
        small.to_global(sbp=S1)
        flow.matmul(small, small).numpy()


def meanwhile(number: int) -> None:
    """The signal comes while this rank is in the middle of its collectives."""
    threading.Timer(SOON_S, os.kill, (os.getpid(), number)).start()


# ---- a rank is lost ------------------------------------------------------------------------------


def lost(how: str, victim: str) -> None:
    whole().numpy()
    if int(victim) == RANK and how in ("kill", "stop"):
        meanwhile(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    if int(victim) == RANK and how == "raise":
        raise ValueError("boom")
    if int(victim) == RANK and how == "exit":
        sys.exit(0)
    work()


def killed_in_waiting(victim: str) -> None:
    """The victim dies in a collective to which the others come only later."""
    comm.barrier()
    if int(victim) == RANK:
        meanwhile(signal.SIGKILL)
    else:
        time.sleep(3 * SOON_S)
    whole().numpy()
    work()


# ---- ranks that do different things --------------------------------------------------------------


def differ(what: str) -> None:
    """Rank 1 does something else than the others, in one call."""
    other = RANK == 1
    whole().numpy()
    x = whole()
    if what == "op":
        y = x.sum() if other else flow.matmul(x, x.to_global(sbp=B))
        y.numpy()
    if what == "shape":
        whole(12 if other else 6).to_global(sbp=B)
    if what == "dtype":
        whole(dtype=flow.float64 if other else flow.float32).to_global(sbp=B)
    if what == "layout":
        x.to_global(sbp=S1 if other else B)
    if what == "order":
        y = whole(12)
        for z in (y, x) if other else (x, y):
            z.to_global(sbp=B)


def branch(then: str) -> None:
    """Rank 0 looks at a global tensor alone."""
    x = whole()
    x.numpy()
    if RANK == 0:
        x.numpy()  # on rank 0 alone
    if then == "goes_on":
        x.to_global(sbp=S1)


def crossed_sets(is_new: str = "") -> None:
    """Two sets of ranks, in different order."""
    pair, everyone = flow.ones(4, 4, placement=PAIR, sbp=S0), whole()
    if not is_new:
        pair.to_global(sbp=B)
        everyone.to_global(sbp=B)
    if RANK == 0:
        pair.to_global(sbp=S1)  # first of rank 0
        everyone.to_global(sbp=S1)
    else:
        everyone.to_global(sbp=S1)  # first of the others
        pair.to_global(sbp=S1)


def ring_of_sends() -> None:
    """Everyone sends before it receives."""
    comm.barrier()
    comm.send(flow.ones(3), (RANK + 1) % SIZE)
    comm.recv((RANK - 1) % SIZE)


def barrier_and_send() -> None:
    if RANK == 0:
        comm.send(flow.ones(3), 1)
    comm.barrier()  # before recv
    if RANK == 1:
        comm.recv(0)


def compile_and_collective() -> None:
    """Rank 0 calls a graph, the others an eager op."""

    class Double(flow.nn.Graph):
        def build(self, x: flow.Tensor) -> flow.Tensor:
            return x + x

    x = whole()
    x.numpy()
    if RANK == 0:
        Double()(x)  # a graph on rank 0
    x.numpy()  # meanwhile
    Double()(x)


def look_between_steps() -> None:
    """Rank 0 alone looks at the result of a training step."""

    class Mean(flow.nn.Graph):
        def build(self, x: flow.Tensor) -> tuple[flow.Tensor, flow.Tensor]:
            return x.mean(), x.to_global(sbp=B)

    graph, x = Mean(), whole()
    for _ in range(3):
        loss, _whole = graph(x)  # every step
        if RANK == 0:
            loss.numpy()  # on the way


# ---- ranks that are only slow --------------------------------------------------------------------


def slow() -> None:
    """Every rank is late in turn, in sets that cross; nobody does anything wrong."""
    pair, everyone = flow.ones(4, 4, placement=PAIR, sbp=S0), whole()
    for late in (0, SIZE - 1):
        if late == RANK:
            time.sleep(1.8)
        pair.to_global(sbp=B)
        if late == RANK:
            time.sleep(1.8)
        everyone.to_global(sbp=B)
        if RANK == SIZE - 1:
            comm.send(flow.ones(3), 0)
        if RANK == 0:
            np.testing.assert_array_equal(comm.recv(SIZE - 1).numpy(), np.ones(3))
    comm.barrier()
    print("done", flush=True)


def paused() -> None:
    """Rank 1 is stopped for a while in the middle of its collectives, and goes on."""
    big = flow.ones(300_000)
    comm.barrier()
    if RANK == 1:
        wake = f"sleep 1.5; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", wake])
        os.kill(os.getpid(), signal.SIGSTOP)
    for _ in range(10):
        comm.all_reduce(big)
    np.testing.assert_array_equal(big.numpy()[:3], np.full(3, float(SIZE**10)))
    print("done", flush=True)


def caught() -> None:
    """A script that goes on after the error: the ranks can work together again."""
    for _ in range(2):
        try:
            whole(12 if RANK == 1 else 6).to_global(sbp=B)
        except RuntimeError as error:
            assert type(error).__name__ == "DesyncError", error
        else:
            raise AssertionError("nothing was found")
        np.testing.assert_array_equal(whole().numpy(), np.ones((6, 6)))
    print("done", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[3:])
