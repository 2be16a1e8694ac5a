"""`torch._check` and its kin: conditions that raise the error in their name."""

from __future__ import annotations

from collections.abc import Callable

from oneflow.core.dispatch import is_traced
from oneflow.core.dtype import int64
from oneflow.core.errors import ArgumentError, OneFlowError
from oneflow.functional.from_data import tensor
from oneflow.tensor.tensor import Tensor, is_tensor

Message = Callable[[], object] | None


def _raise(error: type[Exception], message: Message) -> None:
    text = "Expected cond to be True, but got False." if message is None else str(message())
    raise error(text)


def _check(cond: bool, message: Message = None) -> None:
    """Raise RuntimeError with the text of `message` unless the condition holds."""
    if not cond:
        _raise(RuntimeError, message)


def _check_index(cond: bool, message: Message = None) -> None:
    """Raise IndexError with the text of `message` unless the condition holds."""
    if not cond:
        _raise(IndexError, message)


def _check_value(cond: bool, message: Message = None) -> None:
    """Raise ValueError with the text of `message` unless the condition holds."""
    if not cond:
        _raise(ValueError, message)


def _check_type(cond: bool, message: Message = None) -> None:
    """Raise TypeError with the text of `message` unless the condition holds."""
    if not cond:
        _raise(TypeError, message)


def _check_not_implemented(cond: bool, message: Message = None) -> None:
    """Raise NotImplementedError with the text of `message` unless the condition holds."""
    if not cond:
        _raise(NotImplementedError, message)


def _check_with(error_type: type[Exception], cond: bool, message: Message = None) -> None:
    """Raise an error of that type with the text of `message` unless the condition holds."""
    if not cond:
        _raise(error_type, message)


def _check_is_size(i: int, message: Message = None, *, max: int | None = None) -> None:
    """Raise RuntimeError unless a number can be a size."""
    _check(i >= 0 and (max is None or i <= max), message)


def _check_tensor_all(cond: Tensor, message: Message = None) -> None:
    """Raise RuntimeError with the text of `message` unless all elements of a tensor hold."""
    _check_tensor_all_with(RuntimeError, cond, message)


def _check_tensor_all_with(
    error_type: type[Exception], cond: Tensor, message: Message = None
) -> None:
    """Raise an error of that type unless all elements of a tensor of bools hold."""
    if not is_tensor(cond):
        raise ArgumentError(f"_check_tensor_all: expected a tensor of bools, got {cond!r}")
    _check_with(error_type, bool(cond.all()), message)


def _assert_async(input: Tensor, assert_msg: str = "") -> None:
    """Raise OneFlowError unless the one element is true; a graph that is traced has no values."""
    if not is_traced() and not bool(input):
        raise OneFlowError(assert_msg or "Expected Tensor with single nonzero value, but got zero")


def _shape_as_tensor(input: Tensor) -> Tensor:
    """Return the shape as a tensor of int64."""
    return tensor(list(input.shape), dtype=int64)
