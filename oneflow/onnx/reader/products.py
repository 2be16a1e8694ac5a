"""Products, convolutions, pools and resizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from oneflow.onnx.reader.step import Array, Step, constant, flow, layer, runs
from oneflow.ops.pool import roi_align
from oneflow.tensor.tensor import Tensor


@runs("Gemm")
def _gemm(step: Step) -> Any:
    a, b, alpha, beta = step.x(0), step.x(1), step.get("alpha", 1.0), step.get("beta", 1.0)
    is_turned = bool(step.get("transB", 0))
    bias = step.maybe(2)
    a = a.transpose(0, 1) if step.get("transA", 0) else a
    if is_turned and alpha == beta == 1.0 and bias is not None and bias.ndim == 1:
        return layer("linear")(a, b, bias)
    made = flow("matmul")(a, b.transpose(0, 1) if is_turned else b)
    made = made if alpha == 1.0 else made * alpha
    return made if bias is None else made + (bias if beta == 1.0 else bias * beta)


def _pads(step: Step, x: Tensor, kernel: Sequence[int]) -> tuple[list[int], list[int]]:
    """Padding before and after each spatial dim."""
    spatial, count = x.shape[2:], len(kernel)
    way = step.get("auto_pad", b"NOTSET")
    way = way.decode() if isinstance(way, bytes) else way
    if way in ("NOTSET", "VALID"):
        pads = list(step.get("pads", [0] * 2 * count)) if way == "NOTSET" else [0] * 2 * count
        return pads[:count], pads[count:]
    strides, dilations = step.get("strides", [1] * count), step.get("dilations", [1] * count)
    whole = [
        max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
        for n, k, s, d in zip(spatial, kernel, strides, dilations, strict=True)
    ]
    less = [w // 2 for w in whole]
    more = [w - h for w, h in zip(whole, less, strict=True)]
    return (less, more) if way == "SAME_UPPER" else (more, less)


def _around(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Padding in the order of `pad`: the last dim first."""
    pairs = zip(reversed(before), reversed(after), strict=True)
    return [size for pair in pairs for size in pair]


@runs("Conv")
def _conv(step: Step) -> Any:
    x, w = step.x(0), step.x(1)
    kernel = w.shape[2:]
    count = len(kernel)
    before, after = _pads(step, x, kernel)
    if before != after:
        x = layer("pad")(x, _around(before, after))
        before = [0] * count
    return layer(f"conv{count}d")(
        x, w, step.maybe(2), tuple(step.get("strides", [1] * count)), tuple(before),
        tuple(step.get("dilations", [1] * count)), step.get("group", 1),
    )  # fmt: skip


@runs("ConvTranspose")
def _conv_transpose(step: Step) -> Any:
    x, w = step.x(0), step.x(1)
    count = w.ndim - 2
    if step.get("output_shape") or step.get("auto_pad", b"NOTSET") not in (b"NOTSET", "NOTSET"):
        raise step.refuse("has output_shape or auto_pad, which are not read")
    pads = list(step.get("pads", [0] * 2 * count))
    before, after = pads[:count], pads[count:]
    is_even = before == after
    made = layer(f"conv_transpose{count}d")(
        x, w, step.maybe(2), stride=tuple(step.get("strides", [1] * count)),
        padding=tuple(before) if is_even else (0,) * count,
        output_padding=tuple(step.get("output_padding", [0] * count)),
        groups=step.get("group", 1), dilation=tuple(step.get("dilations", [1] * count)),
    )  # fmt: skip
    if is_even:
        return made
    key = [slice(None), slice(None)]
    for size, first, last in zip(made.shape[2:], before, after, strict=True):
        key.append(slice(first, size - last))
    return made[tuple(key)]


@runs("MaxPool", "AveragePool")
def _pool(step: Step) -> Any:
    x, kernel = step.x(), tuple(step.get("kernel_shape"))
    count = len(kernel)
    before, after = _pads(step, x, kernel)
    strides, ceil = tuple(step.get("strides", [1] * count)), bool(step.get("ceil_mode", 0))
    is_wide = any(2 * p > k for p, k in zip(before, kernel, strict=True))
    is_even = before == after and not is_wide
    dilations = tuple(step.get("dilations", [1] * count))
    if step.node.op_type == "AveragePool":
        if set(dilations) != {1}:
            raise step.refuse("has dilations, which are not read")
        include = bool(step.get("count_include_pad", 0))
        return _average(x, kernel, strides, (before, after), is_even, ceil, include)
    plane = x.shape[2:]
    if not is_even:
        x = layer("pad")(x, _around(before, after), value=float("-inf"))
    padding = tuple(before) if is_even else (0,) * count
    wants_index = len(step.node.output) > 1 and bool(step.node.output[1])
    made = layer(f"max_pool{count}d")(
        x, kernel, strides, padding, dilation=dilations, ceil_mode=ceil, return_indices=wants_index
    )
    if not wants_index:
        return made
    return made[0], _positions(made[1], x, [0] * count if is_even else before, plane)


def _positions(index: Tensor, x: Tensor, before: Sequence[int], plane: Sequence[int]) -> Tensor:
    """Positions of maxima among all elements, from those in each plane of x, which was padded."""
    sizes, rest, places, stride = x.shape[2:], index, index * 0, 1
    for dim in reversed(range(len(sizes))):
        along = flow("remainder")(rest, sizes[dim]) - before[dim]
        rest = flow("div")(rest, sizes[dim], rounding_mode="floor")
        places = places + along * stride
        stride *= plane[dim]
    n, c = x.shape[:2]
    firsts: Tensor = flow("arange")(n * c).reshape(n, c, *[1] * len(sizes)) * stride
    return places + firsts


