"""Runs on the ranks of test_global_indexing.py: indexing, slicing and writing in place of global
tensors whose dims are split, against NumPy, with the bytes that slices may move.

Usage: global_indexing_program [all]. all: each on every placement; without, on half, in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

import oneflow as flow
from oneflow import nn
from oneflow.boxing.boxes import shard_box
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, Split, nd_sbp_str
from oneflow.distributed.world import world

from .every_op_program import IN_ALL, PLACEMENTS, RANK, Trial, compare, draw, scatter

S0, S1, B, P = Split(0), Split(1), BROADCAST, PARTIAL
EVERYONE = Placement("cpu", list(range(flow.env.get_world_size())))
SHAPE = (7, 6, 5)
X = np.random.default_rng(0).normal(size=SHAPE)
Array = np.ndarray[Any, Any]
Get = Callable[[Any], Any]

SLICES: list[Any] = [
    slice(2, 5),
    slice(None, None, 2),
    slice(6, None, -1),
    slice(5, 0, -2),
    slice(3, 3),
    (slice(1, None), slice(None, -1)),
    (slice(None), slice(4, 1, -1), slice(0, 5, 3)),
    3,
    -1,
    (slice(None), 2),
    (Ellipsis, 1),
    (0, 1, 2),
    (None, slice(1, 3), None),
    (Ellipsis, slice(2, 4)),
]
MASK = X > 0.3
ROWS = np.array([5, 0, 0, 3, -1])
INDICES: list[Any] = [
    ROWS,
    (slice(None), np.array([[1, 2], [0, 5]])),
    (ROWS, np.array([0, 1, 2, 3, 4])),
    (slice(1, 6), np.array([0, 3])),
    MASK,
    np.array([True, False, True, True, False, False, True]),
    [0, 4],
]
FUNCTIONS: dict[str, Get] = {
    "narrow": lambda x: x.narrow(0, 2, 4),
    "chunk": lambda x: flow.cat(list(flow.chunk(x, 3, 0)[::-1]), 0),
    "split": lambda x: flow.split(x, [1, 4, 2], 0)[1],
    "select": lambda x: flow.select(x, 0, 4),
    "unbind": lambda x: flow.stack(flow.unbind(x, 0)[::2], 1),
    "cat": lambda x: flow.cat([x, x * 2.0, x[1:3]], 0),
    "stack": lambda x: flow.stack([x, x + 1.0], 0),
    "flip": lambda x: flow.flip(x, [0, 2]),
    "roll": lambda x: flow.roll(x, (3, -2), (0, 1)),
    "roll flat": lambda x: flow.roll(x, 11),
    "cumsum": lambda x: flow.cumsum(x, 0),
    "sort": lambda x: flow.sort(x, 0)[0],
    "argsort": lambda x: flow.sort(x, 0)[1],
    "topk": lambda x: flow.topk(x, 3, 0)[1],
    "argmax": lambda x: flow.argmax(x, 0),
    "max": lambda x: flow.max(x, 0)[0],
    "pad": lambda x: nn.functional.pad(x, (0, 0, 0, 0, 2, 1), value=1.5),
    "repeat": lambda x: x.repeat(2, 1, 1),
    "diagonal": lambda x: flow.diagonal(x, 1, 0, 1),
    "masked": lambda x: flow.masked_select(x, x > 0.5),
    "nonzero": lambda x: flow.nonzero(x > 0.5),
    "where": lambda x: flow.where(x > 0, x, x * 0.5),
    "unfold": lambda x: flow.reshape(x[:4], (2, 2, 30)),
}


def moved(work: Callable[[], Any]) -> tuple[Any, int]:
    """A result and the bytes that all ranks together read of others for it."""

    def received() -> int:
        return sum(c.received_nbytes for c in world()._collectives.values())

    before = received()
    result = work()
    mine = np.array([received() - before])
    return result, int(world().everyone.all_reduce(mine)[0])


def layouts(x: Array, number: int, count: int) -> list[tuple[Placement, Any]]:
    """Placements and layouts drawn from a seed; the plain splits are always among them."""
    rng = np.random.default_rng(number)
    places = PLACEMENTS if IN_ALL else PLACEMENTS[number % 2 :: 2]
    drawn = [(placement, draw(rng, x, placement)) for placement in places for _ in range(count)]
    return [(EVERYONE, (S0,)), *drawn]


def local(x: Any) -> Any:
    return flow.tensor(x)


def check(x: Any, expected: Array, tolerance: float = 1e-9) -> None:
    compare(x, np.asarray(expected), tolerance)


def show(index: Any) -> str:
    """Short, for titles."""
    if isinstance(index, tuple):
        return ", ".join(map(show, index))
    return f"array{list(index.shape)}" if isinstance(index, np.ndarray) else str(index)


# ---- reading -------------------------------------------------------------------------------------


def fewest_bytes(source: Any, result: Any, index: Any) -> int:
    """Bytes that must move to fill the layout of the result: those that its ranks do not hold
    already.
    """
    positions = np.arange(X.size).reshape(SHAPE)
    taken = positions[index]
    total = 0
    for rank in source.placement.rank_ids:
        shard = shard_box(SHAPE, source.sbp, source.placement, rank)
        part = shard_box(taken.shape, result.sbp, result.placement, rank)
        wanted = taken[part.slices]
        total += int((~np.isin(wanted, positions[shard.slices])).sum())
    return total * X.itemsize


def slices(trial: Trial) -> None:
    """Values, and no byte more than the layout of the result needs, which is at most its size."""
    for number, index in enumerate(SLICES):
        for placement, nd_sbp in layouts(X, number, 2):

            def work(
                index: Any = index, at: Any = (placement, nd_sbp), number: int = number
            ) -> None:
                placement, nd_sbp = at
                x = scatter(X, placement, nd_sbp, number)
                y, nbytes = moved(lambda: x[index])
                check(y, X[index])
                assert nbytes <= fewest_bytes(x, y, index), f"{nbytes} bytes moved, {y.sbp}"
                if not any(s.is_broadcast for s in y.sbp):
                    copies = placement.size if any(s.is_partial for s in nd_sbp) else 1
                    assert nbytes <= X[index].nbytes * copies

            trial.run(f"x[{show(index)}] {nd_sbp_str(nd_sbp)} on {placement}", work)


def places(x: Any, index: Any, number: int) -> Any:
    """The index with arrays as global tensors where `x` is."""
    items = index if isinstance(index, tuple) else (index,)
    rng = np.random.default_rng(number)
    made = tuple(
        scatter(i, x.placement, draw(rng, i, x.placement, partial=False), number)
        if isinstance(i, np.ndarray)
        else i
        for i in items
    )
    return made if isinstance(index, tuple) else made[0]


def indices(trial: Trial) -> None:
    for number, index in enumerate(INDICES):
        for placement, nd_sbp in layouts(X, number, 1):

            def work(
                index: Any = index, at: Any = (placement, nd_sbp), number: int = number
            ) -> None:
                placement, nd_sbp = at
                x = scatter(X, placement, nd_sbp, number)
                check(x[places(x, index, number)], X[index])

            trial.run(f"x[{show(index)}] {nd_sbp_str(nd_sbp)} on {placement}", work)


def rows_stay(trial: Trial) -> None:
    """Picking rows of a split table moves the index, not the table."""

    def work() -> None:
        table = np.random.default_rng(1).normal(size=(64, 50)).astype(np.float32)
        x = scatter(table, EVERYONE, (S0,), 0)
        index = scatter(ROWS % 64, EVERYONE, (B,), 0)
        y, nbytes = moved(lambda: x[index])
        assert y.sbp == (P,) and nbytes == 0
        check(y, table[ROWS % 64], 1e-6)
        embedded = nn.functional.embedding(index, x)
        check(embedded, table[ROWS % 64], 1e-6)
        codes = nn.functional.one_hot(scatter(ROWS % 7, EVERYONE, (S0,), 0), 7)
        check(codes, np.eye(7, dtype=np.int64)[ROWS % 7])

    trial.run("rows of a split table", work)


def functions(trial: Trial) -> None:
    for number, (name, function) in enumerate(FUNCTIONS.items()):
        expected = function(local(X)).numpy()
        for placement, nd_sbp in layouts(X, number, 1):

            def work(
                function: Get = function,
                expected: Array = expected,
                placement: Any = placement,
                nd_sbp: Any = nd_sbp,
                number: int = number,
            ) -> None:
                check(function(scatter(X, placement, nd_sbp, number)), expected)

            trial.run(f"{name} {nd_sbp_str(nd_sbp)} on {placement}", work)


# ---- writing -------------------------------------------------------------------------------------


def writes(trial: Trial) -> None:
    """x[...] = value writes into the memory that x has, in the layout it has."""
    for number, index in enumerate(SLICES + INDICES):
        part = X[index]
        values = [2.5, np.random.default_rng(number).normal(size=part.shape)]
        for (placement, nd_sbp), value in itertools.product(layouts(X, number, 1), values):

            def work(
                index: Any = index,
                at: Any = (placement, nd_sbp),
                v: Any = value,
                number: int = number,
            ) -> None:
                placement, nd_sbp = at
                rng = np.random.default_rng(number)
                x = scatter(X, placement, nd_sbp, number)
                array, given = x._array, v
                if isinstance(v, np.ndarray) and v.ndim:
                    given = scatter(v, placement, draw(rng, v, placement), 3)
                x[places(x, index, number)] = given
                expected = X.copy()
                expected[index] = v
                assert x._array is array and x.sbp == nd_sbp
                check(x, expected)

            kind = "number" if value is values[0] else "tensor"
            trial.run(f"x[{show(index)}] = {kind} {nd_sbp_str(nd_sbp)} on {placement}", work)


def writes_stay(trial: Trial) -> None:
    """A value that lies with its target does not move."""

    def work() -> None:
        x = scatter(np.zeros((8, 3)), EVERYONE, (S0,), 0)
        value = scatter(np.ones((8, 2)), EVERYONE, (S0,), 0)
        whole_value = scatter(np.ones((5, 3)), EVERYONE, (B,), 0)
        assert moved(lambda: x.__setitem__((slice(None), slice(1, 3)), value))[1] == 0
        assert moved(lambda: x.__setitem__(slice(2, 7), whole_value))[1] == 0
        assert moved(lambda: x.__setitem__(slice(1, 8), 7.0))[1] == 0

    trial.run("writes that move nothing", work)


def written_gradients(trial: Trial) -> None:
    """Gradients go through slices, and through writes to the part and to the rest."""

    def program(x: Any, v: Any) -> Any:
        x.requires_grad = v.requires_grad = True
        y = x * 2.0
        y[2:6, 1:] = v * v
        y[0] = 1.0
        out = flow.cat([y[1:5], flow.flip(y, [0])[::2]], 0) * y[3:4]
        return flow.autograd.grad((out * out).sum(), [x, v])

    v = np.random.default_rng(5).normal(size=(4, 5, 5))
    expected = [g.numpy() for g in program(local(X), local(v))]
    for placement, nd_sbp in layouts(X, 11, 3):

        def work(placement: Any = placement, nd_sbp: Any = nd_sbp) -> None:
            given = draw(np.random.default_rng(2), v, placement)
            found = program(scatter(X, placement, nd_sbp, 1), scatter(v, placement, given, 2))
            for g, e in zip(found, expected, strict=True):
                check(g, e, 1e-8)

        trial.run(f"gradients {nd_sbp_str(nd_sbp)} on {placement}", work)


# ---- in place ------------------------------------------------------------------------------------

IN_PLACE: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Array, Array], Array]]] = {
    "add_": (lambda x, y: x.add_(y), lambda x, y: x + y),
    "sub_": (lambda x, y: x.sub_(y), lambda x, y: x - y),
    "mul_": (lambda x, y: x.mul_(y), lambda x, y: x * y),
    "div_": (lambda x, y: x.div_(y), lambda x, y: x / y),
    "copy_": (lambda x, y: x.copy_(y), lambda x, y: y),
    "fill_": (lambda x, y: x.fill_(3.0), lambda x, y: np.full_like(x, 3)),
    "zero_": (lambda x, y: x.zero_(), lambda x, y: np.zeros_like(x)),
    "relu_": (lambda x, y: x.relu_(), lambda x, y: np.maximum(x, 0)),
    "clamp_": (lambda x, y: x.clamp_(-0.5, 0.5), lambda x, y: np.clip(x, -0.5, 0.5)),
    "add a number": (lambda x, y: x.add_(1.5), lambda x, y: x + 1.5),
    "exp_": (lambda x, y: x.exp_(), lambda x, y: np.exp(x)),
    "cumsum_": (lambda x, y: x.cumsum_(0), lambda x, y: np.cumsum(x, 0)),
    "all": (lambda x, y: x.__setitem__(Ellipsis, y), lambda x, y: y),
    "masked_fill_": (
        lambda x, y: x.masked_fill_(y > 0, 2.0),
        lambda x, y: np.where(y > 0, 2.0, x),
    ),
}


def in_place(trial: Trial) -> None:
    """The target keeps memory, placement and layout, with any operands."""
    a, b = X[:, :, 0].copy(), np.random.default_rng(3).normal(size=(7, 6))
    for number, (name, (run, formula)) in enumerate(IN_PLACE.items()):
        for placement, nd_sbp in [*layouts(a, number, 2), (EVERYONE, (P,))]:

            def work(
                run: Any = run,
                formula: Any = formula,
                at: Any = (placement, nd_sbp),
                number: int = number,
            ) -> None:
                placement, nd_sbp = at
                given = draw(np.random.default_rng(number), b, placement)
                x, y = scatter(a, placement, nd_sbp, 1), scatter(b, placement, given, 2)
                array, version = x._array, x._version[0]
                run(x, y)
                assert x._array is array and x.sbp == nd_sbp and x.placement == placement
                assert x._version[0] > version
                check(x, formula(a, b))

            trial.run(f"{name} {nd_sbp_str(nd_sbp)} on {placement}", work)


def versions(trial: Trial) -> None:
    """Overwrites an array that a backward pass needs: an error, as for local tensors."""

    def work() -> None:
        for write in (lambda t: t.add_(1.0), lambda t: t.__setitem__(slice(1, 3), 0.0)):
            x = scatter(X, EVERYONE, (S0,), 0)
            x.requires_grad = True
            y = flow.exp(x)
            z = y * y
            write(y)
            try:
                z.sum().backward()
            except RuntimeError as error:
                assert "modified by an inplace operation" in str(error), error
            else:
                raise AssertionError("a changed tensor was used")
            try:
                x.add_(1.0)
            except RuntimeError as error:
                assert "leaf" in str(error), error
            else:
                raise AssertionError("a leaf was overwritten")

    trial.run("versions", work)


def views(trial: Trial) -> None:
    """A slice of a split dim is a view, as it is of a local tensor, although it is a copy."""

    def program(x: Any, v: Any) -> list[Any]:
        x.requires_grad = v.requires_grad = True
        y = x * 2.0
        part = y[2:6]
        part.add_(v)
        row = part[1]
        row.mul_(3.0)
        y[4:].fill_(0.5)
        flow.flip(y, [0])[0] = 100.0
        seen = [t.detach().clone() for t in (y, part, row)]
        with flow.no_grad():
            z = y.detach().clone()
            window = z[1:4]
            z.sub_(1.0)
            seen.append(window * 1.0)
            window[1:].zero_()
            z[5].copy_(v[0])
            seen += [z, window, z[:, 1:3]]
        grads = flow.autograd.grad((y * y).sum() + (part * row).sum(), [x, v])
        return [*seen, *grads]

    v = np.random.default_rng(5).normal(size=(4, 6, 5))
    expected = [t.numpy() for t in program(local(X), local(v))]
    for placement, nd_sbp in layouts(X, 17, 3):

        def work(placement: Any = placement, nd_sbp: Any = nd_sbp) -> None:
            given = draw(np.random.default_rng(2), v, placement)
            found = program(scatter(X, placement, nd_sbp, 1), scatter(v, placement, given, 2))
            for t, e in zip(found, expected, strict=True):
                check(t, e, 1e-8)

        trial.run(f"views {nd_sbp_str(nd_sbp)} on {placement}", work)


def detached(trial: Trial) -> None:
    """Writes through `detach()` and `.data` of slices reach the whole, and have a history of their
    own."""

    def program(x: Any, v: Any) -> list[Any]:
        x.requires_grad = v.requires_grad = True
        y = x * 2.0
        part = y[2:6].detach()
        row, wide = part[1], y[3:4].detach().expand(2, 6, 5)
        part.add_(v)
        y[4:].data.fill_(0.5)
        y[:3].detach()[1:].mul_(3.0)
        y.detach()[6] = 7.0
        seen = [t.detach().clone() for t in (y, part, row, wide)]
        grads = flow.autograd.grad((y * 3.0).sum() + (part * row).sum(), [x, v])
        return [*seen, *grads]

    v = np.random.default_rng(5).normal(size=(4, 6, 5))
    expected = [t.numpy() for t in program(local(X), local(v))]
    for placement, nd_sbp in layouts(X, 17, 3):

        def work(placement: Any = placement, nd_sbp: Any = nd_sbp) -> None:
            given = draw(np.random.default_rng(2), v, placement)
            found = program(scatter(X, placement, nd_sbp, 1), scatter(v, placement, given, 2))
            for t, e in zip(found, expected, strict=True):
                check(t, e, 1e-8)

        trial.run(f"detached {nd_sbp_str(nd_sbp)} on {placement}", work)


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Any) -> Any:
        w = self.weight * 1.0
        w[0] = x[3] * 2.0
        y = w[1:5] * x[6:2:-1] + flow.roll(w, 2, 0)[:4]
        return (flow.cat([y, flow.flip(w, [0])[::3]], 0) ** 2).sum() + w[2, 1:4, -1].sum()


class Train(nn.Graph):  # type: ignore[misc]
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.01))

    def build(self, x: Any) -> Any:
        loss = self.model(x)
        loss.backward()
        return loss


def graphs(trial: Trial) -> None:
    """The same in a graph that trains a split weight: losses and weights as locally."""
    start = np.random.default_rng(6).normal(size=SHAPE)
    alone = Model(local(start))
    optimizer = flow.optim.SGD(alone.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        loss = alone(local(X))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.numpy())
    for placement, nd_sbp in layouts(X, 23, 1):
        if any(s.is_partial for s in nd_sbp):
            nd_sbp = tuple(S0 if s.is_partial else s for s in nd_sbp)

        def work(placement: Any = placement, nd_sbp: Any = nd_sbp) -> None:
            model = Model(scatter(start, placement, nd_sbp, 1))
            graph = Train(model)
            given = draw(np.random.default_rng(2), X, placement)
            for expected in losses:
                check(graph(scatter(X, placement, given, 2)), expected, 1e-8)
            check(model.weight, alone.weight.numpy(), 1e-8)
            assert model.weight.sbp == nd_sbp

        trial.run(f"graph {nd_sbp_str(nd_sbp)} on {placement}", work)


def main() -> None:
    trial = Trial()
    for scene in (
        slices, indices, rows_stay, functions, writes, writes_stay, written_gradients, in_place,
        views, detached, graphs, versions,
    ):  # fmt: skip
        scene(trial)
    trial.finish()


if __name__ == "__main__":
    main()
    print(f"rank {RANK} done", flush=True)
