"""The user's own source line: of the call that led into this package."""

from __future__ import annotations

import os
import sys

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ROOMS = ("actors", "boxing", "kernels", "launcher", "protos", "scheduler")
_CHECKOUT = os.path.dirname(_PACKAGE)
# The rooms of a checkout are links: their files may be known under either path.
_OURS = (
    _PACKAGE + os.sep,
    *(os.path.join(_CHECKOUT, room) + os.sep for room in _ROOMS),
)
_is_ours: dict[str, bool] = {}


def user_location() -> str:
    """`file:line` of the innermost frame outside this package, or "" if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        ours = _is_ours.get(name)
        if ours is None:
            ours = _is_ours[name] = name.startswith(_OURS) or name.startswith("<frozen")
        if not ours:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
