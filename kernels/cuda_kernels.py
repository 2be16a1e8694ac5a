"""Hand-fused GPU kernels of elementwise ops and updates. Importing this needs CuPy.

Registered for float32 and float64; half precision goes through float32 copies. Inputs that are not
contiguous are copied.
"""

from __future__ import annotations

from typing import Any

import cupy as cp
import numpy as np

from oneflow.core.rng import Rng
from oneflow.kernels.cuda_launch import cuda_source, flat, long, whole
from oneflow.kernels.cuda_sources import SOURCES
from oneflow.kernels.dropout import keep_scale, threshold
from oneflow.kernels.registry import cuda_kernel, kernel

_HALF: dict[str, Any] = {"device": "cuda", "dtypes": ("float16", "bfloat16")}
_MAX_DIMS = 6

for _topic, _text in SOURCES.items():
    cuda_source(_topic, _text)


@cuda_kernel("gelu")
def gelu(xp: Any, out: Any, x: Any, *, approximate: str = "none") -> None:
    flat("gelu", out, whole(x), long(x.size), np.int32(approximate == "tanh"))


@cuda_kernel("gelu_grad")
def gelu_grad(xp: Any, d_x: Any, d_out: Any, x: Any, *, approximate: str = "none") -> None:
    by_tanh = np.int32(approximate == "tanh")
    flat("gelu_grad", d_x, whole(d_out), whole(x), long(x.size), by_tanh)


@cuda_kernel("dropout")
def dropout(xp: Any, out: Any, x: Any, *, p: float, seed: int, rng: Rng) -> None:
    box = [long(n) for part in _six_dims(x.shape, rng) for n in part]
    keys = np.uint32(rng.seed & 0xFFFFFFFF), np.uint32((rng.seed >> 32) & 0xFFFFFFFF)
    rule = np.uint64(threshold(p)), out.dtype.type(keep_scale(p))
    flat("dropout", out, whole(x), long(x.size), *box, *rule, *keys)


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


@cuda_kernel("sgd_update")
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
    flat("sgd", out, whole(grad), rate, long(out.size), real(weight_decay), sign)


@cuda_kernel("momentum_update")
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
    flat("momentum", out, out_buf, whole(grad), rate, long(out.size), *settings)


@cuda_kernel("adam_update")
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
    flat(
        "adam",
        out,
        out_m,
        out_v,
        whole(grad),
        *clock,
        long(out.size),
        *betas,
        real(eps),
        np.float64(weight_decay),
        *flags,
    )
