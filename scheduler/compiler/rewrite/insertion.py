"""Ops that a pass adds to a graph: inside of `inserting` a call of an op is a node, and its tensors
are values.

    with inserting(graph, before=node):
        half = cast(value, dtype=float16)  # a node in front of `node`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from oneflow.core.dispatch import Mode, use_mode
from oneflow.core.graph import STEP, LogicalGraph, Node, Value
from oneflow.core.op import Op, infer_types
from oneflow.core.operand import Attr, Attrs
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.core.tensor_type import TensorType


class Insertion(Mode):
    """The mode: nodes are added in front of one, or at the end.

    like: the node from whose line, module, phase and stage they are; phase: another one than its.
    """

    def __init__(
        self, graph: LogicalGraph, before: Node | None, like: Node, phase: str | None
    ) -> None:
        self.graph, self._before = graph, before
        self._like, self._phase = like, phase or like.phase

    def call(self, op: Callable[..., object], *inputs: Value, **attrs: Attr) -> Any:
        """Run an op, as calling it does, which is typed for tensors."""
        declared: Any = op
        return self.run(declared, inputs, attrs)

    def run(self, op: type[Op], inputs: tuple[Any, ...], attrs: Attrs) -> Any:
        """Add a node, where its first input lies. Returns its values."""
        attrs = op.defaults | attrs
        types = infer_types(op, tuple([v.type for v in inputs]), attrs)
        node = self.add(op.name, inputs, types, inputs[0].placement, attrs)
        return node.outputs[0] if op.num_outputs == 1 else tuple(node.outputs)

    def to_global(self, x: Value, placement: Placement, nd_sbp: NdSbp | None) -> Value:
        """The value in another layout; itself if it is known to lie so."""
        is_there = x.placement == placement
        if is_there and (placement.size == 1 or (x.sbp == nd_sbp and nd_sbp is not None)):
            return x
        node = self.add("to_global", [x], [x.type], placement, {})
        node.outputs[0].sbp = nd_sbp
        return node.outputs[0]

    def add(
        self,
        op: str,
        inputs: Iterable[Value],
        types: Iterable[TensorType],
        placement: Placement,
        attrs: Attrs,
    ) -> Node:
        """Add a node of any kind."""
        if self._before is None:
            node = self.graph.append(op, inputs, types, placement, attrs)
        else:
            node = self.graph.insert(self._before, op, inputs, types, placement, attrs)
        node.stand_for(self._like)
        node.rate, node.phase = STEP, self._phase
        return node


@contextmanager
def inserting(
    graph: LogicalGraph, before: Node | None, *, like: Node | None = None, phase: str | None = None
) -> Iterator[Insertion]:
    """Ops of this thread are added in front of `before`, at the end if that is None.

    like: the node whose line, module, phase and stage the new ones have; None: `before`.
    """
    source = like if like is not None else before
    assert source is not None
    mode = Insertion(graph, before, source, phase)
    with use_mode(mode):
        yield mode
