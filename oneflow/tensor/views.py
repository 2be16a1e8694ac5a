"""Views, and the histories of tensors that are overwritten.

A view remembers its base and the steps (ops) that make it of the base. Its values lie in one of
two ways:

    shared   in the memory of the base: an array, or a shard that holds all that the view shows
    own      in memory of its own (a slice of a split dim, whose parts lie on other ranks), or in no
             memory at all (a value of a graph)

Both behave alike. Writing to a view writes to its base; views whose values are their own are taken
again when they are read after that. Histories follow: the base gets that of the same program
written without in-place operations, and a view gets the one it would have if taken now, both when
next used. All tensors of one base share its version counter, by which a view knows the writes it
missed.

A detached tensor is a view of values alone. Its history begins with itself, and it is the base of
the views that are taken of it: a write to one of these reaches the memory of all, and the history
of the detached tensor, but none before it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from oneflow.core.dispatch import Mode, call, current_mode
from oneflow.core.errors import AutogradError
from oneflow.core.location import with_location
from oneflow.core.op import Op, find_op
from oneflow.core.operand import Attrs
from oneflow.kernels.array import Array
from oneflow.kernels.hardware import address_of
from oneflow.kernels.registry import find_view
from oneflow.tensor.grad_mode import no_grad, set_grad_enabled, state
from oneflow.tensor.tape import record_call
from oneflow.tensor.tensor import Tensor, alias, extra

Step = tuple[type[Op], Attrs]
Steps = tuple[Step, ...]

SHARED = -1


class View:
    """The way in which a tensor came to be a view.

    taken_at: the version of the base at which the values were taken; SHARED if they are the base's.
    history_at: the version at which the history was taken.  is_detached: it has a history of its
    own, and writes to it are none of the history of the base; a view of it has it as the base.
    """

    __slots__ = ("_base", "history_at", "is_detached", "steps", "taken_at")

    def __init__(
        self, base: Tensor, steps: Steps, taken_at: int, history_at: int, is_detached: bool = False
    ) -> None:
        self._base = base
        self.steps = steps
        self.taken_at = taken_at
        self.history_at = history_at
        self.is_detached = is_detached

    @property
    def base(self) -> Tensor:
        """The tensor of which this is a view, as it was before its own shape was changed."""
        root = self._base._extra.root if self._base._extra is not None else None
        return self._base if root is None else root

    def refresh(self, x: Tensor) -> None:
        """Bring the values of `x`, whose view this is, up to date. All ranks of a global tensor
        call it.
        """
        version = x._version[0]
        if self.taken_at == SHARED or self.taken_at == version:
            return
        self.taken_at = version
        with no_grad():
            new = replay(self.base, self.steps)
            if x._array is not None and 0 in x._array.strides:  # elements in one place: not written
                x._array = _laid_out_as(x, new)._array
            else:
                current_mode().store(x, new)

    def is_differentiable(self, x: Tensor) -> bool:
        """Whether `x`, whose view this is, requires a gradient, now that its base may have been
        written to.
        """
        if x._requires_grad or self.is_detached or self.history_at == x._version[0]:
            return x._requires_grad
        dtype = x.meta.dtype
        return self.base._requires_grad and (dtype.is_floating_point or dtype.is_complex)

    def renew(self, x: Tensor) -> None:
        """Give `x`, whose view this is, the history that it would have if taken now."""
        version = x._version[0]
        if self.history_at == version or self.is_detached:
            return
        self.history_at = version
        if x._requires_grad or self.base._requires_grad:
            with set_grad_enabled(True):
                take_history(x, replay(self.base, self.steps))


def view_of(x: Tensor) -> View | None:
    """Return how `x` came to be a view; None if it is none."""
    return x._extra.view if x._extra is not None else None


def owner_of(x: Tensor) -> Tensor:
    """The tensor that is a view of no other, in whose memory `x` lies: `x` itself, or the base of
    its base, where that is detached.
    """
    view = view_of(x)
    while view is not None:
        x = view.base
        view = view_of(x)
    return x


def apart(x: Tensor, source: Tensor) -> Tensor:
    """`x`, or a copy of it if it is `source` or a view of the same memory."""
    made: Tensor = call(find_op("copy"), x) if owner_of(x) is owner_of(source) else x
    return made


def unlinked(x: Tensor) -> Tensor:
    """`x`, a view of a tensor that is held nowhere else, as a tensor of its own: its gradient is
    that of the result also after a view of it was overwritten."""
    if x._extra is not None:
        x._extra.view = None
    return x


def refresh(x: Tensor) -> None:
    """Bring the values of `x`, if it is a view, up to date with its base. All ranks of a global
    tensor call it.
    """
    view = view_of(x)
    if view is not None:
        view.refresh(x)


def link_view(op: type[Op], x: Tensor, out: Tensor, attrs: Attrs, *, own: bool) -> None:
    """Remember that `out` is the view `op` of `x`. own: its values do not lie in the memory of
    `x`.
    """
    known = view_of(x)
    version = x._version[0]
    taken_at = version if own or (known and known.taken_at != SHARED) else SHARED
    out._version = x._version
    if known is None or known.is_detached:
        extra(out).view = View(x, ((op, attrs),), taken_at, version)
    else:
        steps = (*known.steps, (op, attrs))
        extra(out).view = View(known.base, steps, taken_at, version)


def link_detached(x: Tensor, other: Tensor) -> None:
    """Remember that `other`, which has no history, has the values of `x`, and where these lie in
    the memory of its base."""
    known = view_of(x)
    base, steps = (x, ()) if known is None else (known.base, known.steps)
    version = x._version[0]
    shares = known is not None and known.taken_at == SHARED and x.value is None
    taken_at = SHARED if shares else version
    extra(other).view = View(base, steps, taken_at, version, is_detached=True)


def replay(x: Tensor, steps: Steps) -> Tensor:
    """Run `steps` on `x` again."""
    for op, attrs in steps:
        x = call(op, x, **attrs)
    return x


def stand_in(x: Tensor) -> Any:
    """An array of bytes with the strides that the memory of `x` has, or would have in eager
    execution; None if it would be a copy. A global tensor has those of the whole, the same on all
    ranks, whichever part of it lies here.
    """
    if x._array is not None and x._placement is None:
        return x._array
    view = view_of(x)
    if view is None:
        return _lazy(x)
    return seen_through(view.base, view.steps)


def seen_through(base: Tensor, steps: Steps) -> Any:
    """The stand-in of the view that `steps` make of `base`; None if one of them has to copy."""
    array = stand_in(base)
    for op, attrs in steps:
        find = find_view(op.name)
        array = find(array, **attrs) if find is not None and array is not None else None
    return array


def place_of(x: Tensor) -> int:
    """Elements between the start of the memory of `owner_of(x)` and the first element of `x`; of
    values that are not all here, as stand-ins would lie.
    """
    chain: list[View] = []
    owner = x
    while (view := view_of(owner)) is not None:
        chain.append(view)
        owner = view.base
    if x._array is not None and owner._array is not None and x._placement is None:
        return (address_of(x._array) - address_of(owner._array)) // x.meta.dtype.bytes
    whole = part = stand_in(owner)
    for view in reversed(chain):
        for op, attrs in view.steps:
            find = find_view(op.name)
            part = find(part, **attrs) if find is not None and part is not None else None
    if part is None or not part.size:
        return 0
    return (address_of(part) - address_of(whole)) // int(part.itemsize)


def copies(op: type[Op], x: Tensor, attrs: Attrs) -> bool:
    """Whether the view `op` of `x` is a copy: a reshape of a tensor that does not lie in one piece.
    Of a global tensor all ranks say the same, whichever part of it lies here."""
    if op.name != "reshape":
        return False
    view = view_of(x)
    base, steps = (view.base, view.steps) if view is not None else (x, ())
    return seen_through(base, (*steps, (op, attrs))) is None


MOST_LAZY = 1 << 28


def _lazy(x: Tensor) -> Any:
    """Memory that nobody touches, and that takes up none; of bytes where even that is too much."""
    return np.empty(x.meta.shape, x.meta.dtype.np if x.meta.numel < MOST_LAZY else np.uint8)


def become(x: Tensor, function: Callable[[Tensor], Tensor]) -> None:
    """Make `x` the view that `function` gives of it. Views that were taken of `x` are then views
    of its former self.
    """
    old = with_history(x)
    old._version, known = x._version, view_of(x)
    if known is not None:
        extra(old).view = known
    seen = function(old)
    if seen is old:
        return
    if known is None or known.is_detached:
        extra(x).root = old
    if x._extra is not None:
        extra(old).former = x._extra.former
    extra(x).view, extra(x).former = view_of(seen), (x._version[0], old)
    counter = x._version
    counter.extend([0] * (2 - len(counter)))
    counter.append(counter[0])  # a gradient that saved it, or a view of it, gets what it was
    counter[0] += 1
    x.meta, x._array, x.value, x._sbp = seen.meta, seen._array, seen.value, seen._sbp
    x._requires_grad, x._grad_fn, x._out_index = seen._requires_grad, seen._grad_fn, seen._out_index


# ---- writing -------------------------------------------------------------------------------------


SEVERAL_IN_ONE_PLACE = (
    "unsupported operation: more than one element of the written-to tensor refers to a single "
    "memory location. Please clone() the tensor before performing the operation"
)


def require_single_places(array: Array) -> None:
    """Raises AutogradError for an array that repeats elements, as `expand` does."""
    if array.size and any(
        s == 0 and n > 1 for s, n in zip(array.strides, array.shape, strict=True)
    ):
        raise with_location(AutogradError(SEVERAL_IN_ONE_PLACE))


def write_whole(mode: Mode, x: Tensor, new: Tensor) -> None:
    """Overwrite `x`, which is no view."""
    mode.store(x, new)
    x._version[0] += 1
    if state.enabled:
        take_history(x, new)


def write_shared(mode: Mode, x: Tensor, view: View, new: Tensor) -> None:
    """Overwrite a view in memory that is its base's."""
    mode.store(x, new)
    x._version[0] += 1
    if not state.enabled:
        return
    if not view.is_detached and (new._requires_grad or view.base._requires_grad):
        _rebase(x, view, new)
    else:
        take_history(x, new)


