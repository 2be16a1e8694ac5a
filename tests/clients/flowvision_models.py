"""Each registered model of flowvision on oneflow against the same code on PyTorch.

python -m tests.clients.flowvision_models [--out FILE] [names] prints one line of JSON a model, and
adds it to FILE, whose models it leaves out; it imports flowvision. Every model runs in a process of
its own, with a limit on its time and memory.
"""

from __future__ import annotations

import argparse
import inspect
import json
import multiprocessing
import os
import resource
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

import oneflow as flow

from .comparing import (
    agrees,
    copy_state,
    doubled,
    gradient_error,
    gradients,
    loss_of,
    numpy_of,
    set_mode,
    tensors_of,
    worst,
)
from .flowvision_detection import Scenes, detector, spread_scores
from .twin import Twin

SIZES = (64, 112, 224, 384, 448)
"""Edges of the images that are tried, until PyTorch takes one."""

LARGE = 80_000_000
"""Number of parameters from which one image is enough, unless there is batch norm.

PyTorch 2.13 gives batch norm of one image a wrong gradient where that of its output is transposed
(finite differences agree with ours), as in FAN's embedding of patches.
"""

BATCHES = (2, 8)
"""Images of a batch; more are tried where batch norm over few values leaves no digit."""

SPILLED_NBYTES = 4 << 30
"""Size of PyTorch's gradients from which they wait in a file."""

CPU_S = 300
"""Processor time that one model may take, building and comparing, and a quarter of its net time."""


Results = tuple[list[np.ndarray], dict[str, np.ndarray]]
"""Outputs of a forward pass, and in training the gradients."""


@dataclass(frozen=True)
class Images:
    """Random images as the input of a model that gives tensors."""

    pixels: np.ndarray

    def outputs(self, model: Any, library: Any) -> Any:
        return model(library.tensor(self.pixels, dtype=next(model.parameters()).dtype))


def batches_for(theirs: Any) -> tuple[int, ...]:
    if any("BatchNorm" in type(module).__name__ for module in theirs.modules()):
        return BATCHES
    return (1 if sum(p.numel() for p in theirs.parameters()) > LARGE else 2,)


def images_for(theirs: Any, rng: np.random.Generator, batch: int) -> Images:
    errors = []
    for size in SIZES:
        image = rng.standard_normal((batch, 3, size, size)).astype(np.float32)
        try:
            for training in (False, True):
                set_mode(theirs, training)
                with torch.no_grad():
                    theirs(torch.tensor(image))
            return Images(image)
        except Exception as error:
            errors.append(f"{size}: {error}"[:120])
    raise RuntimeError(f"PyTorch takes no image: {errors}")


def run(model: Any, library: Any, given: Images | Scenes, training: bool) -> Results:
    set_mode(model, training)
    with library.set_grad_enabled(training):
        out = given.outputs(model, library)
    if training:
        loss_of(out, library).backward()
    return [numpy_of(t) for t in tensors_of(out)], gradients(model)


