"""Convolutions as matrix products over gathered windows, a few samples at a time.

The workspace holds the padded samples and their windows ("columns"), for as many samples as fit
about a million elements: large enough for BLAS, small enough for the cache and for memory.

Many small float32 images on a CPU take another way, at the end of this file: one product for all
samples of a chunk, and windows gathered with the samples innermost (`native/columns.py`). A
digits network (96 samples of 16 x 8 x 8 and smaller) spent 1.7 of its 2.1 ms in the kernels with a
product per sample, twice as long as in the products alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, cast

import numpy as np

from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels import conv_direct as direct
from oneflow.kernels.array import Array, ArrayModule, at
from oneflow.kernels.matmul import matrix_product
from oneflow.kernels.registry import compute_in_float32, fused_kernel, kernel
from oneflow.ops.conv import Conv, ConvDataGrad, ConvFilterGrad, Geometry, Sizes

if TYPE_CHECKING:
    from typing_extensions import Unpack

compute_in_float32("conv", "conv_data_grad", "conv_filter_grad")

Shaped = Array | TensorType

_CHUNK_ELEMENTS = 1 << 20


def _workspace(
    x: TensorType, w: TensorType, out: TensorType, padding: Sizes
) -> tuple[TensorType, ...]:
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


def _conv_workspace(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    x, w = types
    return _workspace(x, w, Conv.infer(x, w, **attrs), attrs["padding"])[:2]


def _data_grad_workspace(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    d_out, w = types
    x = ConvDataGrad.infer(d_out, w, **attrs)
    return _workspace(x, w, d_out, attrs["padding"])[:2]


def _filter_grad_workspace(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    d_out, x = types
    w = ConvFilterGrad.infer(d_out, x, **attrs)
    padded, columns, products, one = _workspace(x, w, d_out, attrs["padding"])
    chunk, channels, *rest = columns.shape
    return padded, columns.with_shape((channels, *rest[: len(w.shape) - 2], chunk,
                                       *d_out.shape[2:])), products, one  # fmt: skip


def _windows(padded: Array, offset: Sizes, positions: Sizes, geometry: Geometry) -> Array:
    """The elements that kernel position `offset` meets, one per output position: a strided view."""
    cuts = [
        slice(o * d, o * d + (n - 1) * s + 1, s)
        for o, n, s, d in zip(
            offset, positions, geometry["stride"], geometry["dilation"], strict=True
        )
    ]
    return padded[at(slice(None), slice(None), *cuts)]


def _inside(x: Array, padding: Sizes) -> Array:
    """The part of a padded array that holds the samples."""
    cuts = [slice(p, size - p) for p, size in zip(padding, x.shape[2:], strict=True)]
    return x[at(slice(None), slice(None), *cuts)]


def _by_group(rows: Array, groups: int) -> Array:
    """(groups, rows of a group, elements of a row); a shard may have no rows at all."""
    return rows.reshape(groups, rows.shape[0] // groups, prod(rows.shape[1:]))


@kernel("conv", workspace=_conv_workspace)
def conv(
    xp: ArrayModule,
    out: Array,
    x: Array,
    w: Array,
    padded: Array,
    columns: Array,
    **geometry: Unpack[Geometry],
) -> None:
    positions, groups = out.shape[2:], geometry["groups"]
    weight = _by_group(w, groups)
    padded[...] = 0
    for start in range(0, x.shape[0], columns.shape[0]):
        some = x[start : start + columns.shape[0]]
        n = some.shape[0]
        _inside(padded, geometry["padding"])[:n] = some
        for offset in product(*map(range, w.shape[2:])):
            source = _windows(padded[:n], offset, positions, geometry)
            columns[at(slice(0, n), slice(None), *offset)] = source
        flat = columns[:n].reshape(n, groups, weight.shape[2], prod(positions))
        made = out[start : start + n].reshape(n, groups, weight.shape[1], prod(positions))
        matrix_product(xp, weight, flat, made)


@kernel("conv_data_grad", workspace=_data_grad_workspace)
def conv_data_grad(
    xp: ArrayModule,
    d_x: Array,
    d_out: Array,
    w: Array,
    padded: Array,
    columns: Array,
    *,
    spatial: Sizes,
    **geometry: Unpack[Geometry],
) -> None:
    positions, groups = d_out.shape[2:], geometry["groups"]
    weight = _by_group(w, groups).swapaxes(1, 2)
    for start in range(0, d_out.shape[0], columns.shape[0]):
        some = d_out[start : start + columns.shape[0]]
        n = some.shape[0]
        flat = columns[:n].reshape(n, groups, weight.shape[1], prod(positions))
        matrix_product(xp, weight, some.reshape(n, groups, weight.shape[2], prod(positions)), flat)
        padded[...] = 0
        for offset in product(*map(range, w.shape[2:])):
            target = _windows(padded[:n], offset, positions, geometry)
            target += columns[at(slice(0, n), slice(None), *offset)]
        d_x[start : start + n] = _inside(padded, geometry["padding"])[:n]


@kernel("conv_filter_grad", workspace=_filter_grad_workspace)
def conv_filter_grad(
    xp: ArrayModule,
    d_w: Array,
    d_out: Array,
    x: Array,
    padded: Array,
    columns: Array,
    products: Array,
    part: Array,
    *,
    kernel: Sizes,
    **geometry: Unpack[Geometry],
) -> None:
    """One product per group and chunk, over samples and positions at once: rows are channels on
    both sides.
    """
    positions, chunk, groups = d_out.shape[2:], padded.shape[0], geometry["groups"]
    padded[...] = 0
    d_w[...] = 0
    for start in range(0, x.shape[0], chunk):
        some = x[start : start + chunk]
        n = some.shape[0]
        if n < chunk:  # the last, shorter chunk: zeros add nothing
            columns[...] = 0
            products[...] = 0
        _inside(padded, geometry["padding"])[:n] = some
        for offset in product(*map(range, d_w.shape[2:])):
            source = _windows(padded[:n], offset, positions, geometry)
            columns[at(slice(None), *offset, slice(0, n))] = source.swapaxes(0, 1)
        products[:, :n] = d_out[start : start + n].swapaxes(0, 1)
        left, target = _by_group(products, groups), _by_group(part, groups)
        right = columns.reshape(groups, target.shape[2], left.shape[2])
        matrix_product(xp, left, right.swapaxes(1, 2), target)
        d_w += part


# ---- many small images: samples innermost, one product a chunk -----------------------------------

_LEAST_RUN, _LEAST_RUN_OF_NARROW = 16, 2
"""Samples: copies of shorter runs are no faster than the plain kernels', but for results so narrow
that a product of one sample has a few columns only (8 x 512 x 3 x 3: 2.5 ms, before 6.3).
"""

_LEAST_ELEMENTS = 8192
"""Size from which the fused kernels win; smaller calls import no compiler."""


def _chunk(samples: int, per_sample: int, width: int) -> int:
    """Samples of one product, evenly many in each; 0 if so few fit that the plain kernels are
    better. width: positions in a row of the result.
    """
    most = min(samples, _CHUNK_ELEMENTS // max(per_sample, 1))
    least = _LEAST_RUN_OF_NARROW if width < direct.LEAST_WIDTH else _LEAST_RUN
    return -(-samples // -(-samples // most)) if most >= least else 0


def _sizes(x: Shaped, w: Shaped, out: Shaped) -> tuple[int, int, int, int]:
    """(samples of a chunk, elements a sample has in x, in its columns and in out), of arrays or
    types; no samples for other than two spatial dims, and for a shard without channels.
    """
    in_columns = x.shape[1] * prod(w.shape[2:]) * prod(out.shape[2:])
    is_fit = len(x.shape) == 4 and 0 not in (in_columns, prod(out.shape[1:]))
    chunk = _chunk(x.shape[0], in_columns, out.shape[3]) if is_fit else 0
    return chunk, prod(x.shape[1:]), in_columns, prod(out.shape[1:])


def _fused_workspace(x: TensorType, w: TensorType, out: TensorType) -> tuple[TensorType, ...]:
    """Flat: the samples, their columns, their products."""
    chunk, *sizes = _sizes(x, w, out)
    return tuple(x.with_shape((chunk * size,)) for size in sizes) if chunk else ()


def _fused_conv_workspace(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    x, w = types
    out = Conv.infer(x, w, **attrs)
    shapes = direct.conv_work(direct.call_of(x, w, out, cast("Geometry", attrs)))
    if shapes is not None:
        return direct.types_of(shapes, x)
    fused = _fused_workspace(x, w, out)
    return fused or _conv_workspace(types, attrs)


def _fused_data_grad_workspace(
    types: tuple[TensorType, ...], attrs: Attrs
) -> tuple[TensorType, ...]:
    d_out, w = types
    x = ConvDataGrad.infer(d_out, w, **attrs)
    shapes = direct.data_grad_work(direct.call_of(x, w, d_out, cast("Geometry", attrs)))
    if shapes is not None:
        return direct.types_of(shapes, x)
    fused = _fused_workspace(x, w, d_out)
    return fused or _data_grad_workspace(types, attrs)


def _fused_filter_grad_workspace(
    types: tuple[TensorType, ...], attrs: Attrs
) -> tuple[TensorType, ...]:
    d_out, x = types
    w = ConvFilterGrad.infer(d_out, x, **attrs)
    shapes = direct.filter_grad_work(direct.call_of(x, w, d_out, cast("Geometry", attrs)))
    if shapes is not None:
        return direct.types_of(shapes, x)
    fused = _fused_workspace(x, w, d_out)
    return (*fused, w) if fused else _filter_grad_workspace(types, attrs)


class _Chunk:
    """Some samples of x and out beside their workspace, in the shapes that the fused functions and
    the products need.

    x, out: (n, elements of a sample).  image, columns: as in `native/columns.py`.  products:
    (elements of a sample of out, n).
    """

    __slots__ = ("columns", "image", "out", "products", "x")

    def __init__(
        self, start: int, chunk: int, x: Array, w: Array, out: Array, work: Sequence[Array]
    ) -> None:
        self.x, self.out = (_matrix(a[start : start + chunk]) for a in (x, out))
        n = self.x.shape[0]
        image, columns, products = (a[: a.size // chunk * n] for a in work)
        self.image = image.reshape(*x.shape[1:], n)
        self.columns = columns.reshape(x.shape[1], *w.shape[2:], *out.shape[2:], n)
        self.products = products.reshape(-1, n)

    def operands(self, groups: int) -> tuple[Array, Array]:
        """Columns and products as matrices, a pair per group; a column per position and sample."""
        wide = self.columns.shape[3] * self.columns.shape[4] * self.columns.shape[5]
        return self.columns.reshape(groups, -1, wide), self.products.reshape(groups, -1, wide)


def _matrix(x: Array) -> Array:
    """A row per sample."""
    return np.ascontiguousarray(x).reshape(x.shape[0], -1)


def _flat_samples(image: Array) -> Array:
    return image.reshape(-1, image.shape[-1])


@fused_kernel("conv", workspace=_fused_conv_workspace, min_elements=_LEAST_ELEMENTS)
def conv_fused(
    xp: ArrayModule, out: Array, x: Array, w: Array, *work: Array, **geometry: Unpack[Geometry]
) -> None:
    call = direct.call_of(x, w, out, geometry)
    if direct.conv_work(call) is not None:
        direct.compiled().conv(call, out, x, w, work)
        return None
    chunk, *_ = _sizes(x, w, out)
    if not chunk:
        return conv(xp, out, x, w, *work, **geometry)
    fused = direct.compiled()

    groups = geometry["groups"]
    weight = w.reshape(groups, w.shape[0] // groups, -1)
    for start in range(0, x.shape[0], chunk):
        part = _Chunk(start, chunk, x, w, out, work)
        fused.transpose(_flat_samples(part.image), part.x)
        fused.to_columns(part.columns, part.image, *_pairs(geometry))
        columns, products = part.operands(groups)
        matrix_product(np, weight, columns, products)
        fused.transpose(part.out, part.products)


@fused_kernel("conv_data_grad", workspace=_fused_data_grad_workspace, min_elements=_LEAST_ELEMENTS)
def conv_data_grad_fused(
    xp: ArrayModule,
    d_x: Array,
    d_out: Array,
    w: Array,
    *work: Array,
    spatial: Sizes,
    **geometry: Unpack[Geometry],
) -> None:
    call = direct.call_of(d_x, w, d_out, geometry)
    if direct.data_grad_work(call) is not None:
        direct.compiled().data_grad(call, d_x, d_out, w, work)
        return None
    chunk, *_ = _sizes(d_x, w, d_out)
    if not chunk:
        return conv_data_grad(xp, d_x, d_out, w, *work, spatial=spatial, **geometry)
    fused = direct.compiled()

    groups = geometry["groups"]
    weight = w.reshape(groups, w.shape[0] // groups, -1).swapaxes(1, 2)
    for start in range(0, d_x.shape[0], chunk):
        part = _Chunk(start, chunk, d_x, w, d_out, work)
        fused.transpose(part.products, part.out)
        columns, products = part.operands(groups)
        matrix_product(np, weight, products, columns)
        fused.from_columns(part.image, part.columns, *_pairs(geometry))
        fused.transpose(part.x, _flat_samples(part.image))


@fused_kernel(
    "conv_filter_grad", workspace=_fused_filter_grad_workspace, min_elements=_LEAST_ELEMENTS
)
def conv_filter_grad_fused(
    xp: ArrayModule,
    d_w: Array,
    d_out: Array,
    x: Array,
    *work: Array,
    kernel: Sizes,
    **geometry: Unpack[Geometry],
) -> None:
    call = direct.call_of(x, d_w, d_out, geometry)
    if direct.filter_grad_work(call) is not None:
        direct.compiled().filter_grad(call, d_w, d_out, x, work)
        return None
    chunk, *_ = _sizes(x, d_w, d_out)
    if not chunk:
        return conv_filter_grad(xp, d_w, d_out, x, *work, kernel=kernel, **geometry)
    fused = direct.compiled()

    *buffers, one = work
    for start in range(0, x.shape[0], chunk):
        part = _Chunk(start, chunk, x, d_w, d_out, buffers)
        fused.transpose(_flat_samples(part.image), part.x)
        fused.to_columns(part.columns, part.image, *_pairs(geometry))
        fused.transpose(part.products, part.out)
        columns, products = part.operands(geometry["groups"])
        target = (one if start else d_w).reshape(geometry["groups"], products.shape[1], -1)
        matrix_product(np, products, columns.swapaxes(1, 2), target)
        if start:
            d_w += one


def _pairs(geometry: Geometry) -> tuple[Sizes, Sizes, Sizes]:
    """Plain tuples, so that one compiled version serves all."""
    return tuple(geometry["stride"]), tuple(geometry["padding"]), tuple(geometry["dilation"])