def write_through(mode: Mode, x: Tensor, view: View, new: Tensor) -> None:
    """Overwrite a view whose values are its own, and its base with it."""
    base = view.base
    recorded = state.enabled and (new._requires_grad or base._requires_grad)
    recorded = recorded and not view.is_detached
    with set_grad_enabled(recorded):
        whole = _put_back(with_history(base), view.steps, new)
        base._version[0] += 1
        _store_below(mode, base, whole)
        if recorded:
            take_history(base, whole)
    mode.store(x, new)
    view.taken_at = x._version[0]
    if state.enabled and view.is_detached:
        take_history(x, new)
    elif state.enabled:
        view.renew(x)


def _store_below(mode: Mode, x: Tensor, new: Tensor) -> None:
    """Give the values of `new` to `x`, and to the tensors of which it is a detached view."""
    view = view_of(x)
    if view is not None and view.taken_at != SHARED:
        with no_grad():
            _store_below(mode, view.base, _put_back(alias(view.base), view.steps, new))
        view.taken_at = x._version[0]
    mode.store(x, new)


def _put_back(base: Tensor, steps: Steps, part: Tensor) -> Tensor:
    """`base` with the view that `steps` make replaced by `part`, as a new tensor."""
    targets = []
    for op, attrs in steps:
        targets.append(base)
        base = base if len(targets) == len(steps) else call(op, base, **attrs)
    for (op, attrs), target in zip(reversed(steps), reversed(targets), strict=True):
        if op.undo is None or part.meta.nbytes > target.meta.nbytes:
            raise with_location(AutogradError(f"{op.name}: {SEVERAL_IN_ONE_PLACE}"))
        part = op.undo(target, part, **attrs)
    return part


