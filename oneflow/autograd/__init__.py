"""Automatic differentiation: a tape over ops, and the backward pass over it."""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = {
    "backward": "api",
    "grad": "api",
    "Function": "function",
    "FunctionCtx": "function",
    "once_differentiable": "function",
    "no_grad": "grad_mode",
    "enable_grad": "grad_mode",
    "set_grad_enabled": "grad_mode",
    "inference_mode": "grad_mode",
    "is_grad_enabled": "grad_mode",
}
_MODULES = ("functional", "function", "graph")


def __getattr__(name: str) -> Any:
    # Found late: the tape is imported by what these import.
    if name in _NAMES:
        return getattr(importlib.import_module(f"oneflow.autograd.{_NAMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"oneflow.autograd.{name}")
    raise AttributeError(f"module 'oneflow.autograd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted((*_NAMES, *_MODULES))
