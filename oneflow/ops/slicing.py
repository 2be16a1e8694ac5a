"""Regular parts of a tensor: read, written, or put among zeros.

starts, stops, steps have one entry per dim: 0 <= start <= stop <= size, step >= 1. On a shard they
are those of the part that it holds of the slice (`local_attrs`).
"""

from __future__ import annotations

import builtins
from functools import partial

from oneflow.core.dtype import bool_
from oneflow.core.errors import ShapeError
from oneflow.core.op import Box, Boxes, Op, declare
from oneflow.core.operand import Attrs, Gradients, Operand, Tensor
from oneflow.core.parts import Index, Part, Parts, clipped
from oneflow.core.sbp import SbpSignature, signature
from oneflow.core.tensor_type import TensorType
from oneflow.ops import unary
from oneflow.ops.checks import require_same_dtype

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


def held_range(start: int, stop: int, step: int, a: int, b: int) -> tuple[int, int]:
    """Return which positions of the slice start:stop:step lie in [a, b) of its dim, as [first,
    end).
    """
    count = -(-(stop - start) // step)
    first = min(max(-(-(a - start) // step), 0), count)
    return first, min(max(-(-(b - start) // step), first), count)


def held_part(starts: Dims, stops: Dims, steps: Dims, shard: Box) -> Box:
    """The part of a slice that a shard holds, in the slice's own positions."""
    ranges = [
        held_range(*where)
        for where in zip(starts, stops, steps, shard.starts, shard.stops, strict=True)
    ]
    return Box(tuple(a for a, _ in ranges), tuple(b for _, b in ranges))


def local_attrs(starts: Dims, steps: Dims, shard: Box, part: Box) -> dict[str, Dims]:
    """starts, stops and steps of the `held_part` within its shard."""
    first = tuple(
        start + k * step - a if stop > k else 0
        for start, step, a, k, stop in zip(
            starts, steps, shard.starts, part.starts, part.stops, strict=True
        )
    )
    last = tuple(
        a + (n - 1) * step + 1 if n else a
        for a, n, step in zip(first, part.shape, steps, strict=True)
    )
    return {"starts": first, "stops": last, "steps": steps}


def held_slices(starts: Dims, stops: Dims, steps: Dims, shard: Box) -> Index:
    """The part of a slice that a shard holds, as an index of the shard."""
    part = held_part(starts, stops, steps, shard)
    return slices_of(**local_attrs(starts, steps, shard, part))


def _cut_dims(shape: Dims, starts: Dims, stops: Dims, steps: Dims) -> Dims:
    kept = _whole_dims(shape, starts, stops, steps)
    return tuple(i for i in range(len(shape)) if i not in kept)


def _place(part: Box, whole: Box) -> tuple[Dims, Dims] | None:
    """Return where `part` stands in `whole`; None if it is all of it."""
    if (part.starts, part.stops) == (whole.starts, whole.stops):
        return None
    starts = tuple(a - b for a, b in zip(part.starts, whole.starts, strict=True))
    return starts, tuple(a + n for a, n in zip(starts, part.shape, strict=True))


def _local(attrs: Attrs, shard: Box, other: Box, name: str) -> Attrs:
    """attrs of one rank. shard: of the sliced tensor; other: of the slice; name: of the attr that
    says which part of `other` this shard holds, if not all."""
    part = clipped(held_part(attrs["starts"], attrs["stops"], attrs["steps"], shard), other)
    place = _place(part, other)
    local = {**attrs, **local_attrs(attrs["starts"], attrs["steps"], shard, part)}
    return local if place is None else {**local, name: place}


def _sums(x: TensorType, text: str) -> list[SbpSignature]:
    return [] if x.dtype is bool_ else [signature(text)]


class Slice(Op):
    """x[starts[0]:stops[0]:steps[0], ...].

    place: set on a shard that holds only this part (starts, stops) of the slice; the rest is zero.
    Of a copy each rank may read its own part of the slice: a slice of everything cuts copies.
    """

    name = "slice"
    is_view = True

    @staticmethod
    def infer(x: Operand, *, starts: Dims, stops: Dims, steps: Dims) -> TensorType:
        return x.meta.with_shape(_part_shape("slice", x.shape, starts, stops, steps))

    @staticmethod
    def sbp(x: TensorType, *, starts: Dims, stops: Dims, steps: Dims) -> list[SbpSignature]:
        whole = _whole_dims(x.shape, starts, stops, steps)
        listed = [signature(f"S{i} -> S{i}") for i in whole] + _sums(x, "P -> P")
        cut = [i for i in range(x.ndim) if i not in whole]
        listed += [s for i in cut for s in _sums(x, f"S{i} -> P")]
        return listed + [signature(f"B -> S{i}") for i in range(x.ndim)]

    @staticmethod
    def parts(x: TensorType, *, starts: Dims, stops: Dims, steps: Dims) -> Parts | None:
        if 0 in _part_shape("slice", x.shape, starts, stops, steps):
            return None
        held = partial(held_part, starts, stops, steps)
        cut = partial(held_slices, starts, stops, steps)
        return Parts(_cut_dims(x.shape, starts, stops, steps), (Part(0, held, cut),))

    @staticmethod
    def localize(attrs: Attrs, in_boxes: Boxes, out_boxes: Boxes) -> Attrs:
        return _local(attrs, in_boxes[0], out_boxes[0], "place")

    @staticmethod
    def undo(x: Tensor, part: Tensor, *, starts: Dims, stops: Dims, steps: Dims) -> Tensor:
        return slice_update(x, part, starts=starts, stops=stops, steps=steps)

    @staticmethod
    def grad(
        d: Tensor, x: Tensor, out: Tensor, *, starts: Dims, stops: Dims, steps: Dims
    ) -> Gradients:
        return (slice_scatter(d, shape=x.meta.shape, starts=starts, stops=stops, steps=steps),)


slice = declare(Slice)


class SliceScatter(Op):
    """Zeros of `shape` with x placed at the slice: the gradient of `slice`.

    taken: set on a shard that takes only this part (starts, stops) of x.
    """

    name = "slice_scatter"

    @staticmethod
    def infer(x: Operand, *, shape: Dims, starts: Dims, stops: Dims, steps: Dims) -> TensorType:
        part = _part_shape("slice_scatter", shape, starts, stops, steps)
        if part != x.shape:
            raise ShapeError(f"slice_scatter: the slice has shape {list(part)}, but x is {x}")
        return x.meta.with_shape(shape)

    @staticmethod
    def sbp(
        x: TensorType, *, shape: Dims, starts: Dims, stops: Dims, steps: Dims
    ) -> list[SbpSignature]:
        whole = _whole_dims(shape, starts, stops, steps)
        listed = [signature(f"S{i} -> S{i}") for i in whole] + _sums(x, "P -> P")
        return listed + [signature(f"B -> S{i}") for i in range(x.ndim) if i not in whole]

    @staticmethod
    def parts(x: TensorType, *, shape: Dims, starts: Dims, stops: Dims, steps: Dims) -> Parts:
        wanted = partial(held_part, starts, stops, steps)
        into = partial(held_slices, starts, stops, steps)
        dims = _cut_dims(shape, starts, stops, steps)
        return Parts(dims, (Part(0),), fill=0, wanted=wanted, into=into)

    @staticmethod
    def place(
        x: TensorType, *, starts: Dims, stops: Dims, steps: Dims, taken: object = None, **_: object
    ) -> Box | None:
        return Box(starts, stops) if taken is None and set(steps) == {1} else None

    @staticmethod
    def localize(attrs: Attrs, in_boxes: Boxes, out_boxes: Boxes) -> Attrs:
        local = _local(attrs, out_boxes[0], in_boxes[0], "taken")
        return {**local, "shape": out_boxes[0].shape}

    @staticmethod
    def grad(
        d: Tensor, x: Tensor, out: Tensor, *, starts: Dims, stops: Dims, steps: Dims, **_: object
    ) -> Gradients:
        return (slice(d, starts=starts, stops=stops, steps=steps),)


slice_scatter = declare(SliceScatter)


class SliceUpdate(Op):
    """A copy of `ref` with `value` written over the slice.

    taken: set on a shard that takes only this part (starts, stops) of `value`.
    """

    name = "slice_update"

    @staticmethod
    def infer(
        ref: Operand, value: Operand, *, starts: Dims, stops: Dims, steps: Dims
    ) -> TensorType:
        require_same_dtype("slice_update", ref, value)
        part = _part_shape("slice_update", ref.shape, starts, stops, steps)
        if part != value.shape:
            raise ShapeError(
                f"slice_update: the slice of {ref} has shape {list(part)}, but the value is {value}"
            )
        return ref.meta

    @staticmethod
    def sbp(
        ref: TensorType, value: TensorType, *, starts: Dims, stops: Dims, steps: Dims
    ) -> list[SbpSignature]:
        whole = _whole_dims(ref.shape, starts, stops, steps)
        listed = [signature(f"S{i} S{i} -> S{i}") for i in whole] + _sums(ref, "P P -> P")
        return listed + [signature(f"S{i} B -> S{i}") for i in range(ref.ndim) if i not in whole]

    @staticmethod
    def parts(
        ref: TensorType, value: TensorType, *, starts: Dims, stops: Dims, steps: Dims
    ) -> Parts:
        wanted = partial(held_part, starts, stops, steps)
        into = partial(held_slices, starts, stops, steps)
        dims = _cut_dims(ref.shape, starts, stops, steps)
        return Parts(dims, (Part(1),), base=0, wanted=wanted, into=into)

    @staticmethod
    def localize(attrs: Attrs, in_boxes: Boxes, out_boxes: Boxes) -> Attrs:
        return _local(attrs, in_boxes[0], in_boxes[1], "taken")

    @staticmethod
    def grad(
        d: Tensor,
        ref: Tensor,
        value: Tensor,
        out: Tensor,
        *,
        starts: Dims,
        stops: Dims,
        steps: Dims,
    ) -> Gradients:
        def d_ref() -> Tensor:
            # Of d, not of `value`: that may have been overwritten since.
            part = slice(d, starts=starts, stops=stops, steps=steps)
            hole = unary.full_like(part, value=0)
            return slice_update(d, hole, starts=starts, stops=stops, steps=steps)

        return d_ref, lambda: slice(d, starts=starts, stops=stops, steps=steps)


slice_update = declare(SliceUpdate)


def slices_of(starts: Dims, stops: Dims, steps: Dims) -> tuple[builtins.slice, ...]:
    """The attrs as an index of NumPy's kind."""
    return tuple(map(builtins.slice, starts, stops, steps))
