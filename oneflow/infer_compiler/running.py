"""One FX graph of aten operators, run with ours on tensors of ours: in nn.Graph it is traced."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oneflow.core.errors import GraphError
from oneflow.infer_compiler.aten import attention_alone, call_of
from oneflow.infer_compiler.types import our_argument
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    import torch.fx

ABOUT_SIZES = {
    "sym_size.int": lambda x, dim: x.shape[dim],
    "sym_numel.default": lambda x: x.numel(),
}
"""Operators that read a shape, which is known: there is a graph for each."""

ATTENTION = "_scaled_dot_product_flash_attention_for_cpu.default"

DROPPED = frozenset(("layout", "pin_memory", "device", "memory_format", "non_blocking"))
"""Options of PyTorch's operators that mean nothing on a CPU's dense tensors."""


def operator_of(node: torch.fx.Node) -> str | None:
    """`mm.default` of an operator of aten; None of any other function."""
    name = str(node.target)
    return name.removeprefix("aten.") if name.startswith("aten.") else None


def is_ours(node: torch.fx.Node) -> bool:
    """Whether a node can be called with ours: an operator that we have, or Python's."""
    if node.op != "call_function":
        return False
    operator = operator_of(node)
    if operator is None:
        return getattr(node.target, "__module__", "") in ("_operator", "math", "builtins")
    return operator in ABOUT_SIZES or call_of(operator) is not None


class Program:
    """An FX graph as a function of calls that give our tensors.

    constants: tensors that the graph holds, by their attribute. computed: the nodes whose values
    it returns.
    """

    def __init__(
        self,
        nodes: Sequence[torch.fx.Node],
        constants: Mapping[str, Tensor],
        computed: Sequence[torch.fx.Node],
    ) -> None:
        self.nodes, self.constants, self.computed = _needed(nodes, computed), constants, computed
        inputs = [n for n in nodes if n.op == "placeholder"]
        self.places = {node: i for i, node in enumerate(inputs)}
        self.last = {used: node for node in self.nodes for used in node.all_input_nodes}
        for node in computed:
            self.last.pop(node, None)

    def __call__(self, inputs: Sequence[Callable[[], Any]]) -> list[Any]:
        values: dict[torch.fx.Node, Any] = {}
        for node in self.nodes:
            if node.op == "placeholder":
                values[node] = inputs[self.places[node]]()
            elif node.op == "get_attr":
                values[node] = self.constants[str(node.target)]
            else:
                values[node] = _called(node, values)
            for used in node.all_input_nodes:
                if self.last.get(used) is node:
                    del values[used]
        return [values[node] for node in self.computed]


def _needed(
    nodes: Sequence[torch.fx.Node], computed: Sequence[torch.fx.Node]
) -> list[torch.fx.Node]:
    """The nodes that lead to the computed ones. An input stands in front of its first user: a view
    of one that stood before all others would be a copy."""
    needed = set(computed)
    for node in reversed(nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    found: dict[torch.fx.Node, None] = {}
    for node in nodes:
        if node in needed and node.op != "placeholder":
            found.update(dict.fromkeys(n for n in node.all_input_nodes if n.op == "placeholder"))
            found[node] = None
    return list(found)


def _called(node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> Any:
    args = [_filled(x, values) for x in node.args]
    kwargs = {k: _filled(x, values) for k, x in node.kwargs.items()}
    operator = operator_of(node)
    target: Any
    if operator is None:
        target = node.target
    else:
        target = ABOUT_SIZES.get(operator) or call_of(operator)
        if operator == ATTENTION and not _has_statistics(node):
            target = attention_alone
        kwargs = {k: x for k, x in kwargs.items() if k not in DROPPED}
    if target is None:
        raise GraphError(f"oneflow_backend: {node.target} has no counterpart here{place(node)}")
    try:
        return target(*args, **kwargs)
    except Exception as error:
        raise GraphError(
            f"oneflow_backend: {node.target} cannot be compiled{place(node)}: {error}"
        ) from error


def _has_statistics(node: torch.fx.Node) -> bool:
    """Whether a backward pass reads the second output."""
    return any(user.args[1:] != (0,) for user in node.users)


def place(node: torch.fx.Node) -> str:
    """` at model.py:12`, the line of the user's code that led to a node; "" if it is unknown."""
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    return f" at {lines[-1][0]}:{lines[-1][1]}" if lines else ""


def _filled(tree: object, values: Mapping[torch.fx.Node, Any]) -> Any:
    """An argument with the values of its nodes."""
    if isinstance(tree, list | tuple):
        return type(tree)(_filled(x, values) for x in tree)
    if isinstance(tree, dict):
        return {k: _filled(x, values) for k, x in tree.items()}
    if type(tree).__name__ == "Node":
        node: Any = tree
        return values[node]
    return our_argument(tree)
