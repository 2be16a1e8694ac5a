"""Writing to tensors while a graph is traced.

A graph has values, not memory: a write gives the tensor a new value. What eager code would see
through shared memory is kept up by hand: writing to a view writes to what it is a view of, and a
view is taken again if that has been written to since.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oneflow.autograd.grad_mode import set_grad_enabled, state
from oneflow.core.dispatch import call
from oneflow.core.errors import GraphError
from oneflow.core.location import user_location
from oneflow.core.op import Attr, Op, find_op
from oneflow.graph.scope import current_trace
from oneflow.kernels.registry import find_view
from oneflow.ops.assign import assign
from oneflow.tensor.tensor import Tensor, extra

Step = tuple[type[Op], dict[str, Attr]]


def link_view(op: type[Op], x: Tensor, out: Tensor, attrs: dict[str, Attr]) -> None:
    """Remembers that `out` shares memory with `x`, as it would if both had any."""
    known = x._extra
    base, before = x, ()
    if known is not None and known.base is not None:
        base, before = known.base, known.replay
    steps = (*before, (op, attrs))
    if op.name == "reshape" and not _shares_memory(base, steps):
        return
    link = extra(out)
    link.base, link.replay = base, steps
    out._version = base._version
    link.seen = base._version[0]


def _shares_memory(base: Tensor, steps: tuple[Step, ...]) -> bool:
    """A reshape of what is not contiguous is a copy."""
    array: Any = np.empty(base.type.shape, np.uint8)
    for op, attrs in steps:
        view = find_view(op.name)
        array = view(array, **attrs) if view is not None else None
        if array is None:
            return False
    return True


def refresh(x: Tensor) -> None:
    """Takes a view again if its base has been written to since."""
    link = x._extra
    if link is None or link.base is None or link.seen == link.base._version[0]:
        return
    with set_grad_enabled(x._requires_grad):
        _take_again(x)


def _take_again(x: Tensor) -> None:
    link = extra(x)
    base: Any = link.base
    link.seen = base._version[0]
    fresh = base
    for op, attrs in link.replay:
        fresh = call(op, fresh, **attrs)
    x.value, x._sbp = fresh.value, fresh._sbp
    _take_history(x, fresh)


def overwrite_traced(x: Tensor, new: Tensor) -> Tensor:
    """`x` becomes `new`, which has its type. Returns x."""
    link = x._extra
    if link is not None and link.base is not None:
        _write_view(x, link.base, link.replay, new)
    else:
        _write(x, new)
    return x


def _write(x: Tensor, new: Tensor) -> None:
    if x.value is None:
        _write_outside(x, new)
        return
    if x._placement is not None and new._placement != x._placement:
        new = new.to_global(placement=x._placement, sbp=x._sbp)
    x.value, x._sbp = new.value, new._sbp
    x._version[0] += 1
    if state.enabled:
        _take_history(x, new)


def _write_view(x: Tensor, base: Tensor, steps: tuple[Step, ...], new: Tensor) -> None:
    from oneflow.tensor.inplace import check_writable, with_history

    check_writable(base)
    inner = [with_history(base) if base.value is not None else base]
    for op, attrs in steps[:-1]:
        inner.append(call(op, inner[-1], **attrs))
    for (op, attrs), target in zip(reversed(steps), reversed(inner), strict=True):
        new = _undo(op, attrs, target, new)
    _write(base, new)
    _take_again(x)


def _undo(op: type[Op], attrs: dict[str, Attr], x: Tensor, part: Tensor) -> Tensor:
    """`x` with its view `op(x)` replaced by `part`."""
    if op.name == "slice":
        return call(find_op("slice_update"), x, part, **attrs)  # type: ignore[no-any-return]
    if op.name == "reshape":
        return call(op, part, shape=x.type.shape)  # type: ignore[no-any-return]
    if op.name == "transpose":
        dims = attrs["dims"]
        back = tuple(sorted(range(len(dims)), key=dims.__getitem__))
        return call(op, part, dims=back)  # type: ignore[no-any-return]
    raise GraphError(
        f"a tensor made by {op.name} cannot be written to: several of its elements may be one "
        f"in memory; write to a copy, x.clone() ({user_location()})"
    )


def _write_outside(x: Tensor, new: Tensor) -> None:
    """Buffers of the graph's modules are overwritten when the graph runs; any other tensor made
    outside keeps its values, and only the rest of build() sees the new one.
    """
    trace = current_trace()
    if trace is None:
        raise GraphError(f"a tensor of a graph is used outside its build() ({user_location()})")
    if state.enabled and new._requires_grad:
        raise GraphError(
            f"{x.type}, made outside of build(), is overwritten by a tensor that requires a "
            f"gradient; write x.detach(), or write inside no_grad() ({user_location()})"
        )
    x = trace.owner(x)
    if id(x) in trace.names:
        if x._placement is not None and x._placement != new._placement:
            new = new.to_global(placement=x._placement, sbp=x._sbp)
        assign(x, new)
    else:
        trace.rebind(x, new)


def _take_history(x: Tensor, new: Tensor) -> None:
    x._requires_grad, x._grad_fn, x._out_index = new._requires_grad, new._grad_fn, new._out_index
    if x._grad_fn is not None and x._extra is not None and x._extra.retains:
        x._grad_fn.watch(x)
