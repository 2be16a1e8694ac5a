"""Pooling as a loop over the positions of the window, each a strided view of all samples."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np

from oneflow.core import dtype as dtypes
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.conv import at
from oneflow.kernels.registry import kernel
from oneflow.ops.pool import MaxPool


def _reach(positions: Any, kernel: Any, stride: Any, dilation: Any) -> list[int]:
    """How far the windows reach along each dim, counted from the start of the padding."""
    sizes = zip(positions, kernel, stride, dilation, strict=True)
    return [(n - 1) * s + (k - 1) * d + 1 for n, k, s, d in sizes]


def _padded_type(
    x: TensorType, positions: Any, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> TensorType:
    """x with padding on both sides, and with what the last windows overhang."""
    reach = _reach(positions, kernel, stride, dilation)
    sizes = zip(x.shape[2:], padding, reach, strict=True)
    return x.with_shape((*x.shape[:2], *(max(size + 2 * p, r) for size, p, r in sizes)))


def _window(padded: Any, offset: Any, positions: Any, stride: Any, dilation: Any) -> Any:
    cuts = [
        slice(o * d, o * d + (n - 1) * s + 1, s)
        for o, n, s, d in zip(offset, positions, stride, dilation, strict=True)
    ]
    return padded[at(slice(None), slice(None), *cuts)]


def _inside(padded: Any, spatial: Any, padding: Any) -> Any:
    cuts = [slice(p, p + size) for p, size in zip(padding, spatial, strict=True)]
    return padded[at(slice(None), slice(None), *cuts)]


def _source_index(
    xp: Any, offset: Any, positions: Any, spatial: Any, stride: Any, padding: Any, dilation: Any
) -> Any:
    """Flat spatial index that kernel position `offset` meets in each window; meaningless in the
    padding.
    """
    index = xp.zeros((), dtype=xp.int64)
    for o, n, size, s, p, d in zip(
        offset, positions, spatial, stride, padding, dilation, strict=True
    ):
        index = index[..., None] * size + (xp.arange(n) * s + o * d - p)
    return index


def _max_workspace(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
    out = MaxPool.infer(types[0], **attrs)[0]
    geometry = {k: v for k, v in attrs.items() if k != "ceil_mode"}
    return _padded_type(types[0], out.shape[2:], **geometry), out.with_dtype(dtypes.bool_)


@kernel("max_pool", workspace=_max_workspace)
def max_pool(
    xp: Any,
    out: Any,
    indices: Any,
    x: Any,
    padded: Any,
    better: Any,
    *,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool = False,
) -> None:
    positions, spatial = out.shape[2:], x.shape[2:]
    padded[...] = -xp.inf
    _inside(padded, spatial, padding)[...] = x
    out[...] = -xp.inf
    indices[...] = 0
    for offset in product(*map(range, kernel)):
        values = _window(padded, offset, positions, stride, dilation)
        xp.greater(values, out, out=better)
        xp.logical_or(better, xp.isnan(values), out=better)  # a NaN wins, as it should
        index = _source_index(xp, offset, positions, spatial, stride, padding, dilation)
        xp.copyto(out, values, where=better)
        xp.copyto(indices, xp.broadcast_to(index, indices.shape), where=better)


def _max_grad_workspace(
    types: tuple[TensorType, ...], attrs: dict[str, Any]
) -> tuple[TensorType, ...]:
    d_out = types[0]
    geometry = {k: v for k, v in attrs.items() if k != "spatial"}
    x = d_out.with_shape((*d_out.shape[:2], *attrs["spatial"]))
    padded = _padded_type(x, d_out.shape[2:], **geometry)
    return padded, d_out, d_out.with_dtype(dtypes.bool_)


@kernel("max_pool_grad", workspace=_max_grad_workspace)
def max_pool_grad(
    xp: Any,
    d_x: Any,
    d_out: Any,
    indices: Any,
    padded: Any,
    share: Any,
    chosen: Any,
    *,
    spatial: Any,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
) -> None:
    """Deterministic, without scattered additions: each kernel position takes the windows that chose
    it.
    """
    positions = d_out.shape[2:]
    padded[...] = 0
    for offset in product(*map(range, kernel)):
        index = _source_index(xp, offset, positions, spatial, stride, padding, dilation)
        xp.equal(indices, index, out=chosen)
        _drop_padding(chosen, offset, spatial, stride, padding, dilation)
        xp.multiply(d_out, chosen, out=share)
        target = _window(padded, offset, positions, stride, dilation)
        target += share
    d_x[...] = _inside(padded, spatial, padding)


def _drop_padding(
    chosen: Any, offset: Any, spatial: Any, stride: Any, padding: Any, dilation: Any
) -> None:
    """Clears windows where this kernel position lies in the padding: its flat index is another
    element's.
    """
    for dim, (o, size, s, p, d) in enumerate(
        zip(offset, spatial, stride, padding, dilation, strict=True), start=2
    ):
        first = max(0, -((o * d - p) // s))  # least i with i * s + o * d - p >= 0
        last = max(0, (size - 1 - (o * d - p)) // s + 1)
        head: list[Any] = [slice(None)] * chosen.ndim
        tail = list(head)
        head[dim], tail[dim] = slice(0, first), slice(last, None)
        chosen[tuple(head)] = False
        chosen[tuple(tail)] = False


def _avg_workspace(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
    from oneflow.ops.pool import AvgPool

    out = AvgPool.infer(types[0], **attrs)
    kernel_size, stride, padding = attrs["kernel"], attrs["stride"], attrs["padding"]
    ones = (1,) * len(kernel_size)
    return (_padded_type(types[0], out.shape[2:], kernel_size, stride, padding, ones),)


@kernel("avg_pool", workspace=_avg_workspace)
def avg_pool(
    xp: Any,
    out: Any,
    x: Any,
    padded: Any,
    *,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int = 0,
) -> None:
    positions, spatial = out.shape[2:], x.shape[2:]
    ones = (1,) * len(kernel)
    padded[...] = 0
    _inside(padded, spatial, padding)[...] = x
    out[...] = 0
    for offset in product(*map(range, kernel)):
        out += _window(padded, offset, positions, stride, ones)
    out /= _divisors(xp, out, spatial, kernel, stride, padding, count_include_pad, divisor_override)


def _divisors(
    xp: Any,
    out: Any,
    spatial: Any,
    kernel: Any,
    stride: Any,
    padding: Any,
    count_include_pad: bool,
    divisor_override: int,
) -> Any:
    """What each window's sum is divided by, of the shape of the positions."""
    if divisor_override:
        return out.dtype.type(divisor_override)
    count = xp.ones((), dtype=out.dtype)
    sizes = zip(out.shape[2:], spatial, kernel, stride, padding, strict=True)
    for n, size, k, s, p in sizes:
        begin = xp.arange(n) * s - p
        end = xp.minimum(begin + k, size + p)
        if not count_include_pad:
            begin, end = xp.maximum(begin, 0), xp.minimum(end, size)
        count = count[..., None] * (end - begin).astype(out.dtype)
    return count


