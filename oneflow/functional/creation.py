"""New tensors of a shape: zeros, arange, randn, ... local, or global if a placement is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, cast

from oneflow.core import dtype as dtypes
from oneflow.core.device import Device, DeviceLike
from oneflow.core.dispatch import call, current_mode
from oneflow.core.dtype import DType, DTypeLike, dtype_of
from oneflow.core.errors import ArgumentError, CallError, DTypeError, SbpError, ShapeError
from oneflow.core.op import Op, find_op, infer_types
from oneflow.core.operand import Attrs, Number, ShapeLike
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, NdSbp, SbpLike
from oneflow.functional.arithmetic import add, mul
from oneflow.functional.arithmetic import pow as power
from oneflow.functional.promotion import as_float, as_type, get_default_dtype
from oneflow.functional.random_state import Generator, next_seed
from oneflow.ops.random import bernoulli as op
from oneflow.ops.random import poisson as drawn_poisson
from oneflow.tensor.creation_like import (
    Place,
    SizedWhere,
    Where,
    filled_like,
    layout_of,
    number_of,
    of_kind,
)
from oneflow.tensor.formats import strided
from oneflow.tensor.inplace import overwrite
from oneflow.tensor.layout import check_layout
from oneflow.tensor.modes import where_to_create
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from typing import TypeGuard

    from typing_extensions import Unpack


def source(
    name: str,
    attrs: Attrs,
    *,
    device: DeviceLike | None = None,
    placement: Placement | None = None,
    sbp: SbpLike | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Runs an op without inputs where the caller wants its result."""
    placement, nd_sbp = where_to_create(name, device, placement, sbp)
    op = find_op(name)
    if placement is not None and nd_sbp is not None:
        _check_layout(op, attrs, nd_sbp)
        where = None
    else:
        where = None if device is None else Device(device)
    out: Tensor = current_mode().create(op, attrs, where, placement, nd_sbp)
    if requires_grad:
        out.requires_grad = True
    return out


def _check_layout(op: type[Op], attrs: Attrs, nd_sbp: NdSbp) -> None:
    if op.is_random and any(s.is_partial for s in nd_sbp):
        raise SbpError(
            f"{op.name}: random source op only support broadcast or split, got partial_sum"
        )
    for type_ in infer_types(op, (), attrs):
        check_layout(type_, nd_sbp, op.name)


def shape_of(size: tuple[ShapeLike, ...], who: str = "size") -> tuple[int, ...]:
    """`f(2, 3)` and `f((2, 3))` alike. Raises ShapeError for negative sizes, TypeError for sizes
    that are no integers.
    """
    items: tuple[Any, ...] = size
    if len(size) == 1 and isinstance(size[0], (Sequence, Tensor)) and not isinstance(size[0], str):
        given = size[0].tolist() if isinstance(size[0], Tensor) else size[0]
        items = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    try:
        shape = tuple([s.__index__() for s in items])
    except AttributeError:
        raise CallError(f"{who} must be integers, got {items!r}") from None
    if any(s < 0 for s in shape):
        raise ShapeError(f"{who} must not be negative, got {list(shape)}")
    return shape


def _fill(
    size: tuple[ShapeLike, ...],
    value: Number,
    dtype: DTypeLike | None,
    requires_grad: bool,
    where: Where,
) -> Tensor:
    """where: device, placement, sbp; pin_memory and the like have no meaning here."""
    wanted = get_default_dtype() if dtype is None else dtype_of(dtype)
    attrs = {"shape": shape_of(size), "dtype": wanted, "value": of_kind(value, wanted)}
    return source("constant", attrs, requires_grad=requires_grad, **_where(where))


P = ParamSpec("P")

PLACES = ("device", "placement", "sbp")
_IGNORED = frozenset(("layout", "pin_memory", "memory_format"))


def _where(keywords: Where) -> Place:
    """device, placement and sbp of creation keywords. Raises TypeError for an unknown keyword."""
    unknown = set(keywords) - set(PLACES) - _IGNORED
    if unknown:
        raise CallError(f"unexpected keyword arguments: {', '.join(sorted(unknown))}")
    layout = cast("dict[str, object]", keywords).get("layout")
    if layout not in (None, strided):
        raise ArgumentError(f"every tensor is strided here, got layout={layout!r}")
    return cast(Place, {k: v for k, v in keywords.items() if k not in _IGNORED})


