"""Scenes for the detectors of flowvision: images with boxes, and the settings of a small
detector.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import oneflow as flow

LOGITS = re.compile(r"\b(cls_logits|cls_score|classification_head\.module_list\.\d+(\.1)?)$")
"""Names of the layers that give the logits of classes, most of them convolutions."""

CLASSES = 5
"""Few classes: an untrained model then gives some of them a score above its threshold."""

Size = tuple[int, int]


@dataclass(frozen=True)
class Scenes:
    """Images of any size, the boxes and classes of the things they show, and its masks."""

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


def spread_scores(ours: Any, theirs: Any, scenes: Scenes) -> None:
    """Scale the layers of logits, so that an untrained model's are about one apart over an image.

    Where all scores are 1, or the same to 16 digits, any detections are as good as any others.
    """
    outputs: dict[str, list[torch.Tensor]] = {}
    layers = {
        name: layer
        for name, layer in theirs.named_modules()
        if LOGITS.search(name) and hasattr(layer, "weight")
    }
    assert layers, "no layer gives logits of classes"
    hooks = [
        layer.register_forward_hook(
            lambda _layer, _args, out, name=name: outputs.setdefault(name, []).append(out)
        )
        for name, layer in layers.items()
    ]
    theirs.eval()
    with torch.no_grad():
        scenes.outputs(theirs, torch)
    for hook in hooks:
        hook.remove()
    parameters = dict(ours.named_parameters())
    for name, tensors in outputs.items():
        of_channels = torch.cat([t.movedim(1, 0).flatten(1) for t in tensors], 1)
        if of_channels.size(1) > 1:  # else no box was proposed
            with flow.no_grad():
                parameters[f"{name}.weight"].div_(float(of_channels.std(1).mean()))


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
