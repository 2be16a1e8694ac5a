"""The tape: the record of which tensors were computed from which. Every mode calls `record` after
running an op.

Nodes are numbered as they are made, and an edge always points to a node made earlier. So descending
numbers are a topological order, and the backward pass needs no dependency counts of its own.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from oneflow.boxing.bound_op import BoundOp
from oneflow.core.device import Device
from oneflow.core.dispatch import Mode, call, current_mode, use_mode
from oneflow.core.errors import AutogradError
from oneflow.core.op import Op, find_op
from oneflow.core.operand import Attrs, Gradient
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.core.tensor_type import TensorType
from oneflow.tensor.devices import array_on
from oneflow.tensor.grad_mode import state
from oneflow.tensor.modified import modified_tensor
from oneflow.tensor.tensor import Tensor, alias, cpu_device, raw

numbers = itertools.count()

SavedHooks: TypeAlias = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""The function that packs a saved tensor, and the one that unpacks it."""


class GradNode:
    """One recorded call. edges: per input, where its gradient goes: (node, output index), (leaf
    tensor, -1) or None.
    """

    __slots__ = ("__weakref__", "_hooks", "_retained", "edges", "num_outputs", "number", "released")
    on_arrival: Callable[[int, Any], None] | None = None
    """Called with (output index, gradient or None) as soon as no more can come for that output,
    while the pass goes on elsewhere."""

    def __init__(self, inputs: Sequence[Any], num_outputs: int) -> None:
        self.number = next(numbers)
        self.num_outputs = num_outputs
        self.released = False
        self._hooks: dict[int, dict[int, Any]] | None = None
        self._retained: dict[int, Any] | None = None
        self.edges: list[tuple[Any, int] | None] = []
        for x in inputs:
            if not x._requires_grad:
                self.edges.append(None)
            elif x._grad_fn is None:
                self.edges.append((x, -1))
            else:
                self.edges.append((x._grad_fn, x._out_index))

    def name(self) -> str:
        raise AutogradError("a gradient node without a name")

    def gradients(self, grads: list[Any], wanted: list[bool]) -> Sequence[Gradient]:
        """Input gradients of output gradients (None where there is none)."""
        raise AutogradError(f"{self.name()} has no backward")

    def release(self) -> None:
        """Forget the values saved for the backward pass."""
        self.released = True

    def can_run_again(self) -> bool:
        """Whether the gradient can be computed again after `release`; then it is made ready for
        that.
        """
        return False

    def hooks_of(self, index: int) -> dict[int, Any]:
        if self._hooks is None:
            self._hooks = {}
        return self._hooks.setdefault(index, {})

    def watch(self, x: Tensor) -> None:
        """`x`, an output, wants its gradient kept."""
        if self._retained is None:
            self._retained = {}
        self._retained[x._out_index] = weakref.ref(x)

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        return tuple(
            (None, 0) if e is None else ((e[0], e[1]) if e[1] >= 0 else (AccumulateGrad(e[0]), 0))
            for e in self.edges
        )

    def __repr__(self) -> str:
        return f"<{self.name()}>"


class AccumulateGrad:
    """The node as which a leaf shows in `next_functions`."""

    def __init__(self, variable: Tensor) -> None:
        self.variable = variable
        self.next_functions: tuple[Any, ...] = ()

    def name(self) -> str:
        return "accumulate_grad"

    def __repr__(self) -> str:
        return "<accumulate_grad>"


