"""Slices among zeros that are added up, as the gradients of a split tensor are, in one go: the
slices that together fill the whole are concatenated.

On a GPU, whose concatenation reads tensors as they lie, heads of an attention that are put beside
each other and then concatenated are concatenated as they are: that is their only copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from oneflow.actors.fusing import OTHER_IDS, SUM, Fact, Line, bind_alike
from oneflow.core.graph import Node, Value
from oneflow.core.op import Box
from oneflow.core.operand import Attrs
from oneflow.kernels.registry import find_view

if TYPE_CHECKING:
    from oneflow.actors.segment import BoundNode


READS_AS_THEY_LIE = ("cuda",)
"""Kinds of devices whose concatenation needs no tensor to be contiguous."""


def join(
    nodes: list[BoundNode], published: frozenset[int], device: str
) -> tuple[list[BoundNode], list[Fact]]:
    """The nodes with concatenations in place of such sums, and which were made."""
    facts: list[Fact] = []
    if any(bound.call.op.place for bound in nodes):
        joining = _Joining(nodes, published, device)
        nodes, facts = joining.result(), joining.facts
    if device in READS_AS_THEY_LIE and any(bound.call.op.joins for bound in nodes):
        nodes = _Heads(nodes, published, device).result()
    return nodes, facts


class _Joining(Line):
    def __init__(self, nodes: Sequence[BoundNode], published: frozenset[int], device: str) -> None:
        super().__init__(nodes)
        self._published, self._device = published, device
        self.facts: list[Fact] = []

    def result(self) -> list[BoundNode]:
        made: dict[int, BoundNode] = {}
        gone: set[int] = set()
        seen: set[int] = set()
        found = self._sums()
        for i in sorted(found, reverse=True):  # the last sum of a chain first
            if i in seen:
                continue
            slices, sums = self._terms(i, found)
            seen.update(sums)
            concatenated = self._concatenated(i, slices)
            if concatenated is not None:
                members = tuple(self._nodes[at] for at in (*slices, *sums, i))
                made[i] = replace(concatenated, members=members)
                gone.update(slices, sums)
                ops = tuple(self._nodes[at].node.op for at in (*slices, *sums, i))
                type_ = str(concatenated.call.out_types[0])
                self.facts.append(Fact(ops, type_, self._nodes[i].node.location))
        return [made.get(i, bound) for i, bound in enumerate(self._nodes) if i not in gone]

    def _sums(self) -> set[int]:
        """Sums of slices among zeros, and of such sums, by their positions."""
        found: set[int] = set()
        for i, bound in enumerate(self._nodes):
            node, call = bound.node, bound.call
            are_terms = all(self._is_term(v, node, found) for v in node.inputs)
            if are_terms and call.formula is SUM:
                found.add(i)
        return found

    def _is_term(self, value: Value, reader: Node, sums: set[int]) -> bool:
        """Is `value` for `reader` alone, and a slice among zeros or one of `sums`?"""
        at = self._maker.get(value.id)
        if at is None or len(value.users) != 1 or value.id in self._published:
            return False
        return (at in sums or self._place(at) is not None) and value.type == reader.outputs[0].type

    def _place(self, at: int) -> Box | None:
        """The part of the result of node `at` that is its operand, among zeros."""
        call = self._nodes[at].call
        if call.op.place is None:
            return None
        return call.op.place(*call.in_types, **call.op.defaults | call.attrs)

    def _terms(self, i: int, found: set[int]) -> tuple[list[int], list[int]]:
        """The slices that sum `i` adds up, and the sums `found` on the way."""
        slices: list[int] = []
        sums: list[int] = []
        waiting = list(self._nodes[i].node.inputs)
        while waiting:
            at = self._maker[waiting.pop().id]
            if at in found:
                sums.append(at)
                waiting += self._nodes[at].node.inputs
            else:
                slices.append(at)
        return slices, sums

    def _concatenated(self, i: int, slices: list[int]) -> BoundNode | None:
        """The slices as one tensor; None if they are not neighbours along one dim that fill it, or
        are overwritten before sum `i`."""
        calls = [self._nodes[at].call for at in slices]
        shape = calls[0].out_types[0].shape
        cut = {d for c in calls for d, n in enumerate(c.in_types[0].shape) if n != shape[d]}
        if len(cut) != 1 or any(self.until(at) < i for at in slices):
            return None
        (dim,) = cut
        boxes = {at: box for at in slices if (box := self._place(at)) is not None}
        slices = sorted(slices, key=lambda at: boxes[at].starts[dim])
        end = 0
        for at in slices:
            if boxes[at].starts[dim] != end:
                return None
            end = boxes[at].stops[dim]
        if end != shape[dim]:
            return None
        bound, attrs = self._nodes[i], {"dim": dim}
        types = tuple(self._nodes[at].call.in_types[0] for at in slices)
        call = bind_alike("concat", types, bound.call.out_types, attrs, self._device)
        node = Node(bound.node.id, "concat", bound.node.placement, attrs)
        inputs: list[Value] = [self._nodes[at].node.inputs[0] for at in slices]
        node.inputs, node.outputs = inputs, bound.node.outputs
        node.stand_for(bound.node)
        return replace(bound, node=node, call=call, view=None)


class _Heads(Line):
    """Concatenations of tensors whose last two dims became one by a copy."""

    def __init__(self, nodes: Sequence[BoundNode], published: frozenset[int], device: str) -> None:
        super().__init__(nodes)
        self._published, self._device = published, device

    def result(self) -> list[BoundNode]:
        made: list[BoundNode] = []
        for i, bound in enumerate(self._nodes):
            copies = self._copies(i) if bound.call.op.joins else None
            made += [bound] if copies is None else self._of_heads(bound, copies)
        read = {v.id for bound in made for v in bound.node.inputs}
        return [b for b in made if not _is_reshaped(b) or self._is_needed(b, read)]

    def _is_needed(self, bound: BoundNode, read: set[int]) -> bool:
        out = bound.node.outputs[0].id
        return out in read or out in self._published

    def _copies(self, i: int) -> list[BoundNode] | None:
        """The reshapes that make the inputs of node `i`, a concatenation; None if they are
        something else.
        """
        node, call = self._nodes[i].node, self._nodes[i].call
        last = call.out_types[0].ndim - 1
        if call.op.joins is None or call.op.joins(*call.in_types, **call.attrs) != last:
            return None
        if node.outputs[0].id in self._published:
            return None
        found = []
        for value in node.inputs:
            at = self._maker.get(value.id, -1)
            bound = self._nodes[at]
            if at < 0 or not _is_reshaped(bound) or self.until(at) < i:
                return None
            heads, flat = bound.call.in_types[0].shape, bound.call.out_types[0].shape
            if len(heads) != len(flat) + 1 or heads[:-2] != flat[:-1]:
                return None
            found.append(bound)
        sizes = {bound.call.in_types[0].shape[-1] for bound in found}
        makers = [self._maker.get(bound.node.inputs[0].id, -1) for bound in found]
        is_moved = any(m >= 0 and _is_moved(self._nodes[m]) for m in makers)
        return found if is_moved and len(sizes) == 1 else None

    def _of_heads(self, bound: BoundNode, copies: list[BoundNode]) -> list[BoundNode]:
        node, (flat,) = bound.node, bound.call.out_types
        types = tuple(c.call.in_types[0] for c in copies)
        shape = (*flat.shape[:-1], sum(t.shape[-2] for t in types), types[0].shape[-1])
        whole, dim = flat.with_shape(shape), {"dim": flat.ndim - 1}
        call = bind_alike("concat", types, (whole,), dim, self._device)
        joined = Node(node.id, "concat", node.placement, dim)
        value = Value(node.outputs[0].id + 4 * OTHER_IDS, whole, joined, 0, None)
        joined.inputs, joined.outputs = [c.node.inputs[0] for c in copies], [value]
        shape_of: Attrs = {"shape": flat.shape}
        again = Node(node.id + 4 * OTHER_IDS, "reshape", node.placement, shape_of)
        again.inputs, again.outputs, value.users = [value], node.outputs, [again]
        for part in (joined, again):
            part.stand_for(node)
        view = bind_alike("reshape", (whole,), (flat,), shape_of, self._device)
        return [
            replace(bound, node=joined, call=call, view=None, members=(*copies, bound)),
            replace(bound, node=again, call=view, view=find_view("reshape")),
        ]


def _is_reshaped(bound: BoundNode) -> bool:
    """Whether it gives its operand another shape: in the same memory, or in a copy."""
    return bound.call.op.is_view and bound.call.op.is_conversion


def _is_moved(bound: BoundNode) -> bool:
    """Whether its elements lie in another order, or apart, in the memory of its operand."""
    return bound.call.op.is_view and not bound.call.op.is_conversion
