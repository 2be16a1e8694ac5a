"""`graph.pb` of a job file: decoded and verified before anything is made of it."""

from __future__ import annotations

from typing import Any

from oneflow.core.errors import OneFlowError
from oneflow.core.graph import STRUCTURAL, LogicalGraph, Node
from oneflow.core.graph_proto import graph_from_proto
from oneflow.core.op import find_op
from oneflow.core.tensor_type import TensorType
from oneflow.jobs.description import Description, JobFileError, Port, randomness_of
from oneflow.protos import graph_pb2
from oneflow.scheduler.compiler.verify import verify

ENTRY = "graph.pb"
MAX_RANKS = 1 << 16
MAX_PIECES = 1 << 16
MAX_NBYTES = 1 << 46
_ARITY = {"input": (0, 1), "variable": (0, 1), "output": (1, 0)}


def decode_graph(data: bytes) -> LogicalGraph:
    """The graph in `graph.pb`. Raises JobFileError if it is none, names unknown ops, or its types
    are not those that its ops give."""
    from google.protobuf.message import DecodeError

    try:
        proto = graph_pb2.Graph.FromString(data)
    except DecodeError as error:
        raise JobFileError(f"{ENTRY}: {len(data)} bytes are no graph: {error}") from None
    _check_sizes(proto)
    try:
        graph = graph_from_proto(proto)
        _check_nodes(graph)
        verify(graph)
    except JobFileError:
        raise
    except RecursionError:
        raise JobFileError(f"{ENTRY}: attributes are nested too deep") from None
    except OneFlowError as error:
        raise JobFileError(f"{ENTRY}: {_text(error)}") from error
    except Exception as error:
        # Types are worked out by the ops' own functions, for which attributes that nobody wrote
        # can be wrong in any way.
        raise JobFileError(f"{ENTRY}: {type(error).__name__}: {str(error)[:500]}") from error
    return graph


def _text(error: OneFlowError) -> str:
    return str(error).replace(" (this is a defect of oneflow-actors: please report it)", "")


def _check_sizes(proto: graph_pb2.Graph) -> None:
    """Refuse sizes that would take memory out of proportion if they were believed."""
    ranks = sum(sum(p.runs[1::2]) for p in proto.placements)
    if ranks > MAX_RANKS or any(r < 0 for p in proto.placements for r in p.runs):
        raise JobFileError(f"{ENTRY}: placements of {ranks} ranks; at most {MAX_RANKS}")
    if not 1 <= proto.num_pieces <= MAX_PIECES:
        raise JobFileError(f"{ENTRY}: {proto.num_pieces} pieces; 1 to {MAX_PIECES}")
    for column in (proto.node_num_inputs, proto.node_num_outputs):
        if sum(column) > len(proto.inputs) + len(proto.value_id) or min(column, default=0) < 0:
            raise JobFileError(f"{ENTRY}: nodes of more inputs or outputs than there are")


def _check_nodes(graph: LogicalGraph) -> None:
    for node in graph:
        if node.op not in STRUCTURAL:
            find_op(node.op)  # raises
        elif (len(node.inputs), len(node.outputs)) != _ARITY.get(node.op, (1, 1)):
            raise JobFileError(f"{ENTRY}: {node.describe()} has a wrong number of inputs")
        for value in node.outputs:
            if value.type.nbytes > MAX_NBYTES or min(value.type.shape, default=0) < 0:
                raise JobFileError(f"{ENTRY}: {node.describe()} gives {value.type}: too large")
            if value.sbp is not None and len(value.sbp) != node.placement.ndim:
                raise JobFileError(f"{ENTRY}: {node.describe()} has an SBP that does not fit")


# ---- against the rest of the file ----------------------------------------------------------------


def named(graph: LogicalGraph, op: str) -> dict[str, Node]:
    """The inputs or variables by name. Raises JobFileError if one is there twice."""
    found: dict[str, Node] = {}
    for node in graph.of_kind(op):
        name = node.attrs.get("name")
        if not isinstance(name, str) or (name in found and op == "variable"):
            raise JobFileError(f"{ENTRY}: {op} {str(name)[:80]!r} has no name or one of another")
        found.setdefault(name, node)
    return found


def check_ports(graph: LogicalGraph, description: Description, rates: dict[str, Any]) -> None:
    """Inputs and outputs are those that `job.json` names, with their types."""
    wanted = {f"input.{p.index}": p for p in description.inputs}
    for node in graph.of_kind("input"):
        name, type_ = str(node.attrs.get("name")), node.outputs[0].type
        if name in wanted:
            _same(type_, wanted[name], f"input {wanted[name].name!r}")
        elif name.startswith(("lr.", "momentum.")) and name in rates:
            _scalar(name, type_, "float64")
        elif name.startswith("step.") and name[5:] in description.updates:
            _scalar(name, type_, "int64")
        else:
            raise JobFileError(f"{ENTRY}: nothing in the file feeds input {name[:80]!r}")
    outputs: dict[Any, Node] = {}
    for node in graph.of_kind("output"):
        index = node.attrs.get("index")
        if type(index) is not int or index in outputs:
            raise JobFileError(
                f"{ENTRY}: output {str(index)[:40]} is there twice, or has no number"
            )
        outputs[index] = node
    for port in description.outputs:
        if port.index not in outputs:
            raise JobFileError(f"job.json: output {port.name!r} is no output of the graph")
        _same(outputs[port.index].inputs[0].type, port, f"output {port.name!r}")


def check_draws(graph: LogicalGraph, description: Description) -> None:
    """Random ops draw from the generators that `job.json` names."""
    known = randomness_of(description)
    for node in graph:
        if not node.is_structural and find_op(node.op).is_random:
            draw = node.attrs.get("seed")
            if type(draw) is not int or not known.has(draw):
                raise JobFileError(
                    f"{ENTRY}: {node.describe()} draws from none of the {len(known.generators)} "
                    "generators of job.json"
                )


def _same(type_: TensorType, port: Port, what: str) -> None:
    if (type_.dtype.name, type_.shape) != (port.dtype, port.shape):
        raise JobFileError(
            f"job.json: {what} is {port.dtype}{list(port.shape)}, in {ENTRY} it is {type_}"
        )


def _scalar(name: str, type_: TensorType, dtype: str) -> None:
    if (type_.dtype.name, type_.shape) != (dtype, ()):
        raise JobFileError(f"{ENTRY}: input {name!r} is {type_}; it must be {dtype}[]")
