"""Upstream's pipeline in pieces, `flow._C.one_embedding_*`, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow

Array = np.ndarray[Any, Any]
C = flow._C


class Pieces(flow.nn.Graph):
    """A function as a graph."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def build(self, *given: Any) -> Any:
        return self.function(*given)


def run(function: Any, is_graph: bool, *given: Any) -> Any:
    return Pieces(function)(*given) if is_graph else function(*given)


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
