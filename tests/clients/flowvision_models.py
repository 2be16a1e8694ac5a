"""Each registered model of flowvision on oneflow against the same code on PyTorch.

python -m tests.clients.flowvision_models [names] prints one line of JSON a model; it imports
flowvision.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import oneflow as flow

from .twin import Twin

SIZES = (64, 224, 384, 448)
"""Edges of the images that are tried, until PyTorch takes one."""

BATCH = 2
RANDOM = re.compile("drop|stochastic", re.IGNORECASE)
"""Modules of which this is part of the class name are left in evaluation mode."""


def tensors_of(value: Any) -> Iterator[Any]:
    """All tensors in nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor | flow.Tensor):
        yield value
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from tensors_of(value[key])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_of(one)


def numpy_of(value: Any) -> np.ndarray:
    return value.detach().numpy().astype(np.float64)


def set_mode(model: Any, training: bool) -> None:
    """Training without what draws random numbers, or evaluation."""
    model.train(training)
    for module in model.modules():
        if RANDOM.search(type(module).__name__):
            module.eval()
        if isinstance(getattr(module, "drop_path_rate", None), float):
            module.drop_path_rate = 0.0


def loss_of(out: Any, library: Any) -> Any:
    """A sum over all outputs in which no two elements count the same."""
    total = None
    for tensor in tensors_of(out):
        if not tensor.is_floating_point():
            continue
        weights = np.cos(np.arange(tensor.numel(), dtype=np.float64)).reshape(tuple(tensor.shape))
        term = (tensor * library.tensor(weights, dtype=tensor.dtype)).sum()
        total = term if total is None else total + term
    return total


def worst(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    """The largest difference, as part of the largest value of PyTorch's."""
    assert [x.shape for x in ours] == [x.shape for x in theirs], "shapes differ"
    if not all(np.isfinite(x).all() for x in ours):
        return float("inf")
    largest = max((np.abs(x).max() for x in theirs if x.size), default=0.0)
    return max(
        (np.abs(a - b).max() for a, b in zip(ours, theirs, strict=True) if a.size), default=0.0
    ) / (largest or 1.0)


def gradients(model: Any) -> dict[str, np.ndarray]:
    return {n: numpy_of(p.grad) for n, p in model.named_parameters() if p.grad is not None}


def gradient_error(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> float:
    """The norm of the difference of all gradients, as part of the norm of PyTorch's."""
    assert ours.keys() == theirs.keys(), f"gradients of {sorted(ours.keys() ^ theirs.keys())[:4]}"
    apart = sum(((ours[n] - theirs[n]) ** 2).sum() for n in theirs)
    return float(np.sqrt(apart / (sum((g**2).sum() for g in theirs.values()) or 1.0)))


def copy_state(ours: Any, theirs: Any) -> None:
    state = {k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()}
    theirs.load_state_dict(state)


def run(
    model: Any, library: Any, image: np.ndarray, training: bool
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Outputs of a forward pass, and in training the gradients."""
    set_mode(model, training)
    x = library.tensor(image, dtype=next(model.parameters()).dtype)
    if not training:
        with library.no_grad():
            return [numpy_of(t) for t in tensors_of(model(x))], {}
    model.zero_grad()
    out = model(x)
    loss_of(out, library).backward()
    return [numpy_of(t) for t in tensors_of(out)], gradients(model)


def image_for(theirs: Any, rng: np.random.Generator) -> np.ndarray:
    errors = []
    for size in SIZES:
        image = rng.standard_normal((BATCH, 3, size, size)).astype(np.float32)
        try:
            for training in (False, True):
                set_mode(theirs, training)
                with torch.no_grad():
                    theirs(torch.tensor(image))
            return image
        except Exception as error:
            errors.append(f"{size}: {error}"[:120])
    raise RuntimeError(f"PyTorch takes no image: {errors}")


def check(name: str, ours: Any, theirs: Any) -> dict[str, Any]:
    """Compare one model; double: also in float64, where float32 does not agree."""
    rng = np.random.default_rng(0)
    report: dict[str, Any] = {"model": name}
    image = image_for(theirs, rng)
    report["size"] = image.shape[-1]
    report["parameters"] = sum(p.numel() for p in theirs.parameters())
    for kind in ("float", "double"):
        for training in (False, True):
            start = time.process_time()
            copy_state(ours, theirs)
            try:
                expected, expected_grads = run(theirs, torch, image, training)
            except RuntimeError as error:
                return report | {"torch": f"{error}"}  # its code takes no float64
            middle = time.process_time()
            values, grads = run(ours, flow, image, training)
            mode = ("train" if training else "eval") + ("" if kind == "float" else "_double")
            report[mode] = [
                float(f"{worst(values, expected):.2e}"),
                float(f"{gradient_error(grads, expected_grads):.2e}"),
            ]
            report[f"{mode}_s"] = [round(time.process_time() - middle, 1), round(middle - start, 1)]
        if agrees(report):
            return report
        ours.double()
        theirs.double()
    return report


def agrees(report: dict[str, Any]) -> bool:
    """Whether outputs and gradients are as close as they must be, in either precision."""
    return any(
        all(
            report.get(m + k, [9, 9])[0] <= 1e-4 and report[m + k][1] <= 1e-3
            for m in ("eval", "train")
        )
        for k in ("", "_double")
    )


def entrypoints(package: Any) -> dict[str, Any]:
    registry: dict[str, Any] = package.models.ModelCreator._model_entrypoints
    return registry


def _unchanged(x: Any, *_: object, **__: object) -> Any:
    return x


def main(wanted: list[str]) -> None:
    import flowvision

    for library in (flow, torch):  # models call it with training=self.training
        library.nn.functional.dropout = _unchanged

    twin = Twin("flowvision")
    ours, theirs = entrypoints(flowvision), entrypoints(twin.module)
    for name in wanted or list(ours):
        start = time.process_time()
        try:
            flow.manual_seed(0)
            model = ours[name](pretrained=False)
            with twin.active():
                reference = theirs[name](pretrained=False)
            report = check(name, model, reference)
            report["ok"] = agrees(report)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)
            report = {
                "model": name,
                "ok": False,
                "error": f"{type(error).__name__}: {error}"[:300],
                "at": [f"{f.filename.split('site-packages/')[-1]}:{f.lineno}" for f in where][-4:],
            }
        report["cpu_s"] = round(time.process_time() - start, 1)
        print(json.dumps(report), flush=True)
        model = reference = None
        gc.collect()


if __name__ == "__main__":
    main(sys.argv[1:])
