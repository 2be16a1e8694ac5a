"""Whole trees of tensors (dicts, lists, tuples) to global and back."""

from __future__ import annotations

import copy as copying
import warnings
from collections.abc import Callable
from typing import Any

from oneflow.core.sbp import Sbp
from oneflow.tensor.modes import current_global_mode, global_mode
from oneflow.tensor.tensor import Tensor

__all__ = ["current_global_mode", "global_mode", "to_global", "to_local"]


def to_global(
    tree: Any,
    placement: Any = None,
    sbp: Any = None,
    warn_on_non_tensor_leaf: bool = True,
    **options: Any,
) -> Any:
    """Every tensor of `tree` made global; other leaves stay, with a warning unless that is turned
    off.

    sbp: an SBP, a list of them, or a function `(tree, tensor) -> sbp`.  options: of
    `Tensor.to_global`.
    """

    def convert(x: Tensor) -> Tensor:
        wanted = sbp(tree, x) if callable(sbp) and not _is_sbp(sbp) else sbp
        made: Tensor = x.to_global(placement=placement, sbp=wanted, **options)
        return made

    return _walk(tree, convert, warn_on_non_tensor_leaf, "to_global")


def to_local(tree: Any, *, copy: bool = False) -> Any:
    """Every global tensor of `tree` as this rank's part; everything else stays."""
    return _walk(tree, lambda x: x.to_local(copy=copy) if x.is_global else x, False, "to_local")


def _is_sbp(value: Any) -> bool:
    return isinstance(value, Sbp)


def _walk(tree: Any, convert: Callable[[Tensor], Any], warn: bool, who: str) -> Any:
    if isinstance(tree, Tensor):
        return convert(tree)
    if isinstance(tree, dict):
        new = copying.copy(tree)  # keeps what a subclass knows beside its items
        new.update({k: _walk(v, convert, warn, who) for k, v in tree.items()})
        return new
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_walk(v, convert, warn, who) for v in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(_walk(v, convert, warn, who) for v in tree)
    if warn and tree is not None:
        warnings.warn(f"{who}: a leaf of type {type(tree).__name__} stays as it is", stacklevel=3)
    return tree
