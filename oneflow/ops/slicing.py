"""Regular parts of a tensor: read, written, or put among zeros.

starts, stops, steps have one entry per dim: 0 <= start <= stop <= size, step >= 1. A dim taken
whole (0, size, 1)
may be split: on a shard the stop is beyond the end, which NumPy's slices clip.
"""

from __future__ import annotations

import builtins
from typing import Any

from oneflow.core.dispatch import call
from oneflow.core.dtype import bool_
from oneflow.core.errors import ShapeError
from oneflow.core.op import Box, Op, register
from oneflow.core.sbp import SbpSignature, signature
from oneflow.core.tensor_type import TensorType
from oneflow.ops import unary
from oneflow.ops.checks import Value, require_same_dtype

Dims = tuple[int, ...]


def _part_shape(name: str, shape: Dims, starts: Dims, stops: Dims, steps: Dims) -> Dims:
    """The shape of the part. Raises ShapeError."""
    if not len(shape) == len(starts) == len(stops) == len(steps):
        raise ShapeError(
            f"{name} of shape {list(shape)} needs one start, stop and step per dim, "
            f"got {starts}, {stops}, {steps}"
        )
    for size, start, stop, step in zip(shape, starts, stops, steps, strict=True):
        if not 0 <= start <= stop <= size or step < 1:
            raise ShapeError(
                f"{name}: {start}:{stop}:{step} does not lie in a dim of size {size}; it needs "
                "0 <= start <= stop <= size and step >= 1"
            )
    return tuple(-(-(b - a) // s) for a, b, s in zip(starts, stops, steps, strict=True))


def _whole_dims(shape: Dims, starts: Dims, stops: Dims, steps: Dims) -> list[int]:
    wanted = zip(shape, starts, stops, steps, strict=True)
    return [i for i, (n, a, b, s) in enumerate(wanted) if (a, b, s) == (0, n, 1)]


def _sums(x: TensorType, text: str) -> list[SbpSignature]:
    return [] if x.dtype is bool_ else [signature(text)]


@register
class Slice(Op):
    """x[starts[0]:stops[0]:steps[0], ...]."""

    name = "slice"
    is_view = True

    @staticmethod
    def infer(x: TensorType, *, starts: Dims, stops: Dims, steps: Dims) -> TensorType:
        return x.with_shape(_part_shape("slice", x.shape, starts, stops, steps))

    @staticmethod
    def sbp(x: TensorType, *, starts: Dims, stops: Dims, steps: Dims) -> list[SbpSignature]:
        whole = _whole_dims(x.shape, starts, stops, steps)
        return [signature(f"S{i} -> S{i}") for i in whole] + _sums(x, "P -> P")

    @staticmethod
    def grad(
        d: Value, x: Value, out: Value, *, starts: Dims, stops: Dims, steps: Dims
    ) -> tuple[Any, ...]:
        return (slice_scatter(d, shape=x.type.shape, starts=starts, stops=stops, steps=steps),)


@register
class SliceScatter(Op):
    """Zeros of `shape` with x placed at the slice: the gradient of `slice`."""

    name = "slice_scatter"

    @staticmethod
    def infer(x: TensorType, *, shape: Dims, starts: Dims, stops: Dims, steps: Dims) -> TensorType:
        part = _part_shape("slice_scatter", shape, starts, stops, steps)
        if part != x.shape:
            raise ShapeError(f"slice_scatter: the slice has shape {list(part)}, but x is {x}")
        return x.with_shape(shape)

    @staticmethod
    def sbp(
        x: TensorType, *, shape: Dims, starts: Dims, stops: Dims, steps: Dims
    ) -> list[SbpSignature]:
        whole = _whole_dims(shape, starts, stops, steps)
        return [signature(f"S{i} -> S{i}") for i in whole] + _sums(x, "P -> P")

    @staticmethod
    def localize(
        attrs: dict[str, Any], in_boxes: tuple[Box, ...], out_boxes: tuple[Box, ...]
    ) -> dict[str, Any]:
        return {**attrs, "shape": out_boxes[0].shape}

    @staticmethod
    def grad(
        d: Value, x: Value, out: Value, *, shape: Dims, starts: Dims, stops: Dims, steps: Dims
    ) -> tuple[Any, ...]:
        return (slice(d, starts=starts, stops=stops, steps=steps),)


@register
class SliceUpdate(Op):
    """A copy of `ref` with `value` written over the slice."""

    name = "slice_update"

    @staticmethod
    def infer(
        ref: TensorType, value: TensorType, *, starts: Dims, stops: Dims, steps: Dims
    ) -> TensorType:
        require_same_dtype("slice_update", ref, value)
        part = _part_shape("slice_update", ref.shape, starts, stops, steps)
        if part != value.shape:
            raise ShapeError(
                f"slice_update: the slice of {ref} has shape {list(part)}, but the value is {value}"
            )
        return ref

    @staticmethod
    def sbp(
        ref: TensorType, value: TensorType, *, starts: Dims, stops: Dims, steps: Dims
    ) -> list[SbpSignature]:
        whole = _whole_dims(ref.shape, starts, stops, steps)
        return [signature(f"S{i} S{i} -> S{i}") for i in whole] + _sums(ref, "P P -> P")

    @staticmethod
    def grad(
        d: Value, ref: Value, value: Value, out: Value, *, starts: Dims, stops: Dims, steps: Dims
    ) -> tuple[Any, ...]:
        def d_ref() -> Value:
            # Of d, not of `value`: that may have been overwritten since.
            part = slice(d, starts=starts, stops=stops, steps=steps)
            hole = unary.full_like(part, value=0)
            return slice_update(d, hole, starts=starts, stops=stops, steps=steps)

        return d_ref, lambda: slice(d, starts=starts, stops=stops, steps=steps)


def slice(x: Value, *, starts: Dims, stops: Dims, steps: Dims) -> Value:
    return call(Slice, x, starts=starts, stops=stops, steps=steps)


def slice_scatter(x: Value, *, shape: Dims, starts: Dims, stops: Dims, steps: Dims) -> Value:
    return call(SliceScatter, x, shape=shape, starts=starts, stops=stops, steps=steps)


def slice_update(ref: Value, value: Value, *, starts: Dims, stops: Dims, steps: Dims) -> Value:
    return call(SliceUpdate, ref, value, starts=starts, stops=stops, steps=steps)


def slices_of(starts: Dims, stops: Dims, steps: Dims) -> tuple[builtins.slice, ...]:
    """The attrs as an index of NumPy's kind."""
    return tuple(map(builtins.slice, starts, stops, steps))
