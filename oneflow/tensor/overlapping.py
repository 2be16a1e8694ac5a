"""Eager ops whose kernels run on a worker's thread, while the caller goes on (`flow.asyncs`).

Types are inferred, arrays made and histories recorded at the call; only the kernel is queued. A
tensor that queued calls fill or read has no `_array`: its slot is empty, and `Extra.later` holds
the array with the calls to wait for. Python asks `Tensor.__getattr__` for the value of an empty
slot, which waits and fills the slot again. So all code that touches a tensor's memory waits as it
must, without knowing of workers, and tensors that no worker has to do with cost nothing.

Memory may also be reached through another tensor over it. Views share the calls to wait for with
their base. An op that overwrites waits for all calls of all workers; a method that hands out the
memory as an array (`numpy()`) for those that use it; `item`, `tolist` and their kin, which only
copy, for the call that makes it. Random and creating ops, backward passes and other devices run in
the caller's thread as they always do. Calls on global tensors are in overlapping_global.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from oneflow.boxing.bound_op import BoundOp
from oneflow.core.location import user_location
from oneflow.core.op import Op
from oneflow.core.operand import Attrs
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.kernels.array import Array
from oneflow.tensor import on_ranks
from oneflow.tensor.eager import EAGER, Eager, bound_call, record_view
from oneflow.tensor.grad_mode import state
from oneflow.tensor.tape import record
from oneflow.tensor.tensor import Tensor, extra, raw
from oneflow.tensor.views import view_of
from oneflow.tensor.workers import (
    Call,
    Worker,
    finish,
    finish_with,
    is_settled,
    queueing,
    settle,
)

_class: Any = Tensor
_slot: Any = vars(Tensor)["_array"]


class Later:
    """The memory of a tensor that queued calls have to do with.

    made: the call that fills it; None if it has values.  used: the last call of each worker that
    reads or fills it, or memory of the same base.
    """

    __slots__ = ("array", "made", "used")

    def __init__(self, array: Array, made: Call | None, used: dict[Worker, Call]) -> None:
        self.array, self.made, self.used = array, made, used

    @property
    def is_free(self) -> bool:
        """Whether no call has to do with the memory any more."""
        return all([call.is_finished for call in list(self.used.values())])

    def wait(self) -> list[Call]:
        """Wait for the calls, and return those that were waited for. Raises the error of the one
        that fills it."""
        if self.made is not None:
            self.made.wait()
        calls = list(self.used.values())
        for call in calls:
            call.worker.wait_for(call.number)
        return calls


class _Current(threading.local):
    worker: Worker | None = None


_current = _Current()


class Overlapping(Eager):
    """Runs ops when they are called, or queues their kernels inside of a worker's block."""

    def run(self, op: type[Op], inputs: tuple[Tensor, ...], attrs: Attrs) -> Any:
        if op.mutates or op.has_effect:
            settle()
        elif _current.worker is None:
            _stop_overlapping()
        elif _may_be_queued(op, inputs):
            return _queue(_current.worker, op, inputs, attrs)
        elif _may_be_queued_globally(op, inputs):
            return on_ranks.queue_global(_current.worker, op, inputs, op.defaults | attrs)
        return Eager.run(self, op, inputs, attrs)

    def relay(self, x: Tensor, placement: Placement, nd_sbp: NdSbp) -> Tensor | None:
        if _current.worker is None or {x.placement.type, placement.type} != {"cpu"}:
            return None
        return on_ranks.queue_relay(_current.worker, x, placement, nd_sbp)

    def write(self, x: Tensor, new: Tensor) -> None:
        settle()
        Eager.write(self, x, new)

    def before_writing(self, array: object = None) -> None:
        if isinstance(array, np.ndarray):
            finish_with(array)
        else:
            finish()

    def to_copy(self, x: Tensor) -> Any:
        found = x._extra.later if x._extra is not None else None
        if found is None:
            return x._array
        if found.made is not None:
            found.made.wait()
        return x._array if found.is_free else found.array

    def store(self, x: Tensor, new: Tensor) -> None:
        settle()
        Eager.store(self, x, new)


_num_blocks = 0


@contextmanager
def use_worker(worker: Worker) -> Iterator[None]:
    """Kernels of this thread's ops are queued with `worker` inside the with-block."""
    global _num_blocks
    previous, _current.worker = _current.worker, worker
    with queueing:
        _num_blocks += 1
        if EAGER.__class__ is not Overlapping:
            _class.__getattr__ = _missing
            # Modes above it hold this very object, so another one could not take its place.
            EAGER.__class__ = Overlapping
    try:
        yield
    finally:
        _current.worker = previous
        with queueing:
            _num_blocks -= 1


def _stop_overlapping() -> None:
    """Without blocks and unfinished calls, ops run as if there had been none. Slots that are still
    empty stay so until somebody asks."""
    with queueing:
        if _num_blocks == 0 and is_settled():
            EAGER.__class__ = Eager


