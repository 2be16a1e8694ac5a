"""Warnings of settings that scripts may make and that change nothing here."""

from __future__ import annotations

import warnings

_said: set[str] = set()


class NoEffectWarning(UserWarning):
    """A setting that has no effect here; the text says why."""


def without_effect(setting: str, reason: str) -> None:
    """Warn the first time in this process that `setting` is made; `reason` is a clause."""
    if setting not in _said:
        _said.add(setting)
        warnings.warn(f"{setting} has no effect: {reason}", NoEffectWarning, stacklevel=3)
