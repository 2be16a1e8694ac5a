"""Writing into a tensor that exists: x.add_(y), x.copy_(y), x[i] = y. The history of the tensor
(and of the tensor it is
a view of) is rewritten so that gradients are those of the same program written without in-place
operations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from oneflow.autograd.grad_mode import state
from oneflow.autograd.tape import record_call
from oneflow.core.dispatch import call
from oneflow.core.errors import AutogradError, ShapeError
from oneflow.core.op import find_op
from oneflow.tensor.tensor import Tensor, alias, extra, raw


def with_history(x: Tensor) -> Tensor:
    """Another object for the same value and history: `x` is about to get a new history."""
    y = alias(x)
    y._requires_grad, y._grad_fn, y._out_index = x._requires_grad, x._grad_fn, x._out_index
    if y.value is not None:
        y._version = [0]  # a value of a graph stays what it is, whatever `x` becomes
    return y


def before(x: Tensor, *others: Any) -> Tensor:
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
    if not state.enabled:
        return
    base = x._extra.base if x._extra is not None else None
    for t in (x, base):
        if t is not None and t._requires_grad and t._grad_fn is None:
            raise AutogradError(
                "a leaf Tensor that requires grad is being used in an in-place operation. "
                "Do it inside no_grad(), or on a copy (x.clone())"
            )


def in_place(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The method `x.f_(...)` of a function `f(x, ...)`."""

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        check_writable(self)
        return overwrite(self, function(before(self, *args), *args, **kwargs))

    name = f"{getattr(function, '__name__', 'f')}_"
    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"`{name[:-1]}`, in place; returns self."
    return method


def overwrite(x: Tensor, new: Tensor) -> Tensor:
    """Makes `x` hold the values and the history of `new`. Raises ShapeError if the shapes
    differ.
    """
    check_writable(x)
    if new.type.shape != x.type.shape:
        raise ShapeError(
            f"an in-place operation on {x.type} gave {new.type}; the result must have the same "
            "shape"
        )
    if new.type.dtype is not x.type.dtype:
        from oneflow.ops.cast import cast

        new = cast(new, dtype=x.type.dtype)
    if state.enabled and new._requires_grad and new._grad_fn is None and new is not x:
        new = call(find_op("copy"), new)  # a leaf's gradient is its own: `x` is no leaf
    if x.value is not None or new.value is not None:
        from oneflow.graph.views import overwrite_traced

        return overwrite_traced(x, new)
    base = x._extra.base if x._extra is not None else None
    layout = x._placement, x._sbp
    if x._placement is not None and x._sbp is not None and layout != (new._placement, new._sbp):
        from oneflow.tensor.eager_global import to_layout

        new = to_layout(new, x._placement, x._sbp)
    if new._array is not x._array:
        x._array[...] = new._array
    x._version[0] += 1
    is_copy = x._extra is not None and x._extra.copied_at >= 0
    if is_copy:
        from oneflow.tensor.global_views import write_through

        write_through(x, new)
    if state.enabled:
        if is_copy:
            renew_view(x)
        elif base is not None and (new._requires_grad or base._requires_grad):
            _rebase(base, x, new)
        else:
            _take_history(x, new)
    return x


def _take_history(x: Tensor, new: Tensor) -> None:
    if x._requires_grad and not new._requires_grad and x.value is None:
        new = _without_gradient(x)
    x._requires_grad, x._grad_fn, x._out_index = new._requires_grad, new._grad_fn, new._out_index
    if x._grad_fn is not None and x._extra is not None and x._extra.retains:
        x._grad_fn.watch(x)


def _without_gradient(x: Tensor) -> Tensor:
    """`x` after all of it was overwritten by what needs no gradient: what it was made of gets
    zeros.
    """
    result = raw(x.type, x._array, x._device)
    result._placement, result._sbp = x._placement, x._sbp
    full_like = find_op("full_like")
    zeros = partial(call, full_like, value=0)
    record_call("overwrite", [with_history(x)], [result], lambda grads: [zeros(grads[0])])
    return result


def _rebase(base: Tensor, view: Tensor, new: Tensor) -> None:
    """`base` was written to through `view`: its gradient now splits into the part under the view
    and the rest.
    """
    steps = view._extra.replay if view._extra is not None else ()
    old = with_history(base)

    def backward(grads: list[Any]) -> list[Any]:
        d = _laid_out_as(old, grads[0])
        rest = call(find_op("copy"), d)
        part = _replay(rest, steps)
        taken = call(find_op("copy"), part)
        part._array[...] = 0
        return [rest, taken]

    result = raw(base.type, base._array, base._device)
    result._placement, result._sbp = base._placement, base._sbp
    record_call("write_view", [old, new], [result], backward)
    _take_history(base, result)
    renew_view(view)


def _laid_out_as(x: Tensor, d: Tensor) -> Tensor:
    if x._placement is None or x._sbp is None:
        return d
    from oneflow.tensor.eager_global import to_layout

    return to_layout(d, x._placement, x._sbp)


def renew_view(x: Tensor) -> None:
    """Takes the history of a view anew from its base; its values share memory and need nothing."""
    link = extra(x)
    link.seen = x._version[0]
    base = link.base
    if base is not None and (x._requires_grad or base._requires_grad):
        _take_history(x, _replay_recorded(base, link.replay))


def _replay(x: Tensor, steps: tuple[Any, ...]) -> Tensor:
    """The view of `x` that `steps` make, sharing its memory."""
    from oneflow.autograd.grad_mode import no_grad

    with no_grad():
        return _replay_recorded(x, steps)


def _replay_recorded(x: Tensor, steps: tuple[Any, ...]) -> Tensor:
    for op, attrs in steps:
        x = call(op, x, **attrs)
    return x
