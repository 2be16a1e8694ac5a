"""The mode that times ops of eager code, which another mode runs.

The facts at hand of a call are noted; a profile derives the others when somebody asks.
Kernels of gradients that are replayed as one function (oneflow/autograd/replay.py) are timed inside
of it, and belong to the module and the line of the op whose gradients they are; so are those of an
update of all parameters (oneflow/optim/together.py). On GPUs the times are those of starting
kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from oneflow.boxing.bound_op import BoundOp
from oneflow.core.device import Device
from oneflow.core.dispatch import Mode, ModeAbove, current_mode, use_mode
from oneflow.core.location import user_location
from oneflow.core.op import Op
from oneflow.core.operand import Attrs
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp, SbpLike
from oneflow.core.tensor_type import TensorType
from oneflow.nn.forward_hooks import call_with_hooks
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from oneflow.nn.module import Module

Types = Sequence[TensorType]
FACTS = 9
"""Facts that are noted of a call."""


class Call(NamedTuple):
    """One call. start, took: in ns.  own: the time that no call inside of it took.  op: None of a
    block that a script named, and of moves of tensors.  module, line: of the user's code, of a
    gradient those of the op that it belongs to.
    """

    name: str
    start: int
    took: int
    own: int
    op: type[Op] | None
    types: Types
    out_types: Types
    attrs: Attrs
    module: str
    line: str


class Recording:
    """The calls of one window of a profiler, in the order in which they ended.

    noted: the facts of each, one after another: name, start, end, time of the calls inside,
    op, inputs' types, outputs' types, attrs, (module, line).  blocks: those that the script named.
    nested: the time of the calls so far inside of one that goes on.
    """

    def __init__(self) -> None:
        self.noted: list[Any] = []
        self.blocks: list[Call] = []
        self.module = ""
        self.nested = 0
        self.makers: dict[int, tuple[str, str]] = {}
        """Module and line of each recorded call, by its number on the tape."""
        self.maker: tuple[str, str] | None = None
        """Those of the call whose gradients are computed."""
        self._paths: dict[int, str] = {}
        self._known: list[Module] = []  # so that their ids stay theirs

    def calls(self) -> Iterator[Call]:
        """Yield the calls so far."""
        columns = (iter(self.noted),) * FACTS
        for name, start, end, inside, op, types, outs, attrs, place in zip(*columns, strict=True):
            took = end - start
            yield Call(name, start, took, took - inside, op, types, outs, attrs, *place)

    def path_of(self, module: Module) -> str:
        """The path of a module from the outermost that was called, which goes by its class."""
        path = self._paths.get(id(module))
        if path is None:
            outer = f"{self.module}." if self.module else ""
            for name, inner in module.named_modules(prefix=outer + type(module).__name__):
                self._paths.setdefault(id(inner), name)
                self._known.append(inner)
            path = self._paths[id(module)]
        return path


class Timing(ModeAbove):
    """Times ops, and lets another mode run them."""

    def __init__(self, inner: Mode, recording: Recording) -> None:
        super().__init__(inner)
        self.recording = recording

    def run(self, op: type[Op], inputs: tuple[Any, ...], attrs: Attrs) -> Any:
        """Run an op. Written out here: a function less is a tenth of the cost of noting a call."""
        r = self.recording
        before, r.nested = r.nested, 0
        start = perf_counter_ns()
        out = self.inner.run(op, inputs, attrs)
        end = perf_counter_ns()
        place = r.maker
        if place is None:
            place = r.module, user_location()
        if out.__class__ is tuple:
            first, made = out[0], [x.meta for x in out]
        else:
            first, made = out, [out.meta]
        if (node := first._grad_fn) is not None:
            r.makers[node.number] = place
        types = [x.meta for x in inputs]
        r.noted += (op.name, start, end, r.nested, op, types, made, attrs, place)
        r.nested = before + end - start
        return out

    def create(
        self,
        op: type[Op],
        attrs: Attrs,
        device: Device | None,
        placement: Placement | None,
        nd_sbp: NdSbp | None,
    ) -> Any:
        """Run an op without inputs."""
        start, before = self._begin()
        out = self.inner.create(op, attrs, device, placement, nd_sbp)
        self._end(start, before, op.name, op, (), out.meta, attrs)
        return out

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
        """Move a tensor to ranks."""
        start, before = self._begin()
        out: Tensor = self.inner.lay_out(
            x, placement, sbp, grad_sbp=grad_sbp, check_meta=check_meta, copy=copy
        )
        self._end(start, before, "to_global", None, (x.meta,), out.meta, {})
        return out

    def _begin(self) -> tuple[int, int]:
        """Return the beginning of a call, and the time of those before it in the one around it."""
        before, self.recording.nested = self.recording.nested, 0
        return perf_counter_ns(), before

    def _end(
        self,
        start: int,
        before: int,
        name: str,
        op: type[Op] | None,
        types: Types,
        made: TensorType,
        attrs: Attrs,
    ) -> None:
        r, end = self.recording, perf_counter_ns()
        place = r.maker or (r.module, user_location())
        r.noted += (name, start, end, r.nested, op, types, (made,), attrs, place)
        r.nested = before + end - start

    def call_module(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a module, and note that the ops inside are its own."""
        r = self.recording
        before, r.module = r.module, r.path_of(module)
        try:
            inner = self.inner.call_module
            if inner is not None:
                return inner(module, args, kwargs)
            return call_with_hooks(module, args, kwargs)
        finally:
            r.module = before

    def differentiate(self, number: int) -> None:
        """Note that the gradients of a call follow."""
        self.recording.maker = self.recording.makers.get(number)
        if self.inner.differentiate is not None:
            self.inner.differentiate(number)

    @contextmanager
    def backward_pass(self) -> Iterator[None]:
        """Time a backward pass of the mode below."""
        r = self.recording
        before = r.maker
        try:
            with self.inner.backward_pass():
                below = current_mode()
                with use_mode(self if below is self else self.over(below)):
                    yield
        finally:
            r.maker = before

    def note_kernels(self, calls: Sequence[BoundOp], times: Sequence[int]) -> None:
        """Note the kernels of gradients that were replayed, or of an update of all parameters."""
        r = self.recording
        place = r.maker or (r.module, user_location())
        for call, (start, end) in zip(calls, pairwise(times), strict=True):
            kind = call.op, call.in_types, call.out_types, call.attrs
            r.noted += (call.op.name, start, end, 0, *kind, place)
        r.nested += times[-1] - times[0]

    def over(self, inner: Mode) -> Timing:
        """Return the like of this over another mode."""
        return Timing(inner, self.recording)

    def afresh(self) -> Timing:
        return self.over(self.inner.afresh())
