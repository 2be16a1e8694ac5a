"""Operators that move elements: shapes, slices, positions."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from oneflow.core.dtype import int64
from oneflow.onnx.reader.step import Step, flow, layer, runs
from oneflow.tensor.tensor import Tensor


@runs("Shape")
def _shape(step: Step) -> Any:
    shape = step.x().shape
    return np.array(shape[step.get("start", 0) : step.get("end", len(shape))], np.int64)


@runs("Size")
def _size(step: Step) -> Any:
    return np.array(step.x().numel(), np.int64)


@runs("Reshape")
def _reshape(step: Step) -> Any:
    x, shape = step.x(), step.ints(1, "shape") or []
    if not step.get("allowzero", 0):
        shape = [x.shape[i] if size == 0 else size for i, size in enumerate(shape)]
    return x.reshape(shape)


@runs("Flatten")
def _flatten(step: Step) -> Any:
    x = step.x()
    axis = step.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))


@runs("Transpose")
def _transpose(step: Step) -> Any:
    x = step.x()
    return x.permute(*step.get("perm", list(range(x.ndim))[::-1])) if x.ndim else x


@runs("Squeeze")
def _squeeze(step: Step) -> Any:
    x, axes = step.x(), step.ints(1, "axes")
    if axes is None:
        return x.reshape([size for size in x.shape if size != 1])
    dropped = {axis % x.ndim for axis in axes}
    return x.reshape([size for i, size in enumerate(x.shape) if i not in dropped])


@runs("Unsqueeze")
def _unsqueeze(step: Step) -> Any:
    x, axes = step.x(), step.ints(1, "axes") or []
    ndim = x.ndim + len(axes)
    sizes, added = iter(x.shape), {axis % ndim for axis in axes}
    return x.reshape([1 if i in added else next(sizes) for i in range(ndim)])


@runs("Concat")
def _concat(step: Step) -> Any:
    return flow("cat")(step.tensors, dim=step.get("axis"))


@runs("Split")
def _split(step: Step) -> Any:
    x, axis, sizes = step.x(), step.get("axis", 0), step.ints(1, "split")
    if sizes is None:
        count = len(step.node.output)
        each = -(-x.shape[axis] // count)
        sizes = [each] * (count - 1) + [x.shape[axis] - each * (count - 1)]
    return tuple(flow("split")(x, sizes, dim=axis))


@runs("Slice")
def _slice(step: Step) -> Any:
    x = step.x()
    starts, ends = step.ints(1, "starts") or [], step.ints(2, "ends") or []
    axes = step.ints(3, "axes") or list(range(len(starts)))
    steps = step.ints(4, "steps") or [1] * len(starts)
    for start, end, axis, stride in zip(starts, ends, axes, steps, strict=True):
        places = range(x.shape[axis])[slice(start, end if end > -(1 << 62) else None, stride)]
        if stride < 0:
            x = x.flip(axis)
            last = x.shape[axis] - 1
            places = range(last - places.start, last - places.stop, -places.step)
        key = [slice(None)] * x.ndim
        key[axis] = slice(places.start, max(places.stop, places.start), places.step)
        x = x[tuple(key)]
    return x


@runs("Expand")
def _expand(step: Step) -> Any:
    x = step.x()
    return x.expand(*np.broadcast_shapes(tuple(x.shape), tuple(step.ints(1) or ())))


@runs("Tile")
def _tile(step: Step) -> Any:
    return step.x().repeat(*(step.ints(1) or []))


@runs("Pad")
def _pad(step: Step) -> Any:
    x, pads = step.x(), step.ints(1, "pads") or []
    axes = step.ints(3) if step.has(3) else list(range(x.ndim))
    mode = step.get("mode", b"constant")
    mode = mode.decode() if isinstance(mode, bytes) else mode
    around = [0] * (2 * x.ndim)
    for place, axis in enumerate(axes or []):
        last = x.ndim - 1 - axis % x.ndim
        around[2 * last : 2 * last + 2] = pads[place], pads[place + len(pads) // 2]
    while len(around) > 2 and around[-2:] == [0, 0]:
        around = around[:-2]
    if mode == "constant":
        value = step.known(2).item() if step.has(2) else step.get("value", 0.0)
        return layer("pad")(x, around, value=value)
    return layer("pad")(x, around, mode="replicate" if mode == "edge" else mode)


# ---- positions -----------------------------------------------------------------------------------


def _from_start(index: Tensor, size: int) -> Tensor:
    """Positions that count from the end, counted from the start."""
    index = index.to(int64)
    made: Tensor = flow("where")(index < 0, index + size, index)
    return made


@runs("Gather")
def _gather(step: Step) -> Any:
    x, axis = step.x(), step.get("axis", 0)
    axis = axis % x.ndim
    given = step.x(1)
    shape, index = given.shape, _from_start(given.reshape(-1), x.shape[axis])
    taken = flow("index_select")(x, axis, index)
    return taken.reshape(*x.shape[:axis], *shape, *x.shape[axis + 1 :])


@runs("GatherElements")
def _gather_elements(step: Step) -> Any:
    x, axis = step.x(), step.get("axis", 0)
    return flow("gather")(x, axis, _from_start(step.x(1), x.shape[axis]))


def _flat_places(step: Step, x: Tensor, index: Tensor) -> tuple[Tensor, int]:
    """Positions among the leading dims as one number each, and the number of these dims."""
    depth = index.shape[-1]
    places: Tensor | None = None
    for i in range(depth):
        own = _from_start(index[..., i], x.shape[i])
        places = own if places is None else places * x.shape[i] + own
    if places is None:
        raise step.refuse("has positions of no dims")
    return places, depth


@runs("GatherND")
def _gather_nd(step: Step) -> Any:
    x = step.x()
    if step.get("batch_dims", 0):
        raise step.refuse("has batch_dims, which are not read")
    places, depth = _flat_places(step, x, step.x(1))
    rest = x.shape[depth:]
    flat = x.reshape(-1, *rest)
    taken = flow("index_select")(flat, 0, places.reshape(-1))
    return taken.reshape(*places.shape, *rest)


@runs("ScatterND")
def _scatter_nd(step: Step) -> Any:
    x, updates = step.x(), step.x(2)
    places, depth = _flat_places(step, x, step.x(1))
    rest = x.shape[depth:]
    inner = prod(rest)
    index = places.reshape(-1, 1).expand(-1, inner)
    made = _scattered(step, x.reshape(-1, inner), 0, index, updates.reshape(-1, inner))
    return made.reshape(*x.shape)


@runs("ScatterElements", "Scatter")
def _scatter_elements(step: Step) -> Any:
    x, axis = step.x(), step.get("axis", 0)
    return _scattered(step, x, axis, _from_start(step.x(1), x.shape[axis]), step.x(2))


def _scattered(step: Step, x: Tensor, axis: int, index: Tensor, source: Tensor) -> Any:
    way = step.get("reduction", "none")
    way = way.decode() if isinstance(way, bytes) else way
    if way not in ("none", "add"):
        raise step.refuse(f"has the reduction {way}, which is not read")
    return flow("scatter_add" if way == "add" else "scatter")(x, axis, index, source)


@runs("OneHot")
def _one_hot(step: Step) -> Any:
    depth, values = int(step.known(1).reshape(())), step.x(2)
    index = _from_start(step.x(0), depth)
    axis = step.get("axis", -1)
    axis = axis % (index.ndim + 1)
    ones = [-1 if i == axis else 1 for i in range(index.ndim + 1)]
    found = flow("eq")(index.unsqueeze(axis), flow("arange")(depth).reshape(ones))
    return flow("where")(found, values[1], values[0])


@runs("Trilu")
def _trilu(step: Step) -> Any:
    k = int(step.known(1)) if step.has(1) else 0
    return flow("triu" if step.get("upper", 1) else "tril")(step.x(), k)


@runs("NonZero")
def _nonzero(step: Step) -> Any:
    return flow("nonzero")(step.x()).transpose(0, 1)


@runs("DepthToSpace")
def _depth_to_space(step: Step) -> Any:
    x, b = step.x(), step.get("blocksize")
    n, c, h, w = x.shape
    if step.get("mode", b"DCR") in ("CRD", b"CRD"):
        apart, order = x.reshape(n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3)
    else:
        apart, order = x.reshape(n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2)
    return apart.permute(*order).reshape(n, c // (b * b), h * b, w * b)


@runs("SpaceToDepth")
def _space_to_depth(step: Step) -> Any:
    x, b = step.x(), step.get("blocksize")
    n, c, h, w = x.shape
    apart = x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4)
    return apart.reshape(n, c * b * b, h // b, w // b)
