"""The outputs of an FX graph: which are computed by a plan, and which are inputs, constants, or
views that PyTorch makes of either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch.fx

RESHAPING = frozenset(("view", "_unsafe_view", "reshape"))
TURNING = frozenset(("t", "transpose", "permute"))
VIEWS = RESHAPING | TURNING | {"unsqueeze", "squeeze", "alias", "detach"}
"""Operators that show the same numbers: of a computed value, the plan returns the value."""
PARTS = frozenset(("expand", "slice", "select"))
"""Views of inputs besides: of a computed value these could be much smaller than the value."""

View = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


@dataclass
class Route:
    """The source of an output.

    made: its index among the values that the plan computes. given: its index among the inputs.
    Neither: `value` is the output. views: calls that PyTorch makes of the tensor, in their order.
    """

    made: int | None = None
    given: int | None = None
    value: object = None
    views: tuple[View, ...] = ()

    def follow(self, inputs: Sequence[Any], made: Sequence[Any]) -> Any:
        """Return the output."""
        if self.made is not None:
            found = made[self.made]
        elif self.given is not None:
            found = inputs[self.given]
        else:
            return self.value
        for function, args, kwargs in self.views:
            found = function(found, *args, **kwargs)
        return found


def routes_of(nodes: Sequence[torch.fx.Node]) -> tuple[list[Route], list[torch.fx.Node]]:
    """Return the routes of the outputs, and the nodes that the plan is to compute."""
    inputs = {n: i for i, n in enumerate([n for n in nodes if n.op == "placeholder"])}
    wanted: Any = nodes[-1].args[0]
    computed: list[torch.fx.Node] = []
    return [_route(x, inputs, computed) for x in _listed(wanted)], computed


def _listed(outputs: object) -> list[Any]:
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


def _route(
    output: object, inputs: dict[torch.fx.Node, int], computed: list[torch.fx.Node]
) -> Route:
    if type(output).__name__ != "Node":
        return Route(value=output)
    node: Any = output
    root, views = _chain(node, VIEWS | PARTS, TURNING)
    if root in inputs:
        return Route(given=inputs[root], views=views)
    root, views = _chain(node, VIEWS, frozenset())
    if root not in computed:
        computed.append(root)
    return Route(made=computed.index(root), views=views)


def _chain(
    output: torch.fx.Node, followed: frozenset[str], below_reshaped: frozenset[str]
) -> tuple[Any, tuple[View, ...]]:
    """The value of which a node is a view by these operators, and the views, the first one first.
    A view by sizes that another node computes is no such view, and a reshaped value is none of
    those operators but these: a plan's value lies row by row, and turned and reshaped it is a copy.
    """
    node: Any = output
    views: list[View] = []
    is_reshaped = False
    while node.op == "call_function" and str(node.target).startswith("aten."):
        name = str(node.target).split(".")[1]
        if name not in followed or len(node.all_input_nodes) != 1:
            break
        if is_reshaped and name in TURNING - below_reshaped:
            break
        is_reshaped = is_reshaped or name in RESHAPING
        views.append((_strided(name, node.target), node.args[1:], node.kwargs))
        node = node.args[0]
    return node, tuple(reversed(views))


def _strided(name: str, target: Callable[..., Any]) -> Callable[..., Any]:
    """The operator; a view by sizes may copy, as our value can lie otherwise than PyTorch's."""
    import torch

    return torch.ops.aten.reshape.default if name in ("view", "_unsafe_view") else target
