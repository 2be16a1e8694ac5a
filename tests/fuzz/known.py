"""Differences that the page Differences names, or that PyTorch leaves open, with the reasons."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .drawing import Program
    from .running import Difference

COMPARED = r"\.(eq|ne|not_equal|l[te]|less|less_equal|g[te]|greater|greater_equal|logical_\w+)_\("

# (mode or "", kind or "", pattern of the line, pattern of the text) -> the reason
KNOWN: tuple[tuple[str, str, str, str, str], ...] = (
    ("", "followed|refused", COMPARED, "require gradients|leaf Tensor", "not differentiable"),
    ("", "followed", r"unique", "require gradients", "PyTorch has no derivative of it"),
    ("", "refused", r"\*\* v|pow", "negative", "tensors of integers have no negative powers"),
    ("", "value|type", r"\.where\(", "", "of bools alone the first tensor is the condition"),
    ("", "refused", r"% 0|// 0|(remainder|fmod|divide)_?\(.*\b0\)", "by zero", "said at once"),
)


def is_known(program: Program, difference: Difference) -> bool:
    """Whether a row of KNOWN fits."""
    lines = program.lines[difference.line :][:1] if difference.kind == "refused" else program.lines
    return any(
        mode in ("", difference.mode)
        and (not kind or difference.kind in kind.split("|"))
        and any(re.search(pattern, text) for text in lines)
        and re.search(said, difference.text)
        for mode, kind, pattern, said, _ in KNOWN
    )
