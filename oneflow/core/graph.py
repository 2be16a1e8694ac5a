"""The logical graph: nodes in execution order, values between them, and edits made in place.

A node is an op of the registry, or one of the structural kinds below. A graph prints as text that
parses back (graph_text.py), so a dump is also a test case.

    input(name)        fed by the caller at every step          variable(name)     a parameter,
    buffer or optimizer state
    output(x; index)   handed to the caller                     to_global(x)       the user fixed
    placement and/or SBP here
    boxing(x)          moves x from its SBP to another          unpack(x)          one step's value
    -> num_pieces pieces (dim 0)
    parts(xs; of)      the op named `of`, run on parts of shards (boxing/parts.py)
    repeat(x)          a step's value, given to every piece     accumulate(x)      mean over the
    pieces of a step
    pack(x)            pieces stacked (scalars) or concatenated into a step's value
    seed(x)            x, with which a backward pass begins     gradient(x; of, optimizer)  x, which
    is the gradient of the variable `of` for that optimizer
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from oneflow.core.errors import InternalError
from oneflow.core.op import Op, find_op
from oneflow.core.operand import Attrs, attrs_key
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.core.tensor_type import TensorType

STRUCTURAL = frozenset(
    {
        "input",
        "variable",
        "output",
        "to_global",
        "boxing",
        "parts",
        "exchange",
        "unpack",
        "repeat",
        "accumulate",
        "pack",
        "seed",
        "gradient",
    }
)
SEED, GRADIENT = "seed", "gradient"
"""Kinds of nodes that tell passes what a value is, and are gone once these have run."""
STEP, PIECE = "step", "piece"
FORWARD, AGAIN, BACKWARD = "forward", "again", "backward"
UPDATE, WRITE_BACK = "update", "write_back"
PHASES = FORWARD, AGAIN, BACKWARD, UPDATE, WRITE_BACK
"""Parts of a step as the program has them. again: ops of the forward pass that the backward pass
computes a second time; write_back: ops that bring an updated tensor back to its place."""


class _Declarations(dict[str, type[Op]]):
    """Declarations by the name of an op or the kind of a node; see Node.declared."""

    def __missing__(self, name: str) -> type[Op]:
        found = self[name] = Op if name in STRUCTURAL else find_op(name)
        return found


DECLARED = _Declarations()
"""The table itself, for loops over all nodes, in which the call of a property counts."""


class Value:
    """One result of a node.

    type: global shape and dtype.  sbp: one entry per axis of the node's placement; None until it is
    known.
    users: the nodes that read it, once per use.
    """

    __slots__ = ("id", "index", "node", "sbp", "type", "users")

    def __init__(
        self, id: int, type: TensorType, node: Node, index: int, sbp: NdSbp | None
    ) -> None:
        self.id = id
        self.type = type
        self.node = node
        self.index = index
        self.sbp = sbp
        self.users: list[Node] = []

    @property
    def meta(self) -> TensorType:
        """The type under the name that a tensor has it by, for gradients written for both."""
        return self.type

    @property
    def placement(self) -> Placement:
        return self.node.placement

    def __repr__(self) -> str:
        return f"%{self.id}"


class Node:
    """One op call.

    op: name in the registry, or a structural kind.  placement: where it runs; of a boxing or
    to_global node: where its result is.  rate: STEP or PIECE, how often it runs (set by
    micro_batch).  stage: pipeline stage.  location: the user's file:line.  module: path of the
    nn.Module.

    phase: one of PHASES, as traced.  grad_of: of a node of the backward pass, the id of the first
    value of the op whose gradient it is part of, and of one that is computed again, of the op that
    it repeats; of a seed, the id of the value whose gradient it is; -1: of none, or not known.
    has_own_dtypes: the program chose its dtypes, by an `autocast` inside of `build`, regardless of
    the graph's.  opens: if calls of modules begin with the node, the number of names in the path of
    the outermost of these; else 0.
    """

    __slots__ = (
        "_keyed", "attrs", "grad_of", "has_own_dtypes", "id", "inputs", "location", "module",
        "next", "op", "opens", "outputs", "phase", "placement", "prev", "rate", "stage",
    )  # fmt: skip

    def __init__(self, id: int, op: str, placement: Placement, attrs: Attrs) -> None:
        self.id = id
        self.op = op
        self.placement = placement
        self.attrs = attrs
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.rate = STEP
        self.stage = 0
        self.location = ""
        self.module = ""
        self.phase = FORWARD
        self.grad_of = -1
        self.has_own_dtypes = False
        self.opens = 0
        self.prev: Node | None = None
        self.next: Node | None = None
        self._keyed: tuple[Attrs, str] | None = None

    @property
    def attrs_key(self) -> str:
        """Text that is equal exactly for equal attributes; most passes ask for it. Attributes are
        replaced, never edited.
        """
        keyed = self._keyed
        if keyed is None or keyed[0] is not self.attrs:
            keyed = self._keyed = self.attrs, attrs_key(self.attrs)
        return keyed[1]

    @property
    def kind_key(self) -> str:
        """The same of the attributes that may change how the op runs: all but the seed of a random
        op, which differs in each call.
        """
        if "seed" not in self.attrs:
            return self.attrs_key
        return attrs_key({k: v for k, v in self.attrs.items() if k != "seed"})

    @property
    def is_structural(self) -> bool:
        return self.op in STRUCTURAL

    @property
    def declared(self) -> type[Op]:
        """The op's declaration. That of a structural kind is common to all these: it shares,
        overwrites and draws nothing.
        """
        return DECLARED[self.op]

    def shared_input(self, index: int) -> Value | None:
        """The input whose memory a result is, or may be; None: it has memory of its own."""
        op = DECLARED[self.op]
        if op.mutates and index in op.mutates:
            return self.inputs[op.mutates[index]]
        shows = op.is_view or op.is_alias or self.op == "repeat"
        return self.inputs[0] if shows and not index else None

    @property
    def overwritten(self) -> list[Value]:
        """The inputs whose memory it overwrites, in the order of its results."""
        mutates = DECLARED[self.op].mutates
        return [self.inputs[i] for i in mutates.values()] if mutates else []

    @property
    def has_effect(self) -> bool:
        """Whether it does something although nobody may read its results."""
        op = DECLARED[self.op]
        return op.has_effect or bool(op.mutates)

    def overwrites(self, value: Value) -> bool:
        """Whether a value, which it reads, is overwritten."""
        mutates = DECLARED[self.op].mutates
        return bool(mutates) and any(self.inputs[i] is value for i in mutates.values())

    def stand_for(self, other: Node) -> None:
        """Take over the facts of a node in whose place, or for which, this one runs."""
        self.rate, self.stage = other.rate, other.stage
        self.location, self.module = other.location, other.module
        self.phase, self.grad_of = other.phase, other.grad_of

    def describe(self) -> str:
        """Describe the node for error messages: the op and where the user wrote it."""
        where = f" ({self.location})" if self.location else ""
        return f"{self.op}{where}"

    def __repr__(self) -> str:
        return f"<node {self.id} {self.op}>"


_FACTS = (
    *("rate", "stage", "location", "module", "phase", "grad_of", "has_own_dtypes", "opens"),
    "_keyed",
)
"""The facts of a node besides its op, its attributes and its place."""


class LogicalGraph:
    """A graph of ops under construction or compilation.

    name: of the job. num_pieces: micro-batches per step. Nodes form a linked list in execution
    order.
    """

    def __init__(self, name: str, num_pieces: int = 1) -> None:
        self.name = name
        self.num_pieces = num_pieces
        self.num_nodes = 0
        self._next_node = 0
        self._next_value = 0
        self._types: dict[TensorType, TensorType] = {}
        """One object for equal types: tables of passes then find them without comparing."""
        self._first: Node | None = None
        self._last: Node | None = None

    # ---- reading ---------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Node]:
        """Nodes in order. The node just yielded may be erased; nodes inserted right after it are
        not visited.
        """
        node = self._first
        while node is not None:
            following = node.next
            yield node
            node = following

    def __len__(self) -> int:
        return self.num_nodes

    @property
    def last(self) -> Node | None:
        """The last node; None of an empty graph."""
        return self._last

    def after(self, mark: Node | None) -> Iterator[Node]:
        """Nodes behind `mark`; None: all of them."""
        node = self._first if mark is None else mark.next
        while node is not None:
            yield node
            node = node.next

    def of_kind(self, op: str) -> list[Node]:
        return [n for n in self if n.op == op]

    @property
    def variables(self) -> dict[str, Value]:
        """Variables by name, in their order."""
        return {str(n.attrs["name"]): n.outputs[0] for n in self.of_kind("variable")}

    @property
    def outputs(self) -> dict[int, Value]:
        """The values that are handed to the caller, by the number of the output."""
        return {int(n.attrs["index"]): n.inputs[0] for n in self.of_kind("output")}

    @property
    def rank_ids(self) -> list[int]:
        """The ranks on which its nodes run, ascending."""
        return sorted({r for p in {node.placement for node in self} for r in p.rank_ids})

    @property
    def value_id_bound(self) -> int:
        """Every value id is smaller than this."""
        return self._next_value

    @property
    def node_id_bound(self) -> int:
        """Every node id is smaller than this."""
        return self._next_node

    # ---- building and editing --------------------------------------------------------------------

    def append(
        self,
        op: str,
        inputs: Iterable[Value],
        types: Iterable[TensorType],
        placement: Placement,
        attrs: Attrs | None = None,
        *,
        sbp: Iterable[NdSbp | None] | None = None,
    ) -> Node:
        """A new node at the end. types: of its outputs.  sbp: of its outputs, if known."""
        node = self._make(op, inputs, types, placement, attrs, sbp)
        self._link(node, self._last, None)
        return node

    def insert(
        self,
        before: Node,
        op: str,
        inputs: Iterable[Value],
        types: Iterable[TensorType],
        placement: Placement,
        attrs: Attrs | None = None,
        *,
        sbp: Iterable[NdSbp | None] | None = None,
    ) -> Node:
        """A new node right before another; it takes over that node's stage, rate, location, module
        and phase, and calls that began with that node begin with this one; but for a variable.
        """
        node = self._make(op, inputs, types, placement, attrs, sbp)
        node.stand_for(before)
        if op != "variable":
            node.opens, before.opens = before.opens, 0
        self._link(node, before.prev, before)
        return node

    def set_input(self, node: Node, index: int, value: Value) -> None:
        """Makes `node` read `value` at position `index`."""
        node.inputs[index].users.remove(node)
        node.inputs[index] = value
        value.users.append(node)

    def add_input(self, node: Node, value: Value) -> None:
        """Makes `node` read `value`, too, as its last operand."""
        node.inputs.append(value)
        value.users.append(node)

    def replace_uses(
        self,
        old: Value,
        new: Value,
        *,
        keep: Node | None = None,
        only: Iterable[Node] | None = None,
    ) -> None:
        """Every reader of `old` (but `keep`; or `only` these) reads `new` instead."""
        for user in list(old.users) if only is None else only:
            if user is not keep:
                for i, value in enumerate(user.inputs):
                    if value is old:
                        self.set_input(user, i, new)

    def erase(self, node: Node) -> None:
        """Removes a node whose outputs nobody reads."""
        if any(v.users for v in node.outputs):
            raise InternalError(f"erasing {node!r}, whose outputs are still read")
        for value in node.inputs:
            value.users.remove(node)
        if node.prev is None:
            self._first = node.next
        else:
            node.prev.next = node.next
        if node.next is None:
            self._last = node.prev
        else:
            node.next.prev = node.prev
        self.num_nodes -= 1

    def copied(self) -> LogicalGraph:
        """A graph of its own with the same nodes and values, ids included."""
        made = LogicalGraph(self.name, self.num_pieces)
        made._next_node, made._next_value = self._next_node, self._next_value
        made._types = self._types
        nodes, values = dict[int, Node](), dict[int, Value]()
        for node in self:
            twin = nodes[node.id] = Node(node.id, node.op, node.placement, node.attrs)
            for fact in _FACTS:
                setattr(twin, fact, getattr(node, fact))
            twin.inputs = [values[v.id] for v in node.inputs]
            for v in node.outputs:
                values[v.id] = Value(v.id, v.type, twin, v.index, v.sbp)
                twin.outputs.append(values[v.id])
            made._link(twin, made._last, None)
        for node in self:
            for v in node.outputs:
                values[v.id].users = [nodes[user.id] for user in v.users]
        return made

    def reorder(self, nodes: list[Node]) -> None:
        """Relinks the graph in the given order (every node once)."""
        if len(nodes) != self.num_nodes:
            raise InternalError(f"reorder of {self.num_nodes} nodes got {len(nodes)}")
        self._first = self._last = None
        self.num_nodes = 0
        for node in nodes:
            self._link(node, self._last, None)

    def _make(
        self,
        op: str,
        inputs: Iterable[Value],
        types: Iterable[TensorType],
        placement: Placement,
        attrs: Attrs | None,
        sbp: Iterable[NdSbp | None] | None,
    ) -> Node:
        node = Node(self._next_node, op, placement, attrs or {})
        self._next_node += 1
        node.inputs = list(inputs)
        for value in node.inputs:
            value.users.append(node)
        known, outputs = self._types, node.outputs
        for index, type_ in enumerate(types):
            same = known.setdefault(type_, type_)
            outputs.append(Value(self._next_value, same, node, index, None))
            self._next_value += 1
        if sbp is not None:
            for value, nd_sbp in zip(outputs, sbp, strict=True):
                value.sbp = nd_sbp
        return node

    def _link(self, node: Node, prev: Node | None, following: Node | None) -> None:
        node.prev, node.next = prev, following
        if prev is None:
            self._first = node
        else:
            prev.next = node
        if following is None:
            self._last = node
        else:
            following.prev = node
        self.num_nodes += 1

    def __str__(self) -> str:
        from oneflow.core.graph_text import print_graph

        return print_graph(self)


def hand_over(old: Value, new: Value) -> None:
    """Every reader of `old` reads `new`. Linear in the number of readers, where
    `graph.replace_uses` searches for each."""
    users, old.users = old.users, []
    for user in dict.fromkeys(users):
        user.inputs = [new if v is old else v for v in user.inputs]
    new.users.extend(users)


def find_root(value: Value) -> Value:
    """Return the value that the memory of this one may have been made for: of views and of
    overwritten values, the first."""
    while (source := value.node.shared_input(value.index)) is not None:
        value = source
    return value


def written_variable(value: Value) -> Value:
    """Return the variable that ops have overwritten, one after another, to give this value, if
    there is one.
    """
    while (source := value.node.declared.mutates.get(value.index)) is not None:
        value = value.node.inputs[source]
    return value
