"""Checks of gradients that users give: assigned to `.grad`, or returned by hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from oneflow.core.errors import AutogradError, CallError, DeviceError, DTypeError, ShapeError

if TYPE_CHECKING:
    from oneflow.tensor.tensor import Tensor


def check_assigned(x: Tensor, grad: object) -> None:
    """Raise an error unless `grad` can be the gradient of `x`: of its type and in its place."""
    from oneflow.tensor.tensor import Tensor

    if not isinstance(grad, Tensor):
        raise CallError(
            f"assigned grad expected to be a Tensor or None but got grad of type "
            f"{type(grad).__name__}"
        )
    if grad is x:
        raise AutogradError("can't assign Variable as its own grad")
    have, want = grad.meta, x.meta
    if have.shape != want.shape:
        raise ShapeError(
            f"attempting to assign a gradient of size '{list(have.shape)}' to a tensor of size "
            f"'{list(want.shape)}'. Please ensure that the gradient and the tensor are the same "
            "size"
        )
    if have.dtype is not want.dtype:
        raise DTypeError(
            f"attempting to assign a gradient with dtype '{have.dtype.name}' to a tensor of dtype "
            f"'{want.dtype.name}'. The gradient must have the dtype of the tensor; "
            f"use grad.to({want.dtype})"
        )
    if x.value is None and grad.value is None:
        _check_place(x, grad)


def _check_place(x: Tensor, grad: Tensor) -> None:
    if (grad._placement is None) != (x._placement is None):
        kinds = ["local" if t._placement is None else "global" for t in (grad, x)]
        raise DeviceError(
            f"attempting to assign a {kinds[0]} gradient to a {kinds[1]} tensor; "
            "use to_global(placement, sbp), or to_local()"
        )
    have, want = grad._device.type, x._device.type
    if have != want:
        raise DeviceError(
            f"attempting to assign a gradient with device type '{have}' to a tensor with device "
            f"type '{want}'. Please ensure that the gradient and the tensor are on the same device"
        )


def check_replaced(hook: Callable[..., Any], old: Tensor, new: object) -> None:
    """Raise an error unless `new`, which `hook` returned for the gradient `old`, can replace
    it.
    """
    from oneflow.tensor.tensor import Tensor

    name = f"hook '{getattr(hook, '__name__', type(hook).__name__)}'"
    if not isinstance(new, Tensor):
        raise CallError(
            f"expected Variable, but hook returned '{type(new).__name__}': {name} must return a "
            "Tensor or None"
        )
    if new.meta.dtype is not old.meta.dtype:
        raise DTypeError(
            f"{name} has changed the type of value (was {old.meta.dtype} got {new.meta.dtype})"
        )
    if new.meta.shape != old.meta.shape:
        raise ShapeError(
            f"{name} has changed the size of value (was {list(old.meta.shape)} got "
            f"{list(new.meta.shape)})"
        )
    if (new._placement is None) != (old._placement is None):
        kinds = ["local" if t._placement is None else "global" for t in (old, new)]
        raise DeviceError(f"{name} has changed the value from a {kinds[0]} to a {kinds[1]} tensor")
