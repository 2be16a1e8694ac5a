"""May a graph's batch be cut into micro-batches without changing its results?

The gradient of a graph with micro-batches is the mean of theirs. That is the gradient of the whole
batch if rows go their own ways to the loss, and the loss is a mean over them. Both follow from two
traces, of the whole batch and of micro-batches: an op keeps rows apart if it has the signature that
runs it on parts of them, and sums if it has the one that runs it on partial sums; a sum over rows
is of degree 1, a number by which it is divided and which is smaller where the batch is smaller
takes the degree away. Losses and other results of degree 0 are means; a loss of another degree (a
sum), an op that mixes rows (a batch norm), one that draws or that overwrites a buffer keeps the
batch whole, as does a number that depends on the batch's size elsewhere.

The number of labels that are not ignored counts as such a number, though it need not be the same in
all micro-batches: `set_gradient_accumulation_steps` weighs them alike, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from oneflow.core.dtype import bool_
from oneflow.core.expression import scalar, symbol
from oneflow.core.graph import BACKWARD, FORWARD, SEED, Node
from oneflow.core.op import expression_of
from oneflow.core.sbp import BROADCAST, PARTIAL, Split
from oneflow.graph.trace import Trace
from oneflow.scheduler.compiler.layout.signatures import axis_signatures


class Rows(NamedTuple):
    """A value each part of whose dim `dim` comes of its own rows of the batch. counts: it follows
    from a test of each label."""

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

_X, _NUMBER = symbol("x"), scalar("value")
_PRODUCT, _SHARE, _SHIFT = _X * _NUMBER, _X / _NUMBER, _X + _NUMBER
_QUOTIENT = symbol("a") / symbol("b")


def means_of(whole: Trace, cut: Trace) -> frozenset[int] | None:
    """Outputs that are means over the rows, by number, if the batch may be cut; None: it may not.

    whole, cut: the same graph without and with micro-batches.
    """
    phases = [node.phase for node in whole.graph if node.op not in ("variable", "input")]
    if sum(a != b == BACKWARD for a, b in pairwise(phases)) > 1:
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
    """List the forward pass, without variables and nodes that only micro-batches have."""
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
    if node.declared.is_random or node.declared.mutates:
        raise Mixed
    if node.op == SEED:
        _check_loss(found.get(node.grad_of), kinds)
        return
    has_rows = any(isinstance(k, Rows) for k in kinds)
    if any(kinds) and not has_rows:
        _set(found, node, [_of_sums(node, same, kinds, num_pieces)] * len(node.outputs))
    elif _changes(node, same):
        raise Mixed
    elif has_rows:
        _set(found, node, _of_rows(node, kinds))


def _check_loss(loss: Kind, given: list[Kind]) -> None:
    """Check that a backward pass begins at a mean, or at a value that the batch has no part in,
    with a gradient that is the same for all rows.
    """
    if any(given) or isinstance(loss, Rows) or (loss is not None and loss.degree):
        raise Mixed


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
            counts = all(isinstance(k, Rows) and k.counts for k in kinds)
            return [
                _row_result(s, counts or v.type.dtype is bool_)
                for s, v in zip(signature.outputs, node.outputs, strict=True)
            ]
    raise Mixed


def _row_result(sbp: object, counts: bool) -> Kind:
    if isinstance(sbp, Split):
        return Rows(sbp.dim, counts)
    if sbp is PARTIAL:
        return Sum(1.0, counts)
    raise Mixed


def _of_sums(node: Node, same: Node, kinds: list[Kind], num_pieces: int) -> Kind:
    """Classify the result of an op that reads sums, and values that the batch has no part in."""
    first, *others = [k for k in kinds if isinstance(k, Sum)]
    root = _formula(node)
    if root is _QUOTIENT and others and others[0].counts:
        return Sum(first.degree - others[0].degree)
    if any(k != first for k in others):
        raise Mixed
    if _changes(node, same):
        ends = (same, node) if root is _SHARE else (node, same)
        less, more = (n.attrs.get("value", math.nan) for n in ends)
        if root not in (_PRODUCT, _SHARE) or less * num_pieces != more:
            raise Mixed
        return Sum(first.degree - 1)
    is_mean = not first.degree
    added = {BROADCAST, PARTIAL} if is_mean else {BROADCAST}  # to each mean, so to theirs
    results = {
        set(s.outputs) == {PARTIAL}
        for s in axis_signatures(node, 2)
        if all(x is PARTIAL if k else x in added for x, k in zip(s.inputs, kinds, strict=True))
    }
    if True in results or (is_mean and root is _SHIFT):
        return first
    if is_mean and results:
        return None  # it is not read
    raise Mixed


def _formula(node: Node) -> object:
    """The expression that a node computes of each element; None if there is none."""
    types = tuple([v.type for v in node.inputs])
    return expression_of(node.declared, types, node.attrs)


def _changes(node: Node, same: Node) -> bool:
    """Whether the node computes with another number in micro-batches."""
    if node.attrs == same.attrs:
        return False
    return "value" in node.attrs or _formula(node) is not None


def batch_rows(trace: Trace) -> list[int]:
    """The rows of each input that is given; 0 for a number, which cannot be cut."""
    inputs = [n.outputs[0].type for n in trace.graph.of_kind("input") if _is_given(n)]
    return [x.shape[0] if x.shape else 0 for x in inputs]


def _is_given(node: Node) -> bool:
    """Whether an input is one of the user's, no learning rate or the like."""
    return str(node.attrs["name"]).split(".")[0] in ("input", "source")
