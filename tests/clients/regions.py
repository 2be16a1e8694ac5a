"""Two functions of upstream that PyTorch leaves to torchvision, written with PyTorch's tensors."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Places of the boxes that no better one overlaps by more than the threshold, best first."""
    kept: list[int] = []
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    for place in scores.argsort(descending=True, stable=True).tolist():
        others = boxes[kept]
        low = torch.maximum(others[:, :2], boxes[place, :2])
        high = torch.minimum(others[:, 2:], boxes[place, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        if not (shared / (areas[kept] + areas[place] - shared) > iou_threshold).any():
            kept.append(place)
    return torch.tensor(kept, dtype=torch.int64)


def _weights(start: float, length: float, cells: int, points: int, like: Tensor) -> Tensor:
    """Share of each pixel along one side (size of `like`) in each cell: (cells, size)."""
    size = like.numel()
    places = start + (torch.arange(cells * points) + 0.5).to(like) * (length / (cells * points))
    is_near = (places >= -1) & (places <= size)
    distance = (places.clamp(0, size - 1)[:, None] - torch.arange(size).to(like)).abs()
    hats = (1 - distance).clamp(min=0) * is_near[:, None]
    return hats.reshape(cells, points, size).mean(1)


def roi_align(
    x: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_h: int,
    pooled_w: int,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """Means of bilinear reads in the cells of boxes (R, 5): (R, C, pooled_h, pooled_w)."""
    rows, columns = [], []
    for roi in rois.detach().tolist():
        left, top, right, bottom = (c * spatial_scale - 0.5 * aligned for c in roi[1:])
        for found, low, high, cells, line in (
            (rows, top, bottom, pooled_h, x[0, 0, :, 0]),
            (columns, left, right, pooled_w, x[0, 0, 0]),
        ):
            length = high - low if aligned else max(high - low, 1.0)
            points = sampling_ratio if sampling_ratio > 0 else math.ceil(length / cells)
            found.append(_weights(low, length, cells, points, line.detach()))
    out = x.new_zeros(len(rois), x.shape[1], pooled_h, pooled_w)
    for image in range(len(x)):
        own = (rois[:, 0].detach() == image).nonzero().flatten().tolist()
        if own:
            sides = (torch.stack([side[r] for r in own]) for side in (rows, columns))
            made = torch.einsum("riy,cyx,rjx->rcij", next(sides), x[image], next(sides))
            out = out.index_copy(0, torch.tensor(own), made)
    return out
