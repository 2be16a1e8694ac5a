"""The outputs of a graph that have a row for each row of its inputs, made of that row alone.

Only such outputs may be cut apart when requests share a batch, or when rows are added to fill it: a
mean over the batch, say, would be one over the rows of strangers. It follows from the layouts that
each op declares: if parts of its inputs, cut along the batch, give the parts of its output, then so
do single rows.
"""

from __future__ import annotations

from oneflow.core.graph import LogicalGraph, Node
from oneflow.core.op import find_op, signatures
from oneflow.core.sbp import Sbp, Split
from oneflow.jobs.description import Description
from oneflow.ops.one_embedding import OneEmbeddingFusedLookup

Flow = int | frozenset[int] | None
"""A dim: it has a row for each row of the inputs. Dims: it knows nothing of the inputs, and is the
same all along these, as zeros are. None: an element may come from several rows, or from where in
the batch its row is."""


def batch_of(d: Description) -> int:
    """Rows of all inputs; 0 if they differ or there are none."""
    sizes = {p.shape[0] if p.shape else 0 for p in d.inputs}
    return sizes.pop() if len(sizes) == 1 else 0


def row_outputs(graph: LogicalGraph, batch: int) -> set[int]:
    """Return the indices of the outputs whose row i follows from row i of the inputs alone. batch:
    rows of the inputs; of one row nothing can be mixed.
    """
    flows: dict[int, Flow] = {}
    found = set()
    for node in graph:
        before = [flows[v.id] for v in node.inputs]
        if node.op == "output":
            shape = node.inputs[0].type.shape
            if shape and shape[0] == batch and (batch == 1 or _is_row_by_row(before[0])):
                found.add(int(node.attrs["index"]))
            continue
        for value, flow in zip(node.outputs, _flows(node, before, batch), strict=True):
            flows[value.id] = flow
    return found


def _is_row_by_row(flow: Flow) -> bool:
    return 0 in flow if isinstance(flow, frozenset) else flow == 0


def _flows(node: Node, before: list[Flow], batch: int) -> list[Flow]:
    """Return the flow of a node's outputs. before: of its inputs."""
    if node.op == "input":
        return [0]
    if node.is_structural and node.inputs:
        return [before[0]] * len(node.outputs)
    if all(isinstance(flow, frozenset) for flow in before):
        return [_uniform(node, i, before, batch) for i in range(len(node.outputs))]
    if node.op == OneEmbeddingFusedLookup.name:
        return [_of_ids(node, before[1:])]
    for inputs, outputs in _signatures(node, batch):
        if all(_fits(flow, sbp) for flow, sbp in zip(before, inputs, strict=True)):
            return [sbp.dim if isinstance(sbp, Split) else None for sbp in outputs]
    return [None] * len(node.outputs)


def _of_ids(node: Node, before: list[Flow]) -> Flow:
    """Flow of looked-up rows, whose layouts say where rows are and not whose they are. before: of
    the ids, and of their tables if they are given: else the last dim's positions name them."""
    ids, flow = node.inputs[1].type, before[0]
    names_table = len(before) == 1 and node.attrs["num_tables"] != 1 and flow == ids.ndim - 1
    return flow if isinstance(flow, int) and not names_table and len(set(before)) == 1 else None


def _signatures(node: Node, batch: int) -> list[tuple[tuple[Sbp, ...], tuple[Sbp, ...]]]:
    types = tuple(v.type for v in node.inputs)
    return [(s.inputs, s.outputs) for s in signatures(find_op(node.op), types, node.attrs, batch)]


def _fits(flow: Flow, sbp: Sbp) -> bool:
    """Whether an input may be cut so for single rows."""
    if isinstance(flow, frozenset):
        return sbp.is_broadcast or sbp.dim in flow
    return flow is not None and isinstance(sbp, Split) and sbp.dim == flow


def _uniform(node: Node, index: int, before: list[Flow], batch: int) -> frozenset[int]:
    """The dims of an output that knows nothing of the inputs along which it is the same."""
    if node.is_structural or (op := find_op(node.op)).is_random:
        return frozenset()
    types = (v.type for v in node.inputs)
    found = set(op.uniform(*types, **node.attrs) if op.uniform is not None else ())
    if not node.inputs:
        return frozenset(found)
    dims = frozenset(range(node.outputs[index].type.ndim))
    for inputs, outputs in _signatures(node, batch):
        cut = [flow for flow, sbp in zip(before, inputs, strict=True) if sbp.is_split]
        if cut and all(_fits(flow, sbp) for flow, sbp in zip(before, inputs, strict=True)):
            found.add(outputs[index].dim)
    return frozenset(found) & dims
