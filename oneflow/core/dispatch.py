"""The one door to execution: calling an op. Modes differ in how they run it, not in its meaning.

This module never looks inside a tensor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from oneflow.core.errors import InternalError, OneFlowError
from oneflow.core.location import locate
from oneflow.core.operand import Attr, Attrs, Tensor
from oneflow.core.sbp import NdSbp, SbpLike

if TYPE_CHECKING:
    from oneflow.core.device import Device
    from oneflow.core.op import Op
    from oneflow.core.placement import Placement


class Mode:
    """A way to run ops: eagerly on arrays and shards, or recorded in a graph.

    Everything that differs between the two is a method here; nobody asks which mode it is.
    """

    draws: Any = None
    """Numbers the draws of generators, in a mode that does not draw at once."""

    call_module: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None = None
    """`call_module(module, args, kwargs)`, in a mode that calls modules in a way of its own."""

    run_cast: Callable[..., Any] | None = None
    """`run_cast(function, args, kwargs, how)`: runs a function of several ops, in a mode that
    chooses their precision. how: see `Row.autocast` (api/row.py)."""

    choosing_dtypes: Callable[[], Mode] | None = None
    """The mode for blocks that choose the dtypes of their ops, in a mode that may choose others
    for ops outside of these."""

    reads_later: bool = False
    """Whether input pipelines are to be remembered for each step, in a mode that reads nothing."""

    has_memory: bool = True
    """Whether tensors have memory that views share."""

    scale_gradient: Callable[[Any, Any], Any] | None = None
    """`scale_gradient(grad, root)`: scales the gradient with which a call of `backward` begins at a
    tensor, in a mode that scales losses."""

    def need_rows(self, x: Any, asked: str, *, whole: bool) -> None:
        """Note that `asked`, a call like `as_strided`, counts elements in the memory of `x`: all
        that stands for `x` later has to lie in row-major order. whole: the call counts from the
        beginning of the memory, which has to begin with `x`."""

    def source(self, read: Callable[[object], Any]) -> Any:
        """The tensor that `read` makes of new input. Its argument is an object that is another one
        in each step of the program."""
        return read(object())

    differentiate: Callable[[int], None] | None = None
    """Called with the number of a recorded call before its gradients are computed, in a mode that
    wants to know."""

    record_below: Callable[..., None] | None = None
    """`record_below(name, inputs, outputs, backward)`: told of a recorded call that is of no op, in
    a mode whose tensors are made of others that may have a history, too."""

    enter: Callable[[Any], Any] | None = None
    """`enter(x)`: a tensor from outside as one of this mode, in a mode that has histories of its
    own: those of the mode below do not begin with it."""

    replays: bool = False
    """Whether gradients of repeated calls may be computed by functions over arrays, not by ops."""

    note_kernels: Callable[..., None] | None = None
    """Told of kernels that ran without their ops being called, in a mode that wants to know: their
    calls, the nanosecond at which the first began, and the one at which each ended."""

    def backward_pass(self) -> AbstractContextManager[object]:
        """The context in which a backward pass computes gradients."""
        return nullcontext()

    def run(self, op: type[Op], inputs: tuple[Tensor, ...], attrs: Attrs) -> Any:
        """The output of an op, or a tuple of them. attrs: as given, without the defaults."""
        raise InternalError(f"{type(self).__name__} runs no ops")

    def create(
        self,
        op: type[Op],
        attrs: Attrs,
        device: Device | None,
        placement: Placement | None,
        nd_sbp: NdSbp | None,
    ) -> Any:
        """The output of an op without inputs, global if a placement is given."""
        return self.run(op, (), attrs)

    def lay_out(
        self,
        x: Tensor,
        placement: Placement | None,
        sbp: SbpLike | None,
        *,
        grad_sbp: SbpLike | None = None,
        check_meta: bool | None = None,
        copy: bool = False,
    ) -> Tensor:
        """`x.to_global(...)`."""
        raise InternalError(f"{type(self).__name__} moves no tensors")

    def to_device(self, x: Tensor, device: Device, non_blocking: bool = False) -> Tensor:
        """A local tensor on another device, with history. non_blocking: from pinned memory to a GPU
        beside its kernels.
        """
        raise InternalError(f"{type(self).__name__} moves no tensors")

    def layout(self, x: Tensor, *, is_fixed: bool) -> NdSbp:
        """The layout of a global tensor that has none yet, in a mode that makes such tensors.
        is_fixed: it has to stay so, as the caller relies on it.
        """
        raise InternalError(f"{type(self).__name__} has no global tensors")

    def write(self, x: Tensor, new: Tensor) -> None:
        """Overwrite `x`, and the base that it is a view of, with the values and the history of
        `new`, which has its shape and dtype.
        """
        raise InternalError(f"{type(self).__name__} does not overwrite")

    def store(self, x: Tensor, new: Tensor) -> None:
        """Give `x`, and nothing else, the values of `new`."""
        raise InternalError(f"{type(self).__name__} does not overwrite")

    def share(self, x: Tensor, other: Tensor) -> None:
        """Let `other`, which has the values of `x` and no history, change when `x` is written to,
        and `x` when `other` is, although no memory that both share sees to that."""

    check_read: Callable[[Any], None] | None = None
    """Called with a tensor before its values are read by the program, in a mode that may refuse
    that."""

    def before_writing(self, array: object = None) -> None:
        """Called before the values of a tensor are overwritten in its memory: waits for calls that
        may still read or write them, in a mode that runs calls later. array: this memory; None:
        that of any tensor."""

    def to_copy(self, x: Tensor) -> Any:
        """Return the memory of a tensor, of which the caller only copies values. Other calls may
        still read it."""
        return x._array

    relay: Callable[[Any, Placement, NdSbp], Any] | None = None
    """`relay(x, placement, nd_sbp)`: a global tensor in another layout, in memory of its own and
    without history; None if it is to be moved at once. In a mode that runs calls later."""

    check_backward: Callable[[], None] | None = None
    """Called before a backward pass adds to `.grad`, in a mode that may refuse that."""

    def afresh(self) -> Mode:
        """The mode for code that is to do the same each time: without results kept from before."""
        return self

    def below(self, make: Callable[[Mode], Mode]) -> Mode:
        """This mode with the one that `make` puts above it; beneath one that chooses dtypes, which
        is to choose them first.
        """
        return make(self)


class ModeAbove(Mode):
    """A mode above another one, which does all that the class itself does not define."""

    def __init__(self, inner: Mode) -> None:
        self.inner = inner


def _inner(name: str) -> property:
    return property(lambda self: getattr(self.inner, name))


for _name in vars(Mode):
    if not _name.startswith("_") and _name != "below":
        setattr(ModeAbove, _name, _inner(_name))


class _State(threading.local):
    mode: Mode | None = None


_state = _State()
_default: Mode | None = None


def set_default_mode(mode: Mode) -> None:
    """The mode of every thread that has entered no other; set once by the front end."""
    global _default
    _default = mode


def current_mode() -> Mode:
    mode = _state.mode or _default
    if mode is None:
        raise InternalError("no execution mode is set")
    return mode


def is_traced() -> bool:
    """Return whether calls are recorded, as while `nn.Graph.build` is traced, and not computed."""
    return not current_mode().has_memory


def thread_state() -> object:
    """The object whose `mode` is the one that this thread has entered, None for the default."""
    return _state


def swap_mode(mode: Mode | None) -> Mode | None:
    """Ops of this thread run in `mode` from now on, None for the default; returns the mode before,
    to go back.
    """
    previous, _state.mode = _state.mode, None if mode is _default else mode
    return previous


@contextmanager
def use_mode(mode: Mode) -> Iterator[None]:
    """Ops of this thread run in `mode` inside the with-block."""
    previous = swap_mode(mode)
    try:
        yield
    finally:
        swap_mode(previous)


def call(op: type[Op], *inputs: Tensor, **attrs: Attr) -> Any:
    """Run or record one op. Attrs that are not given have their defaults.

    A mistake in the use of the op names the user's line.
    """
    mode = _state.mode or _default
    if mode is None:
        raise InternalError("no execution mode is set")
    try:
        return mode.run(op, inputs, attrs)
    except OneFlowError as error:
        if error.reason == OneFlowError.reason:
            locate(error)
        raise
