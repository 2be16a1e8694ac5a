"""Switches of `flow.backends`: attributes that can be set, each with the truth about itself."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType

from oneflow.core.no_effect import without_effect


class _Switches(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        reason = self.__dict__["_reasons"].get(name)
        if reason is not None and value != self.__dict__[name]:
            without_effect(f"{self.__name__}.{name}", reason)
        super().__setattr__(name, value)


def declare_switches(module: str, reasons: Mapping[str, str]) -> None:
    """Let a module warn once when one of its attributes, the keys of `reasons`, is set to something
    else. A script reads back its own value.
    """
    here = sys.modules[module]
    here.__dict__["_reasons"] = reasons
    here.__class__ = _Switches
