"""Upstream's pipeline in pieces, `flow._C.one_embedding_*`, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.core.errors import ArgumentError, GraphError

from .making import embedding

Array = np.ndarray[Any, Any]
C = flow._C
IDS = np.array([[1, 2], [1, 5], [7, 2]])
ROWS, WIDTH, VALID = 6, 3, 4
LR, SCALE, DOWN, DECAY = 0.3, 0.5, 4.0, 0.1


class Pieces(flow.nn.Graph):
    """A function as a graph."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def build(self, *given: Any) -> Any:
        return self.function(*given)


def run(function: Any, is_graph: bool, *given: Any) -> Any:
    return Pieces(function)(*given) if is_graph else function(*given)


def test_a_look_up_by_name_gives_the_rows_of_the_module() -> None:
    module = embedding(name="by name", size_factor=2)
    ids = flow.tensor(IDS)
    sizes = {"line_size": 8, "embedding_size": 4, "num_tables": 2}
    given = {"dtype": flow.float, "is_full_cache": True, "embedding_tables": "", "seed": 7}
    look_up = C.one_embedding_fused_lookup
    rows = look_up(module.shadow, ids, None, embedding_name="by name", **sizes, **given)
    np.testing.assert_array_equal(rows.detach().numpy(), module(ids).detach().numpy())
    with pytest.raises(ArgumentError, match="rows of 4 numbers, 8 with their states, not 5 and 8"):
        changed = {**sizes, "embedding_size": 5}
        look_up(module.shadow, ids, None, embedding_name="by name", **changed, **given)
    with pytest.raises(ArgumentError, match="has 2 tables, not 3"):
        changed = {**sizes, "num_tables": 3}
        look_up(module.shadow, ids, None, embedding_name="by name", **changed, **given)
    with pytest.raises(ArgumentError, match="no embedding named 'nobody'"):
        look_up(module.shadow, ids, None, embedding_name="nobody", **sizes, **given)


