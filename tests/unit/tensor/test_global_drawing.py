"""Drawing and scattering with global tensors, eagerly and in a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow

HERE = flow.placement("cpu", [0])


@pytest.mark.parametrize("replacement", [True, False])
def test_multinomial_draws_where_the_weights_are(replacement: bool) -> None:
    weights = np.array([[0.0, 1.0, 0.0, 3.0], [1.0, 0.0, 1.0, 0.0]], np.float32)
    x = flow.tensor(weights, placement=HERE, sbp=flow.sbp.broadcast)
    drawn = flow.multinomial(x, 2, replacement)
    assert drawn.is_global and drawn.dtype is flow.int64
    assert (np.take_along_axis(weights, drawn.numpy(), 1) > 0).all()


def test_a_number_is_scattered_in_a_graph() -> None:
    class Scatter(flow.nn.Graph):
        def build(self, x: Any, index: Any) -> Any:
            return flow.scatter(x, 0, index, 7.0)

    x = flow.zeros(3, 4, placement=HERE, sbp=flow.sbp.split(1))
    index = flow.tensor([[2, 0, 1, 2]], placement=HERE, sbp=flow.sbp.split(1))
    expected = np.zeros((3, 4), np.float32)
    expected[[2, 0, 1, 2], range(4)] = 7.0
    np.testing.assert_array_equal(Scatter()(x, index).numpy(), expected)
