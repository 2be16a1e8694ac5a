"""torchvision for a task, with ops for PyTorch where its compiled part belongs to another build.

The packages of the index hold ops for GPUs, which PyTorch for CPUs cannot load; regions.py has them
in PyTorch's tensors, so that they have gradients. The library has ops of its own.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

DECLARED = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": "(Tensor input, Tensor rois, float spatial_scale, int pooled_height, "
    "int pooled_width, int sampling_ratio, bool aligned) -> Tensor",
}
kept: list[Any] = []
"""The libraries of ops, which end with the object that declared them."""


def torchvision_of(torch: Any) -> Any:
    """Import torchvision on either side."""
    if "torchvision" not in sys.modules and Path(torch.__file__).parent.name == "torch":
        from tests.clients import regions

        ops = torch.library.Library("torchvision", "FRAGMENT")
        for name, form in DECLARED.items():
            ops.define(f"{name}{form}")
        ops.impl("nms", regions.nms, "CPU")
        ops.impl("roi_align", regions.roi_align, "AutogradCPU")
        ops.impl("roi_align", regions.roi_align, "CPU")
        kept.append(ops)
        for name in ("torchvision.extension", "torchvision.ops.roi_align"):
            importlib.import_module(name).__dict__["_has_ops"] = lambda: True
    return importlib.import_module("torchvision")
