"""One side of a client: `python -m tests.clients.worker SIDE NAME OUT` runs its tasks.

SIDE is `torch`, or `oneflow`: the library under the mock. OUT gets a line of JSON for each task as
soon as it has ended: its values, or its error.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

MOCK_VERSION = "2.6.0"
SHOWN_FRAMES = 3


def arrays_of(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of nested values under dotted names.

    Raises:
        TypeError: If a value is neither a tensor nor anything that NumPy makes numbers or text of.
    """
    if isinstance(value, dict):
        for key in value:
            yield from arrays_of(f"{name}.{key}", value[key])
        return
    if isinstance(value, list | tuple) and any(hasattr(one, "detach") for one in value):
        for place, one in enumerate(value):
            yield from arrays_of(f"{name}.{place}", one)
        return
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype).endswith("float16") else value
        value = value.numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "biufcU":
        raise TypeError(f"{name} is a {type(value).__name__}; a task returns tensors or numbers")
    yield name, array


def packed(values: dict[str, Any]) -> str:
    """Return the arrays of a task as text: an npz file in base 64."""
    file = io.BytesIO()
    np.savez(file, **dict(found for name in values for found in arrays_of(name, values[name])))
    return base64.b64encode(file.getvalue()).decode()


def unpacked(text: str) -> dict[str, np.ndarray]:
    """Return the arrays that `packed` wrote."""
    with np.load(io.BytesIO(base64.b64decode(text))) as file:
        return {name: file[name] for name in file.files}


def described(error: BaseException) -> str:
    """Type, message and innermost places of an error, without the folders of this machine."""
    frames = traceback.extract_tb(error.__traceback__)[-SHOWN_FRAMES:]
    places = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
    return f"{type(error).__name__}: {error} @ {places}"


def libraries_of_pytorch() -> list[str]:
    """Names of the modules that were loaded from PyTorch's own files."""
    files = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
    return sorted(name for name, file in files.items() if "site-packages/torch/" in file)


def stand_in_for_torchvision(torch: Any) -> None:
    """Give torchvision ops in Python where its C++ code, built for CUDA, cannot be loaded."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return
    try:
        torch.ops.load_library(str(Path(found.origin).with_name("_C.so")))
    except OSError:
        from . import regions

        owner = torch.library.Library("torchvision", "DEF")
        _kept.append(owner)
        for key, schema, function in (
            ("CPU", "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor", regions.nms),
            (
                "CompositeImplicitAutograd",
                "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
                "SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor",
                regions.roi_align,
            ),
        ):
            owner.define(schema)
            owner.impl(schema.partition("(")[0], function, key)
        owner.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        extension = importlib.import_module("torchvision.extension")
        extension._has_ops = lambda: True


_kept: list[object] = []
"""Libraries of ops, which end with their objects."""


def run(side: str, name: str, out: Path) -> None:
    """Run all tasks of a client's file on one side."""
    if side == "oneflow":
        from oneflow import mock_torch

        mock_torch.enable(lazy=True, mock_version=MOCK_VERSION)
    import torch

    if side == "torch":
        stand_in_for_torchvision(torch)
    module = importlib.import_module(f"tests.clients.tasks.{name}")
    with out.open("w") as lines:
        for task in [task for task in vars(module) if task.startswith("task_")]:
            report = {"task": task}
            try:
                report["values"] = packed(getattr(module, task)(torch))
            except Exception as error:
                traceback.print_exc()
                report["error"] = described(error)
            if side == "oneflow" and (taken := libraries_of_pytorch()):
                report["error"] = f"PyTorch itself was imported: {', '.join(taken[:3])}"
            print(json.dumps(report), file=lines, flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:  # tasks leave their folders here
        os.environ["HF_HOME"] = tempfile.tempdir = home
        run(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
