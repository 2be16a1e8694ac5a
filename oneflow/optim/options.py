"""Options of optimizers that choose among PyTorch's implementations of one update.

They are accepted and kept, so that state dicts go from one library to the other. `foreach`,
`fused` and `capturable` change nothing: a group is updated in one pass, and graphs capture every
update. `differentiable` would change something, so it warns.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, TypedDict

EVERY_OPTION = ("foreach", "capturable", "differentiable", "fused")
UNFUSED = EVERY_OPTION[:3]

_warned: set[str] = set()


class Settings(TypedDict, total=False):
    """The options that no optimizer takes by position, as keywords."""

    capturable: bool
    differentiable: bool


class Unfused(Settings, total=False):
    """Those of an optimizer that PyTorch has no fused form of."""

    foreach: bool | None


class Implementation(Unfused, total=False):
    """All of them."""

    fused: bool | None


def implementation(given: Mapping[str, object], *names: str) -> dict[str, Any]:
    """The options `names`, as given or PyTorch's defaults. Raises TypeError for others."""
    for name in given:
        if name not in names:
            raise TypeError(f"unexpected keyword argument {name!r}; options here: {names}")
    if given.get("foreach") and given.get("fused"):
        raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
    default: dict[str, Any] = {"capturable": False, "differentiable": False}
    return {name: given.get(name, default.get(name)) for name in names}


def warn_of_effects(options: Mapping[str, Any]) -> None:
    """Warn once that no gradient goes through an update."""
    if options.get("differentiable") and "differentiable" not in _warned:
        _warned.add("differentiable")
        warnings.warn(
            "differentiable=True has no effect: updates are made in place, without a gradient",
            stacklevel=4,
        )
