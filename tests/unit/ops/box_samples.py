"""Samples of the ops on boxes in images: cells read point by point, and the transpose of that."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from .sample import Array, Sample, normal

BOXES = np.array([
    [1.0, 2.0, 9.0, 13.0], [0.0, 0.0, 5.0, 4.0], [6.0, 3.0, 19.0, 18.0], [-7.0, -5.0, 3.0, 2.0],
    [5.0, 5.0, 5.0, 5.0], [-3.0, 1.0, 40.0, 12.0],
])  # fmt: skip
IMAGES = np.array([0, 1, 1, 0, 1, 0])


def _points(begin: float, length: float, cells: int, ratio: int) -> list[list[float]]:
    """The points of each cell along one side."""
    side = length / cells
    count = ratio or max(math.ceil(side), 0)
    return [[begin + (i + (k + 0.5) / count) * side for k in range(count)] for i in range(cells)]


def _pixels(point: float, size: int) -> Iterator[tuple[int, float]]:
    """The pixels that a point reads, and their shares."""
    if -1 <= point <= size:
        point = min(max(point, 0.0), size - 1.0)
        for pixel in range(size):
            yield pixel, max(0.0, 1 - abs(point - pixel))


def _shares(
    boxes: Array, image_shape: tuple[int, int], size: tuple[int, int], scale: float,
    sampling_ratio: int, aligned: bool,
) -> Array:  # fmt: skip
    """The share of pixel (y, x) in cell (i, j) of box r: (R, rows, columns, H, W)."""
    found = np.zeros((len(boxes), *size, *image_shape))
    for r, box in enumerate(boxes * scale - 0.5 * aligned):
        lengths = box[2:] - box[:2]
        lengths = lengths if aligned else np.maximum(lengths, 1)
        columns, rows = (_points(box[d], lengths[d], size[1 - d], sampling_ratio) for d in range(2))
        for i, j in np.ndindex(*size):
            for y in rows[i]:
                for x in columns[j]:
                    for p, down in _pixels(y, image_shape[0]):
                        for q, across in _pixels(x, image_shape[1]):
                            count = len(rows[i]) * len(columns[j])
                            found[r, i, j, p, q] += down * across / count
    return found


def _roi_align(x: Array, boxes: Array, images: Array, *, size: Any, **cells: Any) -> Array:
    shares = _shares(boxes, x.shape[2:], size, **cells)
    return np.einsum("rijyx,rcyx->rcij", shares, x[images])


def _roi_align_grad(d: Array, boxes: Array, images: Array, *, shape: Any, **cells: Any) -> Array:
    shares = _shares(boxes, shape[1:], d.shape[2:], **cells)
    each = np.einsum("rijyx,rcij->rcyx", shares, d)
    return np.stack([each[images == n].sum(0) for n in range(shape[0])])


BOX_SAMPLES = [
    sample
    for ratio, aligned in ((2, False), (0, True), (0, False))
    for cells in [{"scale": 0.5, "sampling_ratio": ratio, "aligned": aligned}]
    for sample in (
        Sample(
            "roi_align", (normal(2, 3, 8, 9), BOXES, IMAGES), {"size": (3, 2), **cells},
            _roi_align, wrt=(0,),
        ),
        Sample(
            "roi_align_grad", (normal(6, 3, 3, 2), BOXES, IMAGES), {"shape": (2, 8, 9), **cells},
            _roi_align_grad, wrt=(0,),
        ),
    )
]  # fmt: skip
