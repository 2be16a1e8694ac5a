"""Windows by which signals are faded in and out, as `flow.signal.windows` has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from oneflow.core import dtype as dtypes
from oneflow.core.dtype import DType, DTypeLike
from oneflow.core.errors import ArgumentError, CallError, DTypeError
from oneflow.functional.arithmetic import div, mul, sub
from oneflow.functional.creation import arange, composed, ones, or_default
from oneflow.ops import bessel, unary
from oneflow.tensor.creation_like import Place, Where
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack

BLACKMAN = (0.42, 0.5, 0.08)
NUTTALL = (0.3635819, 0.4891775, 0.1365995, 0.0106411)
"""A. Nuttall, Some windows with very good sidelobe behavior, IEEE TASSP 29(1), 1981."""


def _window(
    name: str,
    M: int,
    sym: bool,
    shape: Callable[[Tensor, float], Tensor],
    dtype: DTypeLike | None,
    requires_grad: bool,
    where: Where,
) -> Tensor:
    """`_samples` for `flow.signal.windows`, where M samples are symmetric unless told."""
    wanted = or_default(dtype)
    if M < 0:
        raise ArgumentError(f"{name} requires non-negative window length, got M={M}")
    if wanted not in (dtypes.float32, dtypes.float64):
        raise ArgumentError(f"{name} expects float32 or float64 dtypes, got: {wanted.name}")
    return _samples(M, sym, shape, wanted, requires_grad, where)


def _older_window(
    length: int,
    periodic: bool,
    shape: Callable[[Tensor, float], Tensor],
    dtype: DTypeLike | None,
    requires_grad: bool,
    where: Where,
) -> Tensor:
    """`_samples` for `flow.hann_window` and its like, which are periodic unless told."""
    if length < 0:
        raise ArgumentError(f"a window requires a non-negative window_length, got {length}")
    wanted = or_default(dtype)
    if not wanted.is_floating_point:
        raise DTypeError(f"a window expects floating point dtypes, got {wanted.name}")
    return _samples(length, not periodic, shape, wanted, requires_grad, where)


def _samples(
    M: int,
    sym: bool,
    shape: Callable[[Tensor, float], Tensor],
    wanted: DType,
    requires_grad: bool,
    where: Where,
) -> Tensor:
    """The M samples `shape(places, last)`: places 0, 1, ... and the place of the last sample.

    sym: False for one period of an endless window: the last sample lies one place beyond.
    """

    def make(place: Place) -> Tensor:
        if M <= 1:
            return ones((M,), dtype=dtypes.float64, **place)
        return shape(arange(0, M, 1, dtype=dtypes.float64, **place), float(M - 1 if sym else M))

    return composed(make, wanted, requires_grad, where)


def _cosines(weights: Sequence[float]) -> Callable[[Tensor, float], Tensor]:
    """The sum of (-1)^i weights[i] cos(i angle), of angles from 0 to 2 pi."""

    def shape(places: Tensor, last: float) -> Tensor:
        angle = mul(places, 2 * math.pi / last)
        total = mul(unary.full_like(places, value=1), weights[0])
        for i, weight in enumerate(weights[1:], start=1):
            total = total + mul(unary.cos(mul(angle, i)), (-1) ** i * weight)
        return total

    return shape


def _triangle(places: Tensor, last: float) -> Tensor:
    return sub(1, unary.abs(sub(mul(places, 2 / last), 1)))


def _kaiser(beta: float) -> Callable[[Tensor, float], Tensor]:
    def shape(places: Tensor, last: float) -> Tensor:
        middle = sub(mul(places, 2 / last), 1)
        rest = unary.clamp(sub(1, unary.square(middle)), min=0.0)
        top = bessel.i0(unary.full_like(places, value=beta))
        return div(bessel.i0(mul(unary.sqrt(rest), beta)), top)

    return shape


def bartlett(
    M: int, *, sym: bool = True, dtype: DTypeLike | None = None, requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:  # fmt: skip
    """The triangle that is 0 at both ends, `M` samples; sym: False for one period of it."""
    return _window("bartlett", M, sym, _triangle, dtype, requires_grad, where)


def blackman(
    M: int, *, sym: bool = True, dtype: DTypeLike | None = None, requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:  # fmt: skip
    """Blackman's sum of three cosines, `M` samples; sym: False for one period of it."""
    return _window("blackman", M, sym, _cosines(BLACKMAN), dtype, requires_grad, where)