def zeros(
    *sizes: ShapeLike,
    dtype: DTypeLike | None = None,
    requires_grad: bool = False,
    **where: Unpack[SizedWhere],
) -> Tensor:
    """A tensor of zeros. where: device, or placement and sbp."""
    return _fill(_size(sizes, where), 0, dtype, requires_grad, where)


def ones(
    *sizes: ShapeLike,
    dtype: DTypeLike | None = None,
    requires_grad: bool = False,
    **where: Unpack[SizedWhere],
) -> Tensor:
    """A tensor of ones. where: device, or placement and sbp."""
    return _fill(_size(sizes, where), 1, dtype, requires_grad, where)


def empty(
    *sizes: ShapeLike,
    dtype: DTypeLike | None = None,
    requires_grad: bool = False,
    **where: Unpack[SizedWhere],
) -> Tensor:
    """A tensor whose values mean nothing (zeros here, so that runs repeat)."""
    return _fill(_size(sizes, where), 0, dtype, requires_grad, where)


def _size(sizes: tuple[ShapeLike, ...], where: SizedWhere) -> tuple[ShapeLike, ...]:
    return sizes if sizes else (where.pop("size"),) if "size" in where else ((),)


def full(
    size: ShapeLike,
    fill_value: Number | Tensor,
    *,
    dtype: DTypeLike | None = None,
    requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:
    """A tensor filled with one number, whose kind gives the dtype unless it is given."""
    value = number_of(fill_value, "fill_value", "full")
    if _is_computed(value) and not where:
        wanted = value.dtype if dtype is None else dtype_of(dtype)
        return _repeated(value, shape_of((size,)), wanted)
    if dtype is None:
        float_dtype = get_default_dtype()
        wide = dtypes.complex128 if float_dtype is dtypes.float64 else dtypes.complex64
        kinds = {bool: dtypes.bool_, int: dtypes.int64, complex: wide}
        dtype = kinds.get(type(value), float_dtype)
    return _fill((size,), value, dtype, requires_grad, where)


def _is_computed(value: Number | Tensor) -> TypeGuard[Tensor]:
    """Whether a graph computes the value, which then cannot be read as a number."""
    return isinstance(value, Tensor) and value.value is not None


def _repeated(value: Tensor, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """A tensor filled with a value that a graph computes."""
    whole = call(find_op("expand"), as_type(value, dtype), shape=shape)
    made: Tensor = call(find_op("copy"), whole)
    return made


def _like(
    x: Tensor, value: Number, dtype: DTypeLike | None, requires_grad: bool, where: Where
) -> Tensor:
    """Make a tensor as x where nothing else is said: dtype, device or placement and sbp."""
    wanted = x.meta.dtype if dtype is None else dtype_of(dtype)
    given = _given(_where(where))
    if not given and wanted is x.meta.dtype:
        out = filled_like(x, value)
        if requires_grad:
            out.requires_grad = True
        return out
    placed = _placed_as(x, given, no_partial=wanted is dtypes.bool_)
    return _fill((x.meta.shape,), value, wanted, requires_grad, cast(Where, placed))


def _given(where: Where | Place) -> Place:
    """The keywords that are not None."""
    return cast(Place, {k: v for k, v in where.items() if v is not None})


def _placed_as(x: Tensor, given: Place, *, no_partial: bool, ndim: int | None = None) -> Place:
    """`given` (device, placement, sbp), with the settings that it leaves open as `x` has them.
    ndim: as in `layout_of`.
    """
    if "device" in given or (given and not x.is_global):
        return given
    return {**layout_of(x, no_partial=no_partial, ndim=ndim), **given}


def zeros_like(
    input: Tensor,
    *,
    dtype: DTypeLike | None = None,
    requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:
    """Zeros of the shape, dtype and place of `input`."""
    return _like(input, 0, dtype, requires_grad, where)


def ones_like(
    input: Tensor,
    *,
    dtype: DTypeLike | None = None,
    requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:
    """Ones of the shape, dtype and place of `input`."""
    return _like(input, 1, dtype, requires_grad, where)


def empty_like(
    input: Tensor,
    *,
    dtype: DTypeLike | None = None,
    requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:
    """A tensor of the shape, dtype and place of `input`, whose values mean nothing."""
    return _like(input, 0, dtype, requires_grad, where)


def full_like(
    input: Tensor,
    fill_value: Number | Tensor,
    *,
    dtype: DTypeLike | None = None,
    requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:
    """`fill_value` in the shape, dtype and place of `input`."""
    value = number_of(fill_value, "fill_value", "full_like")
    if _is_computed(value) and not where:
        wanted = input.dtype if dtype is None else dtype_of(dtype)
        return _repeated(value, input.meta.shape, wanted)
    return _like(input, value, dtype, requires_grad, where)


def arange(
    start: Number | Tensor = 0,
    end: Number | Tensor | None = None,
    step: Number | Tensor = 1,
    *,
    dtype: DTypeLike | None = None,
    requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:
    """start, start + step, ... below `end`; `arange(n)` counts from 0. Integers give int64."""
    if end is None:
        start, end = 0, start
    given = {"start": start, "end": end, "step": step}
    start, end, step = (number_of(v, name, "arange") for name, v in given.items())
    wanted = None if dtype is None else dtype_of(dtype)
    if not all(map(math.isfinite, (start, end, step))):
        raise ShapeError(f"arange: unsupported range: {start} to {end} by {step}")
    if wanted is dtypes.int64:
        start, end, step = int(start), int(end), int(step)
    if step == 0 or (end - start) / step < 0:
        raise ShapeError(f"arange: no step of {step} leads from {start} to {end}")
    if dtype is None:
        is_float = any(isinstance(v, float) for v in (start, end, step))
        dtype = get_default_dtype() if is_float else dtypes.int64
    length = max(0, math.ceil((end - start) / step))
    attrs = {"start": start, "step": step, "length": length, "dtype": dtype_of(dtype)}
    return source("arange", attrs, requires_grad=requires_grad, **_where(where))


def _random(
    name: str,
    size: tuple[ShapeLike, ...],
    attrs: Attrs,
    generator: Generator | None,
    requires_grad: bool,
    where: Where,
) -> Tensor:
    full_attrs = {"shape": shape_of(size), **attrs, "seed": next_seed(generator)}
    return source(name, full_attrs, requires_grad=requires_grad, **_where(where))


class FloatsOnlyError(CallError, NotImplementedError):
    """Random numbers of a dtype that has no fractions."""


def _float_dtype(name: str, dtype: DTypeLike | None) -> DType:
    wanted = get_default_dtype() if dtype is None else dtype_of(dtype)
    if not wanted.is_floating_point:
        raise FloatsOnlyError(
            f"{name}: needs a floating-point dtype, got {wanted}: not implemented for '{wanted}'"
        )
    return wanted


def rand(
    *sizes: ShapeLike,
    dtype: DTypeLike | None = None,
    generator: Generator | None = None,
    requires_grad: bool = False,
    **where: Unpack[SizedWhere],
) -> Tensor:
    """Uniform in [0, 1)."""
    attrs = {"low": 0.0, "high": 1.0, "dtype": _float_dtype("rand", dtype)}
    return _random("uniform", _size(sizes, where), attrs, generator, requires_grad, where)


def randn(
    *sizes: ShapeLike,
    dtype: DTypeLike | None = None,
    generator: Generator | None = None,
    requires_grad: bool = False,
    **where: Unpack[SizedWhere],
) -> Tensor:
    """Normal, mean 0, standard deviation 1."""
    attrs = {"mean": 0.0, "std": 1.0, "dtype": _float_dtype("randn", dtype)}
    return _random("normal", _size(sizes, where), attrs, generator, requires_grad, where)


def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: DTypeLike | None = None,
    requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:
    """Ones on the diagonal of an (n, m) matrix of zeros; m defaults to n."""
    attrs = {"rows": int(n), "columns": int(n if m is None else m), "dtype": or_default(dtype)}
    return source("eye", attrs, requires_grad=requires_grad, **_where(where))


def or_default(dtype: DTypeLike | None) -> DType:
    """The dtype that is meant; None: the default one."""
    return get_default_dtype() if dtype is None else dtype_of(dtype)


def linspace(
    start: float,
    end: float,
    steps: int,
    *,
    dtype: DTypeLike | None = None,
    requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:
    """`steps` numbers from start to end, both included, equally far apart; of an integer dtype
    their whole parts, from the whole part of start to that of end.
    """
    wanted = or_default(dtype)
    first, last = _ends(start, end, wanted)
    count = _steps("linspace", steps)
    parts = max(count - 1, 1)
    # In float64, so that the last number is the end and not a rounding error away from it. Whole
    # parts leave no room for an error: integers are divided once, after they were added up.
    by = 1 if wanted.is_floating_point else parts
    attrs = {
        "start": first * by,
        "step": (last - first) * by / parts if count > 1 else 0.0,
        "length": count,
        "dtype": dtypes.float64,
    }

    def make(place: Place) -> Tensor:
        made = source("arange", attrs, **place)
        return made if by == 1 else made / by

    return composed(make, wanted, requires_grad, where)


def _steps(name: str, steps: int) -> int:
    """A number of elements. Raises CallError if it is no integer, ShapeError if it is below 0."""
    count = steps.item() if isinstance(steps, Tensor) else steps
    if not hasattr(count, "__index__"):
        raise CallError(f"{name}(): steps must be an integer, not {type(count).__name__} {count!r}")
    if count < 0:
        raise ShapeError(f"{name}: number of steps must be non-negative, got {count}")
    return int(count)


def _ends(start: float, end: float, dtype: DType) -> tuple[float, float]:
    """Return both as numbers that `dtype` holds."""
    if dtype.is_floating_point:
        return float(start), float(end)
    return float(int(start)), float(int(end))


def composed(
    make: Callable[[Place], Tensor], dtype: DType, requires_grad: bool, where: Where
) -> Tensor:
    """Return the tensor of `make(where)`, cast to `dtype` and laid out as `where` says. Sums of
    functions are not functions of sums: partial_sum is made last.
    """
    place = _where(where)
    placement, nd_sbp = where_to_create("creation", **place)
    if placement is None or nd_sbp is None:
        out = as_type(make(place), dtype)
    else:
        whole = tuple(BROADCAST if s.is_partial else s for s in nd_sbp)
        made = as_type(make({"placement": placement, "sbp": whole}), dtype)
        out = made if whole == nd_sbp else made.to_global(sbp=nd_sbp)
    if requires_grad:
        out.requires_grad = True
    return out


def logspace(
    start: float,
    end: float,
    steps: int = 100,
    base: float = 10.0,
    *,
    dtype: DTypeLike | None = None,
    requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:
    """base ** x for `steps` x from start to end, of which an integer dtype takes whole parts."""
    first, last = _ends(start, end, or_default(dtype))
    steps = _steps("logspace", steps)

    def make(place: Place) -> Tensor:
        return power(base, linspace(first, last, steps, dtype=dtypes.float64, **place))

    return composed(make, or_default(dtype), requires_grad, where)


def _new(maker: Callable[P, Tensor]) -> Callable[Concatenate[Tensor, P], Tensor]:
    def method(input: Tensor, /, *args: P.args, **keywords: P.kwargs) -> Tensor:
        if keywords.get("dtype") is None:
            keywords["dtype"] = input.meta.dtype
        if maker is not full and not args and keywords.get("size") is None:
            keywords["size"] = input.meta.shape
        given = {k: v for k in PLACES if (v := keywords.pop(k, None)) is not None}
        sizes: Any = keywords.get("size", args)
        first = sizes[0] if len(sizes) and isinstance(sizes[0], Sequence) else sizes
        keywords.update(_placed_as(input, cast(Place, given), no_partial=True, ndim=len(first)))
        return maker(*args, **keywords)

    method.__name__ = method.__qualname__ = f"new_{maker.__name__}"
    method.__doc__ = (
        f"As `{maker.__name__}`, with the dtype and place of this tensor unless others are given, "
        "and its shape if there is no size."
    )
    return method


new_zeros = _new(zeros)
new_ones = _new(ones)
new_full = _new(full)
new_empty = _new(empty)


def rand_like(
    input: Tensor,
    *,
    dtype: DTypeLike | None = None,
    generator: Generator | None = None,
    **where: Unpack[Where],
) -> Tensor:
    """`rand` of the shape, dtype and place of `input`."""
    return _random_like(rand, input, dtype, generator, where)


def randn_like(
    input: Tensor,
    *,
    dtype: DTypeLike | None = None,
    generator: Generator | None = None,
    **where: Unpack[Where],
) -> Tensor:
    """`randn` of the shape, dtype and place of `input`."""
    return _random_like(randn, input, dtype, generator, where)


def _random_like(
    maker: Callable[..., Tensor],
    input: Tensor,
    dtype: DTypeLike | None,
    generator: Generator | None,
    where: Where,
) -> Tensor:
    given = _placed_as(input, _given(where), no_partial=True)
    wanted = input.meta.dtype if dtype is None else dtype
    return maker(input.meta.shape, dtype=wanted, generator=generator, **given)


def randint(
    low: int = 0,
    high: int | ShapeLike | None = None,
    size: ShapeLike | None = None,
    *,
    dtype: DTypeLike | None = None,
    generator: Generator | None = None,
    requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:
    """Integers, uniform over low .. high - 1.  `randint(high, size)` starts at 0."""
    if size is None:
        start, stop, size = 0, low, cast(ShapeLike, high)
    elif high is None:
        start, stop = 0, low
    else:
        start, stop = low, cast(int, high)
    wanted = dtypes.int64 if dtype is None else dtype_of(dtype)
    drawn = wanted if wanted.is_integer else dtypes.int64
    attrs = {"low": int(start), "high": int(stop), "dtype": drawn}
    out = _random("randint", (size,), attrs, generator, False, where)
    if drawn is not wanted:
        out = as_type(out, wanted)
    if requires_grad:
        out.requires_grad = True
    return out


def randint_like(
    input: Tensor,
    low: int = 0,
    high: int | None = None,
    *,
    dtype: DTypeLike | None = None,
    generator: Generator | None = None,
    **where: Unpack[Where],
) -> Tensor:
    """`randint` of the shape, dtype and place of `input`."""
    bounds = (0, low) if high is None else (low, high)

    def maker(shape: ShapeLike, **keywords: Any) -> Tensor:
        return randint(*bounds, shape, **keywords)

    return _random_like(maker, input, dtype, generator, where)


def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:
    """0 .. n - 1 in random order."""
    wanted = dtypes.int64 if dtype is None else dtype_of(dtype)
    attrs = {"n": int(n), "dtype": wanted, "seed": next_seed(generator)}
    return source("randperm", attrs, requires_grad=requires_grad, **_where(where))


def normal(
    mean: float | Tensor,
    std: float | Tensor = 1.0,
    size: ShapeLike | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:
    """Normal with `mean` and `std`: numbers (then `size` is needed) or tensors."""
    tensors = [v for v in (mean, std) if isinstance(v, Tensor)]
    if tensors:
        drawn = add(mul(randn_like(tensors[0], generator=generator), std), mean)
        return drawn.requires_grad_() if requires_grad else drawn
    if size is None:
        raise CallError("normal: a size is needed where mean and std are numbers")
    attrs = {"mean": float(mean), "std": float(std), "dtype": _float_dtype("normal", dtype)}
    return _random("normal", (size,), attrs, generator, requires_grad, where)


def bernoulli(
    input: Tensor,
    p: float | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    inplace: bool = False,
) -> Tensor:
    """1 with probability input[...] (or `p` for all), else 0."""
    if p is None and not input.meta.dtype.is_floating_point:
        raise DTypeError(f"bernoulli: the probabilities must be floating-point, got {input.meta}")
    if p is not None and not 0 <= p <= 1:
        raise ArgumentError(f"bernoulli expects p to be in [0, 1], but got p={p}")
    chances = input if p is None else full_like(as_float(input), p)
    drawn = op(chances.detach(), seed=next_seed(generator))
    if inplace:
        return overwrite(input, drawn)
    return as_type(drawn, input.meta.dtype if dtype is None else dtype_of(dtype))


def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Whole numbers of the Poisson distribution whose means are the elements; without gradient."""
    if not input.meta.dtype.is_floating_point:
        raise DTypeError(f"poisson: the means must be floating-point, got {input.meta}")
    return drawn_poisson(input.detach(), seed=next_seed(generator))
