"""Views of global tensors. A slice of a split dim has memory of its own, since its parts lie on
other ranks, and behaves like a view all the same: writing to it writes to its base, and what was
written to the base since is seen when it is read.
"""

from __future__ import annotations

from typing import Any

from oneflow.autograd.grad_mode import no_grad, set_grad_enabled, state
from oneflow.core.dispatch import call
from oneflow.core.errors import AutogradError
from oneflow.core.op import Attr, Op, find_op
from oneflow.tensor.tensor import Tensor, extra

Step = tuple[type[Op], dict[str, Attr]]


def link_view(op: type[Op], x: Tensor, out: Tensor, attrs: dict[str, Attr], is_copy: bool) -> None:
    """Remembers that `out` is the view `op` of `x`. is_copy: it does not share its memory."""
    known = x._extra
    link = extra(out)
    if known is not None and known.base is not None:
        link.base, link.replay = known.base, (*known.replay, (op, attrs))
        is_copy = is_copy or known.copied_at >= 0
    else:
        link.base, link.replay = x, ((op, attrs),)
    out._version = x._version
    link.seen = out._version[0]
    if is_copy:
        link.copied_at = out._version[0]


def take_again(x: Tensor) -> None:
    """Brings a view with memory of its own up to date with its base. All ranks must call it; of
    any other tensor nothing is done."""
    link = x._extra
    if link is None or link.copied_at in (-1, x._version[0]):
        return
    link.copied_at = x._version[0]
    with no_grad():
        fresh: Any = link.base
        for op, attrs in link.replay:
            fresh = call(op, fresh, **attrs)
        x._array[...] = _laid_out_like(fresh, x)._array


def write_through(x: Tensor, new: Tensor) -> None:
    """`x`, a view with memory of its own, was overwritten with `new`: so is the part of its base.
    The base takes the history of that."""
    from oneflow.tensor.inplace import with_history

    link = extra(x)
    base: Any = link.base
    recorded = state.enabled and (new._requires_grad or base._requires_grad)
    with set_grad_enabled(recorded):
        whole = _laid_out_like(_put_back(with_history(base), link.replay, new), base)
    base._array[...] = whole._array
    link.copied_at = x._version[0]
    if recorded:
        base._requires_grad, base._grad_fn = whole._requires_grad, whole._grad_fn
        base._out_index = whole._out_index


def _laid_out_like(x: Tensor, other: Tensor) -> Tensor:
    from oneflow.tensor.to_global import relaid

    return relaid(x, other.placement, other.sbp)


def _put_back(base: Tensor, steps: tuple[Step, ...], part: Tensor) -> Tensor:
    """`base` with the view that `steps` make replaced by `part`, as a new tensor."""
    inner = [base]
    for op, attrs in steps[:-1]:
        inner.append(call(op, inner[-1], **attrs))
    for (op, attrs), target in zip(reversed(steps), reversed(inner), strict=True):
        part = _undone(op, attrs, target, part)
    return part


def _undone(op: type[Op], attrs: dict[str, Attr], x: Tensor, part: Tensor) -> Any:
    """`x` with its view `op(x)` replaced by `part`."""
    if op.name == "slice":
        return call(find_op("slice_update"), x, part, **attrs)
    if op.name == "reshape":
        return call(op, part, shape=x.type.shape)
    if op.name == "transpose":
        dims = attrs["dims"]
        return call(op, part, dims=tuple(sorted(range(len(dims)), key=dims.__getitem__)))
    raise AutogradError(
        f"a tensor made by {op.name} cannot be written to: several of its elements may be one in "
        "memory; write to a copy, x.clone()"
    )
