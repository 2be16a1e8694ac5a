"""Functions of windows over one, two or three spatial dims: the parts that all of them share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from oneflow.core.dtype import DType, float64
from oneflow.core.errors import ArgumentError, DTypeError, ShapeError
from oneflow.functional.dims import Size, spatial_sizes
from oneflow.functional.promotion import as_type
from oneflow.functional.shaping import movedim, reshape, unsqueeze
from oneflow.tensor.tensor import Tensor

_UPSTREAM = ("x", "data_format", "channel_pos")
P = ParamSpec("P")
R = TypeVar("R")
_SPATIAL = ("L", "H, W", "D, H, W")
_WINDOW = ("K", "KH, KW", "KD, KH, KW")


def over_dims(
    ndim: int, function: Callable[Concatenate[int, P], R], name: str = ""
) -> Callable[P, R]:
    """`function` of `ndim` spatial dims, under its name with that number: conv2d of _conv.

    name: another one, with {} in the place of the number.
    """

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs and not kwargs.keys().isdisjoint(_UPSTREAM):
            return cast(R, _of_upstream(run, list(args), kwargs))
        input = args[0] if args else kwargs.get("input")
        if isinstance(input, Tensor) and input.meta.dtype.is_integer:
            return cast(R, _of_integers(function, input.meta.dtype, ndim, *args, **kwargs))
        return function(ndim, *args, **kwargs)

    taken = inspect.signature(function)
    _, *parameters = taken.parameters.values()
    run.__signature__ = taken.replace(parameters=parameters)  # type: ignore[attr-defined]
    name = name or function.__name__[1:] + "{}d"
    run.__name__ = run.__qualname__ = name.format(ndim)
    doc = (function.__doc__ or "").replace("SPATIAL", _SPATIAL[ndim - 1])
    run.__doc__ = doc.replace("WINDOW", _WINDOW[ndim - 1])
    return run


def _of_upstream(function: Callable[..., Any], args: list[object], kwargs: dict[str, Any]) -> Any:
    """The result under upstream's keywords: the tensor as x, and channels in the last dim, where
    the weight of a convolution has them too.
    """
    kwargs = dict(kwargs)
    if "x" in kwargs:
        kwargs["input"] = kwargs.pop("x")
    formats = {kwargs.pop("data_format", None), kwargs.pop("channel_pos", None)} - {None}
    if formats <= {"channels_first"}:
        return function(*args, **kwargs)
    if formats != {"channels_last"}:
        raise ArgumentError(
            f"{function.__name__}() takes the format 'channels_first' or 'channels_last', got "
            f"{sorted(map(str, formats))}"
        )
    args = [_channels_first(a) for a in args]
    out = function(*args, **{k: _channels_first(v) for k, v in kwargs.items()})
    return tuple(map(_channels_last, out)) if isinstance(out, tuple) else _channels_last(out)


def _channels_first(x: object) -> object:
    """Inputs and weights turned round; a bias and objects that are no tensors stay."""
    return movedim(x, -1, 1) if isinstance(x, Tensor) and x.ndim > 2 else x


def _channels_last(x: Tensor) -> Tensor:
    return movedim(x, 1, -1)


def _of_integers(
    function: Callable[..., Any], dtype: DType, *args: object, **kwargs: object
) -> Any:
    """The result for integers, by way of float64; its values are rounded toward zero."""
    for x in (*args, *kwargs.values()):
        if isinstance(x, Tensor) and not x.meta.dtype.is_integer:
            raise DTypeError(
                f"{function.__name__[1:]}: beside an input of {dtype.name} all tensors must have "
                f"integers, got {x.meta}"
            )
    wide = [as_type(a, float64) if isinstance(a, Tensor) else a for a in args]
    named = {k: as_type(a, float64) if isinstance(a, Tensor) else a for k, a in kwargs.items()}
    out = function(*wide, **named)
    return as_type(out, dtype) if isinstance(out, Tensor) else (as_type(out[0], dtype), *out[1:])


def adaptive_sizes(
    name: str, output_size: int | Sequence[int | None] | None, ndim: int
) -> tuple[int | None, ...]:
    """The size of each spatial dim that is asked for, None for that of the input."""
    if output_size is None or isinstance(output_size, int):
        sizes: tuple[int | None, ...] = (output_size,) * ndim
    else:
        sizes = tuple(output_size)
    if len(sizes) != ndim or any(n is not None and n < 0 for n in sizes):
        raise ShapeError(
            f"{name}: output_size must be {ndim} numbers that are greater than or equal to 0, got "
            f"{output_size}"
        )
    return sizes


def window_strides(stride: Size | None, kernel: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a window, which by default begins where the one before it ends."""
    return kernel if stride is None or stride == () else spatial_sizes(stride, len(kernel))


def batched(ndim: int, x: Tensor) -> tuple[Tensor, bool]:
    """x with a dim of samples, and whether it had none."""
    single = x.ndim == ndim + 1
    return (unsqueeze(x, 0) if single else x), single


def unbatched(x: Tensor, single: bool) -> Tensor:
    """Undo `batched`."""
    return reshape(x, x.meta.shape[1:]) if single else x
