"""Trace mode: ops become nodes of a logical graph instead of being run.

Eager tensors that the traced code reads become variables: parameters, buffers, optimizer state. An
op that overwrites one gives the variable a new value in the graph; later reads of the tensor
in the trace read that value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from oneflow.core.device import Device
from oneflow.core.dispatch import Mode, swap_mode, use_mode
from oneflow.core.dtype import float16
from oneflow.core.errors import GraphError, OneFlowError, PlacementError, ShapeError
from oneflow.core.graph import (
    BACKWARD,
    FORWARD,
    PIECE,
    SEED,
    STEP,
    UPDATE,
    WRITE_BACK,
    LogicalGraph,
    Node,
    Value,
    written_variable,
)
from oneflow.core.location import locate, user_location, with_location
from oneflow.core.op import Op, find_op, infer_types, signatures
from oneflow.core.operand import Attrs
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, NdSbp, SbpLike, all_broadcast
from oneflow.core.tensor_type import TensorType
from oneflow.graph.arguments import RowsNeeded
from oneflow.graph.draws import DrawCounter
from oneflow.graph.known import Known, Place
from oneflow.graph.layout_assignment import may_lay_out
from oneflow.graph.layouts import Layouts
from oneflow.graph.module_calls import call_traced
from oneflow.graph.moving import lay_out_traced
from oneflow.graph.names import CAPTURED
from oneflow.graph.partial_sums import sums_written, write_moved
from oneflow.graph.precision import OwnDtypes, lacks_numbers_of
from oneflow.graph.sources import Source
from oneflow.nn.module import Module
from oneflow.ops.assign import assign
from oneflow.ops.gather import dim_assign
from oneflow.tensor.eager_global import check_placement
from oneflow.tensor.grad_mode import no_grad, state
from oneflow.tensor.layout import check_layout
from oneflow.tensor.modified import ModifiedTensor
from oneflow.tensor.tape import nothing_saved, record, record_call
from oneflow.tensor.tensor import Tensor, wrap_traced
from oneflow.tensor.views import (
    View,
    copies,
    link_detached,
    link_view,
    refresh,
    replay,
    view_of,
    write_through,
    write_whole,
)


class Trace(Mode):
    """The mode, and the graph it has recorded."""

    reads_later = True

    def __init__(self, name: str, num_pieces: int, known: Known) -> None:
        self.graph = LogicalGraph(name, num_pieces)
        self.known, self.at = known, Place()
        self.locate: Callable[[], str] = user_location
        """The lines of the user's code that a node keeps."""
        self.variables: dict[str, Tensor] = {}
        self.called: dict[int, Module] = {}
        """The modules that `build` calls, by id."""
        self.sources: list[Source] = []
        self.rows: dict[str, RowsNeeded] = {}
        """The inputs that must lie in row-major order, by name: `build` counts in their memory."""
        self.writes_outside = False
        """Whether tensors made outside, which nothing names, are overwritten when the graph runs,
        as those that the graph's modules hold are."""
        self.draws = DrawCounter()
        """The numbers that random ops are given instead of seeds."""
        self._local: dict[str, Placement] = {}
        self._current: dict[int, Value] = {}
        self._views: dict[int, tuple[int, Value, Tensor]] = {}
        """The version of the base at which the value was taken, of views made eagerly."""
        self._hidden: dict[int, tuple[Tensor, Tensor | None]] = {}
        self._first: Node | None = None
        self._makers: dict[int, Node] = {}
        """The node of a recorded call, by its number on the tape: its gradients belong to the same
        module and stage."""
        self._layouts = Layouts()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Ops of this thread are recorded here."""
        with use_mode(self):
            yield

    # ---- the mode --------------------------------------------------------------------------------

    def choosing_dtypes(self) -> OwnDtypes:
        """See precision.py."""
        return OwnDtypes(self)

    def run(self, op: type[Op], inputs: tuple[Tensor, ...], attrs: Attrs) -> Any:
        attrs = op.defaults | attrs
        values = [self.value_of(x) for x in inputs]
        if op.mutates and (sums := sums_written(op, values, attrs)):
            return write_moved(self, op, inputs, attrs, sums)
        try:
            types = infer_types(op, tuple([v.type for v in values]), attrs)
            placement = self._placement(op, inputs, values)
        except OneFlowError as error:
            locate(error, self.at.module)
            raise
        node = self._append(op.name, values, types, placement, attrs)
        if op.mutates and not node.module:  # an update is its parameter's
            node.module = values[next(iter(op.mutates.values()))].node.module
        outputs = tuple(
            [
                self._mutated(inputs[op.mutates[i]], v)
                if i in op.mutates
                else self._wrap(v, inputs)
                for i, v in enumerate(node.outputs)
            ]
        )
        record(op, inputs, outputs, attrs)
        if outputs and (call := outputs[0]._grad_fn) is not None:
            self._makers[call.number] = node
        if op.is_view and not copies(op, inputs[0], attrs):
            link_view(op, inputs[0], outputs[0], attrs, own=True)
        return outputs[0] if op.num_outputs == 1 else outputs

    @contextmanager
    def writing_back(self) -> Iterator[None]:
        """Within, ops bring values that were overwritten elsewhere back to their places."""
        with self._from(replace(self.at, writes_back=True)):
            yield

    @contextmanager
    def _from(self, place: Place) -> Iterator[None]:
        """Within, ops are recorded from another place on; then from this one again."""
        before, self.at = self.at, place
        try:
            yield
        finally:
            before.opens = self.at.opens
            self.at = before

    def end_build(self) -> None:
        """Optimizers follow: they draw once a step."""
        self.draws.end_pieces()

    def scale_gradient(self, grad: Tensor, root: Tensor) -> Tensor:
        """The gradient with which a backward pass begins at `root`, marked so that a pass finds it;
        a pass within a pass, as of a checkpoint, goes on with gradients that are scaled.
        """
        if self.at.is_backward:
            return grad
        seed = self.structural(SEED, grad, grad.meta, {})
        seed.value.node.grad_of = self.value_of(root).id
        record_call(SEED, (grad,), (seed,), lambda grads: grads, on_release=nothing_saved)
        return seed

    @contextmanager
    def backward_pass(self) -> Iterator[None]:
        with self._from(replace(self.at, is_backward=True)):
            yield

    # ---- stages ----------------------------------------------------------------------------------

    def note_maker(self, x: Tensor, node: Node) -> None:
        """The gradients of the call that gave `x` belong where a node does."""
        if x._grad_fn is not None:
            self._makers[x._grad_fn.number] = node

    def differentiate(self, number: int) -> None:
        """The gradients of the call with this number follow."""
        self.at.maker = self._makers.get(number)
        if self.at.maker is not None:
            self.at.stage = self.at.maker.stage
        self.at.module = self.at.maker.module if self.at.maker is not None else ""

    def _stage_on(self, placement: Placement, values: list[Value]) -> int:
        """The stage of an op there: on a placement of several that of the module that is called;
        outside of these, that of the latest operand.
        """
        known = self.known.stages.get(placement)
        if known is None:
            return self.at.stage or 0
        if self.at.stage in known:
            return self.at.stage
        return max((v.node.stage for v in values if v.node.stage in known), default=known[0])

    def create(
        self,
        op: type[Op],
        attrs: Attrs,
        device: Device | None,
        placement: Placement | None,
        nd_sbp: NdSbp | None,
    ) -> Tensor:
        """A source op. Without a placement its result is local: on `device` of this rank."""
        types = infer_types(op, (), attrs)
        if placement is not None:
            check_placement(placement)
        where = placement or self._here(device.type if device else "cpu")
        node = self._append(op.name, [], types, where, attrs)
        wanted = nd_sbp or all_broadcast(where.ndim)
        # What the op cannot make in parts, and summands, come from whole copies.
        known = {made for s in signatures(op, (), attrs) for made in s.outputs if made.is_split}
        sbp = tuple(s if s in known else BROADCAST for s in wanted)
        node.outputs[0].sbp = sbp
        if placement is None:
            return wrap_traced(node.outputs[0], types[0], device=device)
        out = wrap_traced(node.outputs[0], types[0], placement=placement, sbp=sbp)
        return out if sbp == wanted else self.fix_layout(out, placement, wanted)

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
        """See moving.py. A graph is the same on all ranks, and its values have no memory: there is
        nothing to check or to copy.
        """
        return lay_out_traced(self, x, placement, sbp, grad_sbp)

    def to_device(self, x: Tensor, device: Device, non_blocking: bool = False) -> Tensor:
        """Raises GraphError: a local tensor of a graph stays where it is."""
        raise GraphError(f"a traced tensor cannot be moved from {x._device} to {device} here")

    def call_module(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """See module_calls.py."""
        return call_traced(self, module, args, kwargs)

    def fix_layout(self, x: Tensor, placement: Placement, nd_sbp: NdSbp | None) -> Tensor:
        """A node that fixes placement and, unless None, SBP. Its gradient is the front end's to
        record.
        """
        value = self.value_of(x)
        check_placement(placement)
        if nd_sbp is not None:
            check_layout(value.type, nd_sbp, "to_global")
        node = self._append("to_global", [value], [value.type], placement, {})
        node.outputs[0].sbp = nd_sbp
        return wrap_traced(node.outputs[0], value.type, placement=placement, sbp=nd_sbp)

    def expected(self, value: Value) -> NdSbp:
        """The layout that eager execution would give to a value."""
        return self._layouts.expected(value)

    def layout(self, x: Tensor, *, is_fixed: bool) -> NdSbp:
        """The layout that eager execution would give to `x`, whose layout nobody has chosen yet.
        is_fixed: the compiler has to keep to it.
        """
        value = self.value_of(x)
        nd_sbp = self.expected(value)
        if is_fixed and self._layouts.can_be_fixed(value):
            value.sbp = nd_sbp
        elif is_fixed:
            x.value = self.fix_layout(x, value.placement, nd_sbp).value
        return nd_sbp

    def structural(self, op: str, x: Tensor, type_: TensorType, attrs: Attrs) -> Tensor:
        """A structural node with one input and one output in the same place."""
        value = self.value_of(x)
        node = self._append(op, [value], [type_], value.placement, attrs)
        node.module = node.module or value.node.module  # a sum of gradients is their module's
        return self._wrap(node.outputs[0], (x,))

    def input(self, name: str, type_: TensorType, like: Tensor) -> Tensor:
        """A value the caller feeds at each step, laid out as the eager tensor `like`."""
        placement = self._placement_of(like)
        sbp = like._sbp if like._sbp is not None else all_broadcast(placement.ndim)
        return self._add_input(name, type_, like, placement, sbp)

    def need_rows(self, x: Tensor, asked: str, *, whole: bool) -> None:
        node = None if x.value is None else x.value.node
        if node is not None and node.op == "unpack":
            node = node.inputs[0].node
        name = "" if node is None or node.op != "input" else str(node.attrs["name"])
        if name.startswith("input."):
            known = self.rows.get(name)
            if known is None or (whole and not known.whole):
                self.rows[name] = RowsNeeded(f"{asked} at {user_location()}", whole)

    def source(self, read: Callable[[object], Any]) -> Any:
        """Add an input that the graph feeds itself, with the result of `read` for each step."""
        name = f"source.{len(self.sources)}"
        if len(self.sources) < len(self.known.read_ahead):
            first = self.known.read_ahead[len(self.sources)]
        else:
            mode = swap_mode(None)
            try:
                first = read(self)
            finally:
                swap_mode(mode)
        self.sources.append(Source(name, read, first))
        return self.pieces_of(name, first)

    def pieces_of(self, name: str, x: Tensor) -> Tensor:
        """The traced tensor of an input; with more pieces: of one piece of it."""
        whole = self.input(name, x.meta, x)
        pieces = self.graph.num_pieces
        if pieces == 1:
            return whole
        if not x.meta.shape or x.meta.shape[0] % pieces:
            raise ShapeError(
                f"{name.replace('.', ' ')} {x.meta}: dim 0 must be divisible by the {pieces} "
                "gradient accumulation steps"
            )
        shape = (x.meta.shape[0] // pieces, *x.meta.shape[1:])
        piece = self.structural("unpack", whole, x.meta.with_shape(shape), {})
        piece.value.sbp = whole.value.sbp
        return piece

    def scalar_input(self, name: str, type_: TensorType, like: Tensor) -> Tensor:
        """A number the caller feeds at each step, on every rank that holds `like`."""
        placement = self._placement_of(like)
        return self._add_input(name, type_, like, placement, all_broadcast(placement.ndim))

    def _add_input(
        self, name: str, type_: TensorType, like: Tensor, placement: Placement, sbp: NdSbp
    ) -> Tensor:
        node = self._append("input", [], [type_], placement, {"name": name})
        node.outputs[0].sbp = sbp
        if like._placement is None:
            return wrap_traced(node.outputs[0], type_, device=like._device)
        return wrap_traced(node.outputs[0], type_, placement=placement, sbp=sbp)

    def output(self, x: Tensor, index: int) -> None:
        value = self.value_of(x)
        self._append("output", [value], [], value.placement, {"index": index})

    # ---- gradients -------------------------------------------------------------------------------

    def hide_gradient(self, x: Tensor) -> None:
        """Puts `x.grad` aside until the trace is done: gradients in a graph begin with nothing."""
        if id(x) not in self._hidden:
            self._hidden[id(x)] = x, x.grad
            if x.grad is not None:
                x.grad = None

    def restore_gradients(self) -> None:
        """Give eager tensors the gradients that they had before."""
        for x, grad in self._hidden.values():
            if x.grad is not grad:
                x.grad = grad
        self._hidden.clear()

    def forget_histories(self, outputs: Iterable[Tensor]) -> None:
        """Let go of the calls that gradients were computed of: a graph keeps its outputs for as
        long as it lives.
        """
        self._makers.clear()
        for x in outputs:
            if x.value is not None:
                x._grad_fn = None

    # ---- values ----------------------------------------------------------------------------------

    def value_of(self, x: Tensor) -> Value:
        """The value that `x` stands for now; an eager tensor becomes a variable. Raises GraphError,
        and AutogradError for a tensor overwritten since the backward pass was given it.
        """
        if isinstance(x, ModifiedTensor):
            return x._array  # type: ignore[no-any-return]  # raises
        if x.value is not None:
            if x._extra is not None:
                refresh(x)
            value: Value = x.value
            return value
        x = self.owner(x)
        view = view_of(x)
        if view is not None and self._is_known(view.base) and id(x) not in self.known.names:
            return self._seen_through(x, view)
        found = self._current.get(id(x))
        if found is None:
            found = self._add_variable(x)
        return found

    def _is_known(self, x: Tensor) -> bool:
        """Is the memory of `x` a variable of this graph, or will it be?"""
        x = self.owner(x)
        return x.value is not None or id(x) in self.known.names or id(x) in self._current

    def _seen_through(self, x: Tensor, view: View) -> Value:
        """The value of `x`, a view made eagerly, taken of the variable that its base is."""
        known = self._views.get(id(x))
        if known is None or known[0] != x._version[0]:
            with no_grad():
                value = self.value_of(replay(view.base, view.steps))
            known = self._views[id(x)] = x._version[0], value, x
        return known[1]

    def owner(self, x: Tensor) -> Tensor:
        """The one tensor that stands for all that are the same memory, as x and x.detach() are. As
        two variables they would be apart wherever their memory is: in a job file, say."""
        if x.value is not None or x._array is None:
            return x
        found = self.known.owners.setdefault(id(x._array), x)
        if found._array is not x._array:  # it was given another array since
            found = self.known.owners[id(x._array)] = x
        kind = found.meta, found._placement, found._sbp
        return found if kind == (x.meta, x._placement, x._sbp) else x

    def _add_variable(self, x: Tensor) -> Value:
        given_name = self.known.names.get(id(x))
        name = f"{CAPTURED}{len(self.variables)}" if given_name is None else given_name
        if name in self.variables:
            raise GraphError(f"two variables of graph {self.graph.name} are named {name!r}")
        self.variables[name] = x
        self.hide_gradient(x)
        placement = self._placement_of(x)
        attrs: Attrs = {"name": name}
        if given_name is None and self.known.amp is float16 and lacks_numbers_of(x):
            attrs = {**attrs, "wide": True}
        if self.known.lays_out and id(x) in self.known.names and may_lay_out(x):
            attrs = {**attrs, "free": True}
        if id(x) in self.known.state_of:
            attrs = {**attrs, "state_of": self.known.state_of[id(x)]}
        node = self._append("variable", [], [x.meta], placement, attrs, at_front=True)
        given = x._sbp if x._sbp is not None else all_broadcast(placement.ndim)
        node.outputs[0].sbp = self.known.whole.get(id(x), given)
        self._current[id(x)] = node.outputs[0]
        stage = self.known.stage_of.get(id(x))
        node.stage = node.stage if stage is None else stage.id
        return node.outputs[0]

    def _placement_of(self, x: Tensor | None) -> Placement:
        if x is not None and x._placement is not None:
            return x._placement
        return self._here("cpu" if x is None else x._device.type)

    def _here(self, kind: str) -> Placement:
        """This rank's devices of a kind, on which local tensors are."""
        found = self._local.get(kind)
        if found is None:
            found = self._local[kind] = Placement(kind, [self.known.rank])
        return found

    def check_read(self, x: Tensor) -> None:
        """Refuse to read a tensor that changes from step to step: it would be a constant of the
        graph."""
        is_updated = x._array is not None and id(self.owner(x)) in self.known.updated
        if is_updated and not self.draws.is_after_pieces:
            name = self.known.names.get(id(self.owner(x)), "a parameter")
            raise GraphError(
                f"nn.Graph.build reads the values of {name} ({x.meta}), which an optimizer of the "
                "graph updates in each step: they would stay those of now; compute with the tensor"
            )

    # ---- writing ---------------------------------------------------------------------------------

    has_memory = False

    def share(self, x: Tensor, other: Tensor) -> None:
        """See views.py."""
        link_detached(x, other)

    def write(self, x: Tensor, new: Tensor) -> None:
        """See views.py. `x` keeps its layout; a named tensor is a variable, even as
        a view.
        """
        new = self._laid_out_like(x, new)
        view = view_of(x)
        if view is None or id(x) in self.known.names:
            write_whole(self, x, new)
        else:
            write_through(self, x, view, new)

    def _laid_out_like(self, x: Tensor, new: Tensor) -> Tensor:
        if x._placement is None:
            return new
        if new._placement == x._placement:
            have = new._sbp
            if x._sbp is not None and have is None:
                have = self.layout(new, is_fixed=False)
            if x._sbp in (None, have):
                return new
        return self.lay_out(new, x._placement, x._sbp)

    def store(self, x: Tensor, new: Tensor) -> None:
        """A graph has values, not memory: `x` gets another one. Buffers of the graph's modules are
        overwritten when the graph runs; any other tensor made outside keeps its values, and only
        the rest of build() sees the new ones, unless `writes_outside`.
        """
        if x.value is not None:
            x.value, x._sbp = self.value_of(new), new._sbp
            return
        if state.enabled and new._requires_grad:
            raise with_location(
                GraphError(
                    f"{x.meta}, made outside of build(), is overwritten by a tensor that requires "
                    "a gradient; write x.detach(), or write inside no_grad()"
                )
            )
        owner = self.owner(x)
        if id(owner) in self.known.names or (self.writes_outside and view_of(x) is None):
            self._overwrite(owner, new)
        elif view_of(x) is None:
            self.rebind(owner, new)

    def _overwrite(self, x: Tensor, new: Tensor) -> None:
        """Overwrite an eager tensor when the graph runs: only the elements that differ, where `new`
        is `x` with others at some positions, as a cache after a token is.
        """
        value = self.value_of(new)
        node = value.node
        if node.op != "dim_scatter" or value.users or node.inputs[0] is not self.value_of(x):
            assign(x, new)
            return
        index, source = (self._wrap(v, (x,)) for v in node.inputs[1:])
        made = dim_assign(x, index, source, dim=node.attrs["dim"])
        self.graph.erase(node)
        new.value = self.value_of(made)

    def rebind(self, x: Tensor, new: Tensor) -> None:
        """Let `x`, an eager tensor, stand from here on for the value of `new` in this graph."""
        self.value_of(x)  # makes it a variable, which also keeps it alive
        self._current[id(self.owner(x))] = self.value_of(new)
        x._version[0] += 1

    def hidden_write(self) -> Tensor | None:
        """A captured tensor in the memory of another one that is overwritten, of which it, a
        variable of its own, would see nothing; None if there is none."""
        held = [x for x in self.variables.values() if isinstance(x._array, np.ndarray)]
        written = [x for x in held if self._current[id(x)].node.op != "variable"]
        pairs = ((x, y) for y in written for x in held if x is not y)
        return next((x for x, y in pairs if np.may_share_memory(x._array, y._array)), None)

    def overwritten(self) -> list[Tensor]:
        """The captured tensors without a name that stand for another value now, which the graph
        does not give them."""
        captured = (x for x in self.variables.values() if id(x) not in self.known.names)
        return [x for x in captured if written_variable(self._current[id(x)]).node.op != "variable"]

    def _mutated(self, x: Tensor, value: Value) -> Tensor:
        x._version[0] += 1
        if x.value is not None:
            x.value = value
        else:
            self._current[id(self.owner(x))] = value
        return x

    def _wrap(self, value: Value, inputs: tuple[Tensor, ...]) -> Tensor:
        for x in inputs:
            if x._placement is None:
                return wrap_traced(value, value.type, device=x._device)
        placement = value.placement if inputs else None
        return wrap_traced(value, value.type, placement=placement, sbp=value.sbp)

    def _placement(
        self, op: type[Op], inputs: tuple[Tensor, ...], values: list[Value]
    ) -> Placement:
        if not values:
            return self._here("cpu")
        first, is_local = values[0].node.placement, inputs[0]._placement is None
        for i, (x, value) in enumerate(zip(inputs, values, strict=True)):
            if (x._placement is None) != is_local:
                raise PlacementError(
                    f"{op.name}: local and global tensors are mixed (positional {i}); "
                    "use to_global()"
                )
            if value.node.placement is not first and value.placement != first:
                raise PlacementError(
                    f"{op.name}: Expected all tensors to be on the same placement, "
                    "but found at least two "
                    f"placements, {first} (positional 0) and {value.placement} (positional {i})! "
                    "Move one with to_global(placement=...)"
                )
        return first

    def _append(
        self,
        op: str,
        values: list[Value],
        types: Iterable[TensorType],
        placement: Placement,
        attrs: Attrs,
        *,
        at_front: bool = False,
    ) -> Node:
        if at_front and self._first is not None:
            node = self.graph.insert(self._first, op, values, types, placement, attrs)
        else:
            node = self.graph.append(op, values, types, placement, attrs)
            if self._first is None and not at_front:
                self._first = node
        at = self.at
        if at.opens and op not in ("variable", "input", "unpack"):
            node.opens, at.opens = at.opens, 0
        node.stage = self._stage_on(placement, values) if self.known.stages else at.stage or 0
        node.module = at.module
        maker = self._note_phase(node, at)
        node.location = self.locate() if maker is None else maker.location
        if self.graph.num_pieces > 1 and not (node.is_structural or self.draws.is_after_pieces):
            node.rate = PIECE if find_op(op).mutates else STEP
        return node

    def _note_phase(self, node: Node, at: Place) -> Node | None:
        """Return the node whose gradient the new one is part of, if it is part of one."""
        if self.draws.is_after_pieces:
            node.phase = WRITE_BACK if at.writes_back else UPDATE
            return None
        if not at.is_backward:
            node.phase = FORWARD
            node.has_own_dtypes = at.has_own_dtypes and node.op != "to_global"
            return None
        node.phase = BACKWARD
        if at.maker is not None and at.maker.outputs:
            node.grad_of = at.maker.outputs[0].id
        return at.maker