def nuttall(
    M: int, *, sym: bool = True, dtype: DTypeLike | None = None, requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:  # fmt: skip
    """Nuttall's sum of four cosines, `M` samples; sym: False for one period of it."""
    return _window("nuttall", M, sym, _cosines(NUTTALL), dtype, requires_grad, where)


def general_cosine(
    M: int, *, a: Iterable[float], sym: bool = True, dtype: DTypeLike | None = None,
    requires_grad: bool = False, **where: Unpack[Where],
) -> Tensor:  # fmt: skip
    """The sum of cosines with the weights `a`, the signs alternating; `M` samples."""
    if not isinstance(a, Iterable):
        raise CallError(f"general_cosine: Coefficients must be a list/tuple, got {a!r}")
    weights = tuple(a)
    if not weights:
        raise ArgumentError("general_cosine: Coefficients cannot be empty")
    return _window("general_cosine", M, sym, _cosines(weights), dtype, requires_grad, where)


def general_hamming(
    M: int, *, alpha: float = 0.54, sym: bool = True, dtype: DTypeLike | None = None,
    requires_grad: bool = False, **where: Unpack[Where],
) -> Tensor:  # fmt: skip
    """alpha - (1 - alpha) cos, `M` samples; sym: False for one period of it."""
    shape = _cosines((alpha, 1 - alpha))
    return _window("general_hamming", M, sym, shape, dtype, requires_grad, where)


def hamming(
    M: int, *, sym: bool = True, dtype: DTypeLike | None = None, requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:  # fmt: skip
    """0.54 - 0.46 cos, `M` samples; sym: False for one period of it."""
    return _window("hamming", M, sym, _cosines((0.54, 0.46)), dtype, requires_grad, where)


def hann(
    M: int, *, sym: bool = True, dtype: DTypeLike | None = None, requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:  # fmt: skip
    """The square of a sine, `M` samples; sym: False for one period of it."""
    return _window("hann", M, sym, _cosines((0.5, 0.5)), dtype, requires_grad, where)


def cosine(
    M: int, *, sym: bool = True, dtype: DTypeLike | None = None, requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:  # fmt: skip
    """Half a wave of a sine, `M` samples in the middles of its parts; sym: False for one period."""

    def shape(places: Tensor, last: float) -> Tensor:
        return unary.sin(mul(places + 0.5, math.pi / (last + 1)))

    return _window("cosine", M, sym, shape, dtype, requires_grad, where)


def exponential(
    M: int, *, center: float | None = None, tau: float = 1.0, sym: bool = True,
    dtype: DTypeLike | None = None, requires_grad: bool = False, **where: Unpack[Where],
) -> Tensor:  # fmt: skip
    """exp(-|place - center| / tau), `M` samples; center: the middle, unless sym is False."""
    if tau <= 0:
        raise ArgumentError(f"exponential: Tau must be positive, got: {tau} instead.")
    if sym and center is not None:
        raise ArgumentError("exponential: Center must be None for symmetric windows")

    def shape(places: Tensor, last: float) -> Tensor:
        distance = unary.abs(sub(places, last / 2 if center is None else center))
        return unary.exp(mul(distance, -1 / tau))

    if M == 1 and center is not None:
        value = math.exp(-abs(center) / tau)
        return _window("exponential", M, sym, shape, dtype, requires_grad, where) * value
    return _window("exponential", M, sym, shape, dtype, requires_grad, where)


def gaussian(
    M: int, *, std: float = 1.0, sym: bool = True, dtype: DTypeLike | None = None,
    requires_grad: bool = False, **where: Unpack[Where],
) -> Tensor:  # fmt: skip
    """exp(-((place - middle) / std)^2 / 2), `M` samples; sym: False for one period of it."""
    if std <= 0:
        raise ArgumentError(f"gaussian: Standard deviation must be positive, got: {std} instead.")

    def shape(places: Tensor, last: float) -> Tensor:
        return unary.exp(mul(unary.square(sub(places, last / 2)), -0.5 / std**2))

    return _window("gaussian", M, sym, shape, dtype, requires_grad, where)


def kaiser(
    M: int, *, beta: float = 12.0, sym: bool = True, dtype: DTypeLike | None = None,
    requires_grad: bool = False, **where: Unpack[Where],
) -> Tensor:  # fmt: skip
    """Kaiser's window of Bessel functions, `M` samples; beta: >= 0, larger ones are narrower."""
    if beta < 0:
        raise ArgumentError(f"kaiser: beta must be non-negative, got: {beta} instead.")
    return _window("kaiser", M, sym, _kaiser(beta), dtype, requires_grad, where)


def bartlett_window(
    window_length: int, periodic: bool = True, *, dtype: DTypeLike | None = None,
    requires_grad: bool = False, **where: Unpack[Where],
) -> Tensor:  # fmt: skip
    """The triangle that is 0 at both ends; periodic: one period of an endless one."""
    return _older_window(window_length, periodic, _triangle, dtype, requires_grad, where)


def blackman_window(
    window_length: int, periodic: bool = True, *, dtype: DTypeLike | None = None,
    requires_grad: bool = False, **where: Unpack[Where],
) -> Tensor:  # fmt: skip
    """Blackman's sum of three cosines; periodic: one period of an endless one."""
    return _older_window(window_length, periodic, _cosines(BLACKMAN), dtype, requires_grad, where)


def hann_window(
    window_length: int, periodic: bool = True, *, dtype: DTypeLike | None = None,
    requires_grad: bool = False, **where: Unpack[Where],
) -> Tensor:  # fmt: skip
    """The square of a sine; periodic: one period of an endless one."""
    return _older_window(window_length, periodic, _cosines((0.5, 0.5)), dtype, requires_grad, where)


def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46,
    *, dtype: DTypeLike | None = None,
    requires_grad: bool = False, **where: Unpack[Where],
) -> Tensor:  # fmt: skip
    """alpha - beta cos; periodic: one period of an endless one."""
    return _older_window(
        window_length, periodic, _cosines((alpha, beta)), dtype, requires_grad, where
    )


def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *,
    dtype: DTypeLike | None = None, requires_grad: bool = False, **where: Unpack[Where],
) -> Tensor:  # fmt: skip
    """Kaiser's window of Bessel functions; beta: larger ones are narrower."""
    return _older_window(window_length, periodic, _kaiser(beta), dtype, requires_grad, where)
