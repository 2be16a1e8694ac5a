"""Windows that slide over tensors, and views by strides."""

from __future__ import annotations

from collections.abc import Sequence

from oneflow.core.dispatch import current_mode
from oneflow.core.dtype import DType
from oneflow.core.errors import ShapeError
from oneflow.core.location import with_location
from oneflow.functional.dims import Size, one_dim, spatial_sizes
from oneflow.functional.promotion import as_type
from oneflow.functional.shaping import pad_with, permute, reshape, unsqueeze
from oneflow.ops import slicing
from oneflow.ops import sliding as ops
from oneflow.ops.complex_numbers import view_as_complex, view_as_real
from oneflow.tensor.tensor import Tensor
from oneflow.tensor.views import apart, owner_of, place_of, stand_in, view_of


def as_strided(
    input: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Tensor:
    """A view of the memory of `input`: element (i, j, ...) lies storage_offset + i * stride[0] +
    j * stride[1] + ... elements from its beginning.
    """
    base, offset, start = _memory_of(input)
    shape = tuple(map(int, size))
    if storage_offset is None and not input.meta.numel and 0 not in shape and base is not input:
        raise ShapeError(
            f"as_strided: input {input.meta} is a view without elements, which lies nowhere; give "
            "storage_offset=, counted from the beginning of the memory"
        )
    current_mode().need_rows(owner_of(input), "as_strided", whole=storage_offset is not None)
    return ops.as_strided(
        base,
        size=shape,
        stride=tuple(map(int, stride)),
        offset=offset if storage_offset is None else _counted_from(start, storage_offset),
    )


def _memory_of(x: Tensor) -> tuple[Tensor, int, int]:
    """Return the tensor that shows the memory of `x`, with the history of `x`; where `x` begins in
    it; and how much of the memory lies before it.
    """
    view = view_of(x)
    if view is None:
        return _in_order(x), 0, 0
    base, place = (x if view.is_detached else view.base), place_of(x)
    below, whole = view_of(base), owner_of(x)
    if below is not None and below.steps and x.meta.numel < whole.meta.numel:
        if x.requires_grad:  # a detached part with a history of its own, which the whole has not
            return _in_order(x), 0, place
        base = whole.detach()
    return _shown_as(_in_order(base), x.meta.dtype), place, 0


def _counted_from(start: int, offset: int) -> int:
    """Return an offset in a memory as one from `start` on. Raises ShapeError."""
    if offset < start:
        raise with_location(
            ShapeError(
                f"as_strided: storage_offset {offset} lies before a detached part that begins at "
                f"{start} and has gradients of its own; detach() it first"
            )
        )
    return int(offset) - start


def _in_order(x: Tensor) -> Tensor:
    """`x`, or the view of it whose dims follow the order in memory, as of an array by columns."""
    array = stand_in(x)
    if array is None or array.flags.c_contiguous:
        return x
    order = sorted(range(x.ndim), key=lambda i: -array.strides[i])
    turned = permute(x, order)
    if not stand_in(turned).flags.c_contiguous:
        raise with_location(
            ShapeError(
                f"as_strided: the memory of {x.meta} with strides {tuple(x.stride())} has gaps; "
                "use contiguous() first"
            )
        )
    return turned


def _shown_as(base: Tensor, dtype: DType) -> Tensor:
    """The memory of `base` as numbers of another dtype, a view of it."""
    if base.meta.dtype is dtype:
        return base
    if base.meta.dtype.is_complex and not dtype.is_complex:
        return reshape(view_as_real(base), (-1,))
    if dtype.is_complex:
        return view_as_complex(reshape(base, (-1, 2)))
    return reshape(base, (-1,)).view(dtype)


def as_strided_scatter(
    input: Tensor,
    src: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Tensor:
    """A copy of `input` with `src` where `as_strided` looks."""
    if tuple(size) != src.meta.shape:
        raise ShapeError(f"as_strided_scatter: expected src to have size {size}, got {src.meta}")
    spread = zip(input.meta.shape, input.stride(), strict=True)
    is_repeated = any(n > 1 and not step for n, step in spread)  # then PyTorch copies it row by row
    memory, offset, start = (input, 0, 0) if is_repeated else _memory_of(input)
    current_mode().need_rows(
        owner_of(input), "as_strided_scatter", whole=storage_offset is not None
    )
    written = ops.as_strided_update(
        memory,
        as_type(src, input.meta.dtype),
        stride=tuple(map(int, stride)),
        offset=offset if storage_offset is None else _counted_from(start, storage_offset),
    )
    if memory is input:
        return written
    seen = ops.as_strided(
        written, size=input.meta.shape, stride=tuple(input.stride()), offset=offset
    )
    return apart(seen, written)


def unfold_dim(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """A view of the windows of `size` elements along a dim, `step` apart; their places are a new
    last dim.
    """
    x = input if input.ndim else reshape(input, (1,))
    at = one_dim(dimension, x.ndim, "unfold")
    out = ops.unfold(x, dim=at, size=int(size), step=int(step))
    return out if input.ndim else reshape(out, (-1,))


def unfold(
    input: Tensor, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1
) -> Tensor:
    """The windows of images (N, C, H, W) as columns: (N, C * KH * KW, L)."""
    x = unsqueeze(input, 0) if input.ndim == 3 else input
    if x.ndim != 4 or 0 in x.meta.shape[1:]:
        raise ShapeError(f"unfold: expected (N, C, H, W) or (C, H, W), got {input.meta}")
    kernel, dilations, pads, strides = _windows(kernel_size, dilation, padding, stride)
    counts = _counts("unfold", x.meta.shape[2:], kernel, dilations, pads, strides)
    padded = x = pad_with(x, (0, 0, 0, 0, pads[0], pads[0], pads[1], pads[1]), 0)
    for i in (0, 1):
        span = dilations[i] * (kernel[i] - 1) + 1
        x = ops.unfold(x, dim=2 + i, size=span, step=strides[i])
    if dilations != (1, 1):
        whole = x.meta.shape
        steps = (1, 1, 1, 1, *dilations)
        x = slicing.slice(x, starts=(0,) * 6, stops=whole, steps=steps)
    n, channels = x.meta.shape[:2]
    x = permute(x, 0, 1, 4, 5, 2, 3)
    x = reshape(x, (n, channels * kernel[0] * kernel[1], counts[0] * counts[1]))
    x = apart(x, padded)
    return x if input.ndim == 4 else reshape(x, x.meta.shape[1:])


def fold(
    input: Tensor,
    output_size: Size,
    kernel_size: Size,
    dilation: Size = 1,
    padding: Size = 0,
    stride: Size = 1,
) -> Tensor:
    """Columns (N, C * KH * KW, L) added up as windows of images (N, C, H, W): the inverse of
    `unfold`, where windows do not overlap.
    """
    kernel, dilations, pads, strides = _windows(kernel_size, dilation, padding, stride)
    size = spatial_sizes(output_size, 2)
    x = unsqueeze(input, 0) if input.ndim == 2 else input
    counts = _counts("fold", size, kernel, dilations, pads, strides)
    area = kernel[0] * kernel[1]
    if x.ndim != 3 or x.meta.shape[1] % area or x.meta.shape[2] != counts[0] * counts[1]:
        raise ShapeError(
            f"fold: {input.meta} are not the {counts[0]} x {counts[1]} windows of size {kernel} of "
            f"images of size {size}"
        )
    n, channels = x.meta.shape[0], x.meta.shape[1] // area
    x = permute(reshape(x, (n, channels, *kernel, *counts)), 0, 1, 4, 5, 2, 3)
    if dilations != (1, 1):
        spans = tuple(d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True))
        shape = (*x.meta.shape[:4], *spans)
        steps = (1, 1, 1, 1, *dilations)
        x = slicing.slice_scatter(x, shape=shape, starts=(0,) * 6, stops=shape, steps=steps)
    for i in (1, 0):
        x = ops.unfold_grad(x, dim=2 + i, step=strides[i], length=size[i] + 2 * pads[i])
    starts = (0, 0, *pads)
    stops = (n, channels, *(p + s for p, s in zip(pads, size, strict=True)))
    x = slicing.slice(x, starts=starts, stops=stops, steps=(1,) * 4)
    return x if input.ndim == 3 else reshape(x, x.meta.shape[1:])


def _windows(*sizes: Size) -> tuple[tuple[int, ...], ...]:
    return tuple(spatial_sizes(s, 2) for s in sizes)


def _counts(
    who: str,
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    dilation: tuple[int, ...],
    padding: tuple[int, ...],
    stride: tuple[int, ...],
) -> tuple[int, ...]:
    """Number of windows along each dim. Raises ShapeError for less than one."""
    if min(*kernel, *dilation, *stride) < 1 or min(padding) < 0:
        raise ShapeError(
            f"{who}: kernel_size {kernel}, dilation {dilation} and stride {stride} must be at "
            f"least 1, and padding {padding} at least 0"
        )
    each = zip(size, kernel, dilation, padding, stride, strict=True)
    counts = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in each)
    if min(counts) < 1:
        raise ShapeError(f"{who}: windows of size {kernel} do not fit into {size}")
    return counts
