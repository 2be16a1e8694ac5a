"""New tensors of a shape: zeros, arange, randn, ... local, or global if a placement is given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from oneflow.core import dtype as dtypes
from oneflow.core.device import Device
from oneflow.core.dispatch import current_mode
from oneflow.core.dtype import DType, dtype_of
from oneflow.core.errors import SbpError, ShapeError
from oneflow.core.op import find_op, infer_types
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, NdSbp
from oneflow.functional.promotion import get_default_dtype
from oneflow.functional.random_state import Generator, next_seed
from oneflow.ops.unary import cos
from oneflow.tensor.alike import filled_like, layout_of, of_kind
from oneflow.tensor.layout import check_layout
from oneflow.tensor.modes import where_to_create
from oneflow.tensor.tensor import Tensor


def source(
    name: str,
    attrs: dict[str, Any],
    *,
    device: Any = None,
    placement: Placement | None = None,
    sbp: Any = None,
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


def _check_layout(op: Any, attrs: dict[str, Any], nd_sbp: NdSbp) -> None:
    if op.is_random and any(s.is_partial for s in nd_sbp):
        raise SbpError(
            f"{op.name}: random source op only support broadcast or split, got partial_sum"
        )
    for type_ in infer_types(op, (), attrs):
        check_layout(type_, nd_sbp, op.name)


def shape_of(size: tuple[Any, ...], who: str = "size") -> tuple[int, ...]:
    """`f(2, 3)` and `f((2, 3))` alike. Raises ShapeError for negative sizes, TypeError for what is
    no integer.
    """
    if len(size) == 1 and isinstance(size[0], (Sequence, Tensor)) and not isinstance(size[0], str):
        items: Any = size[0].tolist() if isinstance(size[0], Tensor) else size[0]
        size = tuple(items) if isinstance(items, (list, tuple)) else (items,)
    try:
        shape = tuple([s.__index__() for s in size])
    except AttributeError:
        raise TypeError(f"{who} must be integers, got {size!r}") from None
    if any(s < 0 for s in shape):
        raise ShapeError(f"{who} must not be negative, got {list(shape)}")
    return shape


def _fill(
    size: tuple[Any, ...], value: Any, dtype: Any, requires_grad: bool, where: dict[str, Any]
) -> Tensor:
    """where: device, placement, sbp; layout, pin_memory and the like have no meaning here."""
    wanted = get_default_dtype() if dtype is None else dtype_of(dtype)
    attrs = {"shape": shape_of(size), "dtype": wanted, "value": of_kind(value, wanted)}
    return source("constant", attrs, requires_grad=requires_grad, **_where(where))


_IGNORED = frozenset(("layout", "pin_memory", "memory_format", "out"))


def _where(keywords: dict[str, Any]) -> dict[str, Any]:
    """device, placement and sbp of creation keywords. Raises TypeError for an unknown keyword."""
    unknown = set(keywords) - {"device", "placement", "sbp"} - _IGNORED
    if unknown:
        raise TypeError(f"unexpected keyword arguments: {', '.join(sorted(unknown))}")
    return {k: v for k, v in keywords.items() if k not in _IGNORED}


def zeros(
    *size: Any, dtype: DType | None = None, requires_grad: bool = False, **where: Any
) -> Tensor:
    """A tensor of zeros. where: device, or placement and sbp."""
    return _fill(_size(size, where), 0, dtype, requires_grad, where)


def ones(
    *size: Any, dtype: DType | None = None, requires_grad: bool = False, **where: Any
) -> Tensor:
    """A tensor of ones. where: device, or placement and sbp."""
    return _fill(_size(size, where), 1, dtype, requires_grad, where)


def empty(
    *size: Any, dtype: DType | None = None, requires_grad: bool = False, **where: Any
) -> Tensor:
    """A tensor whose values mean nothing (zeros here, so that runs repeat)."""
    return _fill(_size(size, where), 0, dtype, requires_grad, where)


def _size(size: tuple[Any, ...], where: dict[str, Any]) -> tuple[Any, ...]:
    return size if size else (where.pop("size"),) if "size" in where else ((),)


def full(
    size: Any,
    fill_value: Any,
    *,
    dtype: DType | None = None,
    requires_grad: bool = False,
    **where: Any,
) -> Tensor:
    """A tensor filled with one number, whose kind gives the dtype unless it is given."""
    if isinstance(fill_value, Tensor):
        fill_value = fill_value.item()
    if dtype is None:
        kinds = {bool: dtypes.bool_, int: dtypes.int64}
        dtype = kinds.get(type(fill_value), get_default_dtype())
    return _fill((size,), fill_value, dtype, requires_grad, where)


def _like(x: Tensor, value: Any, dtype: Any, requires_grad: bool, where: dict[str, Any]) -> Tensor:
    """Make a tensor as x where nothing else is said: dtype, device or placement and sbp."""
    wanted = x.type.dtype if dtype is None else dtype_of(dtype)
    where = _where(where)
    given = {k: v for k, v in where.items() if v is not None}
    if not given and wanted is x.type.dtype:
        out = filled_like(x, value)
        if requires_grad:
            out.requires_grad = True
        return out
    where = _placed_as(x, given, no_partial=wanted is dtypes.bool_)
    return _fill((x.type.shape,), value, wanted, requires_grad, where)


def _placed_as(x: Tensor, given: dict[str, Any], *, no_partial: bool) -> dict[str, Any]:
    """`given` (device, placement, sbp), and what it leaves open as `x` has it."""
    if "device" in given:
        return given
    return {**layout_of(x, no_partial=no_partial), **given} if x.is_global or not given else given


def zeros_like(
    input: Tensor, *, dtype: DType | None = None, requires_grad: bool = False, **where: Any
) -> Tensor:
    """Zeros of the shape, dtype and place of `input`."""
    return _like(input, 0, dtype, requires_grad, where)


def ones_like(
    input: Tensor, *, dtype: DType | None = None, requires_grad: bool = False, **where: Any
) -> Tensor:
    """Ones of the shape, dtype and place of `input`."""
    return _like(input, 1, dtype, requires_grad, where)


def empty_like(
    input: Tensor, *, dtype: DType | None = None, requires_grad: bool = False, **where: Any
) -> Tensor:
    """A tensor of the shape, dtype and place of `input`, whose values mean nothing."""
    return _like(input, 0, dtype, requires_grad, where)


def full_like(
    input: Tensor,
    fill_value: Any,
    *,
    dtype: DType | None = None,
    requires_grad: bool = False,
    **where: Any,
) -> Tensor:
    """`fill_value` in the shape, dtype and place of `input`."""
    if isinstance(fill_value, Tensor):
        fill_value = fill_value.item()
    return _like(input, fill_value, dtype, requires_grad, where)


def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    dtype: DType | None = None,
    requires_grad: bool = False,
    **where: Any,
) -> Tensor:
    """start, start + step, ... below `end`; `arange(n)` counts from 0. Integers give int64."""
    if end is None:
        start, end = 0, start
    start, end, step = (v.item() if isinstance(v, Tensor) else v for v in (start, end, step))
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
    size: tuple[Any, ...],
    attrs: dict[str, Any],
    generator: Generator | None,
    requires_grad: bool,
    where: dict[str, Any],
) -> Tensor:
    full_attrs = {"shape": shape_of(size), **attrs, "seed": next_seed(generator)}
    return source(name, full_attrs, requires_grad=requires_grad, **_where(where))


def _float_dtype(name: str, dtype: Any) -> DType:
    wanted = get_default_dtype() if dtype is None else dtype_of(dtype)
    if not wanted.is_floating_point:
        raise TypeError(f"{name}: needs a floating-point dtype, got {wanted}")
    return wanted


def rand(
    *size: Any,
    dtype: DType | None = None,
    generator: Generator | None = None,
    requires_grad: bool = False,
    **where: Any,
) -> Tensor:
    """Uniform in [0, 1)."""
    attrs = {"low": 0.0, "high": 1.0, "dtype": _float_dtype("rand", dtype)}
    return _random("uniform", _size(size, where), attrs, generator, requires_grad, where)


def randn(
    *size: Any,
    dtype: DType | None = None,
    generator: Generator | None = None,
    requires_grad: bool = False,
    **where: Any,
) -> Tensor:
    """Normal, mean 0, standard deviation 1."""
    attrs = {"mean": 0.0, "std": 1.0, "dtype": _float_dtype("randn", dtype)}
    return _random("normal", _size(size, where), attrs, generator, requires_grad, where)


def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: DType | None = None,
    requires_grad: bool = False,
    **where: Any,
) -> Tensor:
    """Ones on the diagonal of an (n, m) matrix of zeros; m defaults to n."""
    attrs = {"rows": int(n), "columns": int(n if m is None else m), "dtype": _dtype(dtype)}
    return source("eye", attrs, requires_grad=requires_grad, **_where(where))


def _dtype(dtype: Any) -> DType:
    return get_default_dtype() if dtype is None else dtype_of(dtype)


def linspace(
    start: float,
    end: float,
    steps: int,
    *,
    dtype: DType | None = None,
    requires_grad: bool = False,
    **where: Any,
) -> Tensor:
    """`steps` numbers from start to end, both included, equally far apart."""
    step = (end - start) / (steps - 1) if steps > 1 else 0.0
    wanted = _dtype(dtype)
    # Made in float64, so that the last number is the end and not a rounding error away from it.
    attrs = {"start": float(start), "step": step, "length": int(steps), "dtype": dtypes.float64}
    return _composed(lambda place: source("arange", attrs, **place), wanted, requires_grad, where)


def _composed(make: Any, dtype: DType, requires_grad: bool, where: dict[str, Any]) -> Tensor:
    """Return what `make(where)` makes, cast to `dtype` and laid out as `where` says. Sums of
    functions are not functions of sums: partial_sum is made last.
    """
    from oneflow.functional.promotion import as_type

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
    dtype: DType | None = None,
    requires_grad: bool = False,
    **where: Any,
) -> Tensor:
    """base ** x for `steps` x from start to end."""
    from oneflow.functional.arithmetic import pow

    def make(place: dict[str, Any]) -> Tensor:
        return pow(base, linspace(start, end, steps, dtype=dtypes.float64, **place))

    return _composed(make, _dtype(dtype), requires_grad, where)


def hann_window(
    window_length: int,
    periodic: bool = True,
    *,
    dtype: DType | None = None,
    requires_grad: bool = False,
    **where: Any,
) -> Tensor:
    """The Hann window: sin squared, `window_length` samples; periodic: as one period of an endless
    one.
    """
    from oneflow.functional.arithmetic import mul, sub

    period = window_length if periodic else max(window_length - 1, 1)

    def make(place: dict[str, Any]) -> Tensor:
        if window_length <= 1:
            return ones((window_length,), dtype=dtypes.float64, **place)
        angle = arange(0, window_length, 1, dtype=dtypes.float64, **place)
        return mul(sub(1, cos(mul(angle, 2 * math.pi / period))), 0.5)

    return _composed(make, _dtype(dtype), requires_grad, where)


def _new(maker: Any) -> Any:
    def method(input: Tensor, *args: Any, **keywords: Any) -> Tensor:
        if keywords.get("dtype") is None:
            keywords["dtype"] = input.type.dtype
        given = {k: keywords.pop(k, None) for k in ("device", "placement", "sbp")}
        given = {k: v for k, v in given.items() if v is not None}
        placed = _placed_as(input, given, no_partial=True)
        return maker(*args, **keywords, **placed)  # type: ignore[no-any-return]

    method.__name__ = method.__qualname__ = f"new_{maker.__name__}"
    method.__doc__ = (
        f"As `{maker.__name__}`, with the dtype and place of this tensor unless others are given."
    )
    return method


new_zeros = _new(zeros)
new_ones = _new(ones)
new_full = _new(full)
new_empty = _new(empty)


def rand_like(
    input: Tensor, *, dtype: DType | None = None, generator: Generator | None = None, **where: Any
) -> Tensor:
    """`rand` of the shape, dtype and place of `input`."""
    return _random_like(rand, input, dtype, generator, where)


def randn_like(
    input: Tensor, *, dtype: DType | None = None, generator: Generator | None = None, **where: Any
) -> Tensor:
    """`randn` of the shape, dtype and place of `input`."""
    return _random_like(randn, input, dtype, generator, where)


def _random_like(
    maker: Any, input: Tensor, dtype: Any, generator: Generator | None, where: dict[str, Any]
) -> Tensor:
    given = {k: v for k, v in where.items() if v is not None}
    given = _placed_as(input, given, no_partial=True)
    wanted = input.type.dtype if dtype is None else dtype
    return maker(input.type.shape, dtype=wanted, generator=generator, **given)  # type: ignore[no-any-return]


def randint(
    low: int,
    high: Any = None,
    size: Any = None,
    *,
    dtype: DType | None = None,
    generator: Generator | None = None,
    requires_grad: bool = False,
    **where: Any,
) -> Tensor:
    """Integers, uniform over low .. high - 1.  `randint(high, size)` starts at 0."""
    if size is None:
        low, high, size = 0, low, high
    wanted = dtypes.int64 if dtype is None else dtype_of(dtype)
    drawn = wanted if wanted.is_integer else dtypes.int64
    attrs = {"low": int(low), "high": int(high), "dtype": drawn}
    out = _random("randint", (size,), attrs, generator, False, where)
    if drawn is not wanted:
        from oneflow.functional.promotion import as_type

        out = as_type(out, wanted)
    if requires_grad:
        out.requires_grad = True
    return out


def randint_like(
    input: Tensor,
    low: int,
    high: int | None = None,
    *,
    dtype: DType | None = None,
    generator: Generator | None = None,
    **where: Any,
) -> Tensor:
    """`randint` of the shape, dtype and place of `input`."""
    bounds = (0, low) if high is None else (low, high)

    def maker(shape: Any, **keywords: Any) -> Tensor:
        return randint(*bounds, shape, **keywords)

    return _random_like(maker, input, dtype, generator, where)


def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    requires_grad: bool = False,
    **where: Any,
) -> Tensor:
    """0 .. n - 1 in random order."""
    wanted = dtypes.int64 if dtype is None else dtype_of(dtype)
    attrs = {"n": int(n), "dtype": wanted, "seed": next_seed(generator)}
    return source("randperm", attrs, requires_grad=requires_grad, **_where(where))


def normal(
    mean: Any,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    requires_grad: bool = False,
    **where: Any,
) -> Tensor:
    """Normal with `mean` and `std`: numbers (then `size` is needed) or tensors."""
    if isinstance(mean, Tensor) or isinstance(std, Tensor):
        from oneflow.functional.arithmetic import add, mul

        like = mean if isinstance(mean, Tensor) else std
        drawn = add(mul(randn_like(like, generator=generator), std), mean)
        return drawn.requires_grad_() if requires_grad else drawn
    if size is None:
        raise TypeError("normal: a size is needed where mean and std are numbers")
    attrs = {"mean": float(mean), "std": float(std), "dtype": _float_dtype("normal", dtype)}
    return _random("normal", (size,), attrs, generator, requires_grad, where)


def bernoulli(
    input: Tensor,
    p: float | None = None,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    inplace: bool = False,
) -> Tensor:
    """1 with probability input[...] (or `p` for all), else 0."""
    from oneflow.functional.promotion import as_float, as_type
    from oneflow.ops.random import bernoulli as op

    chances = as_float(input if p is None else full_like(input, p))
    drawn = op(chances.detach(), seed=next_seed(generator))
    if inplace:
        from oneflow.tensor.inplace import overwrite

        return overwrite(input, drawn)
    return as_type(drawn, input.type.dtype if dtype is None else dtype_of(dtype))
