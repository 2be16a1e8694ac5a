"""The text form of a logical graph. `parse_graph(print_graph(g))` gives the same graph.

    graph Digits pieces=4 {
      %0: float32[64, 64] S(0) = input(; name='x') @cpu[0, 1]
      %1: float32[10, 64] B = variable(; name='fc.weight') @cpu[0, 1]
      %2: float32[64, 10] S(0) = matmul(%0, %1; transpose_b=True) @cpu[0, 1] stage=1 rate=piece  #
      fc; train.py:12
      %3: float32[64, 10] S(0) = tanh_grad(%4, %2) @cpu[0, 1] phase=backward of=%2
      output(%2; index=0) @cpu[0, 1]
    }

An SBP that is not chosen yet is written `?`. Attrs are Python literals; dtypes stand by their bare
name.
"""

from __future__ import annotations

import ast
import math
import re

from oneflow.core.dtype import DType, dtype_of
from oneflow.core.errors import GraphError, OneFlowError
from oneflow.core.graph import FORWARD, PHASES, STEP, LogicalGraph, Node, Value
from oneflow.core.operand import Attr, Attrs
from oneflow.core.placement import parse_placement
from oneflow.core.sbp import nd_sbp_str, parse_nd_sbp
from oneflow.core.tensor_type import parse_type


def print_graph(graph: LogicalGraph) -> str:
    """The whole graph as text, a node a line."""
    head = f"graph {graph.name} pieces={graph.num_pieces} {{"
    return "\n".join([head, *(f"  {print_node(n)}" for n in graph), "}"])


def print_node(node: Node, *, with_location: bool = True) -> str:
    """One line. Without location it gives the meaning of the node and nothing of where it was
    written.
    """
    outputs = ", ".join(_print_value(v) for v in node.outputs)
    inputs = ", ".join(f"%{v.id}" for v in node.inputs)
    attrs = ", ".join(f"{k}={format_attr(v)}" for k, v in sorted(node.attrs.items()))
    text = f"{outputs} = " if outputs else ""
    text += f"{node.op}({inputs}{'; ' + attrs if attrs else ''}) @{node.placement.notation}"
    if node.stage:
        text += f" stage={node.stage}"
    if node.rate != STEP:
        text += f" rate={node.rate}"
    if node.phase != FORWARD:
        text += f" phase={node.phase}"
    if node.grad_of >= 0:
        text += f" of=%{node.grad_of}"
    if node.has_own_dtypes:
        text += " own_dtypes"
    if node.opens:
        text += f" opens={node.opens}"
    if with_location and (node.module or node.location):
        text += f"  # {node.module}; {node.location}".rstrip()
    return text


def _print_value(value: Value) -> str:
    return f"%{value.id}: {value.type} {nd_sbp_str(value.sbp) if value.sbp is not None else '?'}"


def format_attr(value: Attr) -> str:
    """A Python literal, with dtypes by name. Raises GraphError for anything else."""
    if isinstance(value, DType):
        return value.name
    if isinstance(value, (tuple, list)):
        inner = ", ".join(format_attr(v) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    raise GraphError(f"an attribute must be a plain value, got {value!r} of {type(value).__name__}")


_HEAD = re.compile(r"graph (\S+) pieces=(\d{1,9}) \{")
_NODE = re.compile(
    r"(?:(?P<outputs>%.*?) = )?(?P<op>\w+)\((?P<args>.*)\) @(?P<placement>\w+\[[\d, \[\]]*\])"
    r"(?: stage=(?P<stage>\d+))?(?: rate=(?P<rate>\w+))?"
    rf"(?: phase=(?P<phase>{'|'.join(PHASES)}))?(?: of=%(?P<of>\d+))?(?P<own> own_dtypes)?"
    r"(?: opens=(?P<opens>\d+))?"
    r"(?:  # (?P<module>\S*); ?(?P<location>.*))?"
)
_SBP = r"(?:S\(\d+\)|B|P)"
_OUTPUT = re.compile(rf"%(\d+): (\w+\[[^\]]*\]) (\?|{_SBP}|\({_SBP}(?:, {_SBP})*\))(?:, |$)")


def parse_graph(text: str) -> LogicalGraph:
    """The graph that `text` describes. Raises GraphError naming the line. Value ids are kept."""
    lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    head = _HEAD.fullmatch(lines[0][1]) if lines else None
    if head is None or lines[-1][1] != "}":
        raise GraphError("a graph's text starts with 'graph NAME pieces=N {' and ends with '}'")
    graph = LogicalGraph(head.group(1), int(head.group(2)))
    values: dict[int, Value] = {}
    for number, line in lines[1:-1]:
        try:
            _parse_node(graph, line, values)
        except (OneFlowError, KeyError, ValueError) as error:
            raise GraphError(f"line {number} of the graph: {error}: {line}") from error
    graph._next_value = max(values, default=-1) + 1
    return graph


def _parse_node(graph: LogicalGraph, line: str, values: dict[int, Value]) -> None:
    match = _NODE.fullmatch(line)
    if not match:
        raise GraphError("not a node")
    names, _, attrs = match["args"].partition(";")
    inputs = [values[int(n.strip()[1:])] for n in names.split(",") if n.strip()]
    outputs = _OUTPUT.findall(match["outputs"] or "")
    node = graph.append(
        match["op"],
        inputs,
        [parse_type(t) for _, t, _ in outputs],
        parse_placement(match["placement"]),
        parse_attrs(attrs),
        sbp=[None if s == "?" else parse_nd_sbp(s) for _, _, s in outputs],
    )
    node.stage, node.rate = int(match["stage"] or 0), match["rate"] or STEP
    node.phase, node.grad_of = match["phase"] or FORWARD, int(match["of"] or -1)
    node.has_own_dtypes, node.opens = match["own"] is not None, int(match["opens"] or 0)
    node.module, node.location = match["module"] or "", match["location"] or ""
    for value, (number, _, _) in zip(node.outputs, outputs, strict=True):
        value.id = int(number)
        values[value.id] = value


def parse_attrs(text: str) -> Attrs:
    """`a=1, dtype=float32` as a dict. Raises GraphError."""
    if not text.strip():
        return {}
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if isinstance(call, ast.Call):
            return {k.arg or "": _literal(k.value) for k in call.keywords}
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise GraphError(f"not attributes: {text[:200]}: {error}") from None
    raise GraphError(f"not attributes: {text[:200]}")


_SPECIAL = {"inf": math.inf, "nan": math.nan}


def _literal(node: ast.expr) -> Attr:
    if isinstance(node, ast.Name):
        return _SPECIAL[node.id] if node.id in _SPECIAL else dtype_of(node.id)
    if isinstance(node, ast.Tuple):
        return tuple(_literal(e) for e in node.elts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _literal(node.operand)
        if isinstance(number, (int, float)):
            return -number
    found: Attr = ast.literal_eval(node)
    return found
