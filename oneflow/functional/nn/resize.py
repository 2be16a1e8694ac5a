"""Tensors (N, C, ...) resized: nearest places, linear or cubic interpolation, means of areas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from oneflow.core.dtype import float64, uint8
from oneflow.core.errors import ArgumentError, DTypeError
from oneflow.functional.dims import Size, one_dim, spatial_sizes
from oneflow.functional.from_data import beside
from oneflow.functional.gather_scatter import index_select
from oneflow.functional.linalg.products import matmul
from oneflow.functional.promotion import as_type
from oneflow.functional.shaping import reshape
from oneflow.kernels.array import Array
from oneflow.kernels.neighbours import weights
from oneflow.ops.pool import Way, adaptive_avg_pool, resize
from oneflow.tensor.tensor import Tensor
from oneflow.tensor.views import apart

_MODES = {
    "nearest": (1, 2, 3),
    "nearest-exact": (1, 2, 3),
    "linear": (1,),
    "bilinear": (2,),
    "bicubic": (2,),
    "trilinear": (3,),
    "area": (1, 2, 3),
}
"""Mode -> numbers of spatial dims."""


Factors: TypeAlias = "float | Sequence[float]"


def interpolate(
    input: Tensor,
    size: Size | None = None,
    scale_factor: Factors | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """(N, C, ...) resized to `size` or by `scale_factor`.

    mode: nearest, nearest-exact, linear, bilinear, bicubic, trilinear or area.  antialias: of
    bilinear and bicubic: where the result is smaller, weights reach over all that a place stands
    for.
    """
    ndim = input.ndim - 2
    if (size is None) == (scale_factor is None):
        raise ArgumentError("interpolate: give either size or scale_factor")
    if antialias and (mode not in ("bilinear", "bicubic") or ndim != 2):
        raise ArgumentError(
            "interpolate: Anti-alias option is restricted to bilinear and bicubic modes and "
            f"requires a 4-D tensor as input, got {mode!r} of {input.meta}"
        )
    if mode not in _MODES:
        raise ArgumentError(f"interpolate: mode must be one of {', '.join(_MODES)}, got {mode!r}")
    if ndim not in _MODES[mode] and not (ndim in (1, 2, 3) and mode.endswith("linear")):
        raise ArgumentError(f"interpolate: mode {mode!r} does not resize {input.meta}")
    wanted, factors = _wanted(input, size, scale_factor, bool(recompute_scale_factor))
    dtype = input.meta.dtype
    is_picture = dtype is uint8 and mode.endswith(("linear", "cubic"))
    if not (dtype.is_floating_point or is_picture or mode.startswith("nearest")):
        raise DTypeError(
            f"interpolate: mode {mode!r} does not resize {input.meta}; use a floating-point dtype, "
            "or uint8 for pictures"
        )
    if mode == "area":
        return adaptive_avg_pool(input, output_size=tuple(wanted))
    x = input
    # Rows before columns: bytes are rounded after each, and PyTorch takes them in this order.
    for k, (n, factor) in reversed([*enumerate(zip(wanted, factors, strict=True))]):
        old, way = x.meta.shape[k + 2], _way(mode, factor, bool(align_corners), antialias)
        if mode == "nearest" and n == 2 * old:
            way["factor"] = 0.0
        if _stays(old, n, way):
            continue
        if is_picture:
            x = _bytes_times(x, k + 2, weights(old, n, **way))
        elif dtype.is_floating_point:
            x = resize(x, dim=k + 2, size=n, **way)
        else:
            x = index_select(x, k + 2, beside(x, weights(old, n, **way).argmax(0)))
    return apart(x, input)


def _way(mode: str, factor: float | None, align_corners: bool, antialias: bool) -> Way:
    kind = mode if mode.startswith("nearest") else "cubic" if mode == "bicubic" else "linear"
    is_near = kind.startswith("nearest")
    return Way(
        mode=kind, factor=float(factor or 0), align_corners=align_corners and not is_near,
        antialias=antialias,
    )  # fmt: skip


def _stays(old: int, size: int, way: Way) -> bool:
    """Whether all stays as it is. As in PyTorch, lines between places do so for each dim that keeps
    its size, with any factor."""
    if size != old or way["antialias"]:
        return False
    is_free = way["align_corners"] or way["mode"] in ("linear", "nearest")
    return is_free or way["factor"] in (0.0, 1.0)


upsample = interpolate


def _wanted(
    x: Tensor, size: Size | None, scale_factor: Factors | None, recompute: bool
) -> tuple[list[int], list[float | None]]:
    """Sizes of the result, and by which factors positions are scaled (None: by the sizes)."""
    ndim = x.ndim - 2
    if size is not None:
        return list(spatial_sizes(size, ndim)), [None] * ndim
    many = scale_factor if isinstance(scale_factor, (tuple, list)) else [scale_factor] * ndim
    wanted = [math.floor(n * f) for n, f in zip(x.meta.shape[2:], many, strict=True)]
    return wanted, [None] * ndim if recompute else list(many)


def _times(x: Tensor, dim: int, weights: Array) -> Tensor:
    """A dim multiplied by weights (old, new), without gaps in memory: programs take a `view`."""
    at = one_dim(dim, x.ndim, "interpolate")
    lead, (old, *behind) = x.meta.shape[:at], x.meta.shape[at:]
    if not behind:
        return matmul(x, as_type(beside(x, weights), x.meta.dtype))
    table = as_type(beside(x, np.ascontiguousarray(weights.T)), x.meta.dtype)
    made = matmul(table, reshape(x, (*lead, old, math.prod(behind))))
    return reshape(made, (*lead, weights.shape[1], *behind))


def _bytes_times(x: Tensor, dim: int, weights: Array) -> Tensor:
    """A dim of uint8 multiplied by weights in fixed point, and rounded.

    The weights have as many bits behind the point as the largest leaves of 16, as in PyTorch: so
    pictures are the same to the last bit.
    """
    bits = 0
    while bits < 22 and 0.5 + weights.max() * 2.0 ** (bits + 1) < 2**15:
        bits += 1
    fixed = np.trunc(weights * 2.0**bits + np.copysign(0.5, weights))
    total = _times(as_type(x, float64), dim, fixed)  # integers below 2 ** 53: exact
    return as_type(((total + 2.0 ** (bits - 1)) / 2.0**bits).floor().clamp(0, 255), uint8)


def upsample_nearest(
    input: Tensor, size: Size | None = None, scale_factor: Factors | None = None
) -> Tensor:
    """`interpolate` by the nearest places."""
    return interpolate(input, size, scale_factor, "nearest")


def upsample_bilinear(
    input: Tensor, size: Size | None = None, scale_factor: Factors | None = None
) -> Tensor:
    """`interpolate` by lines between places; the corner pixels stay corners."""
    return interpolate(input, size, scale_factor, "bilinear", True)


def interpolate_like(
    input: Tensor, like: Tensor, mode: str = "nearest", align_corners: bool | None = None
) -> Tensor:
    """`interpolate` to the spatial size of `like`."""
    return interpolate(
        input, like.meta.shape[2:], mode=mode, align_corners=bool(align_corners) or None
    )
