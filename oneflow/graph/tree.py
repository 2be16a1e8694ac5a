"""Nested lists, tuples and dicts of tensors: what goes into a graph and comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from oneflow.tensor.tensor import Tensor

Tree: TypeAlias = object
"""A tensor, a list, tuple or dict of trees, or anything else: a leaf."""


def flatten(tree: Tree, path: str = "") -> list[tuple[str, Any]]:
    """(path, leaf) in a fixed order; a path looks like `.0.x`."""
    if isinstance(tree, (list, tuple)):
        return [leaf for i, item in enumerate(tree) for leaf in flatten(item, f"{path}.{i}")]
    if isinstance(tree, dict):
        return [leaf for key, item in tree.items() for leaf in flatten(item, f"{path}.{key}")]
    return [(path, tree)]


def map_tensors(tree: Tree, function: Callable[[Tensor], Any]) -> Any:
    """The same structure with every tensor replaced; other leaves stay."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(item, function) for item in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_tensors(item, function) for item in tree)
    if isinstance(tree, dict):
        return type(tree)((key, map_tensors(item, function)) for key, item in tree.items())
    return tree


def tensors_of(tree: Tree) -> list[Tensor]:
    return [leaf for _, leaf in flatten(tree) if isinstance(leaf, Tensor)]
