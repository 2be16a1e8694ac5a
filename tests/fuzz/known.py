"""Differences that the page Differences names, or that PyTorch leaves open, with the reasons."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .drawing import Program
    from .running import Difference

MADE = re.compile(r"(v\d+,? ?)+= ")

# (mode or "", kind or "", pattern of the line, pattern of the text) -> the reason
KNOWN: tuple[tuple[str, str, str, str, str], ...] = (
    # -- said by PyTorch, not here
    ("", "accepted", "", "not implemented for '", "PyTorch has no kernel of that dtype"),
    ("", "accepted", r"\bkron\(", "view size is not compatible", "PyTorch views what it cannot"),
    ("", "accepted", r"index_reduce_?\(", "INTERNAL ASSERT FAILED", "nor one of half floats"),
    ("", "accepted", "", "source and destination dtypes match", "what is written is cast"),
    ("", "accepted", "", "with respect to argument 'target'", "here it is"),
    ("", "accepted", "", "same dtype|expected dtype|did not match|but found", "two dtypes meet"),
    (
        "",
        "accepted",
        "",
        "does not support bool|operator, on a bool|a bool input",
        "bools count as numbers",
    ),
    ("", "accepted", "", "condition to be a boolean", "what is not 0 is true"),
    ("", "accepted", "", "Subtraction, the", "True counts as 1 beside numbers"),
    ("", "accepted", "", "either float or double|can't be cast to the desired", "widened here"),
    ("", "accepted", "", "only supports floating|Integer division", "integers become floats"),
    (
        "",
        "accepted",
        "",
        "to have non-zero size|cannot be concatenated|must be non-empty",
        "nothing is an operand",
    ),
    ("", "accepted", "", "unflatten got|must be 1D or 2D", "sizes that fit have a meaning"),
    ("", "accepted", "", "Output size is too small|Padding size 0", "nothing is a result"),
    ("", "accepted", r"(group|instance)_norm\(", "Expected more than 1", "one value is its mean"),
    ("", "accepted", r"avg_pool3d\(", "smaller than kernel size", "padding counts"),
    ("", "accepted", "", "only applicable to index tensor", "bools are positions 0 and 1"),
    ("", "accepted", "", "returns multiple views|Can't detach views", "gradients are right here"),
    ("", "accepted", r"float_power_", "requires dtype Double", "the result is cast"),
    ("", "accepted", r"\bisin\(", r"for isin\(\): Bool", "bools count as numbers"),
    # -- said here, not by PyTorch
    ("", "refused", "", "is out of bounds", "positions are checked also where nothing is read"),
    ("", "refused", r"\.?cum(max|min)\(", "Dimension out of range", "also where nothing is read"),
    ("", "refused", "", "by zero", "said at once"),
    ("", "refused", "", "more than one element of the written-to", "said of all that is expanded"),
    ("", "refused", r"\*\*= True", "can't be cast", "a power of bools is a number"),
    ("", "refused", r"\.cum(sum|prod)_\(", "output type oneflow.bool", "sums of bools are numbers"),
    ("", "refused", r"adaptive_avg_pool", "cannot be called", "a mean of more dims in PyTorch"),
    ("", "backward", "", "modified by an inplace", "compositions keep other values"),
    ("graph", "refused", "", "needs the values|depends on values", "a graph has fixed shapes"),
    ("graph", "refused", "", "has nothing to run", "a program without operands"),
    ("graph", "refused", "", "known only when the graph runs is a copy", "refused, not lost"),
    ("graph", "value|accepted", r"^v\d+ = v\d+\[v\d+\]", "", "x[i] is a copy in a graph"),
    # -- histories
    ("", "followed", r"\b(unique|unique_consecutive|heaviside)_?\(", "", "no derivative of it"),
    ("", "followed", r"grid_sample\(.*'nearest'", "", "the nearest pixel has no slope"),
    (
        "",
        "followed",
        r"(trapezoid|masked_scatter_?|index_reduce_?)\(",
        "",
        "of nothing nothing is read",
    ),
    ("", "followed", r"meshgrid\(", "", "views are other tensors, also of whole ones"),
    # -- types
    ("", "type", r"\*\* |pow\(", "int64.*bool", "a power of bools is a number"),
    ("", "type", r"(huber_loss|soft_margin_loss|with_logits)\(", "float", "the wider dtype"),
    ("", "value|type", r"\bv\d+\.where\(", "", "of bools alone the first is the condition"),
    (
        "global",
        "value",
        r" [*/@]=? |div|mul|mm\(|mv\(|dot\(",
        r"is np.\w+\(nan.*\(-?inf",
        "part by part",
    ),
    # -- values: infinities, NaN and ties
    ("", "value", r"atan2|arctan2", r"3.14", "the sign of a 0"),
    ("", "value|gradient", "", r"is np.\w+\(-?inf\), PyTorch's np.\w+\(-?inf", "the sign of a 0"),
    ("", "value", r"(hardswish|mish|logaddexp2?|hypot)_?\(", r"PyTorch's np.\w+\(nan", "the limit"),
    (
        "",
        "value",
        r"cosine_similarity\(",
        r"is np.float\d+\(0.0\), .*\(nan",
        "of rows without length",
    ),
    ("", "type", r"pixel_unshuffle\(", r"\[(\d+, )*0\b", "the formula holds without elements"),
    ("", "type", r"\bcdist\(", r"\[(\d+, )*0\b", "the dtype in which two meet"),
    ("", "type", r"trapezoid\(", "PyTorch's (int64|bool)", "single numbers have no trapezoid"),
    (
        "",
        "value",
        r"\*\*=? 0.5|pow_?\(0.5",
        r"\(nan\), .*\(inf\)",
        "the root of -inf, in any dtype",
    ),
    (
        "",
        "gradient",
        r"_reduce_?\(.*'am(ax|in)'.*include_self=False",
        "",
        "ties with what is left out",
    ),
    ("", "value", r"\b(var|std)_mean\(", r"is np.\w+\(-?inf\), .*\(nan", "of an infinite row"),
    ("", "value", r"trapezoid\(", r"\(nan|int", "exact, or infinite"),
    ("", "value", r"\bmode\(", r"PyTorch's np.\w+\(nan", "NaN equals nothing"),
    ("", "gradient", r"\.(un)?squeeze_\(|transpose_\(|\bt_\(", "none, PyTorch the", "of before"),
    ("", "gradient", r"dist\(.*inf|embedding_bag\(.*'max'", "", "ties share"),
    (
        "",
        "gradient",
        r"(max|min|margin_loss|norm|\bdist|copysign_?|fake_quantize\w+)\(",
        r"\((?!nan).*\(nan",
        "only to extremes",
    ),
    ("", "gradient", r"a(rc)?tan2_?\(", r"PyTorch's np.\w+\(-?\d\d", "minus an unsigned integer"),
    ("", "gradient", r"soft_margin_loss\(", "", "minus an unsigned integer"),
    ("", "gradient", r"fft|\b(\w+_)?solve(_\w+)?\(", r"nan", "sums of infinities"),
    ("", "gradient", "", r"is np.\w+\(nan\), .*\(-?inf\)", "no number either way"),
    ("", "gradient", "", r"is np.\w+\(-?inf\), .*\(nan\)", "no number either way"),
    ("", "gradient", r"grid_sample\(", r"nan", "infinity times a weight of 0"),
    ("", "refused", r"as_strided", "is a view without elements", "it lies nowhere"),
    ("", "gradient", r"psi|digamma", r"is np.\w+\((-?inf|nan)", "infinite at poles"),
    ("", "value|gradient", r"kl_div|cross_entropy", "nan", "left out: 0"),
    ("", "gradient", r"\.(copy_|fill_|zero_)\(", r"PyTorch's np.\w+\(nan", "overwritten: none"),
    ("", "gradient", r"\*\* |pow\(", r"PyTorch's np.\w+\(nan", "a slope of 0 is 0"),
)


def is_known(program: Program, difference: Difference) -> bool:
    """Whether a row of KNOWN fits: the line that was refused, or gave a value, or one that wrote
    into it; any line for what the whole program shows."""
    lines = program.lines
    if difference.kind == "refused":
        lines = (lines[difference.line],)
    elif difference.kind in ("value", "type"):
        made = (i for i in range(len(lines)) if i == difference.line or not MADE.match(lines[i]))
        lines = tuple(lines[i] for i in made)
    return any(
        mode in ("", difference.mode)
        and (not kind or difference.kind in kind.split("|"))
        and any(re.search(pattern, text) for text in lines)
        and re.search(said, difference.text)
        for mode, kind, pattern, said, _ in KNOWN
    )
