"""Differences that the page Differences names, or that PyTorch leaves open, with the reasons."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .drawing import Program
    from .running import Difference

# (mode or "", kind or "", pattern of the line, pattern of the text) -> the reason
KNOWN: tuple[tuple[str, str, str, str, str], ...] = (
    ("", "followed", r"unique|heaviside", "require gradients", "PyTorch has no derivative of it"),
    ("", "followed", r"tensor\(\[\]", "", "of nothing nothing is read"),
    ("", "", r"with_logits", "nan|inf", "infinite targets"),
    ("", "value", r"logcumsumexp", "inf", "the sign of a 0"),
    ("", "type", r"\*\* True|pow\(", "int64", "a power of bools is a number"),
    ("", "refused", "", "is out of bounds", "positions are checked also where nothing is read"),
    ("global", "value|gradient", "", r"is np.\w+\(nan", "the partial sum of an infinite one"),
    ("graph", "refused", "", "needs the values|depends on values", "a graph has fixed shapes"),
    ("graph", "refused", "", "has nothing to run", "a program without operands"),
    ("", "accepted", "", "not implemented for '", "PyTorch has no kernel of that dtype"),
    ("", "accepted", "", "source and destination dtypes match", "what is written is cast"),
    ("", "accepted", "", "not differentiable with respect to argument 'target'", "here it is"),
    ("", "", r"unfold|as_strided", "", "writes to elements that are one in memory are undefined"),
    ("", "refused", "", "cannot be written to|more than one element", "said of empty ones, too"),
    ("", "accepted", "", "to have non-zero size|expected dtype", "has a meaning here"),
    ("", "accepted", "", "same dtype|cannot be concatenated|does not support bool", "it has one"),
    ("", "accepted", "", "either float or double|can't be cast to the desired", "widened here"),
    ("", "accepted", "", "returns multiple views", "gradients of parts are right here"),
    ("", "refused", r"detach_", "Can't detach views", "results of a reshape are views here"),
    ("", "accepted", "", "only supports floating|Integer division", "integers become floats"),
    ("", "accepted", "", "Subtraction, the", "True counts as 1 beside numbers"),
    ("graph", "refused", "", "known only when the graph runs is a copy", "refused, not lost"),
    ("graph", "value", r"^v\d+ = v\d+\[v\d+\]", "", "x[i] is a copy in a graph"),
    (
        "",
        "gradient",
        r"hardtanh|relu6|elu\(|gelu|mish|arctan2|softshrink|hardshrink",
        "",
        "at NaN PyTorch's answer depends on the size",
    ),
    ("", "aliasing|type|value", r"sum_to_size", "", "nothing to sum: the tensor itself, bools too"),
    ("", "value|gradient", "", r"is np.\w+\(-?inf\), PyTorch's np.\w+\(-?inf\)", "the sign of a 0"),
    ("", "gradient", r"nanmean|nansum| % |remainder|fmod|amax|amin", "nan", "of a row with NaN"),
    (
        "",
        "aliasing",
        r"contiguous|ravel|flatten|reshape",
        "",
        "results lie in row-major order here",
    ),
    ("", "value", r"atan2|arctan2", r"3.14", "the sign of a 0"),
    ("", "value", r"cosine_similarity|corrcoef|cov\(", "nan", "of rows without length"),
    (
        "",
        "accepted",
        "",
        "did not match|but found|unflatten got|must be 1D or 2D",
        "has a meaning here",
    ),
    ("", "refused|type", r"tensor\(\[\]", "expand|reshape|64", "of nothing"),
    ("", "refused", r"\*\*= True", "can't be cast", "a power of bools is a number"),
    ("", "followed", r"meshgrid", "", "views are other tensors, also of whole ones"),
    ("", "gradient", r"logaddexp|hardswish", "nan|inf", "slopes at infinite numbers"),
    ("", "value", r"hardswish", "nan", "0 at minus infinity"),
    ("", "accepted", "", "operator, on a bool tensor", "+x is x"),
    (
        "",
        "gradient",
        r"(quantile|_reduce|kthvalue|topk|median|\bmode|sort)\(",
        "",
        "which of equal ones",
    ),
    ("", "accepted", r"float_power_", "requires dtype Double", "the result is cast"),
    ("", "accepted", r"trapezoid|isin|one_hot|where|cumul", "", "bools count as numbers"),
    ("", "accepted", "", "Can't detach views in-place", "there is nothing to detach from"),
    ("", "backward", "", "modified by an inplace", "composites keep other values than PyTorch's"),
    ("", "type", r"huber_loss|soft_margin|with_logits", "", "losses of two dtypes: the wider"),
    ("", "", r"trapezoid", "", "sums of integers are exact, and single numbers have no trapezoid"),
    (
        "",
        "gradient",
        r"psi|digamma",
        "inf|nan",
        "infinite at poles, where PyTorch has large numbers",
    ),
    (
        "",
        "value|gradient",
        r"kl_div|cross_entropy",
        "nan",
        "what is left out of a loss gets 0, not NaN",
    ),
    (
        "",
        "value|gradient",
        r"\b(var|std)(_mean)?\(",
        "nan",
        "the mean of an infinite row is infinite",
    ),
    ("", "value|type", r"\.where\(", "", "of bools alone the first tensor is the condition"),
    ("", "refused", r"% 0|// 0|(remainder|fmod|divide)_?\(.*\b0\)", "by zero", "said at once"),
)


def is_known(program: Program, difference: Difference) -> bool:
    """Whether a row of KNOWN fits."""
    at = difference.line if difference.kind == "refused" else -1
    lines = [program.lines[at]] if at >= 0 else program.source().split("\n")
    return any(
        mode in ("", difference.mode)
        and (not kind or difference.kind in kind.split("|"))
        and any(re.search(pattern, text) for text in lines)
        and re.search(said, difference.text)
        for mode, kind, pattern, said, _ in KNOWN
    )
