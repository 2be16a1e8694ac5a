"""Mixed precision of a graph: which of its ops run in a half dtype, and the casts between them.

`build` is traced in the dtypes that it says. Then each op of the forward pass has the precision
that it declares (core/precision.py):

    lower    half
    keep     float32
    follow   half between ops that lower: on a path from one to another without one that keeps
    either   half where a neighbour is, before or behind

and so all that lies between two ops that keep float32 does, too. At an output of the graph ops that
follow or take either count as if one that lowers came next. An op of the backward pass has the
precision of the op whose gradient it is part of; one that adds up gradients has that of its inputs.
A value is cast once for all its readers on the other side of a border, so a parameter is cast once
a step; outputs of the graph and all that updates parameters are float32 as before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable

from oneflow.core.dtype import DType, dtype_of, float16, float32
from oneflow.core.graph import BACKWARD, FORWARD, LogicalGraph, Node, Value
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.op import infer_types
from oneflow.core.precision import FLOAT16_LEAST, FLOAT16_MAX, Precision, precision_of
from oneflow.core.tensor_type import TensorType
from oneflow.ops.cast import cast
from oneflow.scheduler.compiler.rewrite.insertion import inserting

_ENDS = ("output", "accumulate")


def mixed_precision(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> None:
    """Gives the results of ops that run in `config.amp` their types, and inserts casts."""
    if not config.amp:
        return
    dtype = dtype_of(config.amp)
    lowered = lowered_nodes(graph, dtype)
    following = _Following(graph, lowered, dtype)
    editor = _Editor(graph, dtype)
    for node in list(graph):
        editor.convert(node, node.id in lowered or following(node))


def lowered_nodes(graph: LogicalGraph, dtype: DType) -> set[int]:
    """Ids of the forward nodes that run in `dtype`."""
    return _colour([n for n in graph if _is_free(n)], dtype)


def _is_free(node: Node) -> bool:
    return node.phase == FORWARD and not node.has_own_dtypes


# ---- the forward pass ----------------------------------------------------------------------------


def _part(node: Node, dtype: DType) -> Precision | None:
    """The part that a node of the forward pass plays; None: it stays as it is, because it is none
    of numbers in float32, or a number among its attributes does not fit: -1e9 for masked elements
    would become infinite, and 1e-12 that is added to a divisor zero. A reader of an element that
    was given such a number, or put with one, stays as it is, too.
    """
    floats = [v.type.dtype for v in node.inputs if v.type.dtype.is_floating_point]
    if float32 not in floats or any(kind.bytes > float32.bytes for kind in floats):
        return None
    if dtype is float16 and not _fits_half(node):
        return None
    if node.is_structural:
        return "either" if node.op == "to_global" else None
    op = node.declared
    if op.mutates or 0 in op.reads_half or not any(_is_inexact(v) for v in node.outputs):
        return None
    return precision_of(op, tuple([v.type for v in node.inputs]), node.attrs)


def _fits_half(node: Node) -> bool:
    """Whether float16 has all numbers of a node, or some near them. Those that an op takes as
    `value` are elements, or beside elements; others may be small: an op computes in float32 inside.
    """
    if any(isinstance(x, float) and _is_large(x) for x in node.attrs.values()):
        return False
    if any(v.node.attrs.get("wide") for read in node.inputs for v in (read, *read.node.inputs)):
        return False  # elements of a tensor that the trace has looked at
    values = [n.attrs.get("value") for n in (node, *(v.node for v in node.inputs))]
    return not any(isinstance(x, float) and (_is_large(x) or _is_small(x)) for x in values)


def _is_large(x: float) -> bool:
    return FLOAT16_MAX < abs(x) < math.inf


def _is_small(x: float) -> bool:
    return 0 < abs(x) < FLOAT16_LEAST


def _is_float(value: Value) -> bool:
    return value.type.dtype.is_floating_point


def _is_inexact(value: Value) -> bool:
    return _is_float(value) or value.type.dtype.is_complex


def _colour(nodes: list[Node], dtype: DType) -> set[int]:
    """Ids of the nodes that run in half precision, of those of the forward pass."""
    parts = {node.id: part for node in nodes if (part := _part(node, dtype)) is not None}
    nodes = [node for node in nodes if node.id in parts]
    before = {
        n.id: [v.node.id for v in n.inputs if v.node.id in parts and _is_float(v)] for n in nodes
    }
    after: dict[int, list[int]] = {n.id: [] for n in nodes}
    for i, makers in before.items():
        for maker in makers:
            after[maker].append(i)
    back = list(reversed(nodes))

    def spread(
        order: Iterable[Node],
        beside: dict[int, list[int]],
        start: Callable[[Node], bool],
        may: Callable[[Node], bool],
        found: set[int],
    ) -> set[int]:
        """Nodes where it starts, and those beside found ones that may be."""
        for n in order:
            if start(n) or (may(n) and any(i in found for i in beside[n.id])):
                found.add(n.id)
        return found

    def plays(*which: Precision) -> Callable[[Node], bool]:
        return lambda node: parts[node.id] in which

    lowers, takes_either, is_soft = plays("lower"), plays("either"), plays("follow", "either")
    dark = spread(back, after, plays("keep", "follow"), takes_either, set())
    wide = spread(nodes, before, plays("keep"), lambda n: n.id in dark and is_soft(n), set())

    def is_free(node: Node) -> bool:
        return node.id not in wide

    def ends(node: Node) -> bool:
        if lowers(node):
            return True
        users = node.outputs[0].users
        return is_soft(node) and is_free(node) and bool(users) and all(u.op in _ENDS for u in users)

    leading = spread(back, after, ends, lambda n: is_soft(n) and is_free(n), set())
    half = spread(nodes, before, lowers, lambda n: n.id in leading, set())
    half = spread(nodes, before, _never, lambda n: takes_either(n) and is_free(n), half)
    return spread(back, after, _never, lambda n: takes_either(n) and is_free(n), half)


def _never(_: Node) -> bool:
    return False


# ---- the backward pass ---------------------------------------------------------------------------


class _Following:
    """The nodes of the backward pass that run in half precision. Asked in the order of the graph,
    after the node before has its types.
    """

    def __init__(self, graph: LogicalGraph, lowered: set[int], dtype: DType) -> None:
        self._makers = {n.outputs[0].id: n for n in graph if n.outputs}
        self._lowered = lowered
        self._kinds = {float32, dtype}

    def __call__(self, node: Node) -> bool:
        if node.phase != BACKWARD:
            return False
        maker = self._maker(node)
        kept = node.declared.stays_wide
        dtypes = {v.type.dtype for i, v in enumerate(node.inputs) if i not in kept}
        floats = {dtype for dtype in dtypes if dtype.is_floating_point}
        if not floats or not floats <= self._kinds or not self._may(node):
            return False
        if maker is not None and node.op != "add":
            return maker.id in self._lowered
        return float32 not in floats or (node.op == "to_global" and self._is_wanted(node))

    def _maker(self, node: Node) -> Node | None:
        """The op whose gradient a node is part of; None for a moved value, or an unknown one."""
        return None if node.op == "to_global" else self._makers.get(node.grad_of)

    def _is_wanted(self, node: Node) -> bool:
        """Whether all readers of a moved value run in half precision."""
        readers = node.outputs[0].users
        return bool(readers) and all(self._reads_half(reader) for reader in readers)

    def _reads_half(self, node: Node) -> bool:
        if node.id in self._lowered:
            return True
        if node.op == "to_global":
            return node.phase == BACKWARD and self._is_wanted(node)
        maker = self._maker(node) if node.phase == BACKWARD else None
        return maker is not None and maker.id in self._lowered and self._may(node)

    @staticmethod
    def _may(node: Node) -> bool:
        if node.is_structural:
            return node.op == "to_global"
        return node.op != "cast" and not node.declared.mutates


# ---- editing -------------------------------------------------------------------------------------


class _Editor:
    """Casts inputs of nodes; of each value once."""

    def __init__(self, graph: LogicalGraph, dtype: DType) -> None:
        self._graph = graph
        self._dtype = dtype
        self._types: dict[int, TensorType] = {}
        """Types of results before, by the value's id, where they have changed."""
        self._casts: dict[tuple[int, DType], Value] = {}

    def convert(self, node: Node, is_half: bool) -> None:
        """Let a node run in half precision, or in the dtypes in which it was traced. Everything
        before it is done.
        """
        kept = node.declared.stays_wide
        readable = () if is_half else self._readable(node)
        for i, value in enumerate(node.inputs):
            is_lowered = is_half and i not in kept
            if is_lowered and value.type.dtype is float32:
                self._graph.set_input(node, i, self._cast(node, value, self._dtype))
            elif not is_lowered and value.id in self._types and i not in readable:
                before = self._types[value.id]
                self._graph.set_input(node, i, self._cast(node, value, before.dtype))
        if is_half:
            self._retype(node)

    def _readable(self, node: Node) -> Collection[int]:
        """Operands that come in half floats although the node is not lowered: those that its op
        says, or all if they do so and it makes no floats of them.
        """
        if node.is_structural:
            return ()
        op = node.declared
        if node.has_effect or any(_is_inexact(v) for v in node.outputs):
            return op.reads_half
        floats = [v for v in node.inputs if _is_float(v)]
        return range(len(node.inputs)) if all(v.id in self._types for v in floats) else ()

    def _retype(self, node: Node) -> None:
        if node.is_structural:
            types = tuple(v.type.with_dtype(self._dtype) for v in node.outputs)
        else:
            given = tuple(v.type for v in node.inputs)
            types = infer_types(node.declared, given, node.attrs)
        for value, type_ in zip(node.outputs, types, strict=True):
            if type_ != value.type:
                self._types[value.id] = value.type
                value.type = type_

    def _cast(self, reader: Node, value: Value, dtype: DType) -> Value:
        key = value.id, dtype
        found = self._casts.get(key)
        if found is None:
            with inserting(self._graph, reader) as at:
                found = self._casts[key] = at.call(cast, value, dtype=dtype)
            found.node.rate = reader.rate
            if value.placement != reader.placement:
                found.node.stage = value.node.stage
        return found