def spilled(grads: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same arrays, in a file without a name if they are large."""
    if sum(g.nbytes for g in grads.values()) < SPILLED_NBYTES:
        return grads
    with tempfile.TemporaryFile() as file:
        for g in grads.values():
            g.tofile(file)
        whole = np.memmap(file, np.uint8, "r")
    ends = np.cumsum([g.nbytes for g in grads.values()])
    return {
        name: whole[end - g.nbytes : end].view(g.dtype).reshape(g.shape)
        for (name, g), end in zip(grads.items(), ends, strict=True)
    }


def compare(ours: Any, theirs: Any, given: Images | Scenes, suffix: str) -> dict[str, Any]:
    """Errors of outputs and gradients and seconds of both libraries, in both modes."""
    report: dict[str, Any] = {}
    for training in (False, True):
        copy_state(ours, theirs)
        start = time.process_time()
        expected, expected_grads = run(theirs, torch, given, training)
        expected_grads = spilled(expected_grads)
        middle = time.process_time()
        values, grads = run(ours, flow, given, training)
        end = time.process_time()
        mode = ("train" if training else "eval") + suffix
        report[mode] = [
            float(f"{worst(values, expected):.2e}"),
            float(f"{gradient_error(grads, expected_grads):.2e}"),
        ]
        report[f"{mode}_s"] = [round(end - middle, 2), round(middle - start, 2)]
        report[f"{mode}_shapes"] = [list(x.shape) for x in expected][:4]
    return report


def check(name: str, ours: Any, theirs: Any) -> dict[str, Any]:
    """Compare one model; double: also in float64, where float32 does not agree."""
    rng = np.random.default_rng(0)
    copy_state(ours, theirs)
    report = {"model": name, "parameters": sum(p.numel() for p in theirs.parameters())}
    kind = detector(name)
    for batch in (0,) if kind else batches_for(theirs):
        given = kind.scenes(rng) if kind else images_for(theirs, rng, batch)
        if isinstance(given, Scenes):
            with doubled(ours, theirs):
                copy_state(ours, theirs)
                spread_scores(ours, theirs, given)
        else:
            report["image"] = list(given.pixels.shape)
        report |= compare(ours, theirs, given, "")
        if not agrees(report):
            with doubled(ours, theirs):
                report |= compare(ours, theirs, given, "_double")
        if agrees(report):
            break
    return report


def entrypoints(package: Any) -> dict[str, Any]:
    registry: dict[str, Any] = package.models.ModelCreator._model_entrypoints
    return registry


def _unchanged(x: Any, *_: object, **__: object) -> Any:
    return x


def build(entry: Callable[..., Any]) -> Any:
    """The model of a registered function, whose weights and backbone are not fetched."""
    kind = detector(entry.__name__)
    options = {"pretrained": False, **(kind.options if kind else {})}
    source = inspect.getsource(inspect.getmodule(entry) or entry)
    if "pretrained_backbone" in source:
        options["pretrained_backbone"] = False
    return entry(**options)


def model_report(name: str, twin: Twin, ours: Callable[..., Any]) -> dict[str, Any]:
    """The outcome of one model; ok: whether it agrees."""
    start = time.process_time()
    try:
        flow.manual_seed(0)
        model = build(ours)
        report = {"built_s": round(time.process_time() - start, 1)}
        with twin.active():
            reference = build(entrypoints(twin.module)[name])
        report |= check(name, model, reference)
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
    return report


def _child(
    sender: Connection, name: str, twin: Twin, ours: Callable[..., Any], nbytes: int
) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (nbytes, nbytes))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    sender.send(model_report(name, twin, ours))


def in_a_process(name: str, twin: Twin, ours: Callable[..., Any], nbytes: int) -> dict[str, Any]:
    """The report of a child process, or of its end; nbytes: memory that it may take."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(sender, name, twin, ours, nbytes))
    child.start()
    sender.close()
    try:
        if receiver.poll(4 * CPU_S):
            report: dict[str, Any] = receiver.recv()
            return report
        return {"model": name, "ok": False, "error": f"not done after {4 * CPU_S} s"}
    except EOFError:
        child.join()
        return {"model": name, "ok": False, "error": f"ended with exit code {child.exitcode}"}
    finally:
        child.kill()
        child.join()


def _unchanged(x: Any, *_: object, **__: object) -> Any:
    return x


def same_conditions() -> None:
    """No random numbers, and contiguous outputs of PyTorch's convolutions, as upstream's are.

    A model of flowvision asks `is_contiguous` and computes another variance when it is not.
    """
    for library in (flow, torch):
        library.nn.functional.dropout = _unchanged  # called with training=self.training
        library.randperm = library.arange  # samples positives and negatives of a detector
    conv2d = torch.nn.functional.conv2d
    torch.nn.functional.conv2d = lambda *args, **options: conv2d(*args, **options).contiguous()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=Path(os.devnull))
    parser.add_argument("--memory", type=int, default=8, help="GiB that one model may take")
    given = parser.parse_args()
    import flowvision

    same_conditions()
    twin = Twin("flowvision")
    ours = entrypoints(flowvision)
    done = [json.loads(line)["model"] for line in given.out.open()] if given.out.exists() else []
    for name in given.names or list(ours):
        if name in done:
            continue
        line = json.dumps(in_a_process(name, twin, ours[name], given.memory << 30))
        print(line, flush=True)
        with given.out.open("a") as out:
            out.write(line + "\n")


if __name__ == "__main__":
    main()