class OpNode(GradNode):
    """A call of a declared op; its backward is `op.grad`.

    call: the kernel that computed it, if that is all there was to it: then equal calls have equal
    gradients (oneflow/autograd/replay.py). kept: all but the values of inputs and outputs, if the
    caller has it at hand: working it out takes longer than recording a small op.
    """

    __slots__ = ("attrs", "call", "inputs", "is_packed", "kept", "op", "outputs")

    def __init__(
        self,
        op: type[Op],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        attrs: Attrs,
        call: BoundOp | None,
        kept: KeptCall | None = None,
    ) -> None:
        super().__init__(inputs, len(outputs))
        self.op = op
        self.call = call
        self.attrs = attrs
        self.kept: Any = kept
        hooks = state.saved_hooks
        self.is_packed = bool(hooks)
        if hooks:
            self.kept = None
            self.inputs: list[Any]
            self.outputs: list[Any]
            self._pack(inputs, outputs, hooks[-1])
            return
        self.inputs = [(x, x._version[0]) for x in inputs]
        # An output must not be held itself: it holds this node.
        self.outputs = [
            (x.meta, x._array, x._device, x.value, x._placement, x._sbp, x._version, x._version[0])
            for x in outputs
        ]

    def _pack(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], hooks: SavedHooks) -> None:
        """Save the operands that the gradient reads through hooks, and the types of the others. The
        last operand is packed first, as in PyTorch.
        """
        types = [x.meta for x in inputs], [y.meta for y in outputs]
        wanted = [edge is not None for edge in self.edges]
        are_read = reads(self.op, *types, self.attrs, wanted)
        self.call = None
        operands = list(zip(inputs, are_read[: len(inputs)], strict=True))
        packed = [_packed(x, hooks) if is_read else _blank(x) for x, is_read in reversed(operands)]
        self.inputs = packed[::-1]
        self.outputs = [
            _packed(_history_free(y), hooks) if is_read else _blank(y)
            for y, is_read in zip(outputs, are_read[len(inputs) :], strict=True)
        ]
        for i, y in enumerate(self.outputs):
            if y.__class__ is tuple:
                self.outputs[i] = _saved_output(y[0])

    def name(self) -> str:
        return f"{self.op.name}_backward"

    def given(self) -> list[Tensor]:
        """The inputs that the op was called with."""
        return [
            saved[0]
            if saved.__class__ is tuple and saved[0]._version[0] == saved[1]
            else _unpack_input(saved, self, edge)
            for saved, edge in zip(self.inputs, self.edges, strict=True)
        ]

    def gradients(self, grads: list[Any], wanted: list[bool]) -> Sequence[Gradient]:
        tensors = [*grads, *self.given()]
        for i, saved in enumerate(self.outputs):
            tensors.append(_unpack_output(saved, self, i))
        if state.enabled and self.op.recorded_grad is not None:
            return self.op.recorded_grad(*tensors, **self.attrs)
        return self.op.grad(*tensors, **self.attrs)

    def release(self) -> None:
        self.released = True
        if self.call is not None:  # it knows the types, which are local
            self.kept = self.outputs[0][2]
        elif self.kept is None and self.inputs and not self.is_packed:
            self.kept = [kept(x) for x, _ in self.inputs], [_kept_output(s) for s in self.outputs]
        self.inputs = self.outputs = []

    def can_run_again(self) -> bool:
        call = self.call
        if self.kept is None:
            return False
        if call is not None:
            given = [
                [Kept(t, t.shape, self.kept, None, None, None) for t in types]
                for types in (call.in_types, call.out_types)
            ]
        else:
            given = list(self.kept)
        wanted = [edge is not None for edge in self.edges]
        types = [[k.meta for k in some] for some in given]
        if any(reads(self.op, types[0], types[1], self.attrs, wanted)):
            return False
        self.inputs = [(x, x._version[0]) for x in (k.stand_in() for k in given[0])]
        self.outputs = [_saved_output(k.stand_in()) for k in given[1]]
        self.call, self.kept, self.released = None, (given[0], given[1]), False
        return True


class ComplexOpNode(OpNode):
    """A call with complex results of an op that is differentiable as a complex function."""

    __slots__ = ()

    def gradients(self, grads: list[Any], wanted: list[bool]) -> Sequence[Gradient]:
        found = super().gradients([_conjugate(g) for g in grads], wanted)
        return [_conjugated(g) for g in found]


def _conjugate(g: Tensor | None) -> Tensor | None:
    if g is None or not g.meta.dtype.is_complex:
        return g
    made: Tensor = call(find_op("conj"), g)
    return made


def _conjugated(g: Gradient) -> Gradient:
    """The gradient, or the function that makes it, with its conjugate as the result."""
    return (lambda: _conjugate(g())) if callable(g) else _conjugate(g)


class CutNode(GradNode):
    """A call of an op without a gradient inside a recorded backward pass.

    of: the node whose gradients the op helped to compute.
    """

    __slots__ = ("of", "op")

    def __init__(self, op: type[Op], of: str, inputs: Sequence[Tensor], num_outputs: int) -> None:
        super().__init__(inputs, num_outputs)
        self.op, self.of = op, of

    def name(self) -> str:
        return f"{self.op.name}_backward"

    def gradients(self, grads: list[Any], wanted: list[bool]) -> Sequence[Gradient]:
        raise AutogradError(
            f"there is no second derivative of {self.of.removesuffix('_backward')}: its gradient "
            f"is computed by {self.op.name}, which has no gradient itself"
        )


