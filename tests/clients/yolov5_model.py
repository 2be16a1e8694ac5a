"""Training steps of YOLOv5s of one-yolov5 on made-up images, on oneflow or on PyTorch.

`python -m tests.clients.yolov5_model FOLDER LIBRARY START` takes a checkout of
Oneflow-Inc/one-yolov5, and "oneflow" or "torch", and prints one line of JSON: losses, and the finds
of the trained model. The run on oneflow makes the first weights and saves them in START, which the
other loads. The steps are written here, with SGD and momentum: its training script needs data.
"""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

import oneflow as flow

from .twin import Twin

STEPS = 3
CLASSES = 5
SIZE = 128

HYPERPARAMETERS = {
    "box": 0.05, "cls": 0.5, "cls_pw": 1.0, "obj": 1.0, "obj_pw": 1.0, "anchor_t": 4.0,
    "fl_gamma": 0.0, "label_smoothing": 0.1,
}  # fmt: skip


def targets(rng: np.random.Generator) -> np.ndarray:
    """Three boxes an image: (image, class, x, y, width, height), as parts of the image's edge."""
    rows = 6
    return np.column_stack(
        [
            np.repeat([0, 1], rows // 2),
            rng.integers(0, CLASSES, rows),
            rng.uniform(0.3, 0.7, (rows, 2)),
            rng.uniform(0.1, 0.5, (rows, 2)),
        ]
    )


def trained(library: Any, folder: Path, start: Path) -> dict[str, Any]:
    """Losses of the steps (their sum, then box, object, class), and the finds afterwards.

    In float64: batch norm over few values makes float32 uncertain.
    """
    library.set_default_dtype(library.float64)
    network = importlib.import_module("models.yolo")
    model = network.Model(str(folder / "models" / "yolov5s.yaml"), nc=CLASSES).double()
    if library is flow:
        np.savez(start, **{k: v.numpy() for k, v in model.state_dict().items()})
    with np.load(start) as file:
        model.load_state_dict({k: library.tensor(file[k]) for k in file})
    model.hyp = HYPERPARAMETERS
    rng = np.random.default_rng(0)
    images = library.tensor(rng.random((2, 3, SIZE, SIZE)))
    boxes = library.tensor(targets(rng))
    compute = importlib.import_module("utils.loss").ComputeLoss(model)
    optimizer = library.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    model.train()
    losses = []
    for _ in range(STEPS):
        loss, parts = compute(model(images), boxes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append([loss.item(), *parts.tolist()])
    model.eval()
    with library.no_grad():
        found = model(images)[0]
    return {"losses": losses, "found": [list(found.shape), found.abs().sum((0, 1)).tolist()]}


def main(folder: Path, name: str, start: Path) -> None:
    sys.path.insert(0, str(folder))
    with nullcontext() if name == "oneflow" else Twin("models", "utils").active():
        library = flow if name == "oneflow" else torch
        print(json.dumps({"library": name, **trained(library, folder, start)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
