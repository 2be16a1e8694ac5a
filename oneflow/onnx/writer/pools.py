"""Pools and resizing. Those without an operator in runtimes are products with constant weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from oneflow.core.dtype import DType, float32, int64
from oneflow.onnx.writer.builder import Builder, Call
from oneflow.onnx.writer.elementwise import filled
from oneflow.onnx.writer.products import transposed_conv
from oneflow.onnx.writer.sizes import is_dynamic, product
from oneflow.onnx.writer.table import writes
from oneflow.ops import pool
from oneflow.tensor.tensor import wrap

Array = np.ndarray[Any, Any]


def _overhang(call: Call, sizes: tuple[int, ...], positions: tuple[int, ...]) -> list[int]:
    """Padding at the end, with which the last window of each dim ends inside."""
    a = call.attrs
    dilation = a.get("dilation") or (1,) * len(sizes)
    found = []
    for size, count, k, s, p, d in zip(
        sizes, positions, a["kernel"], a["stride"], a["padding"], dilation, strict=True
    ):
        end = (count - 1) * s + d * (k - 1) + 1 - size - p
        found.append(p if is_dynamic(end) and not a["ceil_mode"] else max(end, p))
    if is_dynamic(tuple(found)):
        raise call.refuse("has ceil_mode=True and a dynamic dim; fix the sizes")
    return found


@writes("max_pool")
def _max_pool(b: Builder, call: Call) -> tuple[str, ...]:
    a, (type_,) = call.attrs, call.types
    ends = _overhang(call, type_.shape[2:], call.results[0].shape[2:])
    outputs = 2 if call.is_read(1) else 1
    made = b.many("MaxPool", outputs, call.inputs[0], kernel_shape=list(a["kernel"]),
                  strides=list(a["stride"]), dilations=list(a["dilation"]),
                  pads=[*a["padding"], *ends])  # fmt: skip
    if outputs == 1:
        return made[0], ""
    plane = b.number(product(type_.shape[2:]), int64)
    return made[0], b("Mod", made[1], plane)  # ONNX counts over all samples and channels


@writes("max_pool_grad")
def _max_pool_grad(b: Builder, call: Call) -> str:
    (d, indices), (type_, _) = call.inputs, call.types
    lead, spatial = type_.shape[:2], call.attrs["spatial"]
    flat = (*lead, product(type_.shape[2:]))
    zeros = filled(b, (*lead, product(spatial)), 0, type_.dtype)
    index, d = b.reshape(indices, flat), b.reshape(d, flat)
    made = b("ScatterElements", zeros, index, d, axis=2, reduction="add")
    return b.reshape(made, (*lead, *spatial))


# ---- averages ------------------------------------------------------------------------------------


def _divisors(call: Call, sizes: tuple[int, ...], positions: tuple[int, ...]) -> Array:
    """The number by which each window's sum is divided."""
    a = call.attrs
    if a["divisor_override"]:
        return np.full(positions, a["divisor_override"], np.float64)
    made = np.ones((1,) * len(sizes))
    for i, (size, count) in enumerate(zip(sizes, positions, strict=True)):
        k, s, p = (a[key][i] for key in ("kernel", "stride", "padding"))
        first = np.arange(count) * s - p
        low, high = (-p, size + p) if a["count_include_pad"] else (0, size)
        along = np.minimum(first + k, high) - np.maximum(first, low)
        made = made * along.reshape([-1 if j == i else 1 for j in range(len(sizes))])
    return made


@writes("avg_pool")
def _avg_pool(b: Builder, call: Call) -> str:
    a, (type_,) = call.attrs, call.types
    sizes, positions = type_.shape[2:], call.results[0].shape[2:]
    ends = _overhang(call, sizes, positions)
    given = {"kernel_shape": list(a["kernel"]), "strides": list(a["stride"]),
             "pads": [*a["padding"], *ends]}  # fmt: skip
    if not a["divisor_override"] and ends == list(a["padding"]):
        include = int(a["count_include_pad"] or not any(ends))
        return b("AveragePool", call.inputs[0], count_include_pad=include, **given)
    if is_dynamic((sizes, positions)):
        raise call.refuse("has windows that differ, and a dynamic dim; export it with fixed sizes")
    means = b("AveragePool", call.inputs[0], count_include_pad=1, **given)
    weights = np.prod(a["kernel"]) / _divisors(call, sizes, positions)
    return b("Mul", means, b.constant(weights.astype(type_.dtype.np)))


@writes("avg_pool_grad")
def _avg_pool_grad(b: Builder, call: Call) -> str:
    a, (type_,) = call.attrs, call.types
    spatial, positions, channels = a["spatial"], type_.shape[2:], type_.shape[1]
    if is_dynamic((spatial, positions, channels)):
        raise call.refuse("has a dynamic dim; export it with fixed sizes")
    shares = (1 / _divisors(call, spatial, positions)).astype(type_.dtype.np)
    d = b("Mul", call.inputs[0], b.constant(shares))
    kernel = b.constant(np.ones((channels, 1, *a["kernel"]), type_.dtype.np))
    ones = (1,) * len(spatial)
    return transposed_conv(
        b, d, kernel, positions, tuple(a["kernel"]), spatial, a["stride"], a["padding"], ones,
        channels, type_.dtype,
    )  # fmt: skip


