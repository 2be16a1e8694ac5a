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
    ("graph", "refused", "", "needs the values|depends on values", "a graph has fixed shapes"),
    ("graph", "refused", "", "has nothing to run", "a program without operands"),
    ("", "accepted", "", "not implemented for '", "PyTorch has no kernel of that dtype"),
    ("", "accepted", "", "source and destination dtypes match", "what is written is cast"),
    ("", "accepted", "", "not differentiable with respect to argument 'target'", "here it is"),
    ("", "", r"unfold|as_strided\(", "", "writes to elements that are one in memory are undefined"),
    ("", "refused", "", "cannot be written to|more than one element", "said of empty ones, too"),
    ("", "accepted", "", "to have non-zero size|expected dtype", "has a meaning here"),
    ("", "accepted", r"float_power_", "requires dtype Double", "the result is cast"),
    ("", "accepted", r"trapezoid|isin|one_hot|where|cumul", "", "bools count as numbers"),
    ("", "accepted", "", "Can't detach views in-place", "there is nothing to detach from"),
    ("", "backward", "", "modified by an inplace", "composites keep other values than PyTorch's"),
    ("", "type", r"huber_loss|soft_margin|with_logits", "", "losses of two dtypes: the wider"),
    ("", "", r"trapezoid", "", "sums of integers are exact, and single numbers have no trapezoid"),
    ("", "gradient", r"psi|digamma", "inf", "infinite at poles, where PyTorch has large numbers"),
    ("", "gradient", r"kl_div|cross_entropy", "nan", "what is left out of a loss gets 0, not NaN"),
    ("", "value|gradient", r"(var|std)", "nan", "the mean of an infinite row is infinite"),
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
