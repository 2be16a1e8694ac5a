"""The layouts that values of a graph under construction say they have.

The compiler chooses the SBPs of a graph after `build` has ended. Code in `build` may ask for one
before: it is told the choice of eager execution, and the compiler is held to it.
"""

from __future__ import annotations

from oneflow.boxing.signatures import NdSignature
from oneflow.core.graph import Node, Value
from oneflow.core.sbp import NdSbp
from oneflow.scheduler.compiler.layout.infer_sbp import Follower
from oneflow.scheduler.compiler.layout.signatures import op_signature


class Layouts(Follower):
    """The layouts that eager execution would give to the values of one graph, found when asked
    for.
    """

    def expected(self, value: Value) -> NdSbp:
        """The layout of `value` in eager execution. Linear in the nodes that nobody asked about
        before.
        """
        waiting = [value]
        while waiting:
            last = waiting[-1]
            unknown = [] if self._is_known(last) else self._unknown_inputs(last.node)
            if not unknown:
                if not self._is_known(last):
                    self.visit(last.node)
                waiting.pop()
            waiting += unknown
        return self.layouts[value.id]

    def can_be_fixed(self, value: Value) -> bool:
        """True if the op of `value` can make the expected layout. Eager execution boxes
        values overwritten in another layout.
        """
        if value.sbp is not None:
            return True
        signature, overwritten = self.signatures[value.node.id], value.node.declared.mutates
        return all(signature.outputs[o] == signature.inputs[i] for o, i in overwritten.items())

    def _is_known(self, value: Value) -> bool:
        if value.sbp is not None and value.id not in self.layouts:
            self.note(value, value.sbp)
        return value.id in self.layouts

    def _unknown_inputs(self, node: Node) -> list[Value]:
        return [v for v in node.inputs if not self._is_known(v)]

    def choose(self, node: Node, fixed: tuple[NdSbp | None, ...]) -> NdSignature:
        """An overwritten input keeps its own layout."""
        found = op_signature(node, self.layouts, fixed, moves_overwritten=True)
        outputs = list(found.outputs)
        for output, source in node.declared.mutates.items():
            outputs[output] = self.layouts[node.inputs[source].id]
        return NdSignature(found.inputs, tuple(outputs))
