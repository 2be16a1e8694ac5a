"""Nested lists, tuples, dicts and dataclasses of tensors: the inputs and outputs of a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

from oneflow.tensor.tensor import Tensor

Tree: TypeAlias = object
"""A tensor, a list, tuple, dict or dataclass of trees, or anything else: a leaf."""

PLAIN = frozenset((Tensor, list, tuple, dict, type(None), bool, int, float, str))
"""Kinds that are no dataclasses, told apart at once: each step of a graph walks its arguments."""


def record_of(tree: Tree) -> dict[str, Any] | None:
    """The arguments that make a dataclass like `tree`, in their order; None for anything else.

    It is asked before whether `tree` is a dict: outputs of diffusers and transformers are both.
    """
    if not is_dataclass(tree) or isinstance(tree, type):
        return None
    return {field.name: getattr(tree, field.name) for field in fields(tree) if field.init}


def flatten(tree: Tree, path: str = "") -> list[tuple[str, Any]]:
    """(path, leaf) in a fixed order; a path looks like `.0.x`."""
    if type(tree) not in PLAIN and (record := record_of(tree)) is not None:
        return flatten(record, path)
    if isinstance(tree, (list, tuple)):
        return [leaf for i, item in enumerate(tree) for leaf in flatten(item, f"{path}.{i}")]
    if isinstance(tree, dict):
        return [leaf for key, item in tree.items() for leaf in flatten(item, f"{path}.{key}")]
    return [(path, tree)]


def map_tensors(tree: Tree, function: Callable[[Tensor], Any]) -> Any:
    """The same structure with every tensor replaced; other leaves stay."""
    return map_leaves(tree, lambda x: function(x) if isinstance(x, Tensor) else x)


def map_leaves(tree: Tree, function: Callable[[Any], Any]) -> Any:
    """The same structure with every leaf replaced, but those of dataclasses without tensors."""
    if isinstance(tree, Tensor):
        return function(tree)
    if type(tree) not in PLAIN and (record := record_of(tree)) is not None:
        kind: Any = type(tree)
        return kind(**map_leaves(record, function)) if tensors_of(record) else function(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_leaves(item, function) for item in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_leaves(item, function) for item in tree)
    if isinstance(tree, dict):
        return type(tree)((key, map_leaves(item, function)) for key, item in tree.items())
    return function(tree)


def tensors_of(tree: Tree) -> list[Tensor]:
    return [leaf for _, leaf in flatten(tree) if isinstance(leaf, Tensor)]
