"""The hand-fused GPU kernels, launched through CuPy. Import this once a CUDA device is used; it
needs CuPy.

Registered for float32 and float64. Half precision goes through the generic CuPy kernels, and GELU
and dropout, which have none, through float32 copies. Inputs that are not contiguous are copied.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import cupy as cp
import numpy as np

from oneflow.core.rng import Rng
from oneflow.kernels.cuda_sources import SOURCES, THREADS, source_of
from oneflow.kernels.dropout import keep_scale, threshold
from oneflow.kernels.registry import kernel

_FUSED: dict[str, Any] = {"device": "cuda", "dtypes": ("float32", "float64")}
_HALF: dict[str, Any] = {"device": "cuda", "dtypes": ("float16", "bfloat16")}
_MAX_BLOCKS = 4096  # of a flat kernel: enough for every GPU; the loops stride over the rest
_MAX_DIMS = 6


@lru_cache(maxsize=256)
def _module(name: str, dtype: str) -> Any:
    return cp.RawModule(code=source_of(name, dtype), options=("-std=c++17",))


@lru_cache(maxsize=256)
def _function(name: str, dtype: str) -> Any:
    module = next(m for m, (_, names) in SOURCES.items() if name in names)
    return _module(module, dtype).get_function(name)


def _by_row(name: str, rows: int, out: Any, *args: Any) -> None:
    """One block per row."""
    if rows:
        _function(name, out.dtype.name)((rows,), (THREADS,), (out, *args))


def _flat(name: str, out: Any, *args: Any) -> None:
    if out.size:
        blocks = min(_MAX_BLOCKS, -(-out.size // THREADS))
        _function(name, out.dtype.name)((blocks,), (THREADS,), (out, *args))


def _whole(x: Any) -> Any:
    return cp.ascontiguousarray(x)


def _rows(x: Any) -> int:
    return math.prod(x.shape[:-1]) if x.size else 0


def _long(value: int) -> Any:
    return np.int64(value)


@kernel("softmax", **_FUSED)
def softmax(xp: Any, out: Any, x: Any) -> None:
    columns, one = _long(x.shape[-1]), out.dtype.type(1)
    _by_row("softmax", _rows(x), out, _whole(x), columns, one, _long(0))


@kernel("causal_softmax", **_FUSED)
def causal_softmax(xp: Any, out: Any, x: Any, *, scale: float = 1.0) -> None:
    columns, period = _long(x.shape[-1]), _long(x.shape[-2])
    _by_row("softmax", _rows(x), out, _whole(x), columns, out.dtype.type(scale), period)


@kernel("softmax_grad", **_FUSED)
def softmax_grad(xp: Any, d_x: Any, d_out: Any, out: Any, *, scale: float = 1.0) -> None:
    inputs = _whole(d_out), _whole(out)
    columns = _long(out.shape[-1])
    _by_row("softmax_grad", _rows(out), d_x, *inputs, columns, d_x.dtype.type(scale))


@kernel("log_softmax", **_FUSED)
def log_softmax(xp: Any, out: Any, x: Any) -> None:
    _by_row("log_softmax", _rows(x), out, _whole(x), _long(x.shape[-1]))


@kernel("log_softmax_grad", **_FUSED)
def log_softmax_grad(xp: Any, d_x: Any, d_out: Any, out: Any) -> None:
    inputs = _whole(d_out), _whole(out)
    _by_row("log_softmax_grad", _rows(out), d_x, *inputs, _long(out.shape[-1]))


@kernel("sparse_softmax_cross_entropy", **_FUSED)
def sparse_softmax_cross_entropy(
    xp: Any,
    loss: Any,
    lse: Any,
    logits: Any,
    labels: Any,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> None:
    rows, classes = logits.shape
    inputs = lse, _whole(logits), cp.ascontiguousarray(labels, dtype=np.int64)
    settings = _long(classes), _long(ignore_index), loss.dtype.type(label_smoothing)
    _by_row("cross_entropy", rows, loss, *inputs, *settings)


@kernel("sparse_softmax_cross_entropy_grad", **_FUSED)
def sparse_softmax_cross_entropy_grad(
    xp: Any,
    d_logits: Any,
    d_loss: Any,
    logits: Any,
    labels: Any,
    lse: Any,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> None:
    rows, classes = logits.shape
    targets = cp.ascontiguousarray(labels, dtype=np.int64)
    inputs = _whole(d_loss), _whole(logits), targets, _whole(lse)
    settings = _long(classes), _long(ignore_index), d_logits.dtype.type(label_smoothing)
    _by_row("cross_entropy_grad", rows, d_logits, *inputs, *settings)


_NONE = np.uint64(0)  # a null pointer


@kernel("layer_norm", **_FUSED)
def layer_norm(
    xp: Any, y: Any, mean: Any, inv_std: Any, x: Any, *affine: Any, begin_axis: int, eps: float
) -> None:
    weights = [_whole(t) for t in affine] + [_NONE] * (2 - len(affine))
    columns = _long(math.prod(x.shape[begin_axis:]))
    rows = math.prod(x.shape[:begin_axis]) if x.size else 0
    outs = y, mean, inv_std
    _by_row("layer_norm", rows, *outs, _whole(x), *weights, columns, y.dtype.type(eps))


@kernel("layer_norm_grad", **_FUSED)
def layer_norm_grad(xp: Any, d_x: Any, *rest: Any, begin_axis: int) -> None:
    d_weights, inputs = (rest[:2], rest[2:]) if len(rest) > 4 else ((), rest)
    d_y, x, mean, inv_std, *gamma = [_whole(t) for t in inputs]
    rows, columns = math.prod(x.shape[:begin_axis]), math.prod(x.shape[begin_axis:])
    shared = d_y, x, mean, inv_std
    weight = gamma[0] if gamma else _NONE
    _by_row("layer_norm_grad", rows if x.size else 0, d_x, *shared, weight, _long(columns))
    if d_weights and columns:
        function = _function("layer_norm_weight_grad", d_x.dtype.name)
        sizes = _long(rows), _long(columns)
        function((-(-columns // 32),), (32, 8), (*d_weights, *shared, *sizes))


@kernel("gelu", **_FUSED)
def gelu(xp: Any, out: Any, x: Any, *, approximate: str = "none") -> None:
    _flat("gelu", out, _whole(x), _long(x.size), np.int32(approximate == "tanh"))


@kernel("gelu_grad", **_FUSED)
def gelu_grad(xp: Any, d_x: Any, d_out: Any, x: Any, *, approximate: str = "none") -> None:
    by_tanh = np.int32(approximate == "tanh")
    _flat("gelu_grad", d_x, _whole(d_out), _whole(x), _long(x.size), by_tanh)


@kernel("dropout", **_FUSED)
def dropout(xp: Any, out: Any, x: Any, *, p: float, seed: int, rng: Rng) -> None:
    box = [_long(n) for part in _six_dims(x.shape, rng) for n in part]
    keys = np.uint32(rng.seed & 0xFFFFFFFF), np.uint32((rng.seed >> 32) & 0xFFFFFFFF)
    rule = np.uint64(threshold(p)), out.dtype.type(keep_scale(p))
    _flat("dropout", out, _whole(x), _long(x.size), *box, *rule, *keys)


def _six_dims(shape: tuple[int, ...], rng: Rng) -> list[list[int]]:
    """(shape, starts, whole shape), each of six dims: ones in front, or whole leading dims folded
    together.
    """
    parts = [list(shape), list(rng.starts), list(rng.global_shape)]
    while len(parts[0]) > _MAX_DIMS:
        size, start, whole = parts
        if size[1] != whole[1]:
            raise ValueError(f"dropout: a split of {shape} beyond six dims is not supported on GPU")
        parts = [
            [size[0] * size[1], *size[2:]],
            [start[0] * whole[1], *start[2:]],
            [whole[0] * whole[1], *whole[2:]],
        ]
    missing = _MAX_DIMS - len(parts[0])
    return [[fill] * missing + part for fill, part in zip((1, 0, 1), parts, strict=True)]


def _through_float32(name: str, function: Any) -> None:
    """Registers a half-precision version that works on float32 copies."""

    @kernel(name, **_HALF)
    def half(xp: Any, out: Any, *inputs: Any, **attrs: Any) -> None:
        wide = cp.empty(out.shape, np.float32)
        function(xp, wide, *(x.astype(np.float32) for x in inputs), **attrs)
        out[...] = wide.astype(out.dtype)


_through_float32("gelu", gelu)
_through_float32("gelu_grad", gelu_grad)
_through_float32("dropout", dropout)


@kernel("sgd_update", **_FUSED)
def sgd_update(
    xp: Any,
    out: Any,
    param: Any,
    grad: Any,
    lr: Any,
    *,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> None:
    real = out.dtype.type
    rate = cp.asarray(lr, dtype=np.float64)
    sign = real(-1 if maximize else 1)
    _flat("sgd", out, _whole(grad), rate, _long(out.size), real(weight_decay), sign)


@kernel("momentum_update", **_FUSED)
def momentum_update(
    xp: Any,
    out: Any,
    out_buf: Any,
    param: Any,
    grad: Any,
    buf: Any,
    lr: Any,
    *,
    momentum: float,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> None:
    through = (1.0, momentum) if nesterov else (0.0, 1.0)
    sign = -1.0 if maximize else 1.0
    numbers = momentum, 1.0 - dampening, *through, weight_decay, sign
    rate = cp.asarray(lr, dtype=np.float64)
    settings = map(out.dtype.type, numbers)
    _flat("momentum", out, out_buf, _whole(grad), rate, _long(out.size), *settings)


@kernel("adam_update", **_FUSED)
def adam_update(
    xp: Any,
    out: Any,
    out_m: Any,
    out_v: Any,
    param: Any,
    grad: Any,
    m: Any,
    v: Any,
    lr: Any,
    step: Any,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    do_bias_correction: bool = True,
    maximize: bool = False,
) -> None:
    real = out.dtype.type
    clock = cp.asarray(lr, dtype=np.float64), cp.asarray(step, dtype=np.int64)
    betas = np.float64(beta1), np.float64(beta2)
    flags = np.int32(decoupled), np.int32(do_bias_correction), real(-1 if maximize else 1)
    _flat(
        "adam",
        out,
        out_m,
        out_v,
        _whole(grad),
        *clock,
        _long(out.size),
        *betas,
        real(eps),
        np.float64(weight_decay),
        *flags,
    )
