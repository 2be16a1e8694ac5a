"""ZeRO as a rule on layouts: copies that the ranks of a parameter would hold are split over them.

    stage 1   the optimizer's states
    stage 2   and the gradients, as soon as they are made, so that sums over micro-batches are parts
    stage 3   and the parameters themselves, which are gathered where an op reads them

Everything else follows: an update whose states are split runs on the parts of the parameter, and in
stages 1 and 2 the new parts are gathered into its copies; a gradient that is wanted in parts is
reduced and scattered in one exchange. Eager tensors are brought there when the plan is bound.

A part is cut when its gradient is there, in the memory that the op overwrites; and every so often
when parameters gathered before have been written back, so that few gathered parameters lie in
memory at a time, which share it (share_registers.py).
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from oneflow.core.graph import (
    AGAIN,
    BACKWARD,
    GRADIENT,
    UPDATE,
    WRITE_BACK,
    LogicalGraph,
    Node,
    Value,
    written_variable,
)
from oneflow.core.job_config import Cluster, JobConfig, Zero
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, NdSbp, Sbp, Split
from oneflow.core.tensor_type import TensorType
from oneflow.ops.assign import assign
from oneflow.ops.depend import depend
from oneflow.ops.unary import copy
from oneflow.scheduler.compiler.rewrite.insertion import Insertion, inserting

PREFETCHED = 2
"""Ops whose parameters are gathered before their turn; bytes ahead for each byte of the next."""


def zero(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> None:
    """Split the tensors that `config.zero` names."""
    if config.zero is None:
        return
    layouts = _layouts(graph, config.zero, may_stay=config.auto_parallel is None)
    if not layouts:
        return
    _split_states(graph, layouts)
    if config.zero.stage == 3:
        whole = _split_parameters(graph, layouts)
        if config.zero.restore_level:
            _Gathering(graph, whole, is_ahead=config.bucket_nbytes > 0).run()
    _split_gradients(graph, layouts, is_early=config.zero.stage > 1)
    _Updates(graph, layouts).run()


# ---- layouts -------------------------------------------------------------------------------------


def _layouts(graph: LogicalGraph, settings: Zero, *, may_stay: bool) -> dict[str, NdSbp]:
    """The layouts of parts, by the names of the parameters that are updated.

    may_stay: whether variables lie as the graph says; else some of them may be laid out.
    """
    updated = {str(n.attrs["of"]) for n in graph.of_kind(GRADIENT)}
    found = {}
    for name, value in graph.variables.items():
        if name in updated and (may_stay or value.node.attrs.get("free")):
            lies = value.sbp or ()
            layout = split_layout(value.type, value.placement, lies, settings.min_size)
            if layout is not None:
                found[name] = layout
    return found


def split_layout(
    type_: TensorType, placement: Placement, lies: NdSbp, min_size: int
) -> NdSbp | None:
    """The layout of a tensor with its copies split; None for those that stay as they are: small
    tensors, and those without an axis of copies that a dim could be split over.
    """
    if placement.size == 1 or type_.numel < min_size:
        return None
    found = list(lies)
    for axis, size in enumerate(placement.hierarchy):
        if found[axis] is BROADCAST:
            dim = _dim_to_split(type_, placement, found, size)
            found[axis] = BROADCAST if dim < 0 else Split(dim)
    return None if tuple(found) == lies else tuple(found)


def _dim_to_split(type_: TensorType, placement: Placement, sbp: list[Sbp], size: int) -> int:
    """The first dim that `size` divides, else the first that has as many elements; -1: none."""
    parts = [
        size * math.prod(n for n, s in zip(placement.hierarchy, sbp, strict=True) if s == cut)
        for cut in map(Split, range(type_.ndim))
    ]
    dims = [d for d in range(type_.ndim) if type_.shape[d] >= parts[d]]
    return next((d for d in dims if type_.shape[d] % parts[d] == 0), dims[0] if dims else -1)


def _split_states(graph: LogicalGraph, layouts: dict[str, NdSbp]) -> None:
    """The states of a parameter that are as large as it is."""
    variables = graph.variables
    for value in variables.values():
        of = str(value.node.attrs.get("state_of", ""))
        if of in layouts and value.type.shape == variables[of].type.shape:
            _lay_out(value, layouts[of])


def _split_parameters(graph: LogicalGraph, layouts: dict[str, NdSbp]) -> dict[int, NdSbp]:
    """Parameters, and their copies in half precision. Returns how each value lay."""
    whole: dict[int, NdSbp] = {}
    for name, value in graph.variables.items():
        layout = layouts.get(str(value.node.attrs.get("copy_of", name)))
        if layout is not None and value.sbp is not None:
            whole[value.id] = value.sbp
            _lay_out(value, layout)
    return whole


def _lay_out(variable: Value, layout: NdSbp) -> None:
    variable.sbp = layout
    kept = {key: value for key, value in variable.node.attrs.items() if key != "free"}
    variable.node.attrs = {**kept, "split": True}


def _split_gradients(graph: LogicalGraph, layouts: dict[str, NdSbp], *, is_early: bool) -> None:
    """Gradients are read in parts. is_early: so are the sums over micro-batches."""
    for node in graph.of_kind(GRADIENT):
        layout = layouts.get(str(node.attrs["of"]))
        if layout is None:
            continue
        summed = node.inputs[0].node
        reader = summed if is_early and summed.op == "accumulate" else node
        (value,) = reader.inputs
        with inserting(graph, reader) as at:
            graph.set_input(reader, 0, at.to_global(value, value.placement, layout))
        node.outputs[0].sbp = layout


# ---- parameters that ops read --------------------------------------------------------------------


@dataclass
class Ahead:
    """The latest ops that read gathered parameters, and from when on those of the next are
    gathered: two ops ahead, or as many more as gather no more than twice as much as the next one
    does.

    While an op runs that many gathers are under way: with one of them a link idles whenever that
    arrives before the op has ended.
    """

    _ops: deque[tuple[Sequence[Value], int]] = field(default_factory=deque)
    """The ops, oldest first: an input of each without parameters, if it has one, and the bytes of
    its parameters."""

    def start(self, inputs: Sequence[Value], nbytes: int) -> Sequence[Value]:
        """The value that has to be there before the parameters of the next op are gathered, if
        any has.

        inputs: of the next op, without parameters.  nbytes: of its parameters.
        """
        ops = self._ops
        ahead = sum(of_op for _, of_op in ops)
        while len(ops) > PREFETCHED and ahead > PREFETCHED * nbytes:
            ahead -= ops.popleft()[1]
        ops.append((inputs[:1] or (ops[-1][0] if ops else ()), nbytes))
        return ops[0][0]


class _Gathering:
    """Gathers parameters for each op that reads them, so that no more of them than needed are whole
    at a time.

    whole: the layouts in which they are read, by value.  is_ahead: see Ahead; else they are
    gathered once the op that reads them could run.
    """

    def __init__(self, graph: LogicalGraph, whole: dict[int, NdSbp], *, is_ahead: bool) -> None:
        self._graph, self._whole, self._is_ahead = graph, whole, is_ahead
        self._ahead = defaultdict[tuple[Placement, int, bool], Ahead](Ahead)
        self._has_stages = len({node.stage for node in graph}) > 1

    def run(self) -> None:
        """Gather for all ops of the forward and the backward pass."""
        for node in self._graph:
            if node.phase in (UPDATE, WRITE_BACK):
                continue
            written = node.declared.mutates.values()
            places = [i for i, v in enumerate(node.inputs) if v.id in self._whole]
            places = [i for i in places if i not in written]
            if places and node.op == "cast":
                self._whole[node.outputs[0].id] = self._whole[node.inputs[0].id]
            elif places:
                self._gather(node, places)

    def _gather(self, node: Node, places: list[int]) -> None:
        others = [
            v for i, v in enumerate(node.inputs) if i not in places and v.node.op != "variable"
        ]
        nbytes = sum(node.inputs[i].type.nbytes for i in places)
        after = self._of(node).start(others, nbytes) if self._is_ahead else others[:1]
        with inserting(self._graph, node) as at:
            for i in places:
                value, whole = node.inputs[i], self._whole[node.inputs[i].id]
                for made in after:
                    value = at.call(depend, value, made)
                self._graph.set_input(node, i, at.to_global(value, value.placement, whole))

    def _of(self, node: Node) -> Ahead:
        """The readers before a node in its place and its stage; apart from those of the other pass
        if stages separate the two."""
        is_apart = self._graph.num_pieces > 1 and self._has_stages
        return self._ahead[
            node.inputs[0].placement, node.stage, is_apart and node.phase in (AGAIN, BACKWARD)
        ]


# ---- parameters that updates overwrite -----------------------------------------------------------


class _Gathers:
    """The updated parameters of a stage that are gathered in one go: of at most an eighth of
    all bytes, or one parameter.
    """

    def __init__(self) -> None:
        self.total_nbytes = 0
        self.last: Value | None = None
        """The parameter that was written back last."""
        self._nbytes = 0
        self._before: Value | None = None

    def before(self, nbytes: int) -> Value | None:
        """The parameter that has to be written back before one of `nbytes` is cut; None: none."""
        if self._nbytes and self._nbytes + nbytes > self.total_nbytes / 8:
            self._before, self._nbytes = self.last, 0
        self._nbytes += nbytes
        return self._before


class _Updates:
    """Updates that run on parts. layouts: of these, by parameter."""

    def __init__(self, graph: LogicalGraph, layouts: dict[str, NdSbp]) -> None:
        self._graph, self._layouts = graph, layouts
        self._gathers = defaultdict[tuple[Placement, int], _Gathers](_Gathers)
        for name, value in graph.variables.items():
            if name in layouts:
                self._of(value).total_nbytes += value.type.nbytes

    def run(self) -> None:
        """Let all updates of parameters that are split, or whose states are, run on parts."""
        for node in self._graph:
            if node.phase == UPDATE:
                op = node.declared
                if op.by_parts is not None and any(map(self._is_split, node.inputs)):
                    self._expand(node)
                elif op.mutates:
                    self._move(node)

    def _is_split(self, value: Value) -> bool:
        return bool(written_variable(value).node.attrs.get("split"))

    def _expand(self, node: Node) -> None:
        """An update that needs whole operands becomes ops that do not."""
        op = node.declared
        assert op.by_parts is not None
        first = node.prev
        with inserting(self._graph, node):
            results = op.by_parts(*node.inputs, **node.attrs)
        for old, new in zip(node.outputs, results, strict=True):
            self._graph.replace_uses(old, new)
        self._graph.erase(node)
        for made in list(self._graph.after(first)):
            if made is node.next:
                break
            if made.declared.mutates:
                self._move(made)

    def _move(self, node: Node) -> None:
        """Let an update overwrite parts of copies; these are then gathered again."""
        whole = {o: node.inputs[i] for o, i in node.declared.mutates.items()}
        whole = {output: value for output, value in whole.items() if self._is_whole(value)}
        for value in whole.values():
            self._cut(node, value)
        for output, value in whole.items():
            self._gather(node, output, value)

    def _is_whole(self, value: Value) -> bool:
        """Whether a value is one of copies that each rank is to overwrite a part of."""
        variable = written_variable(value)
        layout = self._layout(variable)
        return layout is not None and variable.sbp != layout

    def _layout(self, variable: Value) -> NdSbp | None:
        attrs = variable.node.attrs
        return self._layouts.get(str(attrs.get("copy_of", attrs.get("name"))))

    def _cut(self, node: Node, value: Value) -> None:
        """Let an update overwrite a part of a value, once its gradient is there."""
        layout = self._layout(written_variable(value))
        before = self._of(value).before(value.type.nbytes)
        with inserting(self._graph, node) as at:
            gradient = self._gradient(at, node, layout)
            after = at.call(depend, value, gradient if before is None else before)
            part = at.call(copy, at.to_global(after, value.placement, layout))
        self._graph.set_input(node, node.inputs.index(value), part)

    def _gather(self, node: Node, output: int, value: Value) -> None:
        """Write the new parts of a value back into its copies."""
        updated, lies = node.outputs[output], written_variable(value).sbp
        readers = list(updated.users)
        with inserting(self._graph, node.next, like=node, phase=WRITE_BACK) as at:
            written = at.call(assign, value, at.to_global(updated, value.placement, lies))
        self._graph.replace_uses(updated, written, only=readers)
        self._of(value).last = written

    def _of(self, value: Value) -> _Gathers:
        return self._gathers[value.placement, value.node.stage]

    def _gradient(self, at: Insertion, node: Node, layout: NdSbp | None) -> Value:
        """Return the second operand, in parts: the gradient, or the value made of it."""
        value = node.inputs[1]
        if value.type.shape == node.inputs[0].type.shape and not self._is_split(value):
            moved = at.to_global(value, value.placement, layout)
            self._graph.set_input(node, 1, moved)
        return node.inputs[1]
