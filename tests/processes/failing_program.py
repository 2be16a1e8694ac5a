"""Runs on the ranks of test_failures.py: a small graph that trains, and one mistake.

Usage: failing_program.py SCENE [FOLDER] [ARGUMENT...]. A rank that is under way leaves
FOLDER/RANK.here.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import oneflow as flow
from oneflow import nn
from oneflow.core.dispatch import call
from oneflow.core.op import Op, register
from oneflow.core.sbp import SbpSignature
from oneflow.core.tensor_type import TensorType

RANK, SIZE = flow.env.get_rank(), flow.env.get_world_size()
EVERYONE = flow.placement("cpu", list(range(SIZE)))
S0, S1, B = flow.sbp.split(0), flow.sbp.split(1), flow.sbp.broadcast
FOLDER = Path(sys.argv[2]) if len(sys.argv) > 2 else Path()
MANY = 1_000_000_000
ROWS = 4


class Net(nn.Module):
    """One layer; `change` is applied to its result."""

    def __init__(self, change: Any = None) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.change = change

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        h = self.layer(x)
        return self.change(h) if self.change else h


class Train(nn.Graph):
    """Forward, backward, update."""

    def __init__(self, net: Net, optimizer: Any) -> None:
        super().__init__()
        self.net = net
        self.add_optimizer(optimizer)

    def build(self, x: flow.Tensor) -> flow.Tensor:
        loss = self.net(x).sum()
        loss.backward()
        return loss.to_global(placement=EVERYONE, sbp=B)


def make(change: Any = None) -> Train:
    flow.manual_seed(0)
    net = Net(change).to_global(placement=EVERYONE, sbp=B)
    return Train(net, flow.optim.SGD(net.parameters(), lr=0.01))


def batch(rows: int = ROWS, columns: int = 8) -> flow.Tensor:
    local = flow.from_numpy(np.full((rows, columns), 0.1, np.float32))
    return local.to_global(EVERYONE, S0, check_meta=False)


def train(steps: int = MANY, graph: Train | None = None, rows: int = ROWS) -> None:
    """Steps of training; says FOLDER/RANK.here after the first few."""
    graph = graph or make()
    for step in range(steps):
        graph(batch(rows))
        if step == 3:
            here()
        if step > 100:  # until somebody ends it: no core has to be busy for that
            time.sleep(0.01)


def here() -> None:
    (FOLDER / f"{RANK}.here").touch()


# ---- scenes --------------------------------------------------------------------------------------


def forever() -> None:
    train()


def few() -> None:
    train(5)
    print("done", flush=True)


def raise_first() -> None:
    if RANK == 1:
        raise ValueError("boom")
    train()


def raise_later(rank: str) -> None:
    graph = make()
    train(20, graph)
    if int(rank) == RANK:
        raise ValueError("boom")
    train(MANY, graph)


def exit_first(rank: str) -> None:
    if int(rank) == RANK:
        sys.exit(0)
    train()


def exit_(code: str, rank: str) -> None:
    graph = make()
    train(20, graph)
    if int(rank) == RANK:
        sys.exit(int(code))
    train(MANY, graph)


def kill(rank: str) -> None:
    graph = make()
    train(20, graph)
    if int(rank) == RANK:
        os.kill(os.getpid(), signal.SIGKILL)
    train(MANY, graph)


def segfault() -> None:
    graph = make()
    train(20, graph)
    if RANK == 1:
        ctypes.string_at(0)
    train(MANY, graph)


def kernel_error() -> None:
    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(4, 2)

        def forward(self, ids: flow.Tensor) -> flow.Tensor:
            return self.table(ids)

    class Find(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.lookup = Lookup().to_global(placement=EVERYONE, sbp=B)

        def build(self, ids: flow.Tensor) -> flow.Tensor:
            return self.lookup(ids).to_global(sbp=B)

    ids = flow.from_numpy(np.array([0, 9 if RANK == 1 else 1]))
    Find()(ids.to_global(EVERYONE, S0, check_meta=False))


def different_graphs() -> None:
    def change(h: flow.Tensor) -> flow.Tensor:
        if RANK == 1:
            return flow.tanh(h)
        return flow.relu(h)

    train(graph=make(change))


def different_shapes() -> None:
    train(graph=make(), rows=ROWS + RANK)


def child_exits() -> None:
    """Ends a child of a rank, which is no news to the other ranks."""
    graph = make()
    train(5, graph)
    child = os.fork()
    if child == 0:
        if RANK == 1:
            raise ValueError("of a child")
        sys.exit(3)
    os.waitpid(child, 0)
    train(5, graph)
    print("done", flush=True)


def fewer_steps() -> None:
    train(10 if RANK == 1 else 20)


def fewer_steps_and_barrier() -> None:
    train(10 if RANK == 1 else 20)
    flow.comm.barrier()


def eager_order() -> None:
    a, b = batch(), batch(2)
    if RANK == 0:
        a.to_global(sbp=B)
        b.to_global(sbp=B)
    else:
        b.to_global(sbp=B)
        a.to_global(sbp=B)


def wrong_shapes() -> None:
    class Bad(nn.Module):
        def forward(self, x: flow.Tensor) -> flow.Tensor:
            return flow.matmul(x, x)

    class Job(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.bad = Bad()

        def build(self, x: flow.Tensor) -> flow.Tensor:
            return self.bad(x)

    Job()(batch(3))


class SortRows(Op):
    """Overwrites x. A user's op, which declares no layout: it needs all of it."""

    name = "sort_rows"
    mutates = {0: 0}
    has_effect = True

    @staticmethod
    def infer(x: TensorType) -> TensorType:
        return x

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return []


def no_signature() -> None:
    """Overwrites variables that stay where they lie, here in parts."""

    class Sort(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net().to_global(placement=EVERYONE, sbp=S0)

        def build(self, x: flow.Tensor) -> flow.Tensor:
            call(SortRows, self.net.layer.weight)
            return self.net(x)

    register(SortRows)
    Sort()(batch())


def input_meta() -> None:
    graph = make()
    graph(batch())
    graph(batch(6))


def far_placement() -> None:
    make(lambda h: h.to_global(placement=flow.placement("cpu", [0, SIZE])))(batch())


def uneven_batch() -> None:
    flow.ones(4 + RANK, 8).to_global(EVERYONE, S0)


def pieces() -> None:
    graph = make()
    graph.config.set_gradient_accumulation_steps(3)
    graph(batch())


def absent() -> None:
    if RANK == 1:
        time.sleep(600)
    train()


def long_compile() -> None:
    """So large a graph that a signal comes while it is traced or compiled."""

    def deep(h: flow.Tensor) -> flow.Tensor:
        here()
        for _ in range(20_000):
            h = h + 1.0
        return h

    make(deep)(batch())


def cut_cable() -> None:
    """Rank 0 takes the network down between two steps."""
    graph = make()
    train(20, graph)
    if RANK == 0:
        name, device = os.environ["CUT"].split()
        subprocess.run(["ip", "-n", name, "link", "set", device, "down"], check=True)
    train(MANY, graph)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[3:])
