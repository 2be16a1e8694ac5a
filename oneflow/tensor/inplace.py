"""Writing into a tensor that exists: x.add_(y), x.copy_(y), x[i] = y."""

from __future__ import annotations

from collections.abc import Callable

from oneflow.core.dispatch import call, current_mode
from oneflow.core.dtype import category
from oneflow.core.errors import AutogradError, DTypeError, GraphError, ShapeError
from oneflow.core.op import find_op
from oneflow.tensor.grad_mode import state
from oneflow.tensor.tensor import Tensor
from oneflow.tensor.views import owner_of, with_history


def before(x: Tensor, *others: object) -> Tensor:
    """`with_history(x)`; with its values kept in a copy if a backward pass may ask for them after
    they are overwritten.
    """
    y = with_history(x)
    recorded = state.enabled and any(
        isinstance(t, Tensor) and t._requires_grad for t in (x, *others)
    )
    if recorded and x._array is not None:
        y._array, y._version = x._array.copy(), [0]
    return y


def check_writable(x: Tensor) -> None:
    """Raises AutogradError for an in-place operation on a leaf (or a view of one) that requires a
    gradient.
    """
    view = x._extra.view if x._extra is not None else None
    whole = x if view is None else owner_of(x)
    if whole._extra is not None and whole._extra.copied:
        raise GraphError(
            "x[i] with a position that is known only when the graph runs is a copy here, where "
            "eager code has a view: write x[i] = ... instead"
        )
    if not state.enabled:
        return
    if x._requires_grad and x._grad_fn is None:
        raise _leaf_written()
    if view is not None and not view.is_detached:
        base = view.base
        if base._requires_grad and base._grad_fn is None:
            raise _leaf_written()


def _leaf_written() -> AutogradError:
    return AutogradError(
        "a leaf Tensor that requires grad is being used in an in-place operation. "
        "Do it inside no_grad(), or on a copy (x.clone())"
    )


def in_place(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The method `x.f_(...)` of a function `f(x, ...)`."""

    def method(self: Tensor, *args: object, **kwargs: object) -> Tensor:
        check_writable(self)
        return take_result(self, function(before(self, *args), *args, **kwargs))

    name = f"{getattr(function, '__name__', 'f')}_"
    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"`{name[:-1]}`, in place; returns self."
    return method


def take_result(x: Tensor, new: Tensor) -> Tensor:
    """`overwrite` by the result of an op. Raises DTypeError if that would lose its kind: floats in
    a tensor of integers.
    """
    have, wanted = new.meta.dtype, x.meta.dtype
    if have is not wanted and category(have) > category(wanted):
        raise DTypeError(
            f"result type {have} can't be cast to the desired output type {wanted}: compute the "
            "result without writing in place"
        )
    return overwrite(x, new)


def overwrite(x: Tensor, new: Tensor) -> Tensor:
    """Makes `x` hold the values and the history of `new`. Raises ShapeError if the shapes
    differ.
    """
    check_writable(x)
    if new.meta.shape != x.meta.shape:
        raise ShapeError(
            f"an in-place operation on {x.meta} gave {new.meta}; the result must have the same "
            "shape"
        )
    if new.meta.dtype is not x.meta.dtype:
        new = call(find_op("cast"), new, dtype=x.meta.dtype)
    if state.enabled and new._requires_grad and new._grad_fn is None and new is not x:
        new = call(find_op("copy"), new)  # a leaf's gradient is its own: `x` is no leaf
    current_mode().write(x, new)
    return x
