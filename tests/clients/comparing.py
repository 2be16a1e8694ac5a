"""The same model in two libraries: one state, the errors of their results."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

import oneflow as flow

from .twin import STANDS

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
    """Training without layers that draw random numbers, or evaluation."""
    model.train(training)
    for module in model.modules():
        if RANDOM.search(type(module).__name__):
            module.eval()
        for rate in ("drop_path_rate", "drop"):  # numbers in FAN's and LeViT's own modules
            if isinstance(getattr(module, rate, None), float):
                setattr(module, rate, 0.0)


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
    """The largest difference, as part of the largest value of PyTorch's; inf of other shapes."""
    if [x.shape for x in ours] != [x.shape for x in theirs]:
        return float("inf")  # float32 may already decide otherwise which boxes a detector keeps
    if not all(np.isfinite(x).all() for x in ours):
        return float("inf")
    largest = max((np.abs(x).max() for x in theirs if x.size), default=0.0)
    return max(
        (np.abs(a - b).max() for a, b in zip(ours, theirs, strict=True) if a.size), default=0.0
    ) / (largest or 1.0)


def gradients(model: Any) -> dict[str, np.ndarray]:
    """Those of all parameters that have one, which the model then forgets."""
    found = {
        name: parameter.grad.detach().numpy()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    for parameter in model.parameters():
        parameter.grad = None
    return found


def gradient_error(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> float:
    """The norm of the difference of all gradients, as part of the norm of PyTorch's."""
    assert ours.keys() == theirs.keys(), f"gradients of {sorted(ours.keys() ^ theirs.keys())[:4]}"
    apart = sum(squares(ours[n] - theirs[n]) for n in theirs)
    return float(np.sqrt(apart / (sum(squares(g) for g in theirs.values()) or 1.0)))


def squares(x: np.ndarray) -> float:
    """Sum of the squares of all elements, in float64 but a million elements at a time."""
    flat = x.reshape(-1)
    return sum(
        float((flat[i : i + 2**20].astype(np.float64) ** 2).sum()) for i in range(0, x.size, 2**20)
    )


def copy_state(ours: Any, theirs: Any) -> None:
    """Give PyTorch's model our parameters, in shared memory, and a copy of our buffers."""
    state = {k: torch.tensor(v.numpy()) for k, v in ours.named_buffers()}
    state = {k: v for k, v in state.items() if k in theirs.state_dict()}
    missing = theirs.load_state_dict(state, strict=False).missing_keys
    parameters = dict(ours.named_parameters(remove_duplicate=False))
    assert set(missing) <= parameters.keys(), f"no value for {set(missing) - parameters.keys()}"
    for name, parameter in theirs.named_parameters():
        parameter.data = torch.from_numpy(parameters[name].detach().numpy())


@contextmanager
def doubled(ours: Any, theirs: Any) -> Iterator[None]:
    """Models in float64 for a while, in whose code float32 means float64 as well."""
    ours.double()
    theirs.double()
    names = {name: getattr(flow, name) for name in ("float32", "float")}
    for name in names:
        setattr(flow, name, flow.float64)
        STANDS["oneflow", name] = torch.float64
    try:
        yield
    finally:
        for name, dtype in names.items():
            setattr(flow, name, dtype)
            del STANDS["oneflow", name]
        ours.float()
        theirs.float()


def agrees(report: dict[str, Any]) -> bool:
    """Whether outputs and gradients are as close as they must be, each mode in either precision."""
    return all(
        any(
            report.get(mode + k, [9, 9])[0] <= 1e-4 and report[mode + k][1] <= 1e-3
            for k in ("", "_double")
        )
        for mode in ("eval", "train")
    )
