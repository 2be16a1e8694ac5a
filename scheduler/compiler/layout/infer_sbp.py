"""Gives every value one SBP per hierarchy axis.

Layouts that the user fixed (variables, inputs, to_global) stay, and are followed: node after node
an op's results lie as in eager execution, for the same chooser decides (boxing/signatures.py). So a
program has the same layouts in a graph as outside, and a batch that was split stays split even
where gathering it would move fewer bytes. With auto_parallel only fixed layouts stay; a search over
the whole graph finds the others (search_sbp.py), after the ranks were divided into the stages of a
pipeline, if auto-parallel has made some (place_stages.py).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from oneflow.boxing.signatures import NdSignature
from oneflow.core.graph import LogicalGraph, Node, Value
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp, all_broadcast, check_fits
from oneflow.core.tensor_type import TensorType
from oneflow.scheduler.compiler.layout.pieces import rows_gathered, rows_may_stay_split
from oneflow.scheduler.compiler.layout.signatures import (
    MOVES,
    check_placements,
    layout_at,
    op_signature,
)

if TYPE_CHECKING:
    from oneflow.scheduler.compiler.layout.search_sbp import Chosen


def infer_sbp(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> None:
    """Sets `sbp` of every value. Raises SbpError or PlacementError with the user's line."""
    if config.auto_parallel:
        from oneflow.scheduler.compiler.layout.search_sbp import search_sbp

        lay_out(graph, search_sbp(graph, config.auto_parallel, cluster))
        return
    found = Follower(graph).layouts
    for node in graph:
        for value in node.outputs:
            value.sbp = found[value.id]


def lay_out(graph: LogicalGraph, found: Chosen) -> None:
    """Give every value the layout that a search has chosen, and every reader a to_global before it
    where it wants another: one for all who want the same.
    """
    moved: dict[tuple[int, NdSbp, Placement], Value] = {}
    for node, choice in zip(found.nodes, found.choices, strict=True):
        for value, nd_sbp in zip(node.outputs, choice.outputs, strict=True):
            value.sbp = nd_sbp
        if node.op in MOVES:
            continue
        for i, (value, nd_sbp) in enumerate(zip(node.inputs, choice.inputs, strict=False)):
            if value.placement == node.placement and value.sbp == nd_sbp:
                continue
            key = value.id, nd_sbp, node.placement
            if key not in moved:
                call = "to_global", [value], [value.type], node.placement
                moved[key] = graph.insert(node, *call, sbp=[nd_sbp]).outputs[0]
            graph.set_input(node, i, moved[key])


class Follower:
    """Layouts as in eager execution. Equal calls (those of repeated layers) are decided once.

    layouts: of every value, by id.  signatures: of every node, by id.
    """

    def __init__(self, graph: LogicalGraph | None = None) -> None:
        self.layouts: dict[int, NdSbp] = {}
        self.signatures: dict[int, NdSignature] = {}
        self._rows_stay_split = graph is None or rows_may_stay_split(graph)
        self._found: dict[Hashable, NdSignature] = {}
        self._kinds: dict[tuple[TensorType, NdSbp, Placement], int] = {}
        self._kind_of: dict[int, int] = {}
        for node in graph or ():
            self.visit(node)

    def visit(self, node: Node) -> None:
        """Lay out the results of a node whose inputs are laid out."""
        signature = self._structural(node) if node.is_structural else self._op(node)
        self.signatures[node.id] = signature
        kinds, placement = self._kinds, node.placement
        for value, nd_sbp in zip(node.outputs, signature.outputs, strict=True):
            self.layouts[value.id] = nd_sbp
            kind = value.type, nd_sbp, placement
            self._kind_of[value.id] = kinds.setdefault(kind, len(kinds))

    def note(self, value: Value, nd_sbp: NdSbp) -> None:
        """Let a value lie so."""
        self.layouts[value.id] = nd_sbp
        kind = value.type, nd_sbp, value.node.placement
        self._kind_of[value.id] = self._kinds.setdefault(kind, len(self._kinds))

    def _structural(self, node: Node) -> NdSignature:
        if node.op == "output":
            return NdSignature((self.layouts[node.inputs[0].id],), ())
        (value,) = node.outputs
        if node.op == "unpack" and not self._rows_stay_split:
            whole = rows_gathered(self.layouts[node.inputs[0].id])
            return NdSignature((whole,), (whole,))
        if value.sbp is not None:
            check_fits(value.sbp, value.type.shape, node.describe())
            return NdSignature((value.sbp,) * len(node.inputs), (value.sbp,))
        if not node.inputs:
            return NdSignature((), (all_broadcast(node.placement.ndim),))
        nd_sbp = layout_at(node, self.layouts[node.inputs[0].id])
        return NdSignature((nd_sbp,), (nd_sbp,))

    def _op(self, node: Node) -> NdSignature:
        fixed = tuple([v.sbp for v in node.outputs])
        if not node.inputs and None not in fixed:
            for value in node.outputs:
                check_fits(value.sbp or (), value.type.shape, node.describe())
            return NdSignature((), tuple([s for s in fixed if s is not None]))
        key = (
            node.op,
            node.kind_key,
            node.placement,
            tuple([self._kind_of[v.id] for v in node.inputs]),
            fixed,
        )
        found = self._found.get(key)
        if found is None:
            check_placements(node)
            found = self._found[key] = self.choose(node, fixed)
        return found

    def choose(self, node: Node, fixed: tuple[NdSbp | None, ...]) -> NdSignature:
        """The signature of an op on inputs whose layouts are known."""
        return op_signature(node, self.layouts, fixed)
