"""Overwriting a tensor."""

from __future__ import annotations

from typing import Any

from oneflow.kernels.registry import kernel


@kernel("assign")
def assign(xp: Any, out: Any, x: Any, new: Any) -> None:
    """out is x itself."""
    xp.copyto(out, new)
