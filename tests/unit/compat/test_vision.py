"""Ops that torchvision calls by `torch.ops.torchvision`, against loops over pixels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.compat.torch import libraries

Array = np.ndarray[Any, Any]
BOXES = np.array([
    [0, 1.0, 2.0, 9.0, 13.0], [1, 0.0, 0.0, 5.0, 4.0], [1, 6.0, 3.0, 19.0, 18.0],
    [0, -8.0, 1.0, 3.0, 6.0], [1, 30.0, 2.0, 40.0, 9.0],
])  # fmt: skip
SCALE, ROWS, COLUMNS = 0.5, 2, 3


def called(name: str, *args: Any) -> Any:
    return getattr(libraries.Namespace("torchvision"), name)(*args)


def pixels(begin: float, end: float, cell: int, cells: int, more: int, limit: int) -> range:
    """The pixels of a cell along one side, of borders that are rounded outward."""
    low, high = (math.floor(abs(v) * SCALE + 0.5) * (1 if v > 0 else -1) for v in (begin, end))
    side = max(high - low + more, 1) / cells
    first, last = math.floor(cell * side) + low, math.ceil((cell + 1) * side) + low
    return range(min(max(first, 0), limit), min(max(last, 0), limit))


def pooled(x: Array, more: int, edge: int, of: Callable[[Array], float]) -> Array:
    """Apply `of` to every cell of every box and channel; empty ones are 0. x: (N, C, H, W)."""
    out = np.zeros((len(BOXES), x.shape[1], ROWS, COLUMNS))
    for r, c, i, j in np.ndindex(*out.shape):
        image, left, top, right, bottom = BOXES[r]
        ys = pixels(top, bottom, i, ROWS, more, x.shape[2] - edge)
        xs = pixels(left, right, j, COLUMNS, more, x.shape[3] - edge)
        part = x[int(image), c, ys.start : ys.stop, xs.start : xs.stop]
        out[r, c, i, j] = of(part) if part.size else 0.0
    return out


def own_channels(every: Array) -> Array:
    """Pick the channels of each cell's own place from (R, C, rows, columns)."""
    picked = every.reshape(len(every), -1, ROWS, COLUMNS, ROWS, COLUMNS)
    return np.einsum("rdijij->rdij", picked)


def difference(function: Callable[[Array], Array], x: Array, weight: Array, rng: Any) -> Any:
    """A direction, and the change of sum(weight * function(x)) along it."""
    v, step = rng.normal(size=x.shape), 1e-6
    ends = [(function(x + s * v) * weight).sum() for s in (step, -step)]
    return v, (ends[0] - ends[1]) / (2 * step)


@pytest.mark.parametrize("name", ["roi_pool", "ps_roi_pool"])
def test_boxes_are_pooled_by_cells(name: str, rng: np.random.Generator) -> None:
    def want(x: Array) -> Array:
        if name == "roi_pool":
            return pooled(x, 1, 0, lambda part: float(part.max()))
        return own_channels(pooled(x, 0, 1, lambda part: float(part.mean())))

    x = flow.tensor(rng.normal(size=(2, 12, 8, 9)), requires_grad=True)
    out, _ = called(name, x, flow.tensor(BOXES), SCALE, ROWS, COLUMNS)
    np.testing.assert_allclose(out.detach().numpy(), want(x.detach().numpy()), atol=1e-12)
    weight = rng.normal(size=out.shape)
    out.backward(flow.tensor(weight))
    v, change = difference(want, x.detach().numpy(), weight, rng)
    assert x.grad is not None
    assert (x.grad.numpy() * v).sum() == pytest.approx(change, rel=1e-6)


def test_points_of_cells_come_from_the_channels_of_their_places(rng: np.random.Generator) -> None:
    x = flow.tensor(rng.normal(size=(2, 12, 8, 9)))
    out, _ = called("ps_roi_align", x, flow.tensor(BOXES), SCALE, ROWS, COLUMNS, 2)
    every = flow.roi_align(x, flow.tensor(BOXES), SCALE, ROWS, COLUMNS, 2, True)
    np.testing.assert_allclose(out.numpy(), own_channels(every.numpy()))


def test_channels_that_no_cell_can_own_are_an_error() -> None:
    x = flow.zeros(1, 7, 4, 4)
    with pytest.raises(ValueError, match=r"ps_roi_align: .* a multiple of 6 channels for 2 x 3"):
        called("ps_roi_align", x, flow.zeros(1, 5), 1.0, ROWS, COLUMNS, 2)


def test_no_boxes_give_no_cells() -> None:
    x = flow.zeros(1, 12, 4, 4, requires_grad=True)
    none = flow.zeros(0, 5)
    assert called("roi_pool", x, none, 1.0, ROWS, COLUMNS)[0].shape == (0, 12, 2, 3)
    assert called("ps_roi_pool", x, none, 1.0, ROWS, COLUMNS)[0].shape == (0, 2, 2, 3)
    assert called("ps_roi_align", x, none, 1.0, ROWS, COLUMNS, 0)[0].shape == (0, 2, 2, 3)
    out = called("roi_align", x, none, 1.0, ROWS, COLUMNS, 0, False)
    assert out.shape == (0, 12, 2, 3)
    out.sum().backward()
    assert x.grad is not None and not x.grad.any()


def test_a_box_of_an_image_that_is_not_there_is_an_error() -> None:
    with pytest.raises(IndexError, match="roi_align: index 2 is out of bounds"):
        called("roi_align", flow.zeros(2, 1, 4, 4), flow.tensor([[2.0, 0, 0, 2, 2]]), 1.0, 1, 1, 2,
               False)  # fmt: skip