def test_gradients_that_are_given_train_the_rows() -> None:
    module = embedding(name="given gradients", size_factor=1)
    ids, grads = flow.tensor(IDS), np.random.default_rng(0).normal(size=(3, 2, 4))
    before = module(ids).detach().numpy()
    for part in (0.25, 0.75):
        d = flow.tensor((part * grads).astype(np.float32))
        C.one_embedding_fused_lookup_grad(ids, d, "given gradients", 4, 4)
    flow.optim.SGD(module.parameters(), lr=0.1).step()
    of_row = IDS[:, None] == IDS[None]
    wanted = before - 0.1 * np.einsum("ijt,jtd->itd", of_row, grads)
    np.testing.assert_allclose(module(ids).detach().numpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_graph", [False, True])
@pytest.mark.parametrize("shape", [(5, 3), (7,), (0,)])
def test_distinct_ids_and_their_places(is_graph: bool, shape: tuple[int, ...]) -> None:
    ids = np.random.default_rng(1).integers(0, 6, shape)
    unique = C.one_embedding_unique_key_value_pair
    found = run(unique, is_graph, flow.tensor(ids), flow.tensor((ids % 4).astype(np.int32)))
    count, keys, values, inverse = (x.numpy() for x in found)
    assert count.tolist() == [np.unique(ids).size] and inverse.shape == shape
    np.testing.assert_array_equal(keys[inverse], ids)
    np.testing.assert_array_equal(values[inverse], ids % 4)
    np.testing.assert_array_equal(np.unique(keys[: count[0]]), np.unique(ids))


def test_the_column_is_the_table_of_an_id() -> None:
    ids = np.array([[0, 1, 2], [3, 4, 2]])
    *_, tables, inverse = C.one_embedding_unique_key_value_pair(flow.tensor(ids), None, 3, "")
    np.testing.assert_array_equal(tables.numpy()[inverse.numpy()], [[0, 1, 2]] * 2)


@pytest.mark.parametrize("is_graph", [False, True])
def test_rows_go_to_the_batch_and_gradients_back(is_graph: bool) -> None:
    rng = np.random.default_rng(2)
    ids, rows, d = rng.integers(0, 9, (4, 3)), rng.normal(size=(9, 5)), rng.normal(size=(4, 3, 5))

    def both(ids: Any, rows: Any, d: Any) -> Any:
        matrix, places, _, unique, _, inverse = C.one_embedding_id_shuffle(ids, None, 3, "")
        back = matrix, inverse, places, ""
        out = C.one_embedding_embedding_shuffle(rows[unique], *back)
        return out, C.one_embedding_embedding_gradient_shuffle(d, *back), unique, matrix

    out, sums, unique, count = (
        x.numpy() for x in run(both, is_graph, *map(flow.tensor, (ids, rows, d)))
    )
    np.testing.assert_array_equal(out, rows[ids])
    for row, key in enumerate(unique[: count[0]]):
        np.testing.assert_allclose(sums[row], d[ids == key].sum(0), rtol=1e-12)


def test_lines_are_read_and_replaced_by_id() -> None:
    module = embedding(name="lines", tables=1, size_factor=3)
    count, ids = flow.tensor([2], dtype=flow.int32), flow.tensor([5, 3, 0])
    tables = flow.zeros(3, dtype=flow.int32)

    def lines() -> Array:
        given = (count, ids, tables, flow.float, flow.float, 12, 4, "lines", "", "", 0)
        return C.one_embedding_lookup(*given).numpy()

    before = lines()
    np.testing.assert_array_equal(before[:2, :4], module(ids[:2]).detach().numpy())
    assert not before[:, 4:].any() and not before[2].any()
    wanted = np.arange(36, dtype=np.float32).reshape(3, 12)
    C.one_embedding_embedding_put(count, ids, flow.tensor(wanted), "lines", 12)
    np.testing.assert_array_equal(lines()[:2], wanted[:2])
    np.testing.assert_array_equal(module(ids[:2]).detach().numpy(), wanted[:2, :4])
    two = embedding(name="two tables", size_factor=1)
    with pytest.raises(ArgumentError, match="has 2 tables, and nothing says"):
        C.one_embedding_embedding_put(count, ids, flow.tensor(wanted), "two tables", 4)
    del two

    def read(count: Any) -> Any:
        given = (count, ids, tables, flow.float, flow.float, 12, 4, "lines")
        return C.one_embedding_lookup(*given)

    with pytest.raises(GraphError):
        run(read, True, count)


def sgd(x: Array, g: Array, momentum: float = 0.0) -> list[Array]:
    w, *rest = np.split(x, x.shape[1] // WIDTH, 1)
    if not momentum:
        return [w - LR * g - LR * DECAY * w, *rest]
    m = momentum * rest[0] + g
    return [w - LR * m - LR * DECAY * w, m, *rest[1:]]


def adam(x: Array, g: Array, first: float, second: float) -> list[Array]:
    w, m, v = np.split(x, 3, 1)
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    moved = LR / first * m / (np.sqrt(v) / np.sqrt(second) + 1e-5)
    return [w - moved - LR * DECAY * w, m, v]


def adagrad(x: Array, g: Array) -> list[Array]:
    w, s, rest = np.split(x, 3, 1)
    lr, s = LR / (1 + 3 * 0.2), s + g * g
    return [w - lr / (np.sqrt(s) + 1e-5) * g - lr * DECAY * w, s, rest]


def ftrl(x: Array, g: Array) -> list[Array]:
    w, n, z = np.split(x, 3, 1)
    new = n + g * g
    z = z + g - (new**-0.2 - n**-0.2) / LR * w
    moved = (np.sign(z) * 0.1 - z) / ((1.0 + new**-0.2) / LR + 0.01) - LR * DECAY * w
    return [np.where(np.abs(z) < 0.1, 0.0, moved), new, z]


UPDATES: dict[str, tuple[str, tuple[Any, ...], Any]] = {
    "sgd": ("sgd", (), sgd),
    "momentum": ("sgd", (0.9,), lambda x, g: sgd(x, g, 0.9)),
    "adam": ("adam", (0.9, 0.99, 0.4, 0.7, 1e-5, True), lambda x, g: adam(x, g, 0.4, 0.7)),
    "adam, uncorrected": (
        "adam", (0.9, 0.99, 0.4, 0.7, 1e-5, False), lambda x, g: adam(x, g, 1, 1),
    ),
    "adagrad": ("adagrad", (0.2, 1e-5), adagrad),
    "ftrl": ("ftrl", (-0.2, 0.1, 0.01, 1.0), ftrl),
}  # fmt: skip


@pytest.mark.parametrize("is_graph", [False, True])
@pytest.mark.parametrize("has_tensors", [False, True])
@pytest.mark.parametrize("case", UPDATES)
def test_updates_of_rows_that_count(case: str, has_tensors: bool, is_graph: bool) -> None:
    name, options, formula = UPDATES[case]
    rng = np.random.default_rng(3)
    x, g = rng.uniform(0.5, 1.5, (ROWS, 3 * WIDTH)), rng.normal(size=(ROWS, WIDTH))
    wanted = x.copy()
    wanted[:VALID] = np.concatenate(formula(x[:VALID], g[:VALID] * SCALE / DOWN), 1)
    step: tuple[Any, ...] = ()
    if name == "adagrad":
        step = (flow.tensor([3]), 0) if has_tensors else (None, 3)
    elif name == "adam":
        step = (None, None)

    def update(
        count: Any, x: Any, g: Any, lr: Any = None, down: Any = None, skip: Any = None
    ) -> Any:
        values = (0.0, SCALE) if has_tensors else (LR, SCALE / DOWN)
        given = (*step, *values, DECAY, *options)
        kind = getattr(C, f"one_embedding_{name}_update")
        return kind(count, x, g, lr, down, skip, *given, line_size=9, embedding_size=WIDTH)

    arrays = [np.array([VALID], np.int32), x, g]
    if has_tensors:
        arrays += [np.array([LR]), np.array([DOWN]), np.array([0])]
    found = run(update, is_graph, *map(flow.tensor, arrays))
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-8)
    if has_tensors:
        arrays[-1] = np.array([1])
        found = run(update, is_graph, *map(flow.tensor, arrays))
        np.testing.assert_array_equal(found.numpy(), x)


def test_lines_without_room_for_states_are_refused() -> None:
    with pytest.raises(ArgumentError, match="rows of 3 numbers with 2 states need lines of 9"):
        C.one_embedding_adam_update(flow.tensor([1]), flow.ones(2, 6), flow.ones(2, 3))


def test_upstreams_steps_train_as_the_optimizer_does() -> None:
    """Upstream's own step of Adagrad, called as its module calls it."""
    modules = [embedding(name=name, tables=1, size_factor=2) for name in ("pieces", "whole")]
    ids = np.array([3, 1, 3, 8])
    optimizer = flow.optim.Adagrad(modules[1].parameters(), lr=0.1, eps=1e-5)
    for step in range(3):
        d = np.random.default_rng(step).normal(size=(4, 4)).astype(np.float32)
        modules[1](flow.tensor(ids)).backward(flow.tensor(d))
        optimizer.step()
        optimizer.zero_grad()
        count, unique, tables, inverse = C.one_embedding_unique_key_value_pair(
            flow.tensor(ids), None, 1, "pieces"
        )
        lines = C.one_embedding_lookup(
            count, unique, tables, flow.float, flow.float, 8, 4, "pieces", "", "", seed=0
        )
        sums = C.unsorted_segment_sum(flow.tensor(d), inverse, axis=0, num_segments=4)
        made = C.one_embedding_adagrad_update(
            count, lines, sums, train_step_val=step + 1, learning_rate_val=0.1, scale=1.0,
            weight_decay=0.0, lr_decay=0.0, epsilon=1e-5, line_size=8, embedding_size=4,
            embedding_name="pieces",
        )  # fmt: skip
        C.one_embedding_embedding_put(count, unique, made, "pieces", 8)
    rows = [module(flow.tensor(ids)).detach().numpy() for module in modules]
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-5, atol=1e-6)
