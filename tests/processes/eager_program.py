"""Runs on the ranks of test_eager_global.py: `eager_program.py SCENE`; exits 0 if all is right."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import OneFlowError
from tests.support.launching import play
from tests.support.refusing import refuses

RANK, SIZE = flow.env.get_rank(), flow.env.get_world_size()
EVERYONE = flow.placement("cpu", list(range(SIZE)))
S0, S1, B, P = flow.sbp.split(0), flow.sbp.split(1), flow.sbp.broadcast, flow.sbp.partial_sum


def check(got: Any, expected: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(got.numpy(), expected, rtol=tolerance, atol=tolerance)


def layouts() -> None:
    """Values, results and gradients do not depend on the layout."""
    flow.manual_seed(3)
    reference = flow.randn(6, 8, placement=EVERYONE, sbp=B).numpy()
    for sbp in (S0, S1):
        flow.manual_seed(3)
        check(flow.randn(6, 8, placement=EVERYONE, sbp=sbp), reference, 0)
    a = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
    w = np.random.default_rng(1).standard_normal((8, 5)).astype(np.float32)
    product = a @ w
    mask = (product > 0).astype(np.float32)
    for s, t in itertools.product((S0, S1, B, P), repeat=2):
        x = flow.tensor(a, placement=EVERYONE, sbp=s)
        y = flow.tensor(w, placement=EVERYONE, sbp=t)
        x.requires_grad = y.requires_grad = True
        out = flow.relu(flow.matmul(x, y))
        check(out, np.maximum(product, 0))
        out.sum().backward()
        check(x.grad, mask @ w.T)
        check(y.grad, a.T @ mask)
    row = flow.arange(3).float().reshape(1, 3).to_global(EVERYONE, B).to_global(sbp=S0)
    for f in (flow.exp, flow.clone, flow.relu, lambda x: x * 2, lambda x: x + x, lambda x: x + 1):
        assert f(row).sbp == (S0,), "fewer rows than ranks"
        check(f(row), f(flow.arange(3).float().reshape(1, 3)).numpy())


def boxing() -> None:
    """Every change of layout, also to and from a part of the ranks."""
    whole = np.arange(42, dtype=np.float32).reshape(6, 7)
    places = [EVERYONE, flow.placement("cpu", [0]), flow.placement("cpu", [SIZE - 1])]
    if SIZE == 4:
        places.append(flow.placement("cpu", [[0, 1], [2, 3]]))
    for p, q in itertools.product(places, repeat=2):
        for s in itertools.product((S0, S1, B, P), repeat=p.ranks.ndim):
            x = flow.tensor(whole, placement=p, sbp=list(s))
            for t in list(itertools.product((S0, S1, B, P), repeat=q.ranks.ndim))[::3]:
                y = x.to_global(placement=q, sbp=list(t))
                back = y.to_global(placement=EVERYONE, sbp=B)
                check(back, whole, 0)
    x = flow.tensor(whole, placement=EVERYONE, sbp=S0)
    x.requires_grad = True
    y = x.to_global(placement=flow.placement("cpu", [0]), sbp=B)
    (y * 2.0).sum().backward()
    check(x.grad, np.full((6, 7), 2.0))


def conversions() -> None:
    """Local to global and back, gradients included; mistakes are named."""
    mine = flow.full((2, 3), float(RANK + 1))
    mine.requires_grad = True
    whole = mine.to_global(EVERYONE, S0)
    assert whole.shape == (2 * SIZE, 3), whole.shape
    check(whole, np.repeat(np.arange(1.0, SIZE + 1), 2)[:, None] * np.ones((1, 3)))
    (whole * whole).sum().backward()
    check(mine.grad, np.full((2, 3), 2.0 * (RANK + 1)))
    check(mine.detach().to_global(EVERYONE, P), np.full((2, 3), SIZE * (SIZE + 1) / 2))
    check(mine.detach().to_global(EVERYONE, B), np.ones((2, 3)))
    g = flow.ones(4, 3, placement=EVERYONE, sbp=B)
    g.requires_grad = True
    (g.to_local() * float(RANK)).sum().backward()
    check(g.grad, np.full((4, 3), SIZE * (SIZE - 1) / 2))
    last = flow.placement("cpu", [SIZE - 1])
    only = flow.ones(3 + RANK, 2).to_global(last, B)
    assert only.shape == (2 + SIZE, 2), only.shape
    assert only.to_local().shape == ((0, 0) if RANK < SIZE - 1 else (2 + SIZE, 2))
    refuses(
        RuntimeError,
        "must match except in dimension",
        lambda: flow.ones(2, 2 + RANK).to_global(EVERYONE, S0),
    )
    refuses(RuntimeError, "balanced split", lambda: flow.ones(1 + RANK, 2).to_global(EVERYONE, S0))
    refuses(RuntimeError, "same dtype", lambda: odd_dtype().to_global(EVERYONE, B))
    refuses(RuntimeError, "less than world size", lambda: flow.ones(2, placement=far(), sbp=B))
    refuses(
        RuntimeError,
        "same placement",
        lambda: flow.ones(2, placement=EVERYONE, sbp=B) + flow.ones(2, placement=last, sbp=B),
    )
    refuses(RuntimeError, "mixed", lambda: flow.ones(2, placement=EVERYONE, sbp=B) + flow.ones(2))


def odd_dtype() -> Any:
    return flow.ones(2, dtype=flow.float64 if RANK == 1 else flow.float32)


def far() -> Any:
    return flow.placement("cpu", [SIZE])


def communication() -> None:
    comm, mine = flow.comm, flow.full((3,), float(RANK))
    total = SIZE * (SIZE - 1) / 2
    x = mine.clone()
    comm.all_reduce(x)
    check(x, np.full(3, total))
    parts = [flow.zeros(3) for _ in range(SIZE)]
    comm.all_gather(parts, mine)
    for r, part in enumerate(parts):
        check(part, np.full(3, r))
    joined = flow.zeros(3 * SIZE)
    comm.all_gather_into_tensor(joined, mine)
    check(joined, np.repeat(np.arange(SIZE), 3))
    out = flow.zeros(3)
    comm.reduce_scatter(out, [flow.full((3,), float(r)) for r in range(SIZE)])
    check(out, np.full(3, SIZE * RANK))
    comm.reduce_scatter_tensor(out, flow.ones(3 * SIZE))
    check(out, np.full(3, SIZE))
    x = mine.clone()
    comm.broadcast(x, 1)
    check(x, np.full(3, 1))
    comm.scatter(out, [flow.full((3,), 10.0 + r) for r in range(SIZE)] if RANK == 1 else None, 1)
    check(out, np.full(3, 10 + RANK))
    comm.gather(mine, parts if RANK == 0 else None, 0)
    x = mine.clone()
    comm.reduce(x, SIZE - 1)
    check(x, np.full(3, total if RANK == SIZE - 1 else RANK))
    outs = [flow.zeros(3) for _ in range(SIZE)]
    comm.all_to_all(outs, [flow.full((3,), float(10 * RANK + r)) for r in range(SIZE)])
    for r, part in enumerate(outs):
        check(part, np.full(3, 10 * r + RANK))
    if RANK == 0:
        comm.send(flow.arange(5), 1)
        comm.send(flow.ones(2, 2), 1, send_meta=False)
    if RANK == 1:
        check(comm.recv(0), np.arange(5))
        check(comm.recv(0, (2, 2), flow.float32, flow.device("cpu")), np.ones((2, 2)))
    comm.barrier()
    assert comm.all_gather_object({"rank": RANK}) == [{"rank": r} for r in range(SIZE)]
    assert comm.broadcast_object([RANK, "x"], 1) == [1, "x"]
    flow.distributed.barrier()


def data_parallel() -> None:
    """One step on parts of a batch is one step on the batch."""
    flow.manual_seed(RANK)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    unused = nn.Linear(3, 3)
    model.add_module("unused", unused)
    layers = list(model)[:3]
    model.forward = lambda x: layers[2](layers[1](layers[0](x)))
    model = nn.parallel.DistributedDataParallel(model)
    first = model.state_dict()
    weights = [v.numpy().copy() for v in first.values()]
    same = flow.comm.all_gather_object([w.tolist() for w in weights])
    assert all(other == same[0] for other in same)
    data = np.random.default_rng(0).standard_normal((4 * SIZE, 4)).astype(np.float32)
    part = data[4 * RANK : 4 * RANK + 4]
    (model(flow.tensor(part)) ** 2).mean().backward()
    w1, b1, w2, b2 = weights[:4]
    hidden = np.maximum(data @ w1.T + b1, 0)
    error = 2 * (hidden @ w2.T + b2) / len(data)
    grads = [p.grad for p in model.parameters()]
    check(grads[2], error.T @ hidden, 1e-4)
    check(grads[0], ((error @ w2) * (hidden > 0)).T @ data, 1e-4)
    check(grads[4], np.zeros((3, 3)))


def no_sync() -> None:
    """Gradients of one rank alone add up, and the next pass averages them all."""
    flow.manual_seed(0)
    plain = nn.Linear(4, 1)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    assert not isinstance(plain, nn.parallel.DistributedDataParallel)
    assert list(model.state_dict()) == ["module.weight", "module.bias"]
    plain.load_state_dict(model.module.state_dict())
    data = np.random.default_rng(0).standard_normal((SIZE, 3, 2, 4)).astype(np.float32)
    for _ in range(2):  # gradients that were averaged stay as they are
        with model.no_sync():
            for part in data[RANK][:2]:
                (model(flow.tensor(part)) ** 2).mean().backward()
        alone = model.weight.grad.numpy().copy()
        others = flow.comm.all_gather_object(alone)
        assert SIZE == 1 or any((other != alone).any() for other in others)
        (model(flow.tensor(data[RANK][2])) ** 2).mean().backward()
        for part in data.reshape(-1, 2, 4):
            ((plain(flow.tensor(part)) ** 2).mean() / SIZE).backward()
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            check(p.grad, q.grad.numpy(), 1e-4)
            same = flow.comm.all_gather_object(p.grad.numpy())
            assert all((other == same[0]).all() for other in same)
    # PyTorch's inner names, by which Lightning and accelerate do the same
    model.reducer.prepare_for_backward([])
    model.require_backward_grad_sync = False
    model(flow.tensor(data[RANK][0])).sum().backward()
    refuses(OneFlowError, "inside of no_sync", lambda: model.reducer.prepare_for_backward([]))
    assert not model.static_graph and not model._get_ddp_logging_data()


def one_cpu() -> None:
    """A process has one CPU: on every rank tensors on "cpu:0" mix with others and are sent."""
    x, y = flow.ones(3, device=flow.device("cpu", 0)), flow.ones(3)
    assert x.device == y.device == flow.device("cpu", 1) != flow.device("cuda", 0)
    assert hash(x.device) == hash(y.device)
    total = x + RANK * y
    flow.comm.all_reduce(total)
    check(total, [SIZE + SIZE * (SIZE - 1) / 2] * 3)
    assert x.to("cpu") is x
    parts = x.to_global(placement=EVERYONE, sbp=P)
    check(parts, [SIZE] * 3)


def compiled_replicas() -> None:
    """A compiled module in DistributedDataParallel, and a compiled one around a module, have the
    gradients of the whole batch, and run as plans.
    """
    data = np.random.default_rng(0).standard_normal((SIZE, 3, 2, 4)).astype(np.float32)
    flow.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    for is_inside in (True, False):
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        model.load_state_dict(plain.state_dict())
        if is_inside:
            called = nn.parallel.DistributedDataParallel(flow.compile(model, fullgraph=True))
        else:
            called = flow.compile(nn.parallel.DistributedDataParallel(model), fullgraph=True)
        plain.zero_grad()
        for step in range(3):
            (called(flow.tensor(data[RANK][step])) ** 2).mean().backward()
            for part in data[:, step]:
                ((plain(flow.tensor(part)) ** 2).mean() / SIZE).backward()
            for p, q in zip(model.parameters(), plain.parameters(), strict=True):
                check(p.grad, q.grad.numpy(), 1e-4)


def desync() -> None:
    """Ranks that do different things all hear of it."""
    x = flow.ones(4, 4, placement=EVERYONE, sbp=S0)
    refuses(RuntimeError, "different collective calls", lambda: x.to_global(sbp=B if RANK else S1))


def modules() -> None:
    """An unchanged module trains on global tensors: losses as NumPy computes on the whole."""
    flow.manual_seed(0)
    model = nn.Linear(6, 3).to_global(placement=EVERYONE, sbp=B)
    data = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    w, b = model.weight.numpy().copy(), model.bias.numpy().copy()
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        out = model(flow.tensor(data, placement=EVERYONE, sbp=S0))
        loss = (out * out).sum()
        whole = data @ w.T + b
        check(loss, (whole * whole).sum(), 1e-3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        w, b = w - 0.1 * 2 * whole.T @ data, b - 0.1 * 2 * whole.sum(0)
        check(model.weight, w, 1e-3)
    x = flow.randn(4, 4, placement=EVERYONE, sbp=S0)
    x += 1.0
    x[1:3] = 0.0
    assert float((x == 0).sum()) >= 8
    assert str(x).startswith("tensor(")


def draws() -> None:
    """Without a seed, ranks draw local numbers of their own and global ones together."""
    own = flow.randn(8)
    everyones = [flow.zeros(8) for _ in range(SIZE)]
    flow.comm.all_gather(everyones, own)
    assert len({t.numpy().tobytes() for t in everyones}) == SIZE
    weight = nn.init.orthogonal_(flow.zeros(4, 4, placement=EVERYONE, sbp=B))
    dropped = nn.Dropout(0.5)(flow.ones(64, placement=EVERYONE, sbp=B))
    step = Dropping()
    whole = flow.ones(64, placement=EVERYONE, sbp=B)
    for x in (flow.randn(8, placement=EVERYONE, sbp=B), weight, dropped, step(whole), step(whole)):
        mine = x.to_local()
        copies = [flow.zeros(*mine.shape) for _ in range(SIZE)]
        flow.comm.all_gather(copies, mine)
        assert len({t.numpy().tobytes() for t in copies}) == 1


class Dropping(nn.Graph):
    """A graph that draws."""

    def build(self, x: Any) -> Any:
        return nn.functional.dropout(x, 0.5)


if __name__ == "__main__":
    play([globals()[name] for name in sys.argv[1:]])
