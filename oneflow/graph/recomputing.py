"""Recomputation in a graph: what a module computes is forgotten after the forward pass and computed
again in the backward pass, from the module's arguments.

The module is traced twice. The first trace saves nothing: where the tape would keep a tensor it
keeps a number. When the backward pass asks for the first of them, the module is traced once more
and the tensors are found by their numbers. This second trace reads its arguments through `depend`
on the newest gradient, so that it is neither merged with the first one nor run before its time.

Draws have the numbers of the first trace. Buffers are read as they were before it, and what the
second trace writes to them is dropped: statistics are counted once. A module inside another one
that recomputes keeps its arguments as the outer one keeps tensors: as numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from oneflow.autograd.graph import saved_tensors_hooks
from oneflow.core.dispatch import current_mode, use_mode
from oneflow.core.errors import AutogradError, InternalError
from oneflow.core.op import find_op
from oneflow.functional.random_state import default_generator
from oneflow.graph.tree import map_tensors, tensors_of
from oneflow.nn.forward_hooks import call_with_hooks
from oneflow.ops.depend import depend
from oneflow.tensor.grad_mode import enable_grad, no_grad, state
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from oneflow.core.graph import Node, Value
    from oneflow.graph.trace import Trace
    from oneflow.nn.module import Module

Forward = Callable[..., Any]


def call_forward(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `module.forward` between its hooks. Weights that those compute anew at each call are
    afterwards what they were: those of the graph are none to keep.
    """
    own, kept = vars(module), {}
    if module._forward_pre_hooks:
        kept = {name: x for name, x in own.items() if isinstance(x, Tensor)}
    try:
        return call_with_hooks(module, args, kwargs)
    finally:
        own.update(kept)


def call_recomputed(
    trace: Trace, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The result of `module.forward` between its hooks; its backward pass calls them again."""
    if not state.enabled:
        return call_forward(module, args, kwargs)
    return Part(trace, module, args, kwargs).first()


class _Kept:
    """A tensor kept for later; by what the part around it keeps tensors, if there is one."""

    def __init__(self, x: Tensor) -> None:
        self._unpack: Callable[[Any], Tensor] | None = None
        self._what: Any = x.detach()
        if state.saved_hooks and x.value is not None:
            pack, self._unpack = state.saved_hooks[-1]
            self._what = pack(x)

    def tensor(self) -> Tensor:
        """The tensor, without history."""
        found: Tensor = self._what if self._unpack is None else self._unpack(self._what)
        return found


class Part:
    """One call of a module that recomputes."""

    def __init__(
        self, trace: Trace, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._trace, self._module, self._mode = trace, module, current_mode()
        self._given = args, kwargs
        self._place = trace.module_path, trace.stage
        self._draws = default_generator.position
        self._kept = [(x, _Kept(x)) for x in tensors_of((args, kwargs))]
        self._buffers = [
            (owner, name, buffer, buffer._version[0])
            for owner in module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None and buffer.value is None
        ]
        self._values: list[tuple[Tensor, Value]] = []
        self._num_saved = 0
        self.span = 0, 0
        """First node and the one behind the last, by id, of the second trace."""
        self._found: list[Tensor] = []
        self._last: Node | None = None
        """The last node of it."""

    def first(self) -> Any:
        """Trace the module without keeping anything."""
        args, kwargs = self._given
        start = self._trace.mark()
        with saved_tensors_hooks(self._number, self._recall), use_mode(self._mode.afresh()):
            result = call_forward(self._module, args, kwargs)
        written = [b for _, _, b, version in self._buffers if b._version[0] != version]
        self._values = [(b, self._trace.copied_before(b, start)) for b in written]
        self._trace.forgotten.append(self)
        return result

    def _number(self, x: Tensor) -> int:
        self._num_saved += 1
        return self._num_saved - 1

    @property
    def path(self) -> str:
        """Path of the module."""
        return self._place[0]

    @property
    def is_found(self) -> bool:
        """Whether the module was computed again."""
        return self._last is not None

    @property
    def last(self) -> Node:
        """The last node of the second trace."""
        if self._last is None:
            raise InternalError(f"{self.path} is asked for what it computes again, and does not")
        return self._last

    @property
    def values(self) -> list[Value]:
        """The values that the backward pass reads and that would have been kept."""
        first, last = self.span
        roots: dict[int, Value] = {}
        for value in (x.value for x in self._found if x.value is not None):
            if any(user.id >= last for user in value.users):
                root = _root(value)
                if root.node.id >= first:
                    roots[root.id] = root
        return list(roots.values())

    def _recall(self, number: int) -> Tensor:
        if self._last is None:
            self._again()
        if len(self._found) != self._num_saved:
            raise AutogradError(
                f"{self.path}: forward() saved {self._num_saved} tensors, and "
                f"{len(self._found)} when it was run again for activation_checkpointing; it must "
                "do the same each time"
            )
        return self._found[number]

    def _keep(self, x: Tensor) -> int:
        self._found.append(x.detach())
        return len(self._found) - 1

    def _again(self) -> None:
        """Trace the module once more, here in the backward pass."""
        trace = self._trace
        given = iter([self._later(x, kept) for x, kept in self._kept])
        args, kwargs = map_tensors(self._given, lambda _: next(given))
        start = trace.graph.node_id_bound
        place, draws = (trace.module_path, trace.stage), default_generator.position
        trace.module_path, trace.stage = self._place
        default_generator.move_to(self._draws)
        try:
            with (
                trace.computing_again(),
                trace.standing_for(self._values),
                self._first_buffers(),
                enable_grad(),
                saved_tensors_hooks(self._keep, self._found.__getitem__),
                use_mode(self._mode.afresh()),
            ):
                call_forward(self._module, args, kwargs)
            self.span = start, trace.graph.node_id_bound
            self._last = trace.mark()
        finally:
            default_generator.move_to(draws)
            trace.module_path, trace.stage = place

    def _later(self, x: Tensor, kept: _Kept) -> Tensor:
        """An argument, not before the backward pass has come this far."""
        if x.value is None:
            return x
        known = kept.tensor()
        with no_grad():
            newest = self._trace.newest(known)
            again = known.detach() if newest is None else depend(known, newest)
        return again.requires_grad_(x.requires_grad)

    @contextmanager
    def _first_buffers(self) -> Iterator[None]:
        """The modules have the buffers that they had before the first trace."""
        now = [(owner, name, owner._buffers[name]) for owner, name, _, _ in self._buffers]
        for owner, name, buffer, _ in self._buffers:
            owner._buffers[name] = buffer
        try:
            yield
        finally:
            for owner, name, current in now:
                owner._buffers[name] = current


def _root(value: Value) -> Value:
    """The value whose memory this one is."""
    while not value.node.is_structural:
        op = find_op(value.node.op)
        if not (op.is_view or op.is_alias):
            break
        value = value.node.inputs[0]
    return value
