"""One row per activation: attributes, and its value in float64.

The op's kernels, signatures and gradients, the function, the layer and the layer in a graph are all
tested with these rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from oneflow.api import ROWS
from oneflow.core.op import REGISTRY, find_op

from .sample import Array, Sample, normal

Reference = Callable[..., Any]

X = normal(5, 4) * 2  # on both sides of every corner below, and on none


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _elu(x: Array, alpha: float, scale: float = 1.0) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(x / scale))


_PHI = np.vectorize(lambda x: 0.5 * (1 + math.erf(x / math.sqrt(2))), otypes=[np.float64])
_ROOT = math.sqrt(2 / math.pi)


def _gelu(x: Array, approximate: str) -> Array:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(_ROOT * (x + 0.044715 * x**3)))
    return x * _PHI(x)


def _threshold(x: Array, threshold: float, value: float) -> Array:
    return np.where(x > threshold, x, value)


def _softplus(x: Array, beta: float, threshold: float) -> Array:
    return np.where(beta * x > threshold, x, np.log1p(np.exp(beta * x)) / beta)


def _log_sigmoid(x: Array) -> Array:
    return np.minimum(x, 0) - np.log1p(np.exp(-abs(x)))


ACTIVATIONS: list[tuple[str, dict[str, Any], Reference]] = [
    ("relu", {}, lambda x: np.maximum(x, 0)),
    ("silu", {}, lambda x: x * _sigmoid(x)),
    ("sigmoid", {}, _sigmoid),
    ("tanh", {}, np.tanh),
    ("gelu", {"approximate": "none"}, _gelu),
    ("gelu", {"approximate": "tanh"}, _gelu),
    ("quick_gelu", {}, lambda x: x * _sigmoid(1.702 * x)),
    ("square_relu", {}, lambda x: np.maximum(x, 0) ** 2),
    ("mish", {}, lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    ("elu", {"alpha": 0.7}, _elu),
    ("celu", {"alpha": 0.7}, lambda x, alpha: _elu(x, alpha, alpha)),
    ("selu", {}, lambda x: 1.0507009873554805 * _elu(x, 1.6732632423543772)),
    ("leaky_relu", {"negative_slope": 0.1}, lambda x, negative_slope: np.where(x > 0, x, x * 0.1)),
    ("leaky_relu", {"negative_slope": 1.5}, lambda x, negative_slope: np.where(x > 0, x, x * 1.5)),
    ("relu6", {}, lambda x: (x * 1.0).clip(0, 6)),
    ("hardtanh", {"min_val": -0.5, "max_val": 2.0}, lambda x, min_val, max_val: x.clip(-0.5, 2.0)),
    ("hardsigmoid", {}, lambda x: ((x + 3) / 6).clip(0, 1)),
    ("hardswish", {}, lambda x: x * ((x + 3) / 6).clip(0, 1)),
    ("hardshrink", {"lambd": 0.3}, lambda x, lambd: np.where(abs(x) > lambd, x, 0)),
    ("softshrink", {"lambd": 0.3}, lambda x, lambd: np.sign(x) * np.maximum(abs(x) - lambd, 0)),
    ("threshold", {"threshold": 0.3, "value": -7.0}, _threshold),
    ("softplus", {"beta": 2.0, "threshold": 3.0}, _softplus),
    ("logsigmoid", {}, _log_sigmoid),
    ("softsign", {}, lambda x: x / (1 + abs(x))),
    ("tanhshrink", {}, lambda x: x - np.tanh(x)),
]  # fmt: skip

_IN_SAMPLES_PY = ("relu", "silu", "sigmoid", "tanh", "gelu")

ACTIVATION_SAMPLES = [
    Sample(name, (x,), attrs, reference)
    for name, attrs, reference in ACTIVATIONS
    if name not in _IN_SAMPLES_PY
    for x in (X, X.reshape(-1)[1:2].reshape(()))
]
_BOUNDS = {"min_val": -2, "max_val": 3}
ACTIVATION_SAMPLES += [
    Sample("hardtanh", (np.arange(-4, 5),), _BOUNDS, lambda x, **_: x.clip(-2, 3)),
    Sample("relu6", (np.arange(-4, 9, 3),), {}, lambda x: x.clip(0, 6)),
    Sample("logsigmoid", (np.array([-900.0, -20.0, 0.0, 40.0]),), {}, _log_sigmoid),
]

LAYERS = {row.names[0]: row.layer for row in ROWS if row.layer}
"""Name of a function -> the layer that is made of it."""


def missing() -> set[str]:
    """Activations of the table, and ops of ops/activation.py, without a row here."""
    of_table = {f for f, layer in LAYERS.items() if f in REGISTRY}
    declared = {n for n, op in REGISTRY.items() if op.declared_by is not None and not op.mutates}
    return (of_table | declared) - {find_op(name).name for name, *_ in ACTIVATIONS}
