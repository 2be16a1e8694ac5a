"""Options of optimizers that choose among PyTorch's implementations of one update.

They are accepted and kept, so that state dicts go from one library to the other. None of them
changes anything, and each says so once where it is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from oneflow.core.no_effect import without_effect

EVERY_OPTION = ("foreach", "capturable", "differentiable", "fused")
UNFUSED = EVERY_OPTION[:3]

ONE_PASS = "a group is updated in one pass anyway"
NO_EFFECT = {
    "foreach": ONE_PASS,
    "fused": ONE_PASS,
    "capturable": "graphs capture every update",
    "differentiable": "updates are made in place, without a gradient",
}


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
    """Warn once of each option that is set and changes nothing here."""
    for name, reason in NO_EFFECT.items():
        if options.get(name):
            without_effect(f"{name}=True of an optimizer", reason)
