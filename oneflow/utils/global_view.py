"""Whole trees of tensors (dicts, lists, tuples) to global and back."""

from __future__ import annotations

import copy as copying
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

from oneflow.core.placement import Placement
from oneflow.core.sbp import Sbp, SbpLike
from oneflow.core.spelling import also_called
from oneflow.distributed.objects import broadcast_as
from oneflow.distributed.world import world
from oneflow.functional.creation import empty
from oneflow.surfaces import accept_paths
from oneflow.tensor.modes import current_global_mode, global_mode
from oneflow.tensor.tensor import Tensor

__all__ = ["current_global_mode", "global_mode", "to_global", "to_local"]

Tree: TypeAlias = object
"""A tensor, a dict, list or tuple of trees, or anything else, which stays as it is."""


def to_global(
    tree: Tree,
    placement: Placement | None = None,
    sbp: SbpLike | Callable[[Tree, Tensor], SbpLike] | None = None,
    warn_on_non_tensor_leaf: bool = True,
    *,
    grad_sbp: SbpLike | None = None,
    check_meta: bool | None = None,
    copy: bool = False,
) -> Any:
    """Every tensor of `tree` made global; other leaves stay, with a warning unless that is turned
    off.

    sbp: an SBP, a list of them, or a function `(tree, tensor) -> sbp`.  grad_sbp, check_meta, copy:
    of `Tensor.to_global`.

    A rank outside the placement takes part with any value, None say: the first rank of the
    placement tells it the form of the tree.
    """
    tree = _with_form(tree, placement)

    def convert(x: Tensor) -> Tensor:
        wanted = sbp(tree, x) if callable(sbp) and not isinstance(sbp, Sbp) else sbp
        return x.to_global(placement, wanted, grad_sbp=grad_sbp, check_meta=check_meta, copy=copy)

    return _walk(tree, convert, warn_on_non_tensor_leaf, "to_global")


def _with_form(tree: Tree, placement: Placement | None) -> Tree:
    """The tree, on a rank outside the placement that of the first rank in it, whose tensors are
    empty there.
    """
    here = world()
    if placement is None or placement.size == here.world_size or _has_global(tree):
        return tree
    first = placement.rank_ids[0]
    form = None
    if here.rank == first:
        form = _walk(tree, lambda _: empty(0, 1), False, "to_global")
    told = broadcast_as(form, first, f"global_view.to_global, form from rank {first}")
    return tree if here.rank in placement else told


def _has_global(tree: Tree) -> bool:
    found: list[bool] = []

    def note(x: Tensor) -> Tensor:
        found.append(x.is_global)
        return x

    _walk(tree, note, False, "to_global")
    return any(found)


@also_called(input="tree")
def to_local(tree: Tree, *, copy: bool = False) -> Any:
    """Every global tensor of `tree` as this rank's part; everything else stays."""
    return _walk(tree, lambda x: x.to_local(copy=copy) if x.is_global else x, False, "to_local")


def _walk(tree: Tree, convert: Callable[[Tensor], Tensor], warn: bool, who: str) -> Any:
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


accept_paths(__name__)
