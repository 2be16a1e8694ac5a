"""New tensors where others are."""

from __future__ import annotations

from typing import Any

from oneflow.core.dispatch import call, current_mode
from oneflow.core.dtype import DType, bool_
from oneflow.core.op import find_op
from oneflow.core.sbp import without_sums
from oneflow.tensor.tensor import Tensor


def filled_like(x: Tensor, value: Any) -> Tensor:
    """The number `value` in the dtype, shape and place of `x`."""
    value = of_kind(value, x.type.dtype)
    if x._array is None or x._placement is None or not any(s.is_partial for s in x.sbp):
        return call(find_op("full_like"), x.detach(), value=value)  # type: ignore[no-any-return]
    attrs = {"shape": x.type.shape, "dtype": x.type.dtype, "value": value}
    constant = find_op("constant")
    made: Tensor = current_mode().create(constant, attrs, None, x.placement, x.sbp)
    return made


def layout_of(x: Tensor, *, no_partial: bool = False) -> dict[str, Any]:
    """The keywords that put a new tensor where `x` is."""
    if x._placement is None:
        return {"device": x._device}
    nd_sbp = x._sbp
    if nd_sbp is None:
        nd_sbp = current_mode().layout(x, is_fixed=False)
    if no_partial:
        nd_sbp = without_sums(nd_sbp)
    return {"placement": x._placement, "sbp": nd_sbp}


def of_kind(value: Any, dtype: DType) -> Any:
    """A number as attrs of ops of that dtype have it."""
    if dtype is bool_:
        return bool(value)
    return int(value) if dtype.is_integer else float(value) if not dtype.is_complex else value