# ---- histories -----------------------------------------------------------------------------------


def with_history(x: Tensor) -> Tensor:
    """Another object for the same value and history: `x` is about to get new ones."""
    if x._extra is not None and x._extra.view is not None and state.enabled:
        x._extra.view.renew(x)
    y = alias(x)
    y._requires_grad, y._grad_fn, y._out_index = x._requires_grad, x._grad_fn, x._out_index
    if y._array is None:
        y._version = [0]  # what has no memory stays what it is, whatever `x` becomes
    return y


def take_history(x: Tensor, new: Tensor) -> None:
    """Give `x`, which holds the values of `new`, its history too."""
    if x._requires_grad and not new._requires_grad:
        new = _without_gradient(x)
    x._requires_grad, x._grad_fn, x._out_index = new._requires_grad, new._grad_fn, new._out_index
    if x._grad_fn is not None and x._extra is not None and x._extra.retains:
        x._grad_fn.watch(x)


def _without_gradient(x: Tensor) -> Tensor:
    """`x` after all of it was overwritten by values that need no gradient: its former sources get
    zeros.
    """
    old, result = _bare(x), _bare(x)
    old._requires_grad, old._grad_fn, old._out_index = True, x._grad_fn, x._out_index
    zeros = partial(call, find_op("full_like"), value=0)
    record_call("overwrite", [old], [result], lambda grads: [zeros(grads[0])])
    return result


def _bare(x: Tensor) -> Tensor:
    """`x` as it is now, without history."""
    with no_grad():
        return alias(x)


def _rebase(x: Tensor, view: View, new: Tensor) -> None:
    """The base of `x` was written to through `x`: its gradient now splits into the part under the
    view and the rest.
    """
    base, steps = view.base, view.steps
    old = with_history(base)

    def backward(grads: list[Any]) -> list[Any]:
        copy = find_op("copy")
        if state.enabled:  # recorded (create_graph): in ops, which have gradients
            d = _laid_out_as(old, grads[0])
            shown = call(copy, replay(d, steps))
            return [_put_back(d, steps, call(find_op("full_like"), shown, value=0)), shown]
        rest = call(copy, _laid_out_as(old, grads[0]))
        with no_grad():
            part = replay(rest, steps)
        taken = call(copy, part)
        part._array[...] = 0
        return [rest, taken]

    result = _bare(base)
    record_call("write_view", [old, new], [result], backward)
    take_history(base, result)
    view.renew(x)


def _laid_out_as(x: Tensor, d: Tensor) -> Tensor:
    if x._placement is None or x._sbp is None:
        return d
    found: Tensor = current_mode().lay_out(d, x._placement, x._sbp)
    return found
