"""The layouts that values of a graph under construction say they have.

The compiler chooses the SBPs of a graph after `build` has ended. Code in `build` may ask for one
before: it is told what eager execution would have chosen, and the compiler is held to it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from oneflow.boxing.signatures import choose
from oneflow.core.errors import InternalError
from oneflow.core.graph import Node, Value
from oneflow.core.sbp import NdSbp, all_broadcast
from oneflow.core.tensor_type import TensorType

Types = tuple[TensorType, ...]


class ChosenLayouts(NamedTuple):
    """The layouts of a node's outputs. is_signature: its op can make them; otherwise eager
    execution boxes the result.
    """

    outputs: tuple[NdSbp, ...]
    is_signature: bool


class Layouts:
    """The layouts that eager execution would give to the values of one graph, found when asked
    for.
    """

    def __init__(self) -> None:
        self._expected: dict[int, NdSbp] = {}
        self._is_signature: dict[int, bool] = {}
        self._chosen: dict[Hashable, ChosenLayouts] = {}

    def expected(self, value: Value) -> NdSbp:
        """The layout of `value` in eager execution. Linear in the nodes that nobody asked about
        before.
        """
        waiting = [value]
        while waiting:
            last = waiting[-1]
            unknown = [] if self._is_known(last) else self._unknown_inputs(last.node)
            if unknown:
                waiting += unknown
                continue
            if not self._is_known(last):
                self._find(last.node)
            waiting.pop()
        return self._layout(value)

    def can_be_fixed(self, value: Value) -> bool:
        """True if the op of `value` can make the expected layout. Eager execution boxes what was
        overwritten in another layout.
        """
        return value.sbp is not None or self._is_signature.get(value.id, False)

    def _is_known(self, value: Value) -> bool:
        return value.sbp is not None or value.id in self._expected

    def _layout(self, value: Value) -> NdSbp:
        return value.sbp if value.sbp is not None else self._expected[value.id]

    def _unknown_inputs(self, node: Node) -> list[Value]:
        return [v for v in node.inputs if not self._is_known(v)]

    def _find(self, node: Node) -> None:
        sbps = tuple(self._layout(v) for v in node.inputs)
        if node.is_structural:
            chosen = self._of_structural(node, sbps)
        else:
            chosen = self._of_op(node, sbps)
        for value, nd_sbp in zip(node.outputs, chosen.outputs, strict=True):
            self._expected[value.id] = nd_sbp
            self._is_signature[value.id] = chosen.is_signature

    def _of_structural(self, node: Node, sbps: tuple[NdSbp, ...]) -> ChosenLayouts:
        """Leave the layout of a value that is moved or gathered as it is, unless the node fixes
        another.
        """
        if len(sbps) != 1 or len(sbps[0]) != node.placement.ndim:
            raise InternalError(f"the layout of {node.describe()} is not known")
        return ChosenLayouts(sbps * len(node.outputs), True)

    def _of_op(self, node: Node, sbps: tuple[NdSbp, ...]) -> ChosenLayouts:
        if not node.inputs:
            whole = all_broadcast(node.placement.ndim)
            return ChosenLayouts((whole,) * len(node.outputs), True)
        types = tuple(v.type for v in node.inputs)
        key = node.op, node.kind_key, node.placement, types, sbps
        found = self._chosen.get(key)
        if found is None:
            found = self._chosen[key] = _choose(node, types, sbps)
        return found


def _choose(node: Node, types: Types, sbps: tuple[NdSbp, ...]) -> ChosenLayouts:
    """An overwritten input keeps its own layout."""
    op, out_types = node.declared, tuple(v.type for v in node.outputs)
    choice = choose(op, types, out_types, sbps, node.attrs, node.placement)
    outputs = tuple(
        sbps[op.mutates[i]] if i in op.mutates else s for i, s in enumerate(choice.outputs)
    )
    return ChosenLayouts(outputs, outputs == choice.outputs)