def _may_be_queued(op: type[Op], inputs: tuple[Tensor, ...]) -> bool:
    """Whether these are local tensors with memory on one CPU, of an op that draws nothing."""
    if op.is_random or state.saved_hooks or not inputs:
        return False
    device = inputs[0]._device
    return device.type == "cpu" and all(
        [x._placement is None and x.value is None and x._device == device for x in inputs]
    )


def _may_be_queued_globally(op: type[Op], inputs: tuple[Tensor, ...]) -> bool:
    """The same for tensors of which some are global, with parts on CPUs."""
    if op.is_random or state.saved_hooks:
        return False
    places = [x._placement for x in inputs if x._placement is not None]
    is_traced = any([x.value is not None for x in inputs])
    return bool(places) and not is_traced and all([p.type == "cpu" for p in places])


def _queue(worker: Worker, op: type[Op], inputs: tuple[Tensor, ...], attrs: Attrs) -> Any:
    device = inputs[0]._device
    call = bound_call(op, inputs, attrs, device, ["", op, *[id(x.meta) for x in inputs]])
    if call.view is not None:
        out = _viewed(op, call, inputs)
        if out is not None:
            return out
    arrays = [np.empty(*kind) for kind in call.outs]
    outs = [raw(t, a, device) for t, a in zip(call.out_types, arrays, strict=True)]
    if state.enabled:
        record(op, inputs, outs, call.attrs, call)
    queue_call(worker, partial(kernel_of, call, arrays), inputs, outs, arrays)
    return outs[0] if op.num_outputs == 1 else tuple(outs)


def queue_call(
    worker: Worker,
    bind: Callable[[list[Array]], Callable[[], object]],
    inputs: Sequence[Tensor],
    outs: Sequence[Tensor],
    arrays: Sequence[Array],
) -> None:
    """Queue the call that computes `outs`, whose memory is `arrays`. bind: returns its function,
    given the memory of the inputs."""
    where = user_location()
    worker.make_room()
    with queueing:
        given = [_later(x) for x in inputs]
        after = [x.made for x in given if x.made is not None]
        read = [x.array for x in given]
        queued = Call(worker, bind(read), after, where, (*read, *arrays))
        worker.queue(queued)
        for x in inputs:
            _mark(x, queued)
        for out, array in zip(outs, arrays, strict=True):
            _hide(out, Later(array, queued, {worker: queued}))


def kernel_of(call: BoundOp, outs: list[Array], arrays: list[Array]) -> Callable[[], object]:
    """The computation of `outs`, which are there, of `arrays`."""
    if call.is_plain:
        return partial(call.function, np, *outs, *arrays, **call.keywords)
    made = iter(outs)

    def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """The next output; after them, workspace."""
        found = next(made, None)
        return np.empty(shape, dtype) if found is None else found

    return partial(call.run, np, arrays, 0, empty)


def _viewed(op: type[Op], call: BoundOp, inputs: tuple[Tensor, ...]) -> Tensor | None:
    """The view of an input, which needs no values; None if the op has to copy."""
    assert call.view is not None
    with queueing:
        base = _later(inputs[0])
    shared = call.view(base.array, *[_later(x).array for x in inputs[1:]], **call.attrs)
    if shared is None:
        return None
    out = record_view(op, inputs, shared, call, inputs[0]._device)
    wait_as(out, base, shared)
    return out


def later_of(x: Tensor) -> Later:
    """The memory of a tensor that has some."""
    with queueing:
        return _later(x)


def wait_as(out: Tensor, base: Later, shared: Array) -> None:
    """Let readers of `out`, a view of the memory of `base`, wait for its calls."""
    with queueing:
        _hide(out, Later(shared, base.made, base.used))


def _later(x: Tensor) -> Later:
    """The memory of `x`, whose slot is empty from now on."""
    try:
        array = _slot.__get__(x)
    except AttributeError:
        found = extra(x).later
        if found is None:
            raise
        return found
    view = view_of(x)
    later = Later(array, None, {} if view is None else _later(view.base).used)
    _hide(x, later)
    return later


def _mark(x: Tensor, call: Call) -> None:
    """Let every writer of `x`, or of the base that it is a view of, wait for `call`."""
    _later(x).used[call.worker] = call
    view = view_of(x)
    if view is not None:
        _later(view.base).used[call.worker] = call


def _hide(x: Tensor, later: Later) -> None:
    extra(x).later = later
    _slot.__delete__(x)


def _missing(x: Tensor, name: str) -> Any:
    """`Tensor.__getattr__`, which Python calls for missing attributes, such as the array of an
    empty slot."""
    if name != "_array":
        raise AttributeError(f"{type(x).__name__!r} object has no attribute {name!r}")
    while True:
        later = extra(x).later
        if later is None:  # another thread has filled it meanwhile
            return _slot.__get__(x)
        waited = later.wait()
        with queueing:
            # Others may have queued more that reads it.
            if extra(x).later is later and all([c in waited for c in later.used.values()]):
                _slot.__set__(x, later.array)
                extra(x).later = None
