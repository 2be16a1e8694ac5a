"""A traced graph of a function and its gradients, cut into the graph of each pass.

Values of the forward pass that the backward pass reads are handed over: an output of the one, lent
in its register, is a variable of the other. Views and constants are made again instead, and the
caller's own, inputs and variables that nothing overwrites, are read where they lie.
"""

from __future__ import annotations

from dataclasses import dataclass

from oneflow.core.graph import BACKWARD, LogicalGraph, Node, Value
from oneflow.scheduler.compiler.rewrite.dedupe import erase_dead

GRAD, SAVED = "grad.", "saved."
"""Prefixes of the names of inputs of the backward pass: gradients of outputs, and saved values.
"""


@dataclass
class Passes:
    """The graphs of both passes.

    saved: the index of the output of `forward` that is the variable `saved.i` of `backward`.  read:
    the results of the function that are among these values.
    """

    forward: LogicalGraph
    backward: LogicalGraph
    saved: list[int]
    read: list[int]


def cut(graph: LogicalGraph, num_outputs: int) -> Passes:
    """Cuts a graph of which the first outputs are those of the function, and the others gradients
    of its operands.
    """
    later = {n.id for n in graph if n.phase == BACKWARD or _is_gradient(n)}
    later |= {n.id for n in graph.of_kind("output") if int(n.attrs["index"]) >= num_outputs}
    again, handed = _borders(graph, later)
    forward, saved = _forward(graph, later, handed, num_outputs)
    read = [
        int(n.attrs["index"])
        for n in graph.of_kind("output")
        if int(n.attrs["index"]) < num_outputs and n.inputs[0] in handed
    ]
    return Passes(forward, _backward(graph, later | again, handed, num_outputs), saved, read)


def _is_gradient(node: Node) -> bool:
    return node.op == "input" and str(node.attrs["name"]).startswith(GRAD)


def _borders(graph: LogicalGraph, later: set[int]) -> tuple[set[int], list[Value]]:
    """The nodes of the forward pass that the backward pass has, too, and the values that are handed
    over.
    """
    again: set[int] = set()
    handed: dict[int, Value] = {}
    waiting = [v for n in graph if n.id in later for v in n.inputs]
    while waiting:
        value = waiting.pop()
        node = value.node
        if node.id in later or node.id in again or value.id in handed:
            continue
        if _is_made_again(node):
            again.add(node.id)
            waiting += node.inputs
        else:
            handed[value.id] = value
    return again, [handed[i] for i in sorted(handed)]


def _is_made_again(node: Node) -> bool:
    if node.op == "input":
        return True
    if node.op == "variable":
        return not any(user.overwrites(v) for v in node.outputs for user in v.users)
    if node.is_structural:
        return False
    is_constant = not node.inputs and not node.declared.is_random
    return not node.has_effect and (node.declared.is_view or is_constant)


def _forward(
    graph: LogicalGraph, later: set[int], handed: list[Value], num_outputs: int
) -> tuple[LogicalGraph, list[int]]:
    made = graph.copied()
    values = {v.id: v for n in made for v in n.outputs}
    saved = list(range(num_outputs, num_outputs + len(handed)))
    for value, index in zip(handed, saved, strict=True):
        twin = values[value.id]
        attrs = {"index": index, "lent": twin.node.op != "variable"}
        node = made.append("output", [twin], [], twin.placement, attrs)
        node.stand_for(twin.node)
    for node in reversed(list(made)):
        is_unread = node.op == "input" and not node.outputs[0].users and made.num_nodes > 1
        if node.id in later or is_unread:
            made.erase(node)
    erase_dead(made)
    return made, saved


def _backward(
    graph: LogicalGraph, kept: set[int], handed: list[Value], num_outputs: int
) -> LogicalGraph:
    made = graph.copied()
    nodes = list(made)
    values = {v.id: v for n in nodes for v in n.outputs}
    for i, value in enumerate(handed):
        old = values[value.id]
        name = {"name": f"{SAVED}{i}"}
        node = made.insert(nodes[0], "variable", [], [old.type], old.placement, name, sbp=[old.sbp])
        node.stand_for(old.node)
        made.replace_uses(old, node.outputs[0])
    for node in reversed(nodes):
        if node.id not in kept:
            made.erase(node)
            continue
        node.grad_of = -1
        if node.op == "output":
            node.attrs = {"index": int(node.attrs["index"]) - num_outputs}
        is_read = any(v.users for v in node.outputs)
        if node.op in ("input", "variable") and not (is_read or _is_gradient(node)):
            made.erase(node)
    erase_dead(made)
    return made
