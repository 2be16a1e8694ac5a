"""A segment bound to a rank: a straight line of kernel calls with all buffers already in place.

Binding happens in two sweeps. The first runs the node list on stand-in arrays to see which outputs
are views of which inputs, from which the lifetimes of temporaries and their offsets in the scratch
memory follow. The second, made once for each combination of slots, builds the calls; a step then
only goes through the list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from oneflow.actors.batching import batch
from oneflow.actors.clock import StepClock
from oneflow.actors.draws import RandomCall
from oneflow.actors.epilogues import join_products, product_finder
from oneflow.actors.fusing import OTHER_IDS, Fact, fuse, kernel_name, members_of
from oneflow.actors.gpu_faults import launched_earlier
from oneflow.actors.memory import Lifetime, lower_bound, plan_offsets
from oneflow.actors.random_rows import RandomRows
from oneflow.actors.registers import array_at
from oneflow.actors.slice_fusion import join
from oneflow.boxing.bound_op import BoundOp, Shards, bind_alike
from oneflow.core.graph import Node, Value, written_variable
from oneflow.core.job_config import DEFAULT, BindOptions
from oneflow.core.location import locate
from oneflow.core.op import find_op
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array
from oneflow.kernels.hardware import Hardware
from oneflow.kernels.registry import ViewFunction, find_view, path_of

Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class BoundNode:
    """One node of the segment, and its op as this rank runs it.

    members: the nodes that one kernel computes together; (): this one alone.  part_of: the node of
    the program of which this one is a part; None: it is whole.
    """

    node: Node
    call: BoundOp
    view: ViewFunction | None
    members: tuple[BoundNode, ...] = ()
    part_of: Node | None = None


@dataclass(frozen=True)
class Temporary:
    """A piece of scratch memory.

    name: "%7" of a value, "%7'" of one that its kernels make on the way to it, "workspace 0" of a
    node's workspace.  node: its maker, of those that `kernel` computes.  life: first and last node
    of the segment that use it.
    """

    name: str
    type: TensorType
    node: Node
    kernel: str
    life: Lifetime
    offset: int


class Segment:
    """The nodes of one segment actor, bound to arrays.

    nodes: of one segment actor. rank: whose part. published: values that other actors make or read,
    or variables. rows: of the whole plan. fuses: see fusing.py.

    views: ids of the values that share the memory of others.
    scratch_nbytes: scratch memory it needs.  scratch_bound: the least that any placement would
    need.  facts: the fate of each op with a formula.  unformed: number of nodes without a formula,
    by op and the library that computes it.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        rank: int,
        hardware: Hardware,
        published: frozenset[int],
        rows: RandomRows,
        options: BindOptions = DEFAULT,
        fuses: bool = True,
    ) -> None:
        self.hardware = hardware
        self._rows = rows
        self.published = published
        self.views: set[int] = set()
        self._workspaces: dict[tuple[int, int], int] = {}
        self._roots: dict[int, int] = {}
        self._random_acts: dict[int, list[int]] = {}  # acts so far, whichever slots they used
        self._made_for: list[BoundNode] = []
        bound = [bind_node(n, rank, hardware.kind) for n in nodes]
        self.nodes = bound
        self.facts: list[Fact] = []
        if fuses:
            self.nodes, self.facts = join(bound, published, hardware.kind)
            finds = product_finder(hardware.kind)
            if finds is not None:
                self.nodes, facts = join_products(
                    self.nodes, published, hardware.kind, finds, options.unfused
                )
                self.facts += facts
            self.nodes, facts = fuse(self.nodes, published, hardware.kind, options.unfused)
            self.facts += facts
        if fuses and options.batches(hardware.kind):
            self.nodes, facts = batch(self.nodes, hardware.kind)
            self.facts += facts
        self.unformed = Counter(_told(b) for b in bound if b.call.op.formula is None)
        self._own = {n.id for n in nodes}
        self._lifetimes = self._sweep()
        self._offsets, self.scratch_nbytes = plan_offsets(
            self._lifetimes, options.thorough, options.best_offsets
        )
        self.scratch_bound = lower_bound(self._lifetimes)

    def again(self, hardware: Hardware) -> Segment:
        """The same segment for another job: facts about its nodes and its memory are shared, state
        that changes from act to act is not.
        """
        other = copy(self)
        other.hardware = hardware
        other._random_acts, other._made_for = {}, []
        return other

    @property
    def num_lookups(self) -> int:
        """Rows of embeddings, which are variables that are gathered from, in one act."""
        return sum(
            bound.call.in_types[1].numel
            for bound in self.nodes
            if bound.node.op == "gather"
            and bound.node.attrs.get("dim") == 0
            and _origin(bound.node.inputs[0]).node.op == "variable"
        )

    def temporaries(self) -> Iterator[Temporary]:
        """All that lies in its scratch memory, in the order in which it is made."""
        names = {
            value.id: (f"%{value.id % OTHER_IDS}" + "'" * (value.id >= OTHER_IDS), type_)
            for bound in self.nodes
            for value, type_ in zip(bound.node.outputs, bound.call.out_types, strict=True)
        }
        parts = [part.node for bound in self.nodes for part in members_of(bound)]
        makers = {value.id: node for node in parts for value in node.outputs}
        by_id = {bound.node.id: bound for bound in self.nodes}
        for (maker, k), key in self._workspaces.items():
            names[key] = f"workspace {k}", by_id[maker].call.workspace[k]
        for life in self._lifetimes:
            name, type_ = names[life.key]
            bound = self.nodes[life.first]
            node = makers.get(life.key, bound.node)
            yield Temporary(name, type_, node, kernel_name(bound), life, self._offsets[life.key])

    # ---- first sweep: what is a view of what, and how long does it live --------------------------

    def _sweep(self) -> list[Lifetime]:
        stand_ins: dict[int, Array | TensorType] = {}  # arrays where a view was asked for
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        sizes: dict[int, int] = {}
        for i, bound in enumerate(self.nodes):
            for value, type_ in zip(bound.node.inputs, bound.call.in_types, strict=True):
                if value.id not in stand_ins:
                    stand_ins[value.id] = type_
                self._touch(value.id, i, last)
            self._sweep_outputs(i, bound, stand_ins, first, sizes)
            for value in bound.node.outputs:
                self._touch(value.id, i, last)
            for k, extra in enumerate(bound.call.workspace):
                key = self._workspaces[bound.node.id, k] = -1 - len(self._workspaces)  # no value's
                first[key], last[key], sizes[key] = i, i, extra.nbytes
        return [Lifetime(k, sizes[k], first[k], last[k]) for k in first]

    def _touch(self, value: int, i: int, last: dict[int, int]) -> None:
        last[self._roots.get(value, value)] = i

    def _sweep_outputs(
        self,
        i: int,
        bound: BoundNode,
        stand_ins: dict[int, Array | TensorType],
        first: dict[int, int],
        sizes: dict[int, int],
    ) -> None:
        node = bound.node
        for k, (value, type_) in enumerate(zip(node.outputs, bound.call.out_types, strict=True)):
            mutated = bound.call.op.mutates.get(k)
            source = node.inputs[mutated] if mutated is not None else None
            array: Array | TensorType | None = None
            if source is not None:
                array = stand_ins[source.id]
            view = bound.view
            if array is None and view is not None and value.id not in self.published:
                seen = stand_ins[node.inputs[0].id]
                if isinstance(seen, TensorType):
                    seen = stand_ins[node.inputs[0].id] = np.empty(seen.shape, seen.dtype.np)
                array = view(seen, **bound.call.attrs)
                if array is not None:
                    source = node.inputs[0]
                    self.views.add(value.id)
            if source is not None and array is not None:
                self._roots[value.id] = self._roots.get(source.id, source.id)
            else:
                array = type_
                if value.id not in self.published:
                    first[value.id], sizes[value.id] = i, type_.nbytes
            stand_ins[value.id] = array

    # ---- second sweep: the calls -----------------------------------------------------------------

    def build(self, outside: Mapping[int, Array], scratch: Array, clock: StepClock) -> list[Call]:
        """The calls of one act. outside: arrays of values that this segment does not keep in
        scratch memory, by id.
        """
        arrays: dict[int, Array] = dict(outside)
        calls: list[Call] = []
        made_for: list[BoundNode] = []
        for bound in self.nodes:
            self._build_node(bound, arrays, scratch, clock, calls)
            made_for += [bound] * (len(calls) - len(made_for))
        self._made_for = made_for
        return calls

    @property
    def made_for(self) -> Sequence[BoundNode]:
        """The node of each call of an act; empty before the first act."""
        return self._made_for

    def blame(self, error: Exception, call: int) -> None:
        """Add to the text of an error where the user wrote the op of call number `call`."""
        node = self._made_for[call].node
        locate(error, node.module, node.location)
        words = launched_earlier(error)
        if words and len(error.args) == 1 and words not in str(error):
            error.args = (f"{error.args[0]}{words}",)

    def _build_node(
        self,
        bound: BoundNode,
        arrays: dict[int, Array],
        scratch: Array,
        clock: StepClock,
        calls: list[Call],
    ) -> None:
        node, op, view = bound.node, bound.call.op, bound.view
        ins = [arrays[_origin(v).id] for v in node.inputs]
        for i in op.mutates.values():
            if node.inputs[i].node.id not in self._own:  # its register has a copy
                ins[i] = arrays.get(written_variable(node.inputs[i]).id, ins[i])
        outs = []
        for k, (value, type_) in enumerate(zip(node.outputs, bound.call.out_types, strict=True)):
            if k in op.mutates:
                array = ins[op.mutates[k]]
                if value.id in self.published:
                    outs.append(array)
                    continue  # copied to its register below
            elif view is not None and value.id in self.views:
                array = view(ins[0], **bound.call.attrs)
            elif value.id in self.published:
                array = arrays[value.id]
            else:
                array = array_at(scratch, self._offsets[value.id], type_)
            arrays[value.id] = array
            outs.append(array)
        if not (node.outputs and node.outputs[0].id in self.views):
            work = [
                array_at(scratch, self._offsets[self._workspaces[node.id, k]], t)
                for k, t in enumerate(bound.call.workspace)
            ]
            calls.append(self._call(bound, outs, ins, work, clock))
        for k, value in enumerate(node.outputs):
            if k in op.mutates and value.id in self.published:
                calls.append(partial(self.hardware.copy, arrays[value.id], outs[k]))

    def _call(
        self, bound: BoundNode, outs: list[Any], ins: list[Any], work: list[Any], clock: StepClock
    ) -> Call:
        function = partial(bound.call.function, self.hardware.xp, **bound.call.keywords)
        if bound.call.op.is_random:
            acts = self._random_acts.setdefault(bound.node.id, [0])
            arrays = (*outs, *ins, *work)
            return RandomCall(function, bound.node, bound.call, arrays, clock, acts, self._rows)
        return partial(function, *outs, *ins, *work)


def _told(bound: BoundNode) -> str:
    """The op of a node, with the library that computes it."""
    path = path_of(bound.call.function)
    return f"{bound.node.op} by {path}" if path else bound.node.op


def _origin(value: Value) -> Value:
    """Return the step's value that every piece reads: `repeat` makes no array of its own."""
    return value.node.inputs[0] if value.node.op == "repeat" else value


def bind_node(node: Node, rank: int, device: str) -> BoundNode:
    """Everything about a node that is different on each rank."""
    inputs, outputs = ([v.sbp or () for v in values] for values in (node.inputs, node.outputs))
    shards = Shards(node.placement, rank, inputs, outputs)
    types, out_types = (tuple([v.type for v in vs]) for vs in (node.inputs, node.outputs))
    op = find_op(node.op)
    attrs = op.defaults | node.attrs  # text that somebody wrote may leave some out
    call = bind_alike(op, types, out_types, attrs, device, shards, node.kind_key)
    return BoundNode(node, call, find_view(op.name) if op.is_alias else call.view)
