"""Checks that a graph or a plan is valid after a given pass; for tests and debugging."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from oneflow.boxing.parts import node_plan
from oneflow.boxing.rows import has_rows_of_one_node, rows_layout
from oneflow.core.actor_kinds import FIRST_HALVES
from oneflow.core.errors import InternalError
from oneflow.core.graph import PIECE, STRUCTURAL, LogicalGraph, Node, Value
from oneflow.core.job_config import Cluster
from oneflow.core.op import find_op, infer_types
from oneflow.core.plan import Plan
from oneflow.core.sbp import NdSbp, nd_sbp_str
from oneflow.core.tensor_type import TensorType
from oneflow.scheduler.compiler.layout.pieces import packed_type
from oneflow.scheduler.compiler.layout.signatures import MOVES, Signatures, same_layout
from oneflow.scheduler.compiler.passes import PASSES


def verify(made: LogicalGraph | Plan, after: str = "") -> None:
    """Raises InternalError naming the fault and its place. after: the last pass that ran; "": the
    graph is as traced.
    """
    done = PASSES[: PASSES.index(after) + 1] if after else ()
    graph = made if isinstance(made, LogicalGraph) else made.graph
    check = _Checker(graph, after)
    for node in graph:
        check.definitions(node)
        check.types(node)
        if "infer_sbp" in done:
            check.has_sbp(node)
        if "insert_boxing" in done:
            check.agreement(node)
        if "micro_batch" in done:
            check.rates(node)
    check.links()
    if isinstance(made, Plan):
        check.actors(made)
        if "connect" in done:
            check.registers(made, has_slots="count_registers" in done)


class _Checker:
    def __init__(self, graph: LogicalGraph, after: str) -> None:
        self._graph = graph
        self._after = after
        self._is_ordered = after in PASSES[PASSES.index("order") :]
        self._defined: dict[int, Value] = {}
        self._uses: Counter[tuple[int, int]] = Counter()
        self._overwritten: dict[int, Node] = {}
        self._signatures = Signatures(Cluster(1))
        self._agreed: set[Hashable] = set()
        self._types: dict[Hashable, tuple[TensorType, ...]] = {}

    def fail(self, message: str) -> InternalError:
        return InternalError(f"after {self._after or 'tracing'}: {message}")

    def definitions(self, node: Node) -> None:
        """Every value is defined once, before use, and not read after it was overwritten (once
        there is an order)."""
        for value in node.inputs:
            if self._defined.get(value.id) is not value:
                raise self.fail(f"{node.describe()} reads {value}, which is not made before it")
            self._uses[value.id, node.id] += 1
            if value.id in self._overwritten:
                writer = self._overwritten[value.id]
                raise self.fail(
                    f"{node.describe()} reads {value} after {writer.describe()} overwrote it"
                )
        for value in node.outputs:
            if value.id in self._defined:
                raise self.fail(f"{value} of {node.describe()} is made twice")
            self._defined[value.id] = value
        if self._is_ordered:
            self._overwritten.update((value.id, node) for value in node.overwritten)

    def links(self) -> None:
        """Values know exactly the nodes that read them."""
        for value in self._defined.values():
            users = Counter((value.id, user.id) for user in value.users)
            if any(self._uses[key] != count for key, count in users.items()):
                raise self.fail(f"{value} names a user that does not read it")
            self._uses.subtract(users)
        missing = [key for key, count in self._uses.items() if count]
        if missing:
            raise self.fail(f"%{missing[0][0]} does not know all of its users")

    def types(self, node: Node) -> None:
        actual = tuple(v.type for v in node.outputs)
        inputs = tuple(v.type for v in node.inputs)
        if node.op in STRUCTURAL:
            wanted = _structural_types(self._graph, node, actual)
        else:
            key = (node.op, node.attrs_key, inputs)
            if key not in self._types:
                self._types[key] = infer_types(node.declared, inputs, node.attrs)
            wanted = self._types[key]
        if actual != wanted:
            raise self.fail(
                f"{node.describe()} of {' '.join(map(str, inputs))} gives "
                f"{' '.join(map(str, wanted))}, but the graph says {' '.join(map(str, actual))}"
            )

    def has_sbp(self, node: Node) -> None:
        for value in node.outputs:
            if value.sbp is None:
                raise self.fail(f"{value} of {node.describe()} has no SBP")
            if len(value.sbp) != node.placement.ndim:
                raise self.fail(
                    f"{value} is {nd_sbp_str(value.sbp)}, but {node.placement.notation} has "
                    f"{node.placement.ndim} axes"
                )
            if any(s.is_split and s.dim >= value.type.ndim for s in value.sbp):
                raise self.fail(f"{value} {value.type} cannot be {nd_sbp_str(value.sbp)}")

    def agreement(self, node: Node) -> None:
        """Inputs and outputs of an op are one of its signatures, all in one place."""
        if node.op in ("to_global",):
            raise self.fail(f"{node.describe()} is still there")
        if node.op in MOVES or not node.inputs:
            return
        for value in node.inputs:
            if value.placement != node.placement:
                raise self.fail(
                    f"{value} is on {value.placement.notation}, but {node.describe()} runs on "
                    f"{node.placement.notation}"
                )
        inputs, outputs = _sbps(node.inputs), _sbps(node.outputs)
        key = (self._signatures.key(node), inputs, outputs)
        if node.op == "output" or key in self._agreed:
            return
        if node.op == "parts":
            node_plan(node)  # raises if the layouts are not those of the op
            return
        if node.op == "exchange":
            self._check_exchange(node, inputs + outputs)
            return
        self._check_signature(node, inputs, outputs)
        self._agreed.add(key)

    def _check_exchange(self, node: Node, layouts: tuple[NdSbp, ...]) -> None:
        wanted = rows_layout(find_op(node.attrs["of"]), node.attrs, node.placement)
        if any(nd_sbp != wanted for nd_sbp in layouts):
            raise self.fail(f"{node.describe()} moves rows of tensors that are not split over them")
        if not has_rows_of_one_node(node):
            raise self.fail(f"{node.describe()} reads what was not made for it alone")

    def _check_signature(
        self, node: Node, inputs: tuple[NdSbp, ...], outputs: tuple[NdSbp, ...]
    ) -> None:
        hierarchy = node.placement.hierarchy
        choices = [c for c in self._signatures.of(node) if not c.by_parts]
        for choice in choices:
            pairs = zip(inputs + outputs, choice.inputs + choice.outputs, strict=True)
            if all(same_layout(a, b, hierarchy) for a, b in pairs):
                return
        found = f"{' '.join(map(nd_sbp_str, inputs))} -> {' '.join(map(nd_sbp_str, outputs))}"
        raise self.fail(
            f"{node.describe()} runs as {found}, which is none of its signatures: "
            f"{'; '.join(map(str, choices))}; every edge must agree here"
        )

    def rates(self, node: Node) -> None:
        """Rates change only at the nodes made for it."""
        if node.op in ("accumulate", "pack", "unpack", "repeat"):
            made_per_piece = node.op in ("unpack", "repeat")
            if (node.rate == PIECE) != made_per_piece:
                raise self.fail(f"{node.describe()} has rate {node.rate}")
            return
        for value in node.inputs:
            if value.node.rate != node.rate and value.node.op != "variable":
                raise self.fail(
                    f"{node.describe()} runs once a {node.rate}, but its input {value} is made "
                    f"once a {value.node.rate}"
                )

    def actors(self, plan: Plan) -> None:
        """Every node that runs is one actor's (of two halves, both), in the order of levels."""
        owners: Counter[int] = Counter()
        level = 0
        for number, actor in enumerate(plan.actors):
            if actor.id != number or actor.level < level:
                raise self.fail(f"{actor.name} of level {actor.level} is out of order")
            level = actor.level
            if actor.kind not in FIRST_HALVES:
                owners.update(node.id for node in actor.nodes)
        for node in plan.graph:
            wanted = 0 if node.op in ("variable", "repeat") else 1
            if owners[node.id] != wanted:
                raise self.fail(f"{node.describe()} is run by {owners[node.id]} actors")

    def registers(self, plan: Plan, *, has_slots: bool) -> None:
        """Producers and consumers know their registers, and values go to later actors."""
        for register in plan.registers:
            producer = register.producer
            for consumer in register.consumers:
                if register not in producer.outputs or register not in consumer.inputs:
                    raise self.fail(f"r{register.id} is not known at both of its ends")
                if register.values and consumer.id <= producer.id:
                    raise self.fail(f"{consumer.name} reads r{register.id} of {producer.name}")
                if consumer.acts % register.items:
                    raise self.fail(f"{consumer.name} acts {consumer.acts} times")
            if has_slots and not 1 <= register.num_slots <= max(register.items, 2):
                raise self.fail(f"r{register.id} has {register.num_slots} slots")


def _sbps(values: list[Value]) -> tuple[NdSbp, ...]:
    return tuple(v.sbp for v in values if v.sbp is not None)


def _structural_types(
    graph: LogicalGraph, node: Node, actual: tuple[TensorType, ...]
) -> tuple[TensorType, ...]:
    if node.op in ("input", "variable"):
        return actual
    if node.op == "output":
        return ()
    if node.op in ("parts", "exchange"):
        attrs = {k: v for k, v in node.attrs.items() if k != "of"}
        types = tuple(v.type for v in node.inputs)
        return infer_types(find_op(node.attrs["of"]), types, attrs)
    source = node.inputs[0].type
    if node.op == "unpack":
        return (source.with_shape((source.shape[0] // graph.num_pieces, *source.shape[1:])),)
    if node.op == "pack":
        return (packed_type(source, graph.num_pieces),)
    return (source,)