class CallNode(GradNode):
    """A call whose backward is a Python function: `backward(grads) -> input gradients`.

    on_release: forgets the values that the function has kept; it can be called again then. None:
    the function itself goes.
    """

    __slots__ = ("_backward", "_name", "_on_release", "on_arrival")

    def __init__(
        self,
        name: str,
        inputs: Sequence[Tensor],
        num_outputs: int,
        backward: Callable[[list[Any]], Sequence[Gradient]],
        on_arrival: Callable[[int, Any], None] | None = None,
        on_release: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(inputs, num_outputs)
        self._name, self._on_release = name, on_release
        self._backward: Any = backward
        self.on_arrival = on_arrival

    def name(self) -> str:
        return f"{self._name}_backward"

    def gradients(self, grads: list[Any], wanted: list[bool]) -> Sequence[Gradient]:
        results: Sequence[Gradient] = self._backward(grads)
        return results

    def release(self) -> None:
        if self._on_release is not None:
            self._on_release()
            return
        self.released = True
        self._backward = self.on_arrival = None


class _Packed:
    __slots__ = ("template", "unpack", "what")

    def __init__(self, what: object, unpack: Callable[[Any], Any]) -> None:
        self.what = what
        self.unpack = unpack


def _packed(x: Tensor, hooks: SavedHooks) -> _Packed:
    return _Packed(hooks[0](x), hooks[1])


def _blank(x: Tensor) -> tuple[Tensor, int]:
    y = kept(x).stand_in()
    return y, y._version[0]


def _saved_output(x: Tensor) -> tuple[Any, ...]:
    return x.meta, x._array, x._device, x.value, x._placement, x._sbp, x._version, x._version[0]


def _history_free(x: Tensor) -> Tensor:
    return alias(x)


def _with_history(x: Tensor, edge: tuple[Any, int] | None) -> Tensor:
    """An unpacked tensor, which a gradient that has gradients itself differentiates by."""
    is_real = x.meta.dtype.is_floating_point or x.meta.dtype.is_complex
    if not state.enabled or edge is None or x._requires_grad or not is_real:
        return x
    y = alias(x)
    if edge[1] < 0:
        record_call("unpack", [edge[0]], [y], list)
    else:
        y._requires_grad, y._grad_fn, y._out_index = True, *edge
    return y


def _unpack_input(saved: Any, node: OpNode, edge: tuple[Any, int] | None) -> Any:
    if isinstance(saved, _Packed):
        return _with_history(saved.unpack(saved.what), edge)
    x, version = saved
    if x._version[0] == version:
        return x
    is_same = _has_values_of(x._version, version)
    while x._extra is not None and x._extra.former is not None and version <= x._extra.former[0]:
        x = x._extra.former[1]
    return x if is_same else _modified(x, node)


def _has_values_of(counter: list[int], version: int) -> bool:
    """Whether only shapes of tensors were changed in place since a version (views.become)."""
    return counter[0] - version == sum(at >= version for at in counter[2:])


def _unpack_output(saved: Any, node: OpNode, index: int) -> Any:
    if isinstance(saved, _Packed):
        return _with_history(saved.unpack(saved.what), (node, index))
    type_, array, device, value, placement, sbp, counter, version = saved
    y = raw(type_, array, device)
    y.value, y._placement, y._sbp, y._version = value, placement, sbp, counter
    if counter[0] != version and not _has_values_of(counter, version):
        return _modified(y, node)
    if type_.dtype.is_floating_point or type_.dtype.is_complex:
        y._requires_grad, y._grad_fn, y._out_index = True, node, index
    return y


def _modified(x: Tensor, node: OpNode) -> Tensor:
    return modified_tensor(x, node.name())


# ---- the tensors of a call whose values its gradient reads, and stand-ins for the others ---------
#
# The gradient of a sum asks for the shape of its input, that of a product for its values. Which it
# is follows from the types and attributes of the call, as in oneflow/autograd/replay.py: it is
# asked for once with tensors that have no values, in a mode that notes what is called with them.

TYPE_ALONE = ("full_like",)
"""Ops that read the type of their input and nothing else."""


class Kept(NamedTuple):
    """All of a tensor but its values. shape: of the array that lies here."""

    meta: TensorType
    shape: tuple[int, ...]
    device: Device
    placement: Placement | None
    sbp: NdSbp | None
    value: Any

    def stand_in(self) -> Tensor:
        """A tensor of that type, in that place, without memory: its values mean nothing."""
        x = raw(self.meta, None, self.device)
        if self.value is None:
            blank = np.broadcast_to(np.zeros((), self.meta.dtype.np), self.shape)
            x._array = array_on(blank, self.device)
        x._placement, x._sbp, x.value = self.placement, self.sbp, self.value
        return x


KeptCall: TypeAlias = tuple[list[Kept], list[Kept]]
"""Facts of the inputs and of the outputs of a call."""


def kept(x: Tensor) -> Kept:
    array = x._array
    shape = x.meta.shape if array is None else array.shape
    return Kept(x.meta, shape, x._device, x._placement, x._sbp, x.value)


def _kept_output(saved: tuple[Any, ...]) -> Kept:
    type_, array, device, value, placement, sbp, _, _ = saved
    shape = type_.shape if array is None else array.shape
    return Kept(type_, shape, device, placement, sbp, value)


def reads(
    op: type[Op],
    inputs: Sequence[TensorType],
    outputs: Sequence[TensorType],
    attrs: Attrs,
    wanted: Sequence[bool],
) -> list[bool]:
    """Tell for each input, then each output, whether the gradient by the wanted inputs reads it.

    A gradient that cannot be watched may read all of them.
    """
    spy = _Spy()
    grads = [spy.stand_in(t, "d") for t in outputs]
    given = [spy.stand_in(t, str(i)) for i, t in enumerate((*inputs, *outputs))]
    try:
        with use_mode(spy):
            found = op.grad(*grads, *given, **attrs)
            for is_wanted, result in zip(wanted, found, strict=False):
                made = result() if is_wanted and callable(result) else result
                if is_wanted and isinstance(made, Tensor):
                    spy.read.add(made.value)
    except Exception:
        return [True] * len(given)
    return [str(i) in spy.read for i in range(len(given))]


class _Spy(Mode):
    """Computes nothing, and notes the names of the tensors that ops were called with."""

    has_memory = False

    def __init__(self) -> None:
        self.read: set[Any] = set()

    def stand_in(self, type_: TensorType, name: str) -> Tensor:
        x = raw(type_, None, cpu_device())
        x.value = name
        return x

    def run(self, op: type[Op], inputs: tuple[Tensor, ...], attrs: Attrs) -> Any:
        if op.name not in TYPE_ALONE:
            self.read.update(x.value for x in inputs)
        made: Any = op.infer(*[x.meta for x in inputs], **attrs)
        if isinstance(made, TensorType):
            return self.stand_in(made, "v")
        return tuple(self.stand_in(t, "v") for t in made)


# ---- recording -----------------------------------------------------------------------------------


def record(
    op: type[Op],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    attrs: Attrs,
    call: BoundOp | None = None,
    kept: KeptCall | None = None,
) -> None:
    """Gives `outputs` their history, if a backward pass may need it. call, kept: see OpNode."""
    if not state.enabled:
        return
    is_wanted = False
    for x in inputs:
        if x._extra is not None and x._extra.view is not None:
            x._extra.view.renew(x)
        if x._requires_grad:
            is_wanted = True
    if not is_wanted:
        return
    if op.has_gradient:
        _attach(OpNode(op, inputs, outputs, attrs, call, kept), inputs, outputs)
    elif state.differentiating is not None and not (op.is_flat or op.mutates):
        cut = CutNode(op, state.differentiating, inputs, len(outputs))
        _attach(cut, inputs, outputs)


def record_call(
    name: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    backward: Callable[[list[Any]], Sequence[Gradient]],
    on_arrival: Callable[[int, Any], None] | None = None,
    on_release: Callable[[], object] | None = None,
) -> None:
    """Record, as `record` does, a call that is no declared op. `backward(output grads)` returns one
    gradient or None per input. on_arrival: see GradNode. on_release: see CallNode;
    `nothing_saved` for a function that has kept no values.
    """
    if not state.enabled:
        return
    for x in inputs:
        if x._extra is not None and x._extra.view is not None:
            x._extra.view.renew(x)
    if any(x._requires_grad for x in inputs):
        node = CallNode(name, inputs, len(outputs), backward, on_arrival, on_release)
        _attach(node, inputs, outputs)
        below = current_mode().record_below
        if below is not None:
            below(name, inputs, outputs, backward)


def nothing_saved() -> None:
    """Forget nothing: the function can be called again as it is."""


def _attach(node: GradNode, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    for index, y in enumerate(outputs):
        dtype = y.meta.dtype
        if not dtype.is_floating_point:
            if not dtype.is_complex:
                continue
            if isinstance(node, OpNode) and node.op.is_conjugating:
                node.__class__, node.call = ComplexOpNode, None
        for x in inputs:
            if y is x:
                break
        else:
            y._requires_grad = True
            y._grad_fn = node
            y._out_index = index
