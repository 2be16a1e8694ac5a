"""Compiled functions that write to tensors of the caller: where these lie, without a copy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.errors import GraphError
from oneflow.graph.functions.calls import NotCompiledWarning

ROWS = np.random.default_rng(0).standard_normal((6, 2, 1, 3)).astype(np.float32)
"""One row a step."""


def plans_of(compiled: Any) -> list[Any]:
    return [plan for plans in compiled.calls._compiled._plans.values() for plan in plans]


def ops_of(compiled: Any) -> list[str]:
    (plan,) = plans_of(compiled)
    return [node.op for node in plan._forward.bound.plan.graph]


def step(lib: Any, row: Any, at: Any, cache: Any) -> Any:
    """A row goes into the cache at a position that is a tensor."""
    cache.index_copy_(1, at, row)
    return cache.sum(1) * 2, cache


def test_a_cache_that_is_given_is_written_where_it_lies() -> None:
    """One plan serves every position, and every cache of a shape."""
    compiled = flow.compile(lambda row, at, cache: step(flow, row, at, cache), fullgraph=True)
    with flow.no_grad():
        for _ in range(2):
            caches, theirs = [[lib.zeros(2, 6, 3) for _ in "ab"] for lib in (flow, torch)]
            memory = [c._array for c in caches]
            for i, row in enumerate(ROWS):
                for own, other in zip(caches, theirs, strict=True):
                    made, given = compiled(flow.tensor(row), flow.tensor([i]), own)
                    assert given is own
                    wanted, _ = step(torch, torch.tensor(row), torch.tensor([i]), other)
                    np.testing.assert_allclose(made.numpy(), wanted.numpy(), rtol=1e-6)
                    np.testing.assert_array_equal(own.numpy(), other.numpy())
            assert all(c._array is m for c, m in zip(caches, memory, strict=True))
    ops = ops_of(compiled)
    assert "dim_assign" in ops
    assert not {"dim_scatter", "assign"} & set(ops)


class Cache:
    """Rows up to a position, which both live in tensors of an object."""

    def __init__(self, lib: Any) -> None:
        self.rows, self.length = lib.zeros(2, 6, 3), lib.tensor(0)

    def append(self, lib: Any, row: Any) -> Any:
        at = lib.arange(1) + self.length
        self.length.add_(1)
        self.rows.index_copy_(1, at, row)
        return self.rows


def test_tensors_of_an_object_that_is_given_are_written_where_they_lie() -> None:
    """The object comes back, and writes between the calls are seen."""

    def forward(row: Any, cache: Cache) -> Any:
        lib: Any = flow if isinstance(row, flow.Tensor) else torch
        return {"sum": cache.append(lib, row).sum(1), "cache": cache}

    compiled, own, other = flow.compile(forward, fullgraph=True), Cache(flow), Cache(torch)
    with flow.no_grad():
        for i, row in enumerate(ROWS):
            made = compiled(flow.tensor(row), own)
            assert made["cache"] is own
            wanted = forward(torch.tensor(row), other)
            np.testing.assert_allclose(made["sum"].numpy(), wanted["sum"].numpy(), rtol=1e-6)
            assert own.length.item() == other.length.item()
            if i == 2:
                own.length.sub_(2), other.length.sub_(2)
                own.rows.mul_(2), other.rows.mul_(2)
    np.testing.assert_array_equal(own.rows.numpy(), other.rows.numpy())
    assert compiled.calls._made == 1


class Layers:
    """Caches in a list, as those of the layers of a model, and a number that is read."""

    def __init__(self, lib: Any, size: int = 2, gain: float = 2.0) -> None:
        self.parts, self.gain = [Cache(lib) for _ in range(size)], gain


def through(row: Any, layers: Layers) -> Any:
    lib: Any = flow if isinstance(row, flow.Tensor) else torch
    for part in layers.parts:
        row = part.append(lib, row).sum(1, keepdim=True) * layers.gain
    return {"row": row, "layers": layers}


def test_a_plan_serves_other_objects_of_one_structure_and_writes_to_their_tensors() -> None:
    compiled = flow.compile(through, fullgraph=True)
    texts = [(Layers(flow), Layers(torch)) for _ in range(3)]
    turns = [0] * 3 + [1] * 3 + [2, 0, 2, 1]
    with flow.no_grad():
        for i, turn in enumerate(turns):
            own, other = texts[turn]
            row = ROWS[i % len(ROWS)]
            made = compiled(flow.tensor(row), own)
            assert made["layers"] is own
            wanted = through(torch.tensor(row), other)
            np.testing.assert_allclose(made["row"].numpy(), wanted["row"].numpy(), rtol=1e-5)
            for mine, theirs in texts:
                for a, b in zip(mine.parts, theirs.parts, strict=True):
                    np.testing.assert_allclose(a.rows.numpy(), b.rows.numpy(), rtol=1e-5)
                    assert a.length.item() == b.length.item()
    assert compiled.calls._made == 1


def _with_shared_memory() -> Layers:
    layers = Layers(flow)
    layers.parts[1].rows = layers.parts[0].rows
    return layers


@pytest.mark.parametrize(
    "make",
    [lambda: Layers(flow, gain=3.0), lambda: Layers(flow, 3), _with_shared_memory],
)
def test_an_object_that_differs_in_what_is_read_gets_a_plan_of_its_own(
    make: Callable[[], Layers],
) -> None:
    compiled, other = flow.compile(through), make()
    row = flow.tensor(ROWS[0])
    with flow.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", NotCompiledWarning)
        compiled(row, Layers(flow))
        wanted = through(row, make())["row"]
        np.testing.assert_allclose(compiled(row, other)["row"].numpy(), wanted.numpy(), rtol=1e-6)
        assert [part.length.item() for part in other.parts] == [1] * len(other.parts)
        again = compiled(row, Layers(flow))["row"]
        np.testing.assert_allclose(again.numpy(), through(row, Layers(flow))["row"].numpy())


def test_a_view_of_another_tensor_in_an_object_is_written_as_the_function_itself_writes() -> None:
    compiled, layers = flow.compile(through), [Layers(flow), Layers(flow)]
    for each in layers:
        each.parts[1].rows = flow.zeros(4, 6, 3)[:2]
    row = flow.tensor(ROWS[0])
    with flow.no_grad():
        with pytest.warns(NotCompiledWarning, match="in the memory of one that is written to"):
            made = compiled(row, layers[0])["row"]
        np.testing.assert_array_equal(made.numpy(), through(row, layers[1])["row"].numpy())


def test_a_tensor_outside_is_written_as_the_function_itself_writes() -> None:
    count = flow.zeros(1)

    def function(x: Any) -> Any:
        count.add_(1)
        return x * count

    x = flow.tensor(ROWS, requires_grad=True)
    compiled = flow.compile(function, fullgraph=True)
    for i in (1, 2, 3):
        y = compiled(x)
        np.testing.assert_array_equal(y.numpy(force=True), ROWS * i)
        assert count.item() == i
        x.grad = None
        y.sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), np.full_like(ROWS, i))


@pytest.mark.parametrize("shape", [(2, 6, 3), (1, 6, 3)])
def test_rows_of_a_batch_go_to_positions_of_their_own(shape: tuple[int, ...]) -> None:
    def function(cache: Any, at: Any, row: Any) -> Any:
        places = at.view(-1, 1, 1).expand(row.shape[0], 1, 3)
        return cache.scatter_(1, places, row)

    compiled = flow.compile(function, fullgraph=True)
    own, theirs = flow.zeros(shape), torch.zeros(shape)
    with flow.no_grad():
        for i, row in enumerate(ROWS[:, : shape[0]]):
            at = [i, 5 - i][: shape[0]]
            compiled(own, flow.tensor(at), flow.tensor(row))
            function(theirs, torch.tensor(at), torch.tensor(row))
            np.testing.assert_array_equal(own.numpy(), theirs.numpy())
    assert "dim_scatter" not in ops_of(compiled)


def _adds(x: Any, y: Any) -> Any:
    return x.add_(1) * y


def test_arguments_in_one_memory_are_written_as_the_function_itself_writes() -> None:
    compiled = flow.compile(_adds)
    x, y = flow.ones(2, 3), flow.ones(2, 3)
    assert compiled(x, y).tolist() == [[2.0] * 3] * 2
    with pytest.warns(NotCompiledWarning, match="tensor 0 of the arguments"):
        assert compiled(x, x).tolist() == [[9.0] * 3] * 2
    with pytest.warns(NotCompiledWarning, match="tensor 0 of the arguments"):
        assert compiled(x, x[:, :1]).tolist() == [[16.0] * 3] * 2
    assert compiled(y, x).tolist() == [[8.0] * 3] * 2
    row = flow.ones(2, 3)[0]
    with pytest.warns(NotCompiledWarning, match="tensor 0 of the arguments"):
        assert compiled(row, flow.ones(3)).tolist() == [2.0] * 3
    assert row.tolist() == [2.0] * 3
    with pytest.raises(GraphError, match="is written to"):
        flow.compile(_adds, fullgraph=True)(x, x)


def test_calls_with_an_object_that_changes_are_tried_twice() -> None:
    """Not once for each object of its type."""

    class Grows:
        def __init__(self) -> None:
            self.rows: Any = None

    def function(x: Any, grown: Grows) -> Any:
        grown.rows = x if grown.rows is None else flow.cat([grown.rows, x])
        return grown.rows.sum()

    compiled = flow.compile(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotCompiledWarning)
        for _ in range(5):
            assert compiled(flow.ones(2), Grows()).item() == 2
    assert list(compiled.calls._tries.values()) == [2]
    grown = Grows()
    for i in range(1, 4):
        assert compiled(flow.ones(2), grown).item() == 2 * i
