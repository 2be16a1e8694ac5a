"""Scenes for the detectors of flowvision: images with boxes, and what makes a detector small."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

CLASSES = 5
"""Few classes: an untrained model then gives some of them a score above its threshold."""

Size = tuple[int, int]


@dataclass(frozen=True)
class Scenes:
    """Images of any size, the boxes and classes of what they show, and its masks."""

    images: list[np.ndarray]
    boxes: list[np.ndarray]
    labels: list[np.ndarray]

    def outputs(self, model: Any, library: Any) -> Any:
        """Losses in training, detections in evaluation."""
        dtype = next(model.parameters()).dtype
        images = [library.tensor(image, dtype=dtype) for image in self.images]
        if not model.training:
            return model(images)
        targets = [
            {
                "boxes": library.tensor(boxes, dtype=dtype),
                "labels": library.tensor(labels),
                "masks": library.tensor(masks_of(boxes, image.shape[1:])),
            }
            for image, boxes, labels in zip(self.images, self.boxes, self.labels, strict=True)
        ]
        return model(images, targets)


def masks_of(boxes: np.ndarray, size: Size) -> np.ndarray:
    """The ellipse in each box, as an image of zeros and ones."""
    y, x = np.ogrid[: size[0], : size[1]]
    left, top, right, bottom = (boxes[:, i, None, None] for i in range(4))
    across = (2 * x - left - right) / (right - left)
    down = (2 * y - top - bottom) / (bottom - top)
    return (across**2 + down**2 <= 1).astype(np.uint8)


@dataclass(frozen=True)
class Detector:
    """A kind of detector.  options: its small form, with thresholds that untrained scores reach."""

    options: dict[str, Any]
    sizes: tuple[Size, Size] = ((96, 128), (120, 100))

    def scenes(self, rng: np.random.Generator) -> Scenes:
        images = [rng.random((3, *size)).astype(np.float32) for size in self.sizes]
        corners = [rng.uniform(0, 0.5, (3, 2)) for _ in images]
        extents = [rng.uniform(0.2, 0.5, (3, 2)) for _ in images]
        boxes = [
            np.concatenate([corner, corner + extent], 1) * [w, h, w, h]
            for corner, extent, (h, w) in zip(corners, extents, self.sizes, strict=True)
        ]
        labels = [rng.integers(1, CLASSES, 3) for _ in images]
        return Scenes(images, boxes, labels)


_SMALL = {"num_classes": CLASSES, "min_size": 96, "max_size": 128}

DETECTORS = {
    "fasterrcnn": Detector(_SMALL),
    "maskrcnn": Detector(_SMALL),
    "retinanet": Detector(_SMALL | {"score_thresh": 0.005}),
    "fcos": Detector(_SMALL | {"score_thresh": 0.01}),
    "ssd300": Detector({"num_classes": CLASSES}),
    "ssdlite320": Detector({"num_classes": CLASSES}),
}


def detector(name: str) -> Detector | None:
    """The kind of a registered model, None if it does not detect."""
    return DETECTORS.get(name.partition("_")[0])
