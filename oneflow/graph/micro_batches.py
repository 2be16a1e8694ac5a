"""May a graph's batch be cut into micro-batches without changing what comes out?

The gradient of a graph with micro-batches is the mean of theirs. That is the gradient of the whole
batch if rows go their own ways to the loss, and the loss is a mean over them. Both follow from two
traces, of the whole batch and of micro-batches: an op keeps rows apart if it has the signature that
runs it on parts of them; a sum over rows is of degree 1, a number by which it is divided and which
is smaller where the batch is smaller takes the degree away. Losses and other results of degree 0
are means; a loss of another degree (a sum), an op that mixes rows (a batch norm), one that draws
or that overwrites a buffer keeps the batch whole.

The number of labels that are not ignored counts as such a number, though it need not be the same in
all micro-batches: `set_gradient_accumulation_steps` weighs them alike, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from oneflow.core.graph import FORWARD, Node
from oneflow.core.op import find_op
from oneflow.core.sbp import BROADCAST, PARTIAL, Split
from oneflow.graph.trace import Trace
from oneflow.scheduler.compiler.signatures import axis_signatures


class Rows(NamedTuple):
    """A value each part of whose dim `dim` comes of its own rows of the batch. counts: it is 1 or 0
    for each label."""

    dim: int
    counts: bool = False


class Sum(NamedTuple):
    """A sum over rows; of degree 0 a mean. counts: it is a number of labels."""

    degree: float
    counts: bool = False


class Mixed(Exception):
    """Rows meet otherwise than in a sum."""


Kind = Rows | Sum | None
"""None: the batch has no part in it."""

_LINEAR = frozenset({"cast", "reshape", "expand", "copy", "neg", "reduce_sum", "transpose"})
_SEEDS = frozenset({"full_like", "fill_like"})


def means_of(whole: Trace, cut: Trace) -> frozenset[int] | None:
    """Outputs that are means over the rows, by number, if the batch may be cut; None: it may not.

    whole, cut: the same graph without and with micro-batches.
    """
    if whole.num_backward_passes > 1:
        return None
    found: dict[int, Kind] = {}
    try:
        for node, same in zip(_nodes(whole), _nodes(cut), strict=True):
            if node.op != same.op:
                return None
            _visit(node, same, found, cut.graph.num_pieces)
        return frozenset(_outputs(whole, found))
    except (Mixed, ValueError):
        return None


def _nodes(trace: Trace) -> list[Node]:
    """The forward pass, without variables and what only micro-batches have."""
    skipped = ("variable", "unpack", "output")
    return [n for n in trace.graph if n.phase == FORWARD and n.op not in skipped]


def _outputs(whole: Trace, found: Mapping[int, Kind]) -> list[int]:
    means = []
    rows = batch_rows(whole)[0]
    for node in whole.graph.of_kind("output"):
        kind = found.get(node.inputs[0].id)
        if isinstance(kind, Sum):
            if kind.degree:
                raise Mixed
            means.append(int(node.attrs["index"]))
        elif isinstance(kind, Rows) and (kind.dim or node.inputs[0].type.shape[0] != rows):
            raise Mixed  # micro-batches are put together row by row
    return means


def _visit(node: Node, same: Node, found: dict[int, Kind], num_pieces: int) -> None:
    kinds = [found.get(v.id) for v in node.inputs]
    if node.op == "input":
        if _is_given(node):
            found[node.outputs[0].id] = Rows(0)
        return
    if node.op in _SEEDS:
        if isinstance(kinds[0], Sum) and kinds[0].degree:
            raise Mixed
        return
    if not node.is_structural and (find_op(node.op).is_random or find_op(node.op).mutates):
        raise Mixed
    if not any(kinds):
        return
    if any(isinstance(k, Rows) for k in kinds):
        _set(found, node, _of_rows(node, kinds))
    else:
        _set(found, node, [_of_sums(node, same, kinds, num_pieces)] * len(node.outputs))


def _set(found: dict[int, Kind], node: Node, kinds: list[Kind]) -> None:
    for value, kind in zip(node.outputs, kinds, strict=True):
        found[value.id] = kind


def _of_rows(node: Node, kinds: list[Kind]) -> list[Kind]:
    """The results of an op that reads rows, as its signature on parts of them says."""
    if any(isinstance(k, Sum) for k in kinds):
        raise Mixed
    if node.is_structural:
        return [kinds[0]] * len(node.outputs)
    wanted = [Split(k.dim) if isinstance(k, Rows) else BROADCAST for k in kinds]
    numbers = [not v.type.ndim for v in node.inputs]
    for signature in axis_signatures(node, 2):
        pairs = zip(signature.inputs, wanted, numbers, strict=True)
        if all(have == want or is_number for have, want, is_number in pairs):
            counts = node.op == "scalar_compare" or (
                node.op in _LINEAR and any(isinstance(k, Rows) and k.counts for k in kinds)
            )
            return [_row_result(s, counts) for s in signature.outputs]
    raise Mixed


def _row_result(sbp: object, counts: bool) -> Kind:
    if isinstance(sbp, Split):
        return Rows(sbp.dim, counts)
    if sbp is PARTIAL:
        return Sum(1.0, counts)
    raise Mixed


def _of_sums(node: Node, same: Node, kinds: list[Kind], num_pieces: int) -> Kind:
    """The result of an op that reads sums, and what the batch has no part in."""
    sums = [k for k in kinds if isinstance(k, Sum)]
    first = sums[0]
    if node.op in _LINEAR or node.op == "to_global":
        return first
    if node.op in ("scalar_mul", "scalar_div"):
        before, now = (float(n.attrs["value"]) for n in (node, same))
        if before == now:
            return first
        ratio = now / before if node.op == "scalar_mul" else before / now
        if ratio != num_pieces:
            raise Mixed
        return Sum(first.degree - 1)
    if node.op == "div" and isinstance(kinds[0], Sum):
        if kinds[1] is None:
            return first
        if isinstance(kinds[1], Sum) and kinds[1].counts:
            return Sum(kinds[0].degree - kinds[1].degree)
    if node.op == "mul" and len(sums) == 1:
        return first
    is_mean = not first.degree
    if node.op in ("add", "sub") and (len(sums) == 2 or is_mean) and len(set(sums)) == 1:
        return first
    if node.op == "scalar_add" and is_mean:
        return first
    raise Mixed


def batch_rows(trace: Trace) -> list[int]:
    """The rows of each input that is given; 0 for a number, which cannot be cut."""
    inputs = [n.outputs[0].type for n in trace.graph.of_kind("input") if _is_given(n)]
    return [x.shape[0] if x.shape else 0 for x in inputs]


def _is_given(node: Node) -> bool:
    """Whether an input is one of the user's, no learning rate or the like."""
    return str(node.attrs["name"]).split(".")[0] in ("input", "source")
