"""Convolutions as matrix products over gathered windows, a few samples at a time.

The workspace holds the padded samples and their windows ("columns"), for as many samples as fit
about a million elements: large enough for BLAS, small enough for the cache and for memory.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

from oneflow.core.tensor_type import TensorType
from oneflow.kernels.matmul import matrix_product
from oneflow.kernels.registry import kernel
from oneflow.ops.conv import Conv, ConvDataGrad, ConvFilterGrad

_CHUNK_ELEMENTS = 1 << 20


def _workspace(x: TensorType, w: TensorType, out: TensorType, padding: Any) -> Any:
    """(padded samples, columns (samples, C, *kernel, *positions), products in that order)."""
    positions, kernel_size = out.shape[2:], w.shape[2:]
    per_sample = x.shape[1] * prod(kernel_size) * prod(positions)
    chunk = max(1, min(x.shape[0], _CHUNK_ELEMENTS // max(per_sample, 1)))
    padded = [size + 2 * p for size, p in zip(x.shape[2:], padding, strict=True)]
    return (
        x.with_shape((chunk, x.shape[1], *padded)),
        x.with_shape((chunk, x.shape[1], *kernel_size, *positions)),
        x.with_shape((out.shape[1], chunk, *positions)),
        x.with_shape(w.shape),
    )


def _conv_workspace(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
    x, w = types
    return _workspace(x, w, Conv.infer(x, w, **attrs), attrs["padding"])[:2]  # type: ignore[no-any-return]


def _data_grad_workspace(
    types: tuple[TensorType, ...], attrs: dict[str, Any]
) -> tuple[TensorType, ...]:
    d_out, w = types
    x = ConvDataGrad.infer(d_out, w, **attrs)
    return _workspace(x, w, d_out, attrs["padding"])[:2]  # type: ignore[no-any-return]


def _filter_grad_workspace(
    types: tuple[TensorType, ...], attrs: dict[str, Any]
) -> tuple[TensorType, ...]:
    d_out, x = types
    w = ConvFilterGrad.infer(d_out, x, **attrs)
    padded, columns, products, one = _workspace(x, w, d_out, attrs["padding"])
    chunk, channels, *rest = columns.shape
    return padded, columns.with_shape((channels, *rest[: len(w.shape) - 2], chunk,
                                       *d_out.shape[2:])), products, one  # fmt: skip


def at(*index: Any) -> tuple[Any, ...]:
    """An index of several parts: `x[at(0, *rest)]`."""
    return index


def _windows(padded: Any, offset: Any, positions: Any, stride: Any, dilation: Any) -> Any:
    """The elements that kernel position `offset` meets, one per output position: a strided view."""
    cuts = [
        slice(o * d, o * d + (n - 1) * s + 1, s)
        for o, n, s, d in zip(offset, positions, stride, dilation, strict=True)
    ]
    return padded[at(slice(None), slice(None), *cuts)]


def _inside(x: Any, padding: Any) -> Any:
    """The part of a padded array that holds the samples."""
    cuts = [slice(p, size - p) for p, size in zip(padding, x.shape[2:], strict=True)]
    return x[at(slice(None), slice(None), *cuts)]


@kernel("conv", workspace=_conv_workspace)
def conv(
    xp: Any,
    out: Any,
    x: Any,
    w: Any,
    padded: Any,
    columns: Any,
    *,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int = 1,
) -> None:
    positions = out.shape[2:]
    weight = w.reshape(groups, w.shape[0] // groups, -1)
    padded[...] = 0
    for start in range(0, x.shape[0], columns.shape[0]):
        some = x[start : start + columns.shape[0]]
        n = some.shape[0]
        _inside(padded, padding)[:n] = some
        for offset in product(*map(range, w.shape[2:])):
            source = _windows(padded[:n], offset, positions, stride, dilation)
            columns[at(slice(0, n), slice(None), *offset)] = source
        flat = columns[:n].reshape(n, groups, weight.shape[2], prod(positions))
        made = out[start : start + n].reshape(n, groups, weight.shape[1], prod(positions))
        matrix_product(xp, weight, flat, made)


@kernel("conv_data_grad", workspace=_data_grad_workspace)
def conv_data_grad(
    xp: Any,
    d_x: Any,
    d_out: Any,
    w: Any,
    padded: Any,
    columns: Any,
    *,
    spatial: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int = 1,
) -> None:
    positions = d_out.shape[2:]
    weight = w.reshape(groups, w.shape[0] // groups, -1).swapaxes(1, 2)
    for start in range(0, d_out.shape[0], columns.shape[0]):
        some = d_out[start : start + columns.shape[0]]
        n = some.shape[0]
        flat = columns[:n].reshape(n, groups, weight.shape[1], prod(positions))
        matrix_product(xp, weight, some.reshape(n, groups, weight.shape[2], prod(positions)), flat)
        padded[...] = 0
        for offset in product(*map(range, w.shape[2:])):
            target = _windows(padded[:n], offset, positions, stride, dilation)
            target += columns[at(slice(0, n), slice(None), *offset)]
        d_x[start : start + n] = _inside(padded, padding)[:n]


@kernel("conv_filter_grad", workspace=_filter_grad_workspace)
def conv_filter_grad(
    xp: Any,
    d_w: Any,
    d_out: Any,
    x: Any,
    padded: Any,
    columns: Any,
    products: Any,
    part: Any,
    *,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int = 1,
) -> None:
    """One product per group and chunk, over samples and positions at once: rows are channels on
    both sides.
    """
    positions, chunk = d_out.shape[2:], padded.shape[0]
    padded[...] = 0
    d_w[...] = 0
    for start in range(0, x.shape[0], chunk):
        some = x[start : start + chunk]
        n = some.shape[0]
        if n < chunk:  # the last, shorter chunk: zeros add nothing
            columns[...] = 0
            products[...] = 0
        _inside(padded, padding)[:n] = some
        for offset in product(*map(range, d_w.shape[2:])):
            source = _windows(padded[:n], offset, positions, stride, dilation)
            columns[at(slice(None), *offset, slice(0, n))] = source.swapaxes(0, 1)
        products[:, :n] = d_out[start : start + n].swapaxes(0, 1)
        left = products.reshape(groups, products.shape[0] // groups, -1)
        right = columns.reshape(groups, -1, left.shape[2])
        matrix_product(xp, left, right.swapaxes(1, 2), part.reshape(groups, left.shape[1], -1))
        d_w += part
