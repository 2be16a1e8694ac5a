"""Boxes, deformable convolutions and scores against plain loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import oneflow as flow

Array = np.ndarray[Any, Any]


def read(image: Array, y: float, x: float) -> float:
    """Linear interpolation of (H, W); 0 outside."""
    total = 0.0
    for i in (math.floor(y), math.floor(y) + 1):
        for j in (math.floor(x), math.floor(x) + 1):
            if 0 <= i < image.shape[0] and 0 <= j < image.shape[1]:
                total += image[i, j] * (1 - abs(y - i)) * (1 - abs(x - j))
    return total


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), (2, 1, 2)])
@pytest.mark.parametrize("masked", [False, True])
def test_a_deformable_convolution_reads_off_its_places(
    stride: int, padding: int, dilation: int, masked: bool, rng: np.random.Generator
) -> None:
    x, w, b = rng.normal(size=(2, 4, 7, 6)), rng.normal(size=(6, 2, 3, 2)), rng.normal(size=6)
    rows = (7 + 2 * padding - dilation * 2 - 1) // stride + 1
    columns = (6 + 2 * padding - dilation - 1) // stride + 1
    offset = rng.normal(size=(2, 2 * 2 * 6, rows, columns))
    mask = rng.uniform(size=(2, 2 * 6, rows, columns)) if masked else None
    want = np.zeros((2, 6, rows, columns))
    for n, o, i, j in np.ndindex(*want.shape):
        for c, p, q in np.ndindex(2, 3, 2):
            channel, k = o // 3 * 2 + c, p * 2 + q
            part = channel // 2
            dy, dx = offset[n, (part * 6 + k) * 2 : (part * 6 + k) * 2 + 2, i, j]
            y, z = i * stride - padding + p * dilation + dy, j * stride - padding + q * dilation
            scale = 1.0 if mask is None else mask[n, part * 6 + k, i, j]
            want[n, o, i, j] += w[o, c, p, q] * scale * read(x[n, channel], y, z + dx)
        want[n, o, i, j] += b[o]
    got = flow.nn.functional.deform_conv2d(
        flow.tensor(x), flow.tensor(offset), flow.tensor(w), flow.tensor(b), stride, padding,
        dilation, None if mask is None else flow.tensor(mask),
    )  # fmt: skip
    np.testing.assert_allclose(got.numpy(), want, atol=1e-9)


@pytest.mark.parametrize("sampling_ratio", [2, -1])
@pytest.mark.parametrize("aligned", [False, True])
def test_roi_align_is_the_mean_of_points_in_cells(
    sampling_ratio: int, aligned: bool, rng: np.random.Generator
) -> None:
    x = rng.normal(size=(2, 3, 8, 9))
    rois = np.array([[0, 1.0, 2.0, 9.0, 13.0], [1, 0.0, 0.0, 5.0, 4.0], [1, 6.0, 3.0, 19.0, 18.0]])
    got = flow.roi_align(flow.tensor(x), flow.tensor(rois), 0.5, 3, 2, sampling_ratio, aligned)
    for r, c, i, j in np.ndindex(3, 3, 3, 2):
        x1, y1, x2, y2 = rois[r, 1:] * 0.5 - (0.5 if aligned else 0.0)
        high, wide = y2 - y1, x2 - x1
        if not aligned:
            high, wide = max(high, 1.0), max(wide, 1.0)
        rows = sampling_ratio if sampling_ratio > 0 else math.ceil(high / 3)
        columns = sampling_ratio if sampling_ratio > 0 else math.ceil(wide / 2)
        total = 0.0
        for a, b in np.ndindex(rows, columns):
            y = y1 + (i + (a + 0.5) / rows) * high / 3
            z = x1 + (j + (b + 0.5) / columns) * wide / 2
            if -1 <= y <= 8 and -1 <= z <= 9:
                total += read(x[int(rois[r, 0]), c], min(max(y, 0), 7), min(max(z, 0), 8))
        assert got[r, c, i, j].item() == pytest.approx(total / (rows * columns), abs=1e-9)


def test_roi_align_of_boxes_without_area_is_zero(rng: np.random.Generator) -> None:
    """torchvision's kernel counts no points in them, if boxes are aligned."""
    x = flow.tensor(rng.normal(size=(1, 2, 8, 9)))
    rois = flow.tensor([[0.0, 5, 5, 5, 5], [0, 6, 6, 2, 2], [0, 1, 3, 1, 9], [0, 1, 1, 4, 4]])
    out = flow.roi_align(x, rois.double(), 1.0, 3, 2, -1, True)
    assert not out[:3].any() and out[3].all()
    assert flow.roi_align(x, rois.double(), 1.0, 3, 2, -1, False).all()


def test_nms_keeps_the_best_of_boxes_that_overlap(rng: np.random.Generator) -> None:
    corners = rng.uniform(0, 10, size=(40, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(1, 6, size=(40, 2))], axis=1)
    scores = rng.permutation(40) / 40

    def overlap(a: Array, b: Array) -> float:
        sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
        shared = float(np.prod(np.maximum(sides, 0)))
        return shared / float(np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - shared)

    kept: list[int] = []
    for i in np.argsort(-scores):
        if all(overlap(boxes[i], boxes[k]) <= 0.3 for k in kept):
            kept.append(int(i))
    assert flow.nms(flow.tensor(boxes), flow.tensor(scores), 0.3).tolist() == kept


def test_a_view_by_strides_writes_to_its_base() -> None:
    x = flow.arange(12).float().reshape(3, 4)
    x.as_strided((2, 2), (4, 1), 1).fill_(-1)
    assert x.tolist() == [[0, -1, -1, 3], [4, -1, -1, 7], [8, 9, 10, 11]]
    assert x[1:].as_strided((2,), (1,)).tolist() == [4, -1]
    x.as_strided_((2, 3), (4, 1))
    assert x.shape == (2, 3) and x.tolist() == [[0, -1, -1], [4, -1, -1]]
    y = flow.ones(5, requires_grad=True)
    (y * 2).as_strided((3, 3), (1, 1)).sum().backward()
    assert y.grad.tolist() == [2, 4, 6, 4, 2]
