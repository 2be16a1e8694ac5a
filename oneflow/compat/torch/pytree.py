"""Nested lists, tuples and dicts as leaves and a shape: `torch.utils._pytree`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Node:
    """Functions that take a container apart into (parts, context) and build it again from these."""

    flatten: Callable[[Any], tuple[Iterable[Any], Any]]
    unflatten: Callable[[Any, Any], Any]


@dataclass(frozen=True)
class TreeSpec:
    """The shape of a tree.  kind: class of the container, None for a leaf."""

    kind: type | None
    context: Any
    children: tuple[TreeSpec, ...]

    @property
    def num_leaves(self) -> int:
        return 1 if self.kind is None else sum(c.num_leaves for c in self.children)


def _of_dict(value: Any) -> tuple[Iterable[Any], Any]:
    return list(value.values()), list(value)


def _to_dict(kind: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda parts, keys: kind(zip(keys, parts, strict=True))


SUPPORTED_NODES: dict[type, Node] = {
    tuple: Node(lambda value: (value, None), lambda parts, _: tuple(parts)),
    list: Node(lambda value: (value, None), lambda parts, _: list(parts)),
    dict: Node(_of_dict, _to_dict(dict)),
    OrderedDict: Node(_of_dict, _to_dict(OrderedDict)),
}

_NAMED = Node(lambda value: (value, type(value)), lambda parts, kind: kind(*parts))
_LEAF = TreeSpec(None, None, ())


def register_pytree_node(
    cls: type,
    flatten_fn: Callable[[Any], tuple[Iterable[Any], Any]],
    unflatten_fn: Callable[[Any, Any], Any],
    **_: object,
) -> None:
    """Let trees go through the containers of a class."""
    SUPPORTED_NODES[cls] = Node(flatten_fn, unflatten_fn)


_register_pytree_node = register_pytree_node


def _node(value: object) -> Node | None:
    kind = type(value)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _NAMED
    return SUPPORTED_NODES.get(kind)


def tree_flatten(
    tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[Any], TreeSpec]:
    """The leaves from left to right, and what `tree_unflatten` needs to build the tree again."""
    node = None if is_leaf is not None and is_leaf(tree) else _node(tree)
    if node is None:
        return [tree], _LEAF
    parts, context = node.flatten(tree)
    flat = [tree_flatten(part, is_leaf) for part in parts]
    spec = TreeSpec(type(tree), context, tuple(shape for _, shape in flat))
    return [leaf for leaves, _ in flat for leaf in leaves], spec


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> Any:
    """The tree of that shape with these leaves."""
    given = list(leaves)
    if len(given) != treespec.num_leaves:
        raise ValueError(f"tree_unflatten: {len(given)} leaves for {treespec.num_leaves} places")
    return _build(iter(given), treespec)


def _build(leaves: Any, spec: TreeSpec) -> Any:
    if spec.kind is None:
        return next(leaves)
    parts = [_build(leaves, child) for child in spec.children]
    node = _NAMED if hasattr(spec.kind, "_fields") else SUPPORTED_NODES[spec.kind]
    return node.unflatten(parts, spec.context)


def tree_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves from left to right."""
    return tree_flatten(tree, is_leaf)[0]


def tree_map(
    func: Callable[..., Any],
    tree: Any,
    *rests: Any,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """The tree with func(leaf, leaves of the other trees at its place) in place of each leaf."""
    leaves, spec = tree_flatten(tree, is_leaf)
    columns: Sequence[list[Any]] = [leaves, *(tree_leaves(rest, is_leaf) for rest in rests)]
    return tree_unflatten([func(*row) for row in zip(*columns, strict=True)], spec)


def tree_map_only(kind: Any, func: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with func(leaf) in place of the leaves of a class."""
    return tree_map(lambda leaf: func(leaf) if isinstance(leaf, kind) else leaf, tree)
