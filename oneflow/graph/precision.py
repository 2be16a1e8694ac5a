"""Mixed precision of a graph: which of its ops run in a half dtype, and the casts between them.

`build` is traced in the dtypes that it says. Then the ops of the forward pass are coloured as
upstream does, by lists of their names:

    white   run in the half dtype: products and convolutions
    black   run in float32: losses, sums, powers and exponentials
    gray    half between white ops: on a path from one to another without a black op
    clear   half where a neighbour is, before or behind: they only move numbers

and so what lies between black ops is black. At an output of the graph gray and clear ops count as
if a white op followed. All other ops stay as they are. An op of the backward pass has the precision
of the op whose gradient it is part of; one that adds up gradients has that of its inputs. A value
is cast once for all its readers on the other side of a border, so a parameter is cast once a step;
outputs of the graph and all that updates parameters are float32 as before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from oneflow.amp.autocasting import Autocasting
from oneflow.core.dispatch import use_mode
from oneflow.core.dtype import DType, float16, float32
from oneflow.core.graph import LogicalGraph, Node, Value
from oneflow.core.op import Op, find_op, infer_types
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType

if TYPE_CHECKING:
    from oneflow.graph.trace import Trace

WHITE = frozenset(
    (
        *("matmul", "linear", "matmul_weight_grad", "attention", "amp_white_identity"),
        *("conv", "conv_data_grad", "conv_filter_grad"),
    )
)
BLACK = frozenset(
    (
        *("amp_black_identity", "bce_loss", "bce_with_logits_loss", "nll_loss", "smooth_l1_loss"),
        *("sparse_softmax_cross_entropy", "ctc_loss", "log_softmax", "reduce_prod", "reduce_sum"),
        *("square_sum", "cumsum", "cumprod", "logcumsumexp", "exp", "exp2", "expm1", "log"),
        *("log10", "log1p", "log2", "pow", "scalar_pow", "reciprocal", "rsqrt", "square"),
        *("acos", "asin", "cosh", "sinh", "tan", "erfinv", "softplus"),
    )
)
GRAY = frozenset(
    (
        *("add", "sub", "mul", "div", "scalar_add", "scalar_mul", "scalar_div", "neg", "where"),
        *("sqrt", "sigmoid", "tanh", "gelu", "quick_gelu", "silu", "mish", "elu", "celu", "selu"),
        *("leaky_relu", "hardsigmoid", "hardswish", "softsign", "square_relu", "dropout"),
        *("softmax", "causal_softmax", "layer_norm", "rms_norm", "batch_norm_apply"),
        *("avg_pool", "adaptive_avg_pool", "abs", "maximum", "minimum"),
    )
)
CLEAR = frozenset(
    (
        *("reshape", "transpose", "expand", "slice", "split", "concat", "pad", "copy", "flip"),
        *("roll", "tril", "triu", "diagonal", "unfold", "slice_scatter", "slice_update"),
        *("masked_fill", "relu", "relu6", "hardtanh", "clamp", "threshold", "max_pool"),
        *("depend", "to_global"),
    )
)
KEPT: dict[str, range] = {
    "attention_grad": range(5, 6),
    "layer_norm_grad": range(2, 4),
    "rms_norm_grad": range(2, 3),
    "batch_norm_apply": range(1, 5),
    "batch_norm_grad_sums": range(2, 4),
    "batch_norm_grad_apply": range(2, 7),
    "depend": range(1, 2),
}
"""Operands that are not cast with the others: statistics, and weights that may be wider."""
FLOAT16_MAX = 65504.0
READS = frozenset(("cast", "batch_sums"))
"""Ops that are not lowered, and read half floats as they are."""


class Lowering(Autocasting):
    """The mode in which `build` is traced: notes the ops that may be lowered, and casts none."""

    def __init__(self, inner: Trace, dtype: DType) -> None:
        super().__init__(inner, {"cpu": dtype, "cuda": dtype}, None)
        self.marks = inner.marks = Marks()

    def run(self, op: type[Op], inputs: tuple[Any, ...], attrs: Attrs) -> Any:
        before, self.marks.is_inside = self.marks.is_inside, True
        try:
            return self.inner.run(op, inputs, attrs)
        finally:
            self.marks.is_inside = before

    def afresh(self) -> Lowering:
        return self


@contextmanager
def precision(trace: Trace, dtype: DType | None) -> Iterator[None]:
    """The mode in which `build` is traced. dtype: of mixed precision; None: there is none."""
    if dtype is None:
        yield
        return
    with use_mode(Lowering(trace, dtype)):
        yield


class Marks:
    """The parts that nodes play while a graph is traced.

    inside: ids of nodes of the forward pass, also of one that is computed again.  calls: the number
    on the tape of the call whose gradient a node is part of.  makers: the node of each call.
    copies: values that are read instead of casts of variables, by the id of the variable's value.
    """

    def __init__(self) -> None:
        self.inside: set[int] = set()
        self.calls: dict[int, int] = {}
        self.makers: dict[int, Node] = {}
        self.copies: dict[int, Value] = {}
        self.is_inside = False
        self.call = -1

    def note(self, node: Node, is_in_backward: bool) -> None:
        """Keep the part of a new node."""
        if self.is_inside or node.op == "depend" or (node.op == "to_global" and not is_in_backward):
            self.inside.add(node.id)
        elif is_in_backward:
            self.calls[node.id] = self.call


def lowered_nodes(graph: LogicalGraph, marks: Marks, dtype: DType, results: set[int]) -> set[int]:
    """Ids of the forward nodes that run in `dtype`.

    results: ids of the values that `build` returned.
    """
    return _colour([n for n in graph if n.id in marks.inside and _can(n, dtype)], results)


def lower(graph: LogicalGraph, marks: Marks, dtype: DType, lowered: set[int]) -> None:
    """Give the results of nodes that run in `dtype` their types, and insert casts."""
    following = _Following(marks, lowered, dtype)
    editor = _Editor(graph, dtype, marks.copies)
    for node in list(graph):
        editor.convert(node, node.id in lowered or following(node))


# ---- colours -------------------------------------------------------------------------------------


def _can(node: Node, dtype: DType) -> bool:
    """Whether a node has a colour: it is in a list, and its numbers are float32 or less, that of
    its attributes too, so that -1e9 for what is masked does not become infinite.
    """
    if node.op not in WHITE | BLACK | GRAY | CLEAR:
        return False
    if not node.is_structural and find_op(node.op).mutates:
        return False
    if _is_too_large(node.attrs.get("value"), dtype):
        return False
    kinds = {v.type.dtype for v in node.inputs if v.type.dtype.is_floating_point}
    return float32 in kinds and all(kind.bytes <= float32.bytes for kind in kinds)


def _is_too_large(value: object, dtype: DType) -> bool:
    if dtype is not float16 or not isinstance(value, float) or math.isinf(value):
        return False
    return abs(value) > FLOAT16_MAX


def _colour(nodes: list[Node], results: set[int]) -> set[int]:
    """Ids of the nodes that run in half precision, of those that have a colour."""
    known = {node.id for node in nodes}
    before = {n.id: [v.node.id for v in n.inputs if v.node.id in known] for n in nodes}
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

    is_white, is_black = _among(WHITE), _among(BLACK)
    is_soft, is_clear = _among(GRAY | CLEAR), _among(CLEAR)
    dark = spread(back, after, _among(BLACK | GRAY), is_clear, set())
    black = spread(nodes, before, is_black, lambda n: n.id in dark, set())

    def is_free(node: Node) -> bool:
        return node.id not in black

    def ends(node: Node) -> bool:
        if is_white(node):
            return True
        first = node.outputs[0]
        return is_soft(node) and is_free(node) and first.id in results and not first.users

    leading = spread(back, after, ends, lambda n: is_soft(n) and is_free(n), set())
    white = spread(nodes, before, is_white, lambda n: n.id in leading, set())
    white = spread(nodes, before, _never, lambda n: is_clear(n) and is_free(n), white)
    return spread(back, after, _never, lambda n: is_clear(n) and is_free(n), white)


def _among(names: frozenset[str]) -> Callable[[Node], bool]:
    return lambda node: node.op in names


def _never(_: Node) -> bool:
    return False


# ---- the backward pass ---------------------------------------------------------------------------

_MOVES = frozenset(("depend", "to_global"))


class _Following:
    """The nodes of the backward pass that run in half precision. Asked in the order of the graph,
    after the node before has its types.
    """

    def __init__(self, marks: Marks, lowered: set[int], dtype: DType) -> None:
        self._marks = marks
        self._lowered = lowered
        self._kinds = {float32, dtype}

    def __call__(self, node: Node) -> bool:
        if node.id in self._marks.calls:
            maker = self._maker(node)
        elif node.op in _MOVES and node.id in self._marks.inside:
            maker = None
        else:
            return False
        kept = KEPT.get(node.op, ())
        dtypes = {v.type.dtype for i, v in enumerate(node.inputs) if i not in kept}
        floats = {dtype for dtype in dtypes if dtype.is_floating_point}
        if not floats or not floats <= self._kinds or not self._may(node):
            return False
        if maker is not None and node.op != "add":
            return maker.id in self._lowered
        return float32 not in floats or (node.op in _MOVES and self._is_wanted(node))

    def _maker(self, node: Node) -> Node | None:
        """The op whose gradient a node is part of; None for what is moved, or not known."""
        call = self._marks.calls.get(node.id)
        return None if call is None or node.op in _MOVES else self._marks.makers.get(call)

    def _is_wanted(self, node: Node) -> bool:
        """Whether all readers of what is moved run in half precision."""
        readers = node.outputs[0].users
        return bool(readers) and all(self._reads_half(reader) for reader in readers)

    def _reads_half(self, node: Node) -> bool:
        if node.id in self._lowered:
            return True
        if node.op in _MOVES:
            return self._is_wanted(node)
        maker = self._maker(node)
        return maker is not None and maker.id in self._lowered and self._may(node)

    @staticmethod
    def _may(node: Node) -> bool:
        if node.is_structural:
            return node.op == "to_global"
        return node.op != "cast" and not find_op(node.op).mutates


# ---- editing -------------------------------------------------------------------------------------


def _reads_any(node: Node, index: int) -> bool:
    return node.op in READS or (node.op == "depend" and index > 0)


class _Editor:
    """Casts inputs of nodes; of each value once."""

    def __init__(self, graph: LogicalGraph, dtype: DType, copies: dict[int, Value]) -> None:
        self._graph = graph
        self._dtype = dtype
        self._types: dict[int, TensorType] = {}
        """Types of results before, by the value's id, where they have changed."""
        self._casts = {(i, dtype): copy for i, copy in copies.items()}

    def convert(self, node: Node, is_half: bool) -> None:
        """Let a node run in half precision, or in the dtypes in which it was traced. Everything
        before it is done.
        """
        kept = KEPT.get(node.op, ())
        for i, value in enumerate(node.inputs):
            is_lowered = is_half and i not in kept
            if is_lowered and value.type.dtype is float32:
                self._graph.set_input(node, i, self._cast(node, value, self._dtype))
            elif not is_lowered and value.id in self._types and not _reads_any(node, i):
                before = self._types[value.id]
                self._graph.set_input(node, i, self._cast(node, value, before.dtype))
        if is_half:
            self._retype(node)

    def _retype(self, node: Node) -> None:
        if node.is_structural:
            types = tuple(v.type.with_dtype(self._dtype) for v in node.outputs)
        else:
            given = tuple(v.type for v in node.inputs)
            types = infer_types(find_op(node.op), given, node.attrs)
        for value, type_ in zip(node.outputs, types, strict=True):
            if type_ != value.type:
                self._types[value.id] = value.type
                value.type = type_

    def _cast(self, reader: Node, value: Value, dtype: DType) -> Value:
        key = value.id, dtype
        found = self._casts.get(key)
        if found is None:
            type_ = value.type.with_dtype(dtype)
            attrs: Attrs = {"dtype": dtype}
            node = self._graph.insert(reader, "cast", [value], [type_], value.placement, attrs)
            if value.placement != reader.placement:
                node.stage = value.node.stage
            found = self._casts[key] = node.outputs[0]
        return found
