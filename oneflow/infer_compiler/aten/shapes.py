"""Aten's views, indices and constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oneflow.core.dtype import DType
from oneflow.core.operand import Number
from oneflow.infer_compiler.aten.table import Call, Size, back, f, takes
from oneflow.tensor.tensor import Tensor


@takes("alias", "detach", "lift_fresh_copy")
def _same(x: Tensor) -> Tensor:
    return x


@takes("clone")
def _clone(x: Tensor, **_: object) -> Tensor:
    return x.clone()


@takes("_to_copy")
def _to_copy(x: Tensor, *, dtype: DType | None = None, **_: object) -> Tensor:
    return x.clone() if dtype is None else x.to(dtype)


@takes("copy")
def _copy(x: Tensor, source: Tensor, *_: object) -> Tensor:
    return source.to(x.dtype).expand(x.shape)


@takes("select.int")
def _select(x: Tensor, dim: int, index: int) -> Any:
    return f("select")(x, dim, index)


@takes("slice.Tensor")
def _slice(
    x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    stop = None if end is None or end > x.shape[dim] else end
    place = (slice(None),) * (dim % x.ndim) + (slice(start, stop, step),)
    return x[place]


@takes("slice_scatter")
def _slice_scatter(x: Tensor, source: Tensor, *place: object, **named: object) -> Any:
    return f("slice_scatter")(x, source, *place, **named)


@takes("slice_backward")
def _slice_backward(d_y: Tensor, shape: Size, dim: int, start: int, end: int, step: int) -> Tensor:
    zeros = f("zeros")(*shape, dtype=d_y.dtype)
    return back(lambda x: _slice(x, dim, start, end, step), d_y, zeros)[0]


@takes("select_backward")
def _select_backward(d_y: Tensor, shape: Size, dim: int, index: int) -> Tensor:
    zeros = f("zeros")(*shape, dtype=d_y.dtype)
    return back(lambda x: f("select")(x, dim, index), d_y, zeros)[0]


@takes("index.Tensor")
def _index(x: Tensor, places: Sequence[Tensor | None]) -> Tensor:
    return x[tuple(slice(None) if one is None else one for one in places)]


@takes("index_put", "_unsafe_index_put")
def _index_put(
    x: Tensor, places: Sequence[Tensor | None], source: Tensor, accumulate: bool = False
) -> Tensor:
    if accumulate and all(one is not None for one in places):
        return x.index_put(tuple(places), source, accumulate=True)
    made = x.clone()
    where = tuple(slice(None) if one is None else one for one in places)
    if accumulate:
        return back(lambda a: a[where], source.expand(x[where].shape), x)[0] + x
    made[where] = source
    return made


@takes("constant_pad_nd")
def _pad(x: Tensor, amounts: Size, value: float = 0.0) -> Any:
    return f("pad")(x, list(amounts), value=value)


@takes("full")
def _full(shape: Size, value: Number, *, dtype: DType | None = None, **_: object) -> Any:
    return f("full")(list(shape), value, dtype=dtype)


@takes("full_like")
def _full_like(x: Tensor, value: Number, *, dtype: DType | None = None, **_: object) -> Any:
    return f("full")(list(x.shape), value, dtype=dtype or x.dtype)


@takes("new_full")
def _new_full(
    x: Tensor, shape: Size, value: Number, *, dtype: DType | None = None, **_: object
) -> Any:
    return f("full")(list(shape), value, dtype=dtype or x.dtype)


def _filled(value: int) -> Call:
    def made(
        x: Tensor, shape: Size | None = None, *, dtype: DType | None = None, **_: object
    ) -> Any:
        whole = x.shape if shape is None else shape
        return f("full")(list(whole), value, dtype=dtype or x.dtype)

    return made


takes("zeros_like", "new_zeros", "empty_like", "new_empty")(_filled(0))

takes("ones_like", "new_ones")(_filled(1))


@takes("zeros", "empty")
def _zeros(shape: Size, *, dtype: DType | None = None, **_: object) -> Any:
    return f("zeros")(list(shape), dtype=dtype)


@takes("ones")
def _ones(shape: Size, *, dtype: DType | None = None, **_: object) -> Any:
    return f("ones")(list(shape), dtype=dtype)


@takes("arange")
def _arange(*ends: Number, dtype: DType | None = None, **_: object) -> Any:
    return f("arange")(*ends, dtype=dtype)


@takes("scalar_tensor")
def _scalar(value: Number, *, dtype: DType | None = None, **_: object) -> Any:
    return f("full")([], value, dtype=dtype)


@takes("view", "_unsafe_view", "reshape")
def _view(x: Tensor, shape: Size) -> Tensor:
    return x.reshape(*shape)


@takes("expand")
def _expand(x: Tensor, shape: Size, **_: object) -> Tensor:
    return x.expand(*shape)


@takes("permute")
def _permute(x: Tensor, dims: Size) -> Tensor:
    return x.permute(*dims)


@takes("repeat")
def _repeat(x: Tensor, times: Size) -> Tensor:
    return x.repeat(*times)
