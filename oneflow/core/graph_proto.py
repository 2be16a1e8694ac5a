"""A logical graph as bytes (protos/graph.proto) and back, and digests of its meaning.

Digests leave out where a node was written (location, module), so that moving a script's lines keeps
its cached plan and two ranks whose files differ only in comments agree.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

import numpy as np

from oneflow.core.dtype import DType, dtype_of
from oneflow.core.errors import GraphError
from oneflow.core.graph import PHASES, PIECE, STEP, LogicalGraph, Node, Value
from oneflow.core.operand import Attr, Attrs
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, NdSbp, Sbp, Split
from oneflow.core.tensor_type import TensorType

_T = TypeVar("_T", bound=Hashable)
MAX_VALUES = 1 << 30  # of a graph that is read: passes add more, and ids are 32 bits
MAX_RANKS = 1 << 20  # of a placement that is read: its runs would be numbers for memory
OWN_DTYPES = 8  # in the number of a phase


class Table(Generic[_T]):
    """Distinct things in order of first appearance."""

    __slots__ = ("_positions",)

    def __init__(self, first: Iterable[_T] = ()) -> None:
        self._positions: dict[_T, int] = {item: i for i, item in enumerate(first)}

    def position(self, item: _T) -> int:
        return self._positions.setdefault(item, len(self._positions))

    def __iter__(self) -> Any:
        return iter(self._positions)


# ---- to bytes ------------------------------------------------------------------------------------


def graph_to_bytes(graph: LogicalGraph) -> bytes:
    """Inverse of `graph_from_bytes`."""
    return bytes(graph_to_proto(graph).SerializeToString(deterministic=True))


def graph_to_proto(graph: LogicalGraph) -> Any:
    """An `oneflow.protos.graph_pb2.Graph`."""
    from oneflow.protos import graph_pb2

    proto = graph_pb2.Graph(
        name=graph.name, num_pieces=graph.num_pieces, value_id_bound=graph.value_id_bound
    )
    nodes = list(graph)
    _node_columns(proto, nodes)
    _value_columns(proto, nodes)
    return proto


def _node_columns(proto: Any, nodes: list[Node]) -> None:
    ops, placements = Table[str](), Table[Placement]()
    locations, modules = Table[str](("",)), Table[str](("",))
    attrs = Table[str]()
    examples: dict[str, Attrs] = {}
    keys = [n.attrs_key for n in nodes]
    for key, node in zip(keys, nodes, strict=True):
        examples.setdefault(key, node.attrs)
    proto.node_op.extend([ops.position(n.op) for n in nodes])
    proto.node_attrs.extend([attrs.position(key) for key in keys])
    proto.node_placement.extend([placements.position(n.placement) for n in nodes])
    proto.node_num_inputs.extend([len(n.inputs) for n in nodes])
    proto.node_num_outputs.extend([len(n.outputs) for n in nodes])
    proto.node_stage.extend([n.stage for n in nodes])
    proto.node_is_piece.extend([n.rate == PIECE for n in nodes])
    proto.node_location.extend([locations.position(n.location) for n in nodes])
    proto.node_module.extend([modules.position(n.module) for n in nodes])
    proto.node_phase.extend([_phase_code(n) for n in nodes])
    proto.node_grad_of.extend([1 + n.grad_of for n in nodes])
    proto.ops.extend(ops)
    proto.locations.extend(locations)
    proto.modules.extend(modules)
    for key in attrs:
        _attrs_to_proto(examples[key], proto.attrs.add())
    for placement in placements:
        proto.placements.add(
            device_type=placement.type,
            hierarchy=placement.hierarchy,
            runs=_runs(placement.rank_ids),
        )


def _phase_code(node: Node) -> int:
    return PHASES.index(node.phase) + OWN_DTYPES * (node.has_own_dtypes + 2 * node.opens)


def _value_columns(proto: Any, nodes: list[Node]) -> None:
    types, sbps = Table[TensorType](), Table[NdSbp]()
    last, inputs, ids = -1, [], []
    for node in nodes:
        for value in node.inputs:
            inputs.append(last - value.id)
        for value in node.outputs:
            ids.append(value.id - last)
            last = value.id
    values = [v for n in nodes for v in n.outputs]
    proto.inputs.extend(inputs)
    proto.value_id.extend(ids)
    proto.value_type.extend([types.position(v.type) for v in values])
    proto.value_sbp.extend([0 if v.sbp is None else 1 + sbps.position(v.sbp) for v in values])
    for type_ in types:
        proto.types.add(dtype=type_.dtype.name, shape=type_.shape)
    for nd_sbp in sbps:
        proto.sbps.add(axes=[_sbp_code(s) for s in nd_sbp])


def _sbp_code(sbp: Sbp) -> int:
    return sbp.dim if sbp.is_split else -1 if sbp.is_broadcast else -2


def _attrs_to_proto(attrs: Attrs, proto: Any) -> None:
    for name, value in sorted(attrs.items()):
        proto.names.append(name)
        _attr_to_proto(value, proto.values.add())


def _attr_to_proto(value: Attr, proto: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool):
        proto.bool = value
    elif isinstance(value, int) and -(2**63) <= value < 2**64:
        setattr(proto, "int" if value < 2**63 else "big", value)
    elif isinstance(value, float):
        proto.float = value
    elif isinstance(value, str):
        proto.string = value
    elif isinstance(value, DType):
        proto.dtype = value.name
    elif isinstance(value, (tuple, list)):
        proto.tuple.SetInParent()
        for item in value:
            _attr_to_proto(item, proto.tuple.items.add())
    else:
        raise GraphError(
            f"an attribute must be a plain value of at most 64 bits, got {value!r} of "
            f"{type(value).__name__}"
        )


# ---- from bytes ----------------------------------------------------------------------------------


def graph_from_bytes(data: bytes) -> LogicalGraph:
    """Inverse of `graph_to_bytes`; value ids are kept. Raises GraphError for other bytes."""
    from google.protobuf.message import DecodeError

    from oneflow.protos import graph_pb2

    try:
        return graph_from_proto(graph_pb2.Graph.FromString(data))
    except (DecodeError, IndexError, KeyError, StopIteration, ValueError) as error:
        raise GraphError(f"these {len(data)} bytes are not a graph: {error}") from error


def graph_from_proto(proto: Any) -> LogicalGraph:
    """The graph in an `oneflow.protos.graph_pb2.Graph`."""
    graph = LogicalGraph(proto.name, proto.num_pieces)
    attrs = [dict(zip(a.names, map(_attr_from_proto, a.values), strict=True)) for a in proto.attrs]
    placements = [_placement_from_proto(p) for p in proto.placements]
    results = iter(_results(proto))
    uses = iter(proto.inputs)
    values: dict[int, Value] = {}
    last, bound = -1, proto.value_id_bound
    if bound > MAX_VALUES:
        raise GraphError(f"a graph of {bound} values; at most {MAX_VALUES}")
    columns = zip(
        proto.node_op, proto.node_attrs, proto.node_placement, proto.node_num_inputs,
        proto.node_num_outputs, proto.node_stage, proto.node_is_piece, proto.node_location,
        proto.node_module, proto.node_phase, proto.node_grad_of, strict=True,
    )  # fmt: skip
    ops, locations, modules = list(proto.ops), list(proto.locations), list(proto.modules)
    for (
        op, attr, placement, num_inputs, num_outputs, stage, is_piece, location, module, phase, of
    ) in columns:  # fmt: skip
        inputs = [values[last - next(uses)] for _ in range(num_inputs)]
        made = [next(results) for _ in range(num_outputs)]
        types, sbps = [m[1] for m in made], [m[2] for m in made]
        node = graph.append(
            ops[op], inputs, types, placements[placement], dict(attrs[attr]), sbp=sbps
        )
        node.stage, node.rate = stage, PIECE if is_piece else STEP
        node.location, node.module = locations[location], modules[module]
        node.phase, node.grad_of = PHASES[phase % OWN_DTYPES], of - 1
        node.opens, node.has_own_dtypes = divmod(phase // OWN_DTYPES, 2)
        for value, (step, _, _) in zip(node.outputs, made, strict=True):
            value.id = last = last + step
            if not 0 <= last < bound or last in values:
                raise GraphError(f"value {last} is there twice, or not below {bound}")
            values[last] = value
    graph._next_value = bound
    return graph


def _results(proto: Any) -> Iterable[tuple[int, TensorType, NdSbp | None]]:
    types = [TensorType(tuple(t.shape), dtype_of(t.dtype)) for t in proto.types]
    sbps: list[NdSbp | None] = [None, *(tuple(map(_sbp_of_code, s.axes)) for s in proto.sbps)]
    columns = zip(proto.value_id, proto.value_type, proto.value_sbp, strict=True)
    return [(step, types[type_], sbps[sbp]) for step, type_, sbp in columns]


def _sbp_of_code(code: int) -> Sbp:
    return Split(code) if code >= 0 else BROADCAST if code == -1 else PARTIAL


def _placement_from_proto(proto: Any) -> Placement:
    if sum(proto.runs[1::2]) > MAX_RANKS:
        raise ValueError(f"a placement of {sum(proto.runs[1::2])} ranks")
    runs = zip(proto.runs[::2], proto.runs[1::2], strict=True)
    ranks = [r for first, count in runs for r in range(first, first + count)]
    return Placement(proto.device_type, np.array(ranks).reshape(tuple(proto.hierarchy)))


def _runs(ranks: tuple[int, ...]) -> list[int]:
    """Ascending ranks as (first, count) pairs, flat: a thousand neighbours take two numbers."""
    runs: list[int] = []
    for rank in ranks:
        if runs and runs[-2] + runs[-1] == rank:
            runs[-1] += 1
        else:
            runs += [rank, 1]
    return runs


def _attr_from_proto(proto: Any) -> Attr:
    kind = proto.WhichOneof("kind")
    if kind is None:
        return None
    if kind == "dtype":
        return dtype_of(proto.dtype)
    if kind == "tuple":
        return tuple(_attr_from_proto(item) for item in proto.tuple.items)
    plain: bool | int | float | str = getattr(proto, kind)
    return plain


# ---- digests -------------------------------------------------------------------------------------


def node_digests(graph: LogicalGraph) -> list[int]:
    """A 64-bit digest per node, in order: op, attrs, inputs, types, placement, SBP, stage, rate,
    phase, and whose gradient it is part of.

    The first position where two ranks' lists differ is the node they do not agree on.
    """
    return [int.from_bytes(d, "little") for d in _node_digests(graph)]


def graph_digest(graph: LogicalGraph) -> str:
    """128 bits as hex: equal for graphs that mean the same and have the same name, number of pieces
    and value ids."""
    head = f"{graph.name}\0{graph.num_pieces}".encode()
    whole = hashlib.blake2b(head, digest_size=16)
    whole.update(b"".join(_node_digests(graph)))
    return whole.hexdigest()


def whole_digest(graph: LogicalGraph) -> bytes:
    """16 bytes: equal for graphs that have all in common but their names, also the lines and the
    modules that nodes come from. Costs a third of `graph_digest`.
    """
    nodes: dict[Any, int] = {}
    results: dict[Any, int] = {}
    column: list[int] = []
    for node in graph:
        static = (
            node.op, node.attrs_key, node.placement, node.stage, node.rate, _phase_code(node),
            node.location, node.module,
        )  # fmt: skip
        inputs, outputs = node.inputs, node.outputs
        column += (
            nodes.setdefault(static, len(nodes)), node.id, node.grad_of, len(inputs), len(outputs)
        )  # fmt: skip
        column += [v.id for v in inputs]
        for value in outputs:
            column += (value.id, results.setdefault((value.type, value.sbp), len(results)))
    whole = hashlib.blake2b(array("q", column).tobytes(), digest_size=16)
    for *static, location, module in nodes:
        whole.update(f"{_static_text(static)}\0{location}\0{module}\n".encode())
    for result in results:
        whole.update(f"{_result_text(result)}\n".encode())
    whole.update(f"{graph.num_pieces} {graph.value_id_bound} {graph.node_id_bound}".encode())
    return whole.digest()


def _node_digests(graph: LogicalGraph) -> list[bytes]:
    static, types = _Digests(_static_text), _Digests(_result_text)
    blake2b, pack = hashlib.blake2b, struct.pack
    result = []
    for node in graph:
        kind = node.op, node.attrs_key, node.placement, node.stage, node.rate, _phase_code(node)
        parts = [static[kind]]
        ids = [node.grad_of + 1, *(v.id for v in node.inputs)]
        for value in node.outputs:
            parts.append(types[value.type, value.sbp])
            ids.append(value.id)
        parts.append(pack(f"<{len(ids)}I", *ids))
        result.append(blake2b(b"".join(parts), digest_size=8).digest())
    return result


class _Digests(dict[Any, bytes]):
    """8 bytes per distinct key, made from its text once."""

    def __init__(self, text: Callable[[Any], str]) -> None:
        super().__init__()
        self._text = text

    def __missing__(self, key: Any) -> bytes:
        digest = hashlib.blake2b(self._text(key).encode(), digest_size=8).digest()
        self[key] = digest
        return digest


def _static_text(key: Any) -> str:
    op, attrs, placement, stage, rate, phase = key
    return f"{op}\0{attrs}\0{placement.notation}\0{stage}\0{rate}\0{phase}"


def _result_text(key: Any) -> str:
    type_, nd_sbp = key
    return f"{type_}\0{'?' if nd_sbp is None else ','.join(map(str, nd_sbp))}"