@runs("RoiAlign")
def _roi_align(step: Step) -> Any:
    way = _text(step, "coordinate_transformation_mode", "half_pixel")
    if _text(step, "mode", "avg") != "avg":
        raise step.refuse("takes the maximum of its cells, which is not read")
    return roi_align(
        step.x(0), step.x(1), step.x(2),
        size=(step.get("output_height", 1), step.get("output_width", 1)),
        scale=step.get("spatial_scale", 1.0), sampling_ratio=step.get("sampling_ratio", 0),
        aligned=way == "half_pixel" and step.opset >= 16,
    )  # fmt: skip


def _average(
    x: Tensor, kernel: tuple[int, ...], strides: tuple[int, ...],
    pads: tuple[list[int], list[int]], is_even: bool, ceil: bool, include: bool,
) -> Any:  # fmt: skip
    pool = layer(f"avg_pool{len(kernel)}d")
    if is_even:
        padding = tuple(pads[0])
        return pool(x, kernel, strides, padding, ceil_mode=ceil, count_include_pad=include)
    around = _around(*pads)
    made = pool(layer("pad")(x, around), kernel, strides, 0, ceil_mode=ceil)
    if include:
        return made
    ones = flow("ones_like")(x[:1, :1])
    return made / pool(layer("pad")(ones, around), kernel, strides, 0, ceil_mode=ceil)


# ---- resizing ------------------------------------------------------------------------------------


@runs("Resize", "Upsample")
def _resize(step: Step) -> Any:
    """A product with the weights of the specification along each dim that changes."""
    x = step.x()
    sizes, scales = _sizes(step, x)
    if step.get("antialias", 0):
        raise step.refuse("has antialias, which is not read")
    for dim, (size, scale) in enumerate(zip(sizes, scales, strict=True)):
        if size != x.shape[dim] or scale != 1.0:
            weights = constant(x, _weights(step, x.shape[dim], size, scale))
            moved = flow("matmul")(x.transpose(dim, -1), weights)
            x = moved.transpose(dim, -1)
    return x


def _sizes(step: Step, x: Tensor) -> tuple[list[int], list[float]]:
    """The size of each dim, and its ratio to the old one."""
    axes = [a % x.ndim for a in step.get("axes", range(x.ndim))]
    sizes, scales = list(x.shape), [1.0] * x.ndim
    where = 2 if step.opset >= 11 and step.node.op_type == "Resize" else 1
    given = step.known(where).reshape(-1) if step.has(where) else np.array([])
    if given.size:
        for axis, scale in zip(axes, given, strict=True):
            sizes[axis], scales[axis] = int(np.floor(x.shape[axis] * scale)), float(scale)
    elif step.has(3):
        for axis, size in zip(axes, step.known(3).reshape(-1), strict=True):
            sizes[axis], scales[axis] = int(size), int(size) / x.shape[axis]
    else:
        raise step.refuse("has neither scales nor sizes")
    return sizes, scales


def _text(step: Step, name: str, default: str) -> str:
    value = step.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def _weights(step: Step, old: int, size: int, scale: float) -> Array:
    """(old, size): the share of each old place in each new one."""
    default = "half_pixel" if step.opset >= 11 else "asymmetric"
    way = _text(step, "coordinate_transformation_mode", default)
    places = np.arange(size)
    if way == "align_corners":
        at = places * ((old - 1) / max(size - 1, 1))
    elif way == "asymmetric":
        at = places / scale
    elif way == "pytorch_half_pixel" and size == 1:
        at = np.zeros(1)
    elif way in ("half_pixel", "pytorch_half_pixel"):
        at = (places + 0.5) / scale - 0.5
    else:
        raise step.refuse(f"has coordinates {way}, which are not read")
    mode = _text(step, "mode", "nearest")
    made = np.zeros((old, size))
    for offset, shares in _shares(step, mode, at):
        np.add.at(made, (np.clip(offset, 0, old - 1), places), shares)
    return made


def _shares(step: Step, mode: str, at: Array) -> list[tuple[Array, Array]]:
    """Neighbours of places, each with its share."""
    if mode == "nearest":
        return [(_nearest(step, at).astype(np.int64), np.ones(len(at)))]
    first = np.floor(at).astype(np.int64)
    part = at - first
    if mode == "linear":
        return [(first, 1 - part), (first + 1, part)]
    a = step.get("cubic_coeff_a", -0.75)
    inner = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (part, 1 - part)]
    outer = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (part + 1, 2 - part)]
    return [(first - 1, outer[0]), (first, inner[0]), (first + 1, inner[1]), (first + 2, outer[1])]


def _nearest(step: Step, at: Array) -> Array:
    default = "round_prefer_floor" if step.opset >= 11 else "floor"
    way = _text(step, "nearest_mode", default)
    if way == "floor":
        return np.asarray(np.floor(at + 1e-9))
    if way == "ceil":
        return np.asarray(np.ceil(at - 1e-9))
    return np.asarray(np.ceil(at - 0.5) if way == "round_prefer_floor" else np.floor(at + 0.5))
