"""New tensors where others are."""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np

from oneflow.core.device import DeviceLike
from oneflow.core.dispatch import current_mode
from oneflow.core.dtype import DType, DTypeLike, bool_
from oneflow.core.errors import ArgumentError, CallError
from oneflow.core.op import find_op
from oneflow.core.operand import Number, ShapeLike
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, SbpLike, Split, without_sums
from oneflow.ops.unary import full_like
from oneflow.tensor.tensor import Tensor


class Place(TypedDict, total=False):
    """The keywords that say where a new tensor is to be: a device, or placement and sbp."""

    device: DeviceLike | None
    placement: Placement | None
    sbp: SbpLike | None


class Kind(TypedDict, total=False):
    """The keywords of a local tensor that layers are made with."""

    device: DeviceLike | None
    dtype: DTypeLike | None


class Where(Place, total=False):
    """The keywords of creation: a place, and some without meaning here."""

    layout: object
    pin_memory: bool
    memory_format: object
    out: None


class SizedWhere(Where, total=False):
    """The keywords of functions that create a tensor of `*sizes`, which may also be given as
    `size`.
    """

    size: ShapeLike


def filled_like(x: Tensor, value: Number) -> Tensor:
    """The number `value` in the dtype, shape and place of `x`."""
    value = of_kind(value, x.meta.dtype)
    if x._array is None or x._placement is None or not any(s.is_partial for s in x.sbp):
        return full_like(x.detach(), value=value)
    attrs = {"shape": x.meta.shape, "dtype": x.meta.dtype, "value": value}
    constant = find_op("constant")
    made: Tensor = current_mode().create(constant, attrs, None, x.placement, x.sbp)
    return made


def layout_of(x: Tensor, *, no_partial: bool = False, ndim: int | None = None) -> Place:
    """The keywords that put a new tensor where `x` is.  ndim: of the new tensor, if not that of
    `x`: a dim that it lacks is not split.
    """
    if x._placement is None:
        return {"device": x._device}
    nd_sbp = x._sbp
    if nd_sbp is None:
        nd_sbp = current_mode().layout(x, is_fixed=False)
    if no_partial:
        nd_sbp = without_sums(nd_sbp)
    if ndim is not None:
        lost = tuple(isinstance(s, Split) and s.dim >= ndim for s in nd_sbp)
        nd_sbp = tuple(BROADCAST if gone else s for s, gone in zip(nd_sbp, lost, strict=True))
    return {"placement": x._placement, "sbp": nd_sbp}


def of_kind(value: Number, dtype: DType) -> Number:
    """A number as attrs of ops of that dtype have it. A negative integer that is small enough
    wraps around in an unsigned dtype. Raises ArgumentError for one that an integer dtype lacks.
    """
    if dtype is bool_:
        return bool(value)
    if not dtype.is_integer:
        return float(value) if not dtype.is_complex else value
    info = np.iinfo(dtype.np)
    least = int(info.min) if isinstance(value, float) else min(int(info.min), -int(info.max))
    if not least <= value <= info.max:  # a NaN is not, either
        raise ArgumentError(
            f"the value {value} cannot be converted to {dtype.name} without overflow: it holds "
            f"{info.min} to {info.max}"
        )
    return wrapped(int(value), dtype)


def number_of(value: object, argument: str, function: str) -> Any:
    """The number of a tensor of one element; anything else, and a value of a graph, as it is.

    Raises CallError for a tensor that requires a gradient, which would be lost, as in PyTorch.
    """
    if not isinstance(value, Tensor):
        return value
    if value.requires_grad:
        raise CallError(
            f"{function}(): argument '{argument}' must be a number, not a tensor that requires a "
            "gradient, which would be lost: give its .item(), or multiply and add tensors"
        )
    is_read = value.value is None and value.meta.numel == 1
    return value.item() if is_read else value


def wrapped(value: Number, dtype: DType) -> Number:
    """An integer as its low bits stand for it in an integer dtype; other numbers as they are."""
    if not dtype.is_integer or not isinstance(value, int):
        return value
    info = np.iinfo(dtype.np)
    if info.min <= value <= info.max:
        return value
    return (value - int(info.min)) % (1 << info.bits) + int(info.min)