def _avg_grad_workspace(
    types: tuple[TensorType, ...], attrs: dict[str, Any]
) -> tuple[TensorType, ...]:
    d_out = types[0]
    x = d_out.with_shape((*d_out.shape[:2], *attrs["spatial"]))
    kernel_size, stride, padding = attrs["kernel"], attrs["stride"], attrs["padding"]
    ones = (1,) * len(kernel_size)
    return _padded_type(x, d_out.shape[2:], kernel_size, stride, padding, ones), d_out


@kernel("avg_pool_grad", workspace=_avg_grad_workspace)
def avg_pool_grad(
    xp: Any,
    d_x: Any,
    d_out: Any,
    padded: Any,
    share: Any,
    *,
    spatial: Any,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int = 0,
) -> None:
    ones = (1,) * len(kernel)
    divisors = _divisors(
        xp, d_out, spatial, kernel, stride, padding, count_include_pad, divisor_override
    )
    xp.divide(d_out, divisors, out=share)
    padded[...] = 0
    for offset in product(*map(range, kernel)):
        target = _window(padded, offset, d_out.shape[2:], stride, ones)
        target += share
    d_x[...] = _inside(padded, spatial, padding)


def _adaptive_windows(spatial: Any, positions: Any) -> Any:
    """(position, slices of its window) for every output position."""
    cuts = [
        [slice(i * size // n, -(-(i + 1) * size // n)) for i in range(n)]
        for size, n in zip(spatial, positions, strict=True)
    ]
    for position in product(*map(range, positions)):
        yield position, tuple(along[i] for along, i in zip(cuts, position, strict=True))


@kernel("adaptive_avg_pool")
def adaptive_avg_pool(xp: Any, out: Any, x: Any, *, output_size: Any) -> None:
    dims = tuple(range(2, x.ndim))
    for position, window in _adaptive_windows(x.shape[2:], out.shape[2:]):
        xp.mean(x[at(..., *window)], axis=dims, out=out[at(..., *position)])


@kernel("adaptive_avg_pool_grad")
def adaptive_avg_pool_grad(xp: Any, d_x: Any, d_out: Any, *, spatial: Any) -> None:
    d_x[...] = 0
    ones = (1,) * len(d_x.shape[2:])
    for position, window in _adaptive_windows(d_x.shape[2:], d_out.shape[2:]):
        size = prod(cut.stop - cut.start for cut in window)
        share = d_out[at(..., *position)] / size
        d_x[at(..., *window)] += share.reshape(*share.shape, *ones)


# ---- float32 planes on a CPU: one visit, no padded copy ------------------------------------------

_FUSED: dict[str, Any] = {"device": "cpu", "dtypes": ("float32",), "min_elements": 8192}


def _unless_flat(workspace: Any) -> Any:
    """Fused kernels for two spatial dims need no workspace; others run the plain ones."""

    def types(ins: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
        return () if ins[0].ndim == 4 else workspace(ins, attrs)

    return types


def _planes(x: Any) -> Any:
    """(N, C, height, width) as contiguous (N * C, height, width)."""
    x = np.ascontiguousarray(x)
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _window_of(kernel: Any, stride: Any, padding: Any, dilation: Any = (1, 1)) -> Any:
    """Plain tuples, so that one compiled version serves all."""
    return tuple(kernel), tuple(stride), tuple(padding), tuple(dilation)


@kernel("max_pool", workspace=_unless_flat(_max_workspace), **_FUSED)
def max_pool_fused(
    xp: Any, out: Any, indices: Any, x: Any, *work: Any, ceil_mode: bool = False, **window: Any
) -> None:
    if work:
        return max_pool(xp, out, indices, x, *work, ceil_mode=ceil_mode, **window)
    from oneflow.kernels.fused import pool as fused

    fused.max_pool(_planes(out), _planes(indices), _planes(x), _window_of(**window))


@kernel("max_pool_grad", workspace=_unless_flat(_max_grad_workspace), **_FUSED)
def max_pool_grad_fused(
    xp: Any, d_x: Any, d_out: Any, indices: Any, *work: Any, spatial: Any, **window: Any
) -> None:
    if work:
        return max_pool_grad(xp, d_x, d_out, indices, *work, spatial=spatial, **window)
    from oneflow.kernels.fused import pool as fused

    flat = d_x.reshape(d_x.shape[0] * d_x.shape[1], -1)
    fused.max_pool_grad(flat, _planes(d_out), _planes(indices), _window_of(**window))


def _divisor_matrix(out: Any, spatial: Any, window: Any, **counts: Any) -> Any:
    kernel, stride, padding, _ = window
    divisors = _divisors(np, out, spatial, kernel, stride, padding, **counts)
    return np.broadcast_to(divisors, out.shape[2:])


@kernel("avg_pool", workspace=_unless_flat(_avg_workspace), **_FUSED)
def avg_pool_fused(
    xp: Any,
    out: Any,
    x: Any,
    *work: Any,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int = 0,
    **geometry: Any,
) -> None:
    counts: dict[str, Any] = {
        "count_include_pad": count_include_pad,
        "divisor_override": divisor_override,
    }
    if work:
        return avg_pool(xp, out, x, *work, ceil_mode=ceil_mode, **counts, **geometry)
    from oneflow.kernels.fused import pool as fused

    window = _window_of(**geometry)
    divisors = _divisor_matrix(out, x.shape[2:], window, **counts)
    fused.avg_pool(_planes(out), _planes(x), np.ascontiguousarray(divisors), window)


@kernel("avg_pool_grad", workspace=_unless_flat(_avg_grad_workspace), **_FUSED)
def avg_pool_grad_fused(
    xp: Any,
    d_x: Any,
    d_out: Any,
    *work: Any,
    spatial: Any,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int = 0,
    **geometry: Any,
) -> None:
    counts: dict[str, Any] = {
        "count_include_pad": count_include_pad,
        "divisor_override": divisor_override,
    }
    if work:
        return avg_pool_grad(xp, d_x, d_out, *work, spatial=spatial, **counts, **geometry)
    from oneflow.kernels.fused import pool as fused

    window = _window_of(**geometry)
    divisors = _divisor_matrix(d_out, spatial, window, **counts)
    fused.avg_pool_grad(_planes(d_x), _planes(d_out), np.ascontiguousarray(divisors), window)
