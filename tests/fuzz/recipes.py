"""Recipes for calls of the functions of the public table: the arguments after the first operand.

A recipe is drawn for a value x and gives texts of arguments. Traits say how it may differ:

    moves    the result's numbers are numbers of the operands
    algebra  sums and products: exact where the numbers are few and small
    jumps    a last bit may decide, so that operands must be exact
    compares a target in place has no history
    edges    the same at the ends of its domain, and the result is rounded
    spread   ill-conditioned where the rows of the operand are nearly constant
    divides  a divisor that is 0 but for rounding decides
    ties     PyTorch leaves open which of equal elements is named: the first result alone counts
    ends     the gradient at NaN depends on the length of the vector in PyTorch: none are drawn
    order    PyTorch leaves open which of equal elements gets the gradient: none are drawn
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .drawing import Draft, name_of

Arguments = Callable[[Draft, str], list[str]]
Operand = Callable[[Draft], str]


@dataclass(frozen=True)
class Recipe:
    """A recipe for calls of one function of a value."""

    arguments: Arguments
    traits: frozenset[str] = frozenset()
    floats: bool = False
    min_dims: int = 0
    listed: bool = False
    """Is the operand one of the arguments, in a list or not in the first place?"""
    own: Operand | None = None
    """Draws the operand, a leaf of its own or an expression of one, if not any value will do."""
    result: str = "{}"
    """The part of the result that is kept."""


RECIPES: dict[str, list[Recipe]] = {}
"""Recipes by names; a name after `linalg.`, `fft.` or `F.` is that of this surface alone."""


def recipe(
    names: str,
    arguments: Arguments,
    traits: str = "",
    *,
    floats: bool = False,
    min_dims: int = 0,
    listed: bool = False,
    own: Operand | None = None,
    result: str = "{}",
) -> None:
    kinds = frozenset(traits.split())
    result = "{}[0]" if "ties" in kinds else result
    made = Recipe(arguments, kinds, floats, min_dims, listed, own, result)
    for name in names.split():
        RECIPES.setdefault(name, []).append(made)


def nothing(d: Draft, x: str) -> list[str]:
    return []


def partner(d: Draft, x: str) -> list[str]:
    return [d.partner(x)]


def exact_partner(d: Draft, x: str) -> list[str]:
    return [d.partner(x, exact=True)]


def partner_or_number(d: Draft, x: str) -> list[str]:
    return [d.number(x) if d.chance(0.35) else d.partner(x)]


def exact_partner_or_number(d: Draft, x: str) -> list[str]:
    return [d.number(x) if d.chance(0.35) else d.partner(x, exact=True)]


def with_alpha(d: Draft, x: str) -> list[str]:
    return [*partner_or_number(d, x), *d.optional("alpha=2")][: 2 if d.chance(0.3) else 1]


def a_dim(d: Draft, x: str) -> list[str]:
    return [d.dim(x)]


def perhaps_dim(d: Draft, x: str) -> list[str]:
    return [] if d.chance(0.4) else [d.dim(x)]


def dims_and_keep(d: Draft, x: str) -> list[str]:
    if d.chance(0.3):
        return []
    dims = d.dims(x) if d.chance(0.4) else d.dim(x)
    return [dims, *d.optional("keepdim=True")]


def dim_and_keep(d: Draft, x: str) -> list[str]:
    return [] if d.chance(0.3) else [d.dim(x), *d.optional("keepdim=True")]


def must_dim_and_keep(d: Draft, x: str) -> list[str]:
    return [d.dim(x), *d.optional("keepdim=True")]


def sum_arguments(d: Draft, x: str) -> list[str]:
    return [*dims_and_keep(d, x), *(["dtype=m.float64"] if d.chance(0.1) else [])]


def var_arguments(d: Draft, x: str) -> list[str]:
    found = dims_and_keep(d, x)
    return [*found, *(["correction=0"] if found and d.chance(0.4) else [])]


def shape_of_same_size(d: Draft, x: str) -> list[str]:
    left = d.values[x].numel()
    sizes: list[int] = []
    while left > 1 and len(sizes) < 4:
        divisors = [k for k in range(1, left + 1) if left % k == 0]
        sizes.append(d.pick(divisors))
        left //= sizes[-1]
    sizes.append(left)
    if d.chance(0.3) and d.values[x].numel():
        sizes[d.rng.randrange(len(sizes))] = -1
    if d.chance(0.02):
        sizes.append(3)
    return [str(tuple(sizes))]


def permutation(d: Draft, x: str) -> list[str]:
    dims = list(range(d.values[x].ndim))
    d.rng.shuffle(dims)
    return [str(tuple(dims))]


def two_dims(d: Draft, x: str) -> list[str]:
    return [d.dim(x), d.dim(x)]


def flattened(d: Draft, x: str) -> list[str]:
    rank = d.values[x].ndim
    if d.chance(0.4) or not rank:
        return []
    start = d.rng.randint(0, rank - 1)
    return [str(start), str(d.rng.randint(start, rank - 1))]


def unflattened(d: Draft, x: str) -> list[str]:
    dim = d.dim(x)
    size = d.size(x, dim)
    divisors = [k for k in range(1, size + 1) if size % k == 0] or [1]
    first = d.pick(divisors)
    return [dim, str((first, -1 if size and d.chance(0.3) else size // first))]


def wider_shape(d: Draft, x: str) -> list[str]:
    shape = d.values[x].shape
    sizes = [d.pick((1, 2, 3)) if s == 1 else (-1 if d.chance(0.2) else int(s)) for s in shape]
    if d.chance(0.3):
        sizes = [d.pick((1, 2)), *sizes]
    return [str(tuple(sizes))]


def repeats(d: Draft, x: str) -> list[str]:
    rank = d.values[x].ndim + (1 if d.chance(0.2) else 0)
    return [str(tuple(d.pick((1, 1, 2, 3)) for _ in range(rank)))]


def unsqueezed(d: Draft, x: str) -> list[str]:
    rank = d.values[x].ndim
    return [str(d.rng.randint(-rank - 1, rank))]


def rolled(d: Draft, x: str) -> list[str]:
    if d.chance(0.3):
        return [str(d.rng.randint(-3, 3))]
    return [str(d.rng.randint(-3, 3)), d.dim(x)]


def offset_and_dims(d: Draft, x: str) -> list[str]:
    rank = d.values[x].ndim
    first, second = d.rng.sample(range(rank), 2)
    return [str(d.rng.randint(-1, 1)), *([str(first), str(second)] if d.chance(0.5) else [])]


def an_offset(d: Draft, x: str) -> list[str]:
    return [] if d.chance(0.4) else [str(d.rng.randint(-2, 2))]


def section(d: Draft, x: str) -> list[str]:
    dim = d.dim(x)
    size = d.size(x, dim)
    start = d.rng.randint(0, max(size - 1, 0))
    return [dim, str(start), str(d.rng.randint(0, size - start))]


def position(d: Draft, x: str) -> list[str]:
    dim = d.dim(x)
    size = max(d.size(x, dim), 1)
    return [dim, str(d.rng.randint(-size, size - 1))]


def split_size(d: Draft, x: str) -> list[str]:
    dim = d.dim(x)
    size = d.size(x, dim)
    if d.chance(0.4) and size:
        first = d.rng.randint(0, size)
        return [str([first, size - first]), dim]
    return [str(max(1, d.rng.randint(1, max(size, 1)))), dim]


def chunks(d: Draft, x: str) -> list[str]:
    return [str(d.pick((1, 2, 3))), d.dim(x)]


def halves(d: Draft, x: str) -> list[str]:
    return [str(d.pick((1, 2)))]


def others(d: Draft, x: str) -> list[str]:
    """Tensors beside x in a list, and a dim."""
    more = [d.partner(x, same=True) for _ in range(d.pick((0, 1, 1, 2)))]
    return [f"[{', '.join((x, *more))}]", *([d.dim(x)] if d.chance(0.7) else [])]


def others_alone(d: Draft, x: str) -> list[str]:
    more = [d.partner(x, same=True) for _ in range(d.pick((0, 1, 1, 2)))]
    return [f"[{', '.join((x, *more))}]"]


def others_apart(d: Draft, x: str) -> list[str]:
    return [others_alone(d, x)[0].strip("[]")]


def windows(d: Draft, x: str) -> list[str]:
    dim = d.dim(x)
    return [dim, str(max(1, min(d.size(x, dim), d.pick((1, 2, 3))))), str(d.pick((1, 2)))]


def strided(d: Draft, x: str) -> list[str]:
    size = max(d.values[x].numel(), 1)
    a = d.rng.randint(1, max(1, min(3, size)))
    return [str((a,)), str((d.pick((0, 1)) if size > 3 else 0,))]


def index_in(d: Draft, x: str) -> list[str]:
    """dim, index of gather."""
    dim = d.dim(x)
    shape = list(d.values[x].shape)
    if shape:
        shape[int(dim) % len(shape)] = d.pick((1, 2, 3))
        for i in range(len(shape)):
            if i != int(dim) % len(shape) and d.chance(0.2):
                shape[i] = min(shape[i], 1)
    return [dim, d.positions(tuple(shape), d.size(x, dim))]


def index_and_source(d: Draft, x: str) -> list[str]:
    """dim, index, source of scatter."""
    dim, index = index_in(d, x)
    return [dim, index, d.leaf(tuple(d.values[index].shape), _dtype(d, x))]


def index_and_reduced(d: Draft, x: str) -> list[str]:
    reduce = d.pick(("sum", "amax", "amin", "mean", "prod"))
    return [*index_and_source(d, x), f"reduce='{reduce}'", *d.optional("include_self=False")]


def rows(d: Draft, x: str) -> list[str]:
    """dim, 1-D index."""
    dim = d.dim(x)
    return [dim, d.positions((d.pick((0, 1, 2, 3)),), d.size(x, dim))]


def distinct_rows(d: Draft, x: str) -> list[str]:
    dim = d.dim(x)
    size = d.size(x, dim)
    chosen = d.rng.sample(range(size), d.rng.randint(0, size))
    return [dim, d.leaf((len(chosen),), "int64", numbers=tuple(chosen))]


def rows_and_source(d: Draft, x: str) -> list[str]:
    return _sourced(d, x, *rows(d, x))


def distinct_rows_and_source(d: Draft, x: str) -> list[str]:
    return _sourced(d, x, *distinct_rows(d, x))


def rows_and_reduced(d: Draft, x: str) -> list[str]:
    reduce = d.pick(("prod", "mean", "amax", "amin"))
    return [*rows_and_source(d, x), f"'{reduce}'", *d.optional("include_self=False")]


def _sourced(d: Draft, x: str, dim: str, index: str) -> list[str]:
    shape = list(d.values[x].shape)
    if shape and int(dim) < len(shape):
        shape[int(dim)] = d.values[index].numel()
    return [dim, index, d.leaf(tuple(shape), _dtype(d, x))]


def rows_and_number(d: Draft, x: str) -> list[str]:
    return [*rows(d, x), d.number(x)]


def _dtype(d: Draft, x: str) -> str:
    return name_of(d.values[x])


def flat_index(d: Draft, x: str) -> list[str]:
    return [d.positions(d.pick(((2,), (3,), (2, 2), ())), d.values[x].numel(), negative=True)]


def flat_index_and_source(d: Draft, x: str) -> list[str]:
    index = flat_index(d, x)[0]
    source = d.leaf(tuple(d.values[index].shape), _dtype(d, x))
    return [index, source, "accumulate=True"]


def mask(d: Draft, x: str) -> list[str]:
    shape = tuple(d.values[x].shape)
    if d.chance(0.2):
        shape = tuple(1 if d.chance(0.4) else s for s in shape)
    return [d.leaf(shape, "bool")]


def mask_and_number(d: Draft, x: str) -> list[str]:
    return [*mask(d, x), d.number(x)]


def mask_and_source(d: Draft, x: str) -> list[str]:
    chosen = mask(d, x)
    size = max(d.values[x].numel() + d.pick((-1, 0, 0, 0)), 0)
    return [*chosen, d.leaf((size,), _dtype(d, x))]


def condition(d: Draft, x: str) -> list[str]:
    return [d.leaf(tuple(d.values[x].shape), "bool"), d.partner(x)]


def slot_source(d: Draft, x: str) -> list[str]:
    dim, at = position(d, x)
    shape = list(d.values[x].shape)
    if shape and int(dim) < len(shape):
        del shape[int(dim)]
    return [d.leaf(tuple(shape), _dtype(d, x)), dim, at]


def how_many(d: Draft, x: str) -> list[str]:
    dim = d.dim(x)
    k = str(d.rng.randint(1, max(d.size(x, dim), 1)))
    return [k, dim]


def sorted_along(d: Draft, x: str) -> list[str]:
    found = [] if d.chance(0.3) else [f"dim={d.dim(x)}", *d.optional("descending=True")]
    return ["stable=True", *found]


def power(d: Draft, x: str) -> list[str]:
    return [
        d.pick(("2", "3", "0.5", "-1", "0", "2.0", "1"))
        if d.chance(0.7)
        else d.partner(x, exact=True)
    ]


def bounds(d: Draft, x: str) -> list[str]:
    if d.chance(0.3):
        return [d.pick(("min=-1", "max=1", "0.5", "max=2.5"))]
    if d.chance(0.3):
        return [d.partner(x, exact=True), d.partner(x, exact=True)]
    return [str(d.pick((-1, 0, -0.5))), str(d.pick((1, 2, 0.25)))]


def one_bound(d: Draft, x: str) -> list[str]:
    return [str(d.pick((-1, 0, 0.5)))]


def two_partners(d: Draft, x: str) -> list[str]:
    return [d.partner(x), d.partner(x)]


def two_partners_and_value(d: Draft, x: str) -> list[str]:
    return [*two_partners(d, x), *d.optional("value=2")]


def weight(d: Draft, x: str) -> list[str]:
    return [d.partner(x, same=True), d.pick(("0.5", "0.25", "1"))]


def matrix_for(d: Draft, x: str) -> list[str]:
    """An operand that matmul takes beside x."""
    value = d.values[x]
    rows_ = int(value.shape[-1]) if value.ndim else 1
    shape = d.pick(((rows_,), (rows_, 2), (rows_, 3), (2, rows_, 2)))
    return [d.leaf(shape, _dtype(d, x), special=False)]


def like_itself(d: Draft, x: str) -> list[str]:
    return [d.partner(x, same=True)]


def batch_for(d: Draft, x: str) -> list[str]:
    value = d.values[x]
    return [d.leaf((int(value.shape[0]), int(value.shape[-1]), 2), _dtype(d, x), special=False)]


def linear_arguments(d: Draft, x: str) -> list[str]:
    value = d.values[x]
    columns = int(value.shape[-1]) if value.ndim else 1
    out = d.pick((1, 2, 3))
    weights = d.leaf((out, columns), _dtype(d, x), special=False)
    return [weights, *d.optional(d.leaf((out,), _dtype(d, x), special=False))]


def row_shape(d: Draft, x: str) -> list[str]:
    value = d.values[x]
    shape = tuple(value.shape[-d.pick((1, 1, 2)) :]) if value.ndim else (1,)
    found = [str(tuple(map(int, shape)))]
    if d.chance(0.5):
        found.append(d.leaf(tuple(shape), _dtype(d, x), special=False))
    return found


def groups(d: Draft, x: str) -> list[str]:
    value = d.values[x]
    channels = int(value.shape[1]) if value.ndim > 1 else 1
    return [str(d.pick([k for k in range(1, channels + 1) if channels % k == 0] or [1]))]


def padding(d: Draft, x: str) -> list[str]:
    rank = d.values[x].ndim
    if rank >= 3 and d.chance(0.3):
        return mirrored(d, x)
    count = d.rng.randint(1, max(rank, 1))
    sizes = tuple(d.pick((0, 0, 1, 2, -1)) for _ in range(2 * count))
    return [str(sizes), *(["value=1.5"] if d.chance(0.3) else [])]


def mirrored(d: Draft, x: str) -> list[str]:
    mode = d.pick(("reflect", "replicate", "circular"))
    count = d.values[x].ndim - 2
    return [str(tuple(d.pick((0, 1, 1)) for _ in range(2 * count))), f"mode='{mode}'"]


def window(d: Draft, x: str) -> list[str]:
    size = d.pick((1, 2, 2, 3))
    stride = d.optional(f"stride={d.pick((1, 2))}")
    return [str(size), *stride, *([f"padding={size // 2}"] if d.chance(0.3) else [])]


def out_size(d: Draft, x: str) -> list[str]:
    return [str(d.pick((1, 2, 3)))]


def filters(count: int) -> Arguments:
    def arguments(d: Draft, x: str) -> list[str]:
        value = d.values[x]
        channels = int(value.shape[-count - 1]) if value.ndim > count else 1
        shape = (d.pick((1, 2)), max(channels, 1), *(d.pick((1, 2)),) * count)
        weights = d.leaf(shape, _dtype(d, x), special=False)
        return [weights, *d.optional("stride=2"), *d.optional("padding=1")]

    return arguments


def target(d: Draft, x: str) -> list[str]:
    reduction = d.optional(f"reduction='{d.pick(('mean', 'sum', 'none'))}'")
    return [d.partner(x, same=True), *reduction]


def labels(d: Draft, x: str) -> list[str]:
    value = d.values[x]
    classes = int(value.shape[1]) if value.ndim > 1 else (int(value.shape[0]) if value.ndim else 1)
    shape = (int(value.shape[0]), *map(int, value.shape[2:])) if value.ndim > 1 else ()
    numbers = tuple(
        d.rng.randint(0, max(classes - 1, 0)) for _ in range(int(torch.Size(shape).numel()))
    )
    index = d.leaf(shape, "int64", numbers=numbers)
    found = [index, *d.optional(f"reduction='{d.pick(('mean', 'sum', 'none'))}'")]
    return [*found, *(["ignore_index=0"] if d.chance(0.2) else [])]


def edges(d: Draft, x: str) -> list[str]:
    numbers = tuple(sorted(d.numbers("float32", (4,), False)))
    return [d.leaf((4,), "float32", numbers=numbers, grad=False), *d.optional("right=True")]


def quantiles(d: Draft, x: str) -> list[str]:
    return [d.pick(("0.5", "0.25", "1.0", "0.0")), *perhaps_dim(d, x)]


def norm_order(d: Draft, x: str) -> list[str]:
    order = d.pick(("2", "1", "float('inf')", "3", "0"))
    return [order] if d.chance(0.3) else [order, d.dim(x)]


def dtype_name(d: Draft, x: str) -> list[str]:
    return [f"m.{d.dtype()}"]


def float_dtype(d: Draft, x: str) -> list[str]:
    return [f"m.{d.pick(('float32', 'float64', 'float16', 'bfloat16'))}"]


def decimals(d: Draft, x: str) -> list[str]:
    return [] if d.chance(0.8) else ["decimals=1"]


def shift(d: Draft, x: str) -> list[str]:
    return [d.pick(("1", "2", "0"))]


def numbers_for_nan(d: Draft, x: str) -> list[str]:
    return d.optional("nan=1.5", "posinf=3.0")


def repeated(d: Draft, x: str) -> list[str]:
    return [d.pick(("1", "2", "3")), *([f"dim={d.dim(x)}"] if d.chance(0.6) else [])]


def nth_difference(d: Draft, x: str) -> list[str]:
    return [] if d.chance(0.5) else [d.pick(("1", "2")), d.dim(x)]


def factor(d: Draft, x: str) -> list[str]:
    return [d.pick(("1", "2"))]


def scaled_sizes(d: Draft, x: str) -> list[str]:
    mode = d.pick(("nearest", "nearest", "area"))
    return [f"scale_factor={d.pick((1, 2))}", f"mode='{mode}'"]


def table_rows(d: Draft, x: str) -> list[str]:
    """index first: embedding(index, table)."""
    rows_ = d.pick((2, 3))
    table = d.leaf((rows_, 2), "float32", special=False)
    return [d.positions(d.shape()[:2], rows_), table]


def exponents(d: Draft, x: str) -> list[str]:
    return [d.pick(("1", "2", "-1"))]


def axes_of_product(d: Draft, x: str) -> list[str]:
    return [d.partner(x, same=True), f"dims={d.values[x].ndim}" if d.chance(0.5) else "dims=0"]


# -- of each element

recipe("neg negative positive conj abs absolute relu clone detach", nothing, "moves")
recipe("contiguous alias_copy resolve_conj resolve_neg conj_physical real", nothing, "moves")
recipe(
    "exp exp2 expm1 sin cos atan arctan sinh cosh tanh asinh arcsinh erf erfc sigmoid expit "
    "silu softsign softplus logsigmoid tanhshrink hardsigmoid i0 i0e sinc ndtr log_ndtr "
    "deg2rad rad2deg angle",
    nothing,
)
recipe("mish", nothing)
recipe("gelu elu celu selu hardswish", nothing, "ends")
recipe(
    "tan log log1p log2 log10 rsqrt sqrt reciprocal asin arcsin acos arccos acosh arccosh "
    "atanh arctanh erfinv lgamma digamma psi gammaln entr",
    nothing,
    "edges",
)
recipe("square", nothing, "algebra")
recipe("floor ceil trunc fix frac sign sgn isnan isinf isfinite signbit", nothing, "jumps")
recipe("isposinf isneginf isreal", nothing, "jumps")
recipe("relu6 hardtanh hardshrink softshrink", nothing, "jumps ends")
recipe("round", decimals, "jumps")
recipe("bitwise_not", nothing, "moves")
recipe("leaky_relu", nothing, "jumps")
recipe("threshold", lambda d, x: ["0.5", "2.0"], "jumps")
recipe("nan_to_num", numbers_for_nan, "moves")
recipe("logit", lambda d, x: d.optional("0.25"), "edges ends")
recipe("add sub subtract", with_alpha, "algebra")
recipe("mul multiply", partner_or_number, "algebra")
recipe("div divide true_divide", partner_or_number, "divides")
recipe("maximum minimum fmax fmin", exact_partner, "moves jumps")
recipe("floor_divide remainder fmod", exact_partner_or_number, "jumps algebra")
recipe(
    "eq ne not_equal lt less le less_equal gt greater ge greater_equal",
    exact_partner_or_number,
    "jumps compares",
)
recipe("logical_and logical_or logical_xor", exact_partner, "jumps compares")
recipe("logical_not", nothing, "jumps compares")
recipe("isclose heaviside", exact_partner, "jumps")
recipe("bitwise_and bitwise_or bitwise_xor gcd lcm", partner, "moves")
recipe("bitwise_left_shift bitwise_right_shift", shift, "moves")
recipe("pow", power, floats=False)
recipe("float_power", power)
recipe("ldexp", exponents, "algebra")
recipe("copysign nextafter", exact_partner_or_number, "jumps moves")
recipe("atan2 arctan2 hypot logaddexp logaddexp2 xlogy xlog1py", partner)
recipe("rsub", partner_or_number, "algebra")
recipe("lerp", weight)
recipe("addcmul", two_partners_and_value, "algebra")
recipe("addcdiv", two_partners_and_value, "divides")
recipe("clamp clip", bounds, "moves jumps")
recipe("clamp_min clamp_max", one_bound, "moves jumps")
recipe("masked_fill", mask_and_number, "moves")
recipe("fill", lambda d, x: [d.number(x)], "moves")
recipe("isin", exact_partner, "jumps")

# -- over dims

recipe("sum", sum_arguments, "algebra")
recipe("nansum", sum_arguments, "algebra")
recipe("mean", dims_and_keep, floats=True)
recipe("nanmean", dims_and_keep, floats=True)
recipe("prod", dim_and_keep, "algebra")
recipe("amax amin", dims_and_keep, "moves jumps")
recipe("max min", dim_and_keep, "moves jumps")
recipe("argmax argmin", dim_and_keep, "jumps")
recipe("any all", dim_and_keep, "jumps")
recipe("var std", var_arguments, floats=True)
recipe("var_mean std_mean", var_arguments, floats=True)
recipe("logsumexp", must_dim_and_keep)
recipe("cumsum cumprod", a_dim, "algebra")
recipe("logcumsumexp", a_dim, floats=True)
recipe("cummax cummin", a_dim, "moves jumps")
recipe("count_nonzero", perhaps_dim, "jumps")
recipe("aminmax", lambda d, x: [f"dim={d.dim(x)}"] if d.chance(0.5) else [], "moves jumps")
recipe("median nanmedian", must_dim_and_keep, "moves jumps ties order")
recipe("mode", a_dim, "moves jumps ties order")
recipe("quantile nanquantile", quantiles, "jumps order", floats=True)
recipe("norm", norm_order, floats=True)
recipe("diff", nth_difference, "algebra", min_dims=1)
recipe("trapezoid", nothing, min_dims=1)
recipe("trace", nothing, "algebra", min_dims=2)
recipe("softmax log_softmax softmin", a_dim, floats=True)
recipe("normalize", lambda d, x: [f"dim={d.dim(x)}"], floats=True)
recipe("equal", exact_partner, "jumps")
recipe("dist", partner, floats=True)
recipe("unique", nothing, "jumps moves")
recipe("unique_consecutive", nothing, "jumps moves")
recipe("nonzero argwhere", nothing, "jumps")
recipe("msort", nothing, "moves jumps order", min_dims=1)
recipe("sort", sorted_along, "moves jumps")
recipe("argsort", sorted_along, "jumps")
recipe("topk kthvalue", how_many, "jumps moves ties order", min_dims=1)
recipe("bucketize", edges, "jumps")
recipe("renorm", lambda d, x: ["2", d.dim(x), "1.0"], floats=True, min_dims=2)
recipe("cov corrcoef", nothing, floats=True, min_dims=1)
recipe("cdist", like_itself, floats=True, min_dims=2)

# -- shapes

recipe("reshape", shape_of_same_size, "moves")
recipe("view", shape_of_same_size, "moves")
recipe("flatten", flattened, "moves")
recipe("ravel t adjoint", nothing, "moves")
recipe("unflatten", unflattened, "moves")
recipe("permute permute_copy", permutation, "moves")
recipe("transpose swapaxes swapdims movedim moveaxis transpose_copy", two_dims, "moves")
recipe("expand broadcast_to expand_copy", wider_shape, "moves")
recipe("squeeze", perhaps_dim, "moves")
recipe("unsqueeze unsqueeze_copy", unsqueezed, "moves")
recipe("flip", lambda d, x: [d.dims(x)], "moves")
recipe("fliplr flipud", nothing, "moves", min_dims=2)
recipe("rot90", lambda d, x: [str(d.rng.randint(-1, 3))], "moves", min_dims=2)
recipe("roll", rolled, "moves")
recipe("tril triu", an_offset, "moves", min_dims=2)
recipe("diagonal", offset_and_dims, "moves", min_dims=2)
recipe("diag diagflat", an_offset, "moves", min_dims=1)
recipe("diag_embed", an_offset, "moves", min_dims=1)
recipe("tile repeat", repeats, "moves")
recipe("repeat_interleave", repeated, "moves")
recipe("atleast_1d atleast_2d atleast_3d", nothing, "moves")
recipe("cat concat concatenate stack", others, "moves", listed=True)
recipe("hstack vstack dstack column_stack row_stack", others_alone, "moves", listed=True)
recipe("block_diag", others_apart, "moves", listed=True)
recipe("broadcast_tensors", lambda d, x: [x, d.partner(x)], "moves", listed=True)
recipe("meshgrid", lambda d, x: [x, d.partner(x), "indexing='ij'"], "moves", listed=True)
recipe("split", split_size, "moves", min_dims=1)
recipe("chunk tensor_split", chunks, "moves", min_dims=1)
recipe("hsplit", halves, "moves", min_dims=1)
recipe("vsplit", halves, "moves", min_dims=2)
recipe("narrow narrow_copy", section, "moves", min_dims=1)
recipe("select", position, "moves", min_dims=1)
recipe("unbind", perhaps_dim, "moves", min_dims=1)
recipe("unfold", windows, "moves", min_dims=1)
recipe("as_strided as_strided_copy", strided, "moves", min_dims=1)
recipe("kron inner", like_itself, "algebra")
recipe("view_as reshape_as expand_as", like_itself, "moves")
recipe("sum_to_size", lambda d, x: [str(tuple(map(int, d.values[x].shape)))], "algebra")

# -- positions

recipe("gather take_along_dim", lambda d, x: index_in(d, x), "moves", min_dims=1)
recipe("index_select", rows, "moves", min_dims=1)
recipe("scatter_add", index_and_source, "algebra", min_dims=1)
recipe("scatter_reduce", index_and_reduced, "jumps", min_dims=1)
recipe("index_add", rows_and_source, "algebra", min_dims=1)
recipe("index_copy", distinct_rows_and_source, "moves", min_dims=1)
recipe("index_fill", rows_and_number, "moves", min_dims=1)
recipe("index_reduce", rows_and_reduced, "jumps", floats=True, min_dims=1)
recipe("take", flat_index, "moves")
recipe("put", flat_index_and_source, "algebra")
recipe("masked_select", mask, "moves")
recipe("masked_scatter", mask_and_source, "moves")
recipe("where", condition, "moves")
recipe("select_scatter", slot_source, "moves", min_dims=1)

# -- products

recipe("matmul", matrix_for, "algebra", min_dims=1)
recipe(
    "mm",
    lambda d, x: [d.leaf((int(d.values[x].shape[-1]), 2), _dtype(d, x))],
    "algebra",
    min_dims=2,
)
recipe("bmm", batch_for, "algebra", min_dims=3)
recipe("dot vdot", like_itself, "algebra", min_dims=1)
recipe("outer ger", lambda d, x: [d.leaf((2,), _dtype(d, x))], "algebra", min_dims=1)
recipe("tensordot", axes_of_product, "algebra")
recipe("linear", linear_arguments, "algebra", floats=True, min_dims=1)

# -- of neural networks

recipe("layer_norm rms_norm", row_shape, "spread", floats=True, min_dims=1)
recipe("group_norm", groups, "spread", floats=True, min_dims=2)
recipe("pad", padding, "moves", min_dims=1)
recipe("avg_pool1d avg_pool2d", window, floats=True, min_dims=3)
recipe("max_pool1d max_pool2d", window, "moves jumps", floats=True, min_dims=3)
recipe("adaptive_avg_pool1d adaptive_avg_pool2d", out_size, floats=True, min_dims=3)
recipe(
    "adaptive_max_pool1d adaptive_max_pool2d",
    out_size,
    "moves jumps",
    floats=True,
    min_dims=3,
)
recipe("conv1d", filters(1), floats=True, min_dims=3)
recipe("conv2d", filters(2), floats=True, min_dims=4)
recipe("pixel_shuffle pixel_unshuffle channel_shuffle", factor, "moves", min_dims=4)
recipe("interpolate", scaled_sizes, "moves", floats=True, min_dims=3)
recipe("glu", perhaps_dim, floats=True, min_dims=1)
recipe("mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss", target, floats=True)
recipe("binary_cross_entropy_with_logits kl_div poisson_nll_loss", target, floats=True)
recipe("cross_entropy nll_loss", labels, floats=True, min_dims=1)
recipe(
    "cosine_similarity pairwise_distance",
    like_itself,
    floats=True,
    min_dims=1,
)
recipe("embedding", table_rows, "moves", listed=True)
recipe("one_hot", lambda d, x: [str(d.pick((6, 7)))], "jumps")

# -- types

recipe("to type", dtype_name, "moves jumps")
recipe("type_as", lambda d, x: [d.any()], "moves jumps")
recipe("float double half bfloat16 int long bool", nothing, "moves jumps")
recipe("zeros_like ones_like", nothing, "moves")
recipe("full_like", lambda d, x: [d.number(x)], "moves")
recipe("new_zeros new_ones", lambda d, x: [str(d.shape())], "moves")

IN_PLACE: dict[str, Recipe] = {}
"""Methods that write into the tensor and are no other function's form."""


def _in_place(names: str, arguments: Arguments, traits: str = "") -> None:
    IN_PLACE.update(dict.fromkeys(names.split(), Recipe(arguments, frozenset(traits.split()))))


_in_place("zero_", nothing, "moves")
_in_place("fill_", lambda d, x: [d.number(x)], "moves")
_in_place("copy_", partner, "moves")
_in_place("scatter_", index_and_source, "moves")
_in_place("unsqueeze_", unsqueezed, "moves")
_in_place("squeeze_", perhaps_dim, "moves")
_in_place("t_", nothing, "moves")
_in_place("transpose_", two_dims, "moves")
_in_place("requires_grad_", nothing, "moves")
_in_place("detach_", nothing, "moves")