@writes("adaptive_avg_pool")
def _adaptive(b: Builder, call: Call) -> str:
    (x,), (type_,), wanted = call.inputs, call.types, call.attrs["output_size"]
    sizes = type_.shape[2:]
    if all(n == 1 for n in wanted):
        return b("GlobalAveragePool", x)
    if is_dynamic((sizes, wanted)):
        raise call.refuse("averages a dynamic dim to a fixed size; export it with fixed sizes")
    if all(size % n == 0 for size, n in zip(sizes, wanted, strict=True)):
        window = [size // n for size, n in zip(sizes, wanted, strict=True)]
        return b("AveragePool", x, kernel_shape=window, strides=window)
    for i, n in enumerate(wanted):
        weights = _shares(sizes[i], n)
        x = _weighted(b, x, weights, i + 2, type_.ndim, type_.dtype)
    return x


@writes("adaptive_avg_pool_grad")
def _adaptive_grad(b: Builder, call: Call) -> str:
    (d,), (type_,), spatial = call.inputs, call.types, call.attrs["spatial"]
    if is_dynamic((type_.shape, spatial)):
        raise call.refuse("has a dynamic dim; export it with fixed sizes")
    for i, size in enumerate(spatial):
        d = _weighted(b, d, _shares(size, type_.shape[i + 2]).T, i + 2, type_.ndim, type_.dtype)
    return d


def _shares(size: int, count: int) -> Array:
    """The share of each of `size` places in each of `count` means."""
    made = _matrix(lambda x: pool.adaptive_avg_pool(x, output_size=(count,)), size)
    return np.ascontiguousarray(made.T)


def _matrix(function: Callable[[Any], Any], size: int) -> Array:
    """The matrix of a linear function of one dim, a column for each place that it reads."""
    ones = wrap(np.eye(size, dtype=np.float64)[:, None])
    made: Array = np.asarray(function(ones).numpy())
    return np.ascontiguousarray(made[:, 0].T)


def _weighted(b: Builder, x: str, weights: Array, dim: int, ndim: int, dtype: DType) -> str:
    """x with weights, (places read, places made), applied along a dim."""
    order = [*(i for i in range(ndim) if i != dim), dim]
    made = b("MatMul", b.transpose(x, order), b.constant(weights.astype(dtype.np)))
    return b.transpose(made, list(np.argsort(order)))


# ---- resizing ------------------------------------------------------------------------------------


@writes("resize")
def _resize(b: Builder, call: Call) -> str:
    (x,), (type_,), a = call.inputs, call.types, call.attrs
    dim, size, old = a["dim"], a["size"], type_.shape[a["dim"]]
    if is_dynamic((size, old)) or _is_known(b, call, old, size):
        mode = {"nearest-exact": "nearest"}.get(a["mode"], a["mode"])
        way = {"align_corners": "align_corners"}.get("align_corners" * bool(a["align_corners"]))
        if way is None:
            way = "asymmetric" if a["mode"] == "nearest" else "half_pixel"
        rounding = {"nearest": "floor", "nearest-exact": "round_prefer_ceil"}.get(a["mode"])
        sizes = [size if i == dim else n for i, n in enumerate(type_.shape)]
        return b("Resize", x, "", "", b.ints(sizes), mode=mode, nearest_mode=rounding,
                 coordinate_transformation_mode=way,
                 cubic_coeff_a=-0.75 if mode == "cubic" else None)  # fmt: skip
    return _weighted(b, x, _weights(call, old, size).T, dim, type_.ndim, type_.dtype)


def _is_known(b: Builder, call: Call, old: int, size: int) -> bool:
    """Whether the operator of ONNX computes the same, in all runtimes."""
    a = call.attrs
    if (
        b.opset < 13
        or a["antialias"]
        or call.types[0].dtype is not float32
        or call.types[0].ndim != 4
    ):
        return False
    return a["mode"] in ("nearest", "linear") and (not a["factor"] or size == old * a["factor"])


def _weights(call: Call, old: int, size: int) -> Array:
    """The matrix of a resize, as the op itself computes it."""
    way = {k: call.attrs[k] for k in ("mode", "factor", "align_corners", "antialias")}
    return _matrix(lambda x: pool.resize(x, dim=2, size=size, **way), old)


@writes("resize_grad")
def _resize_grad(b: Builder, call: Call) -> str:
    (d,), (type_,), a = call.inputs, call.types, call.attrs
    if is_dynamic((type_.shape, a["size"])):
        raise call.refuse("has a dynamic dim; export it with fixed sizes")
    weights = _weights(call, a["size"], type_.shape[a["dim"]])
    return _weighted(b, d, weights, a["dim"], type_.ndim, type_.dtype)


@writes("roi_align")
def _roi_align(b: Builder, call: Call) -> str:
    a = call.attrs
    way = "half_pixel" if a["aligned"] else "output_half_pixel"
    rows, columns = a["size"]
    boxes = b.cast(call.inputs[1], call.types[0].dtype, call.types[1].dtype)
    return b("RoiAlign", call.inputs[0], boxes, call.inputs[2], output_height=rows,
             output_width=columns, sampling_ratio=max(a["sampling_ratio"], 0),
             spatial_scale=float(a["scale"]), coordinate_transformation_mode=way)  # fmt: skip
