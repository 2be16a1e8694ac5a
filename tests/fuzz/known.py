"""Differences that the page Differences names, or that PyTorch leaves open, with the reasons.

A row names the functions, or the form of the line, and the cause, as far as the text of the
difference tells it. Lines of refusals, values and types are those that were refused, gave the value
or wrote into it; of a gradient any line may be the cause.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .drawing import Program
    from .running import Difference

MADE = re.compile(r"(v\d+,? ?)+= ")
WRITES = r"\w_\(|^v\d+(\[.*\])? ([-+*/@]|\*\*)?= "
"""Lines that write in place."""
OURS_NAN, OURS_NUMBER = r"is np.\w+\(nan\), ", r"is np.\w+\((?!nan)[^)]*\), "
NAN, INFINITE = r"PyTorch's np.\w+\(nan\)", r"PyTorch's np.\w+\(-?inf\)"
NONE = r"\[(\d+, )*0\b"
"""The shape of a tensor without elements."""


def calls(names: str) -> str:
    """The pattern of a line that calls one of some functions, or of their forms in place."""
    return rf"\b({'|'.join(names.split())})_?\("


PRODUCTS = calls("matmul mm mv bmm dot vdot inner tensordot vecdot addmm linear kron outer ger")
SUBTRACTIONS = calls("sub subtract rsub l1_loss tanhshrink dist pairwise_distance diff") + r"| -=? "

# (mode or "", kind or "", pattern of the line, pattern of the text) -> the reason
KNOWN: tuple[tuple[str, str, str, str, str], ...] = (
    # -- said by PyTorch, not here
    (
        "",
        "accepted",
        "",
        r"not implemented for '(Half|BFloat16|Bool|Byte|Char|Short|Int|Long)'",
        "PyTorch has no kernel of that dtype",
    ),
    ("", "accepted", calls("kron"), "view size is not compatible", "PyTorch views what it cannot"),
    ("", "accepted", calls("index_reduce"), "INTERNAL ASSERT FAILED", "nor one of half floats"),
    ("", "accepted", r"\] = ", "source and destination dtypes match", "what is written is cast"),
    ("", "accepted", r"_loss\(", "with respect to argument 'target'", "here it is"),
    (
        "",
        "accepted",
        PRODUCTS + r"| @=? ",
        "same dtype|expected scalar type|expected dtype",
        "products of two dtypes",
    ),
    ("", "accepted", calls("isclose"), "did not match", "two dtypes meet"),
    ("", "accepted", calls("lerp"), "expected dtype", "two dtypes meet"),
    ("", "accepted", r"= \+v", "operator, on a bool", "bools count as numbers"),
    ("", "accepted", calls("topk argmax argmin"), "does not support bool", "False is the smallest"),
    ("", "accepted", calls("trapezoid"), "a bool input", "bools count as numbers"),
    ("", "accepted", calls("where"), "condition to be a boolean", "what is not 0 is true"),
    ("", "accepted", SUBTRACTIONS, "Subtraction, the", "True counts as 1 beside numbers"),
    (
        "",
        "accepted",
        calls("quantile nanquantile"),
        "either float or double|must be non-empty",
        "widened here, or of no rows",
    ),
    ("", "accepted", calls("addcdiv"), "Integer division", "integers become floats"),
    ("", "accepted", calls("cdist"), "only supports floating", "integers become floats"),
    ("", "accepted", calls("cdist"), "expected scalar type", "the dtype in which two meet"),
    ("", "accepted", r"with_logits\(", "Subtraction, the", "True counts as 1 beside numbers"),
    ("", "accepted", calls("cat concat concatenate"), "cannot be concatenated", "numbers join"),
    ("", "accepted", calls("unflatten"), "unflatten got", "sizes that fit have a meaning"),
    (
        "",
        "accepted",
        r"conv\w*\(|pool\w*\(|\bpad\(",
        "Output size is too small|Padding size 0|to have non-zero size|Only zero batch or zero",
        "nothing is an operand and a result, and so is a copy",
    ),
    ("", "accepted", r"(group|instance)_norm\(", "Expected more than 1", "one value is its mean"),
    ("", "accepted", r"avg_pool3d\(", "smaller than kernel size", "padding counts"),
    ("", "accepted", calls("one_hot"), "only applicable to index tensor", "bools are positions"),
    ("", "accepted", WRITES, "returns multiple views", "gradients are right here"),
    ("", "accepted", r"\.detach_\(", "Can't detach views", "gradients are right here"),
    ("", "accepted", r"float_power_\(", "requires dtype Double", "the result is cast"),
    ("", "accepted", calls("isin"), r"for isin\(\): Bool", "bools count as numbers"),
    # -- said here, not by PyTorch
    (
        "",
        "refused",
        r"\w*(gather|scatter|index|take|put|embedding)\w*\(|\[",
        "is out of bounds",
        "positions are checked also where nothing is read",
    ),
    ("", "refused", calls("cummax cummin roll"), "Dimension out of range", "nothing is read"),
    ("", "refused", r" (%|//)=? |(remainder|fmod|divide)_?\(", "by zero", "said at once"),
    ("", "refused", WRITES, "more than one element of the written-to", "all that is expanded"),
    ("", "refused", r"\*\*= True", "can't be cast", "a power of bools is a number"),
    ("", "refused", r"\.cum(sum|prod)_\(", "output type oneflow.bool", "sums of bools are numbers"),
    ("", "refused", r"adaptive_avg_pool", "cannot be called", "a mean of more dims in PyTorch"),
    (
        "",
        "backward",
        r"(_pool\dd|_norm|_loss|_distance|_similarity|_attention|bilinear|kron|cdist|pdist)\(",
        "modified by an inplace operation: (sqrt|mul|matmul|rms_norm|div|scalar_pow|map)_backward",
        "compositions keep other values",
    ),
    (
        "",
        "backward",
        calls("cholesky inverse slogdet det logdet matrix_power pinverse")
        + r"|linalg\.|\b(rnn_tanh|rnn_relu|gru|lstm|tanhshrink|triangular_solve)\(",
        r"inplace operation: (cholesky|recurrent|inv|solve|lu_factor|tanhshrink|qr|svd|eigh)_",
        "factorizations, recurrence and tanhshrink keep other values",
    ),
    ("", "backward", r"\*\*=? 0.5|pow(er)?_?\((.*, )?0.5\)", "operation: sqrt_", "it is sqrt"),
    ("", "backward", calls("cross_entropy"), "cross_entropy_backward", "it reads the logits"),
    (
        "",
        "backward",
        r"\.(fill_|zero_)\(",
        "(reciprocal|exp2|expm1|pow)_backward",
        "its result was overwritten",
    ),
    ("", "backward", r" / ", "scalar_rdiv_backward", "a quotient of a number reads its operand"),
    ("", "backward", calls("matmul") + r"| @ ", "operation: matmul_", "operands are no copies"),
    ("graph", "refused", "", "needs the values|depends on values", "a graph has fixed shapes"),
    ("graph", "refused", "", "is out of bounds", "as above, said when the graph runs"),
    ("graph", "refused", "", "has nothing to run", "a program without operands"),
    ("graph", "refused", "", "known only when the graph runs is a copy", "refused, not lost"),
    ("graph", "value|accepted", r"^v\d+ = v\d+\[v\d+\]", "", "x[i] is a copy in a graph"),
    # -- histories
    ("", "followed", calls("unique unique_consecutive heaviside"), "", "no derivative of it"),
    ("", "followed", r"grid_sample\(.*'nearest'", "", "the nearest pixel has no slope"),
    (
        "",
        "followed",
        calls("trapezoid masked_scatter index_reduce"),
        "",
        "of nothing nothing is read",
    ),
    ("", "followed", calls("meshgrid"), "", "views are other tensors, also of whole ones"),
    # -- types
    ("", "type", r"\*\* |pow\(", "int64.*bool", "a power of bools is a number"),
    ("", "type", r"(huber_loss|soft_margin_loss|with_logits)\(", "float", "the wider dtype"),
    ("", "type", r"pixel_unshuffle\(", NONE, "the formula holds without elements"),
    ("", "type", r"\bcdist\(", NONE, "the dtype in which two meet"),
    ("", "type", r"trapezoid\(", "PyTorch's (int64|bool)", "single numbers have no trapezoid"),
    ("", "value|type", r"\bv\d+\.where\(", "", "of bools alone the first is the condition"),
    # -- values: infinities, NaN and ties
    (
        "global",
        "value",
        PRODUCTS + r"| [*/@]=? |div|mul|_loss\(",
        OURS_NAN + INFINITE,
        "part by part",
    ),
    ("", "value", calls("atan2 arctan2"), r"3.14", "the sign of a 0"),
    (
        "",
        "value|gradient",
        r" //?=? |\*\*|"
        + calls("floor_divide div divide true_divide reciprocal rsqrt sqrt pow log xlogy atanh"),
        r"is np.\w+\(-?inf\), " + INFINITE,
        "the sign of a 0",
    ),
    (
        "",
        "value|gradient",
        calls("hardswish mish gelu logaddexp logaddexp2 hypot"),
        OURS_NUMBER + NAN,
        "the limit",
    ),
    (
        "",
        "value|gradient",
        r"conv\w*\(|\bunfold\(",
        OURS_NUMBER + NAN,
        "PyTorch's kernels multiply infinities by padding",
    ),
    (
        "",
        "value",
        calls("cosine_similarity"),
        r"is np.float\d+\(0.0\), " + NAN,
        "of rows without length",
    ),
    (
        "",
        "value",
        r"\*\*=? (0.5|v\d+)|pow(er)?_?\((.*, )?(0.5|v\d+)\)",
        OURS_NAN + INFINITE,
        "the root of -inf, in any dtype",
    ),
    ("", "value", calls("var_mean std_mean"), r"is np.\w+\(-?inf\), " + NAN, "of an infinite row"),
    ("", "value", calls("trapezoid"), NAN + "|int", "exact, or infinite"),
    ("", "value", calls("mode"), NAN, "NaN equals nothing"),
    # -- gradients
    (
        "",
        "gradient",
        r"_reduce_?\(.*'am(ax|in)'.*include_self=False",
        "",
        "ties with what is left out",
    ),
    ("", "gradient", r"\.((un)?squeeze_|transpose_|t_)\(", "none, PyTorch the", "of before"),
    ("", "gradient", calls("renorm"), r"is np.\w+\(-?0.0\), ", "a norm that is the largest"),
    ("", "gradient", calls("clamp clip"), r"is np.\w+\(0.0\), ", "NaN between bounds, or one"),
    ("", "gradient", calls("kron"), OURS_NUMBER, "PyTorch reads integers after a write"),
    ("", "gradient", calls("as_strided_copy"), OURS_NUMBER, "of memory that a view leaves out"),
    ("", "gradient", calls("gradient"), OURS_NAN, "no weight beside an infinite slope"),
    ("", "gradient", r"soft_margin_loss\(", OURS_NUMBER + INFINITE, "half floats are widened"),
    ("", "gradient", calls("heaviside"), "one, PyTorch the other", "no derivative of it"),
    ("", "gradient", r"dist\(.*inf|embedding_bag\(.*'max'", "", "ties share"),
    (
        "",
        "gradient",
        r"(max|min|margin_loss|norm|\bdist|copysign_?|fake_quantize\w+)\(|_reduce_?\(",
        OURS_NUMBER + NAN,
        "only to extremes",
    ),
    ("", "gradient", calls("atan2 arctan2"), r"PyTorch's np.\w+\(-?\d\d", "minus an unsigned one"),
    ("", "gradient", r"soft_margin_loss\(", r"PyTorch's np.\w+\(-?\d", "minus an unsigned one"),
    (
        "",
        "gradient",
        r"\bfft\.|\b(\w+_)?solve(_\w+)?\(",
        f"{OURS_NAN}|{NAN}",
        "sums of infinities",
    ),
    ("", "gradient", "", OURS_NAN + INFINITE, "no number either way"),
    ("", "gradient", "", r"is np.\w+\(-?inf\), " + NAN, "no number either way"),
    ("", "gradient", calls("grid_sample"), f"{OURS_NAN}|{NAN}", "infinity times a weight of 0"),
    ("", "gradient", r"max_pool\w*\(", r"is np.\w+\(-?0.0\), ", "of a window of -inf alone"),
    ("", "gradient", calls("psi digamma"), r"is np.\w+\((-?inf|nan)", "infinite at poles"),
    ("", "value|gradient", r"(kl_div|cross_entropy)\(", OURS_NUMBER + NAN, "left out: 0"),
    ("", "gradient", calls("kl_div"), OURS_NAN, "of negative targets, also times 0"),
    ("", "value", calls("kl_div"), r"is np.\w+\(-?inf\), " + NAN, "of infinite targets"),
    ("", "gradient", r"\.(copy_|fill_|zero_)\(|\] = ", OURS_NUMBER + NAN, "overwritten: none"),
    ("", "gradient", r"\*\* |pow\(", OURS_NUMBER + NAN, "a slope of 0 is 0"),
    (
        "",
        "gradient",
        calls("nanmean nansum nanmedian var std var_mean std_mean prod renorm norm cumprod"),
        f"{OURS_NAN}|{NAN}",
        "rows with NaN or infinities, by the formula",
    ),
    # -- where nothing lies
    ("", "refused", r"as_strided", "is a view without elements|reaches element", "it lies nowhere"),
)


def is_known(program: Program, difference: Difference) -> bool:
    """Return whether a row of KNOWN fits the difference and the lines that may have caused it."""
    lines = program.lines
    if difference.kind == "accepted":
        lines = lines[-1:]
    elif difference.kind == "refused":
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
