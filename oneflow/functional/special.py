"""Special functions, as `flow.special` has them: compositions of oneflow/ops/special.py."""

from __future__ import annotations

import math
from collections.abc import Callable

from oneflow.core import dtype as dtypes
from oneflow.core.errors import ArgumentError, DTypeError
from oneflow.core.operand import TensorLike
from oneflow.functional.arithmetic import div, mul, sub
from oneflow.functional.elementwise import masked_fill, pick
from oneflow.functional.promotion import as_float, as_type, need_tensors, rounded_once, two_floats
from oneflow.ops import bessel, compare, unary
from oneflow.ops import special as ops
from oneflow.tensor.tensor import Tensor


def digamma(input: Tensor) -> Tensor:
    """The derivative of lgamma; infinite at 0, NaN at negative integers."""
    return ops.digamma(as_float(input))


def gammaln(input: Tensor) -> Tensor:
    """The logarithm of the absolute value of the gamma function."""
    return ops.lgamma(as_float(input))


def erfcx(input: Tensor) -> Tensor:
    """exp(input ** 2) * erfc(input), which does not vanish for large inputs."""
    return ops.erfcx(as_float(input))


def zeta(input: TensorLike, other: TensorLike) -> Tensor:
    """The Hurwitz zeta function: the sum of (other + k) ** -input over k = 0, 1, ..."""
    return ops.zeta(*two_floats("zeta", input, other))


def polygamma(n: int, input: Tensor) -> Tensor:
    """The n-th derivative of digamma."""
    if n < 0:
        raise ArgumentError(f"polygamma(n, x) does not support negative n, got {n}")
    x = as_float(input)
    return ops.digamma(x) if n == 0 else ops.polygamma(x, order=int(n))


def polygamma_of(input: Tensor, n: int) -> Tensor:
    """The n-th derivative of digamma, as the method of a tensor."""
    return polygamma(n, input)


_MOST_DIMS = 1 << 16  # each is a term of its own


def multigammaln(input: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension p."""
    if not 1 <= p <= _MOST_DIMS:
        raise ArgumentError(f"mvlgamma: p has to be at least 1, and at most {_MOST_DIMS}, got {p}")
    if input.meta.dtype.name == "bool":
        raise DTypeError(f"mvlgamma needs numbers, got {input.meta}")
    x = as_float(input)
    total = ops.lgamma(x)
    for j in range(1, p):
        total = total + ops.lgamma(x - j / 2)
    return total + p * (p - 1) / 4 * math.log(math.pi)


def xlogy(input: TensorLike, other: TensorLike) -> Tensor:
    """input * log(other), and 0 where input is 0."""
    return ops.xlogy(*two_floats("xlogy", input, other))


def xlog1py(input: TensorLike, other: TensorLike) -> Tensor:
    """input * log(1 + other), and 0 where input is 0."""
    return ops.xlog1py(*two_floats("xlog1py", input, other))


def entr(input: Tensor) -> Tensor:
    """-input * log(input), 0 at 0, and -inf below."""
    return ops.entr(as_float(input))


def ndtr(input: Tensor) -> Tensor:
    """The area under the normal density left of input."""
    return mul(ops.erfc(mul(as_float(input), -math.sqrt(0.5))), 0.5)


def ndtri(input: Tensor) -> Tensor:
    """The point left of which the area under the normal density is input."""
    x = as_float(input)
    return mul(ops.erfinv(sub(mul(x, 2), 1)), math.sqrt(2))


def log_ndtr(input: Tensor) -> Tensor:
    """log(ndtr(input)), without loss in the tail."""
    x = as_float(input)
    is_low = compare.scalar_compare(x, value=-1, kind="lt")
    low = mul(masked_fill(x, unary.logical_not(is_low), -1.0), math.sqrt(0.5))
    tail = sub(unary.log(mul(ops.erfcx(unary.neg(low)), 0.5)), unary.square(low))
    high = mul(masked_fill(x, is_low, 0.0), math.sqrt(0.5))
    return pick(is_low, tail, unary.log1p(mul(sub(1, unary.erf(high)), -0.5)))


@rounded_once
def sinc(input: Tensor) -> Tensor:
    """sin(pi x) / (pi x), and 1 at 0."""
    x = mul(as_float(input), math.pi)
    is_zero = compare.scalar_compare(x, value=0, kind="eq")
    safe = masked_fill(x, is_zero, 1.0)
    return masked_fill(div(unary.sin(safe), safe), is_zero, 1.0)


def expit(input: Tensor) -> Tensor:
    """1 / (1 + exp(-input))."""
    found: Tensor = unary.sigmoid(as_float(input))
    return found


@rounded_once
def igamma(input: Tensor, other: Tensor) -> Tensor:
    """The regularized lower incomplete gamma function of `input` at `other`. A gradient
    for `input` raises AutogradError.
    """
    return _gammainc("igamma", input, other, False)


@rounded_once
def igammac(input: Tensor, other: Tensor) -> Tensor:
    """The regularized upper incomplete gamma function: 1 - igamma."""
    return _gammainc("igammac", input, other, True)


def _gammainc(name: str, input: TensorLike, other: TensorLike, is_upper: bool) -> Tensor:
    need_tensors(name, input=input, other=other)
    a, x = two_floats(name, input, other)
    logs = ops.lgamma(as_type(a.detach(), dtypes.float64))
    return bessel.gammainc(a, x, as_type(logs, a.meta.dtype), is_upper=is_upper)


# ---- orthogonal polynomials ----------------------------------------------------------------------


def _polynomial(name: str, kind: str, is_shifted: bool = False) -> Callable[..., Tensor]:
    def function(input: TensorLike, n: TensorLike) -> Tensor:
        x, degree = two_floats(name, input, n)
        if is_shifted:
            x = sub(mul(x, 2), 1)
        return bessel.polynomial(x.detach(), degree.detach(), kind=kind)

    where = " of 2 input - 1" if is_shifted else ""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"The polynomial {kind.replace('_', ' ').capitalize()} of degree n{where}; 0 for n < 0."
    )
    return function


chebyshev_polynomial_t = _polynomial("chebyshev_polynomial_t", "chebyshev_t")
chebyshev_polynomial_u = _polynomial("chebyshev_polynomial_u", "chebyshev_u")
chebyshev_polynomial_v = _polynomial("chebyshev_polynomial_v", "chebyshev_v")
chebyshev_polynomial_w = _polynomial("chebyshev_polynomial_w", "chebyshev_w")
shifted_chebyshev_polynomial_t = _polynomial("shifted_chebyshev_polynomial_t", "chebyshev_t", True)
shifted_chebyshev_polynomial_u = _polynomial("shifted_chebyshev_polynomial_u", "chebyshev_u", True)
shifted_chebyshev_polynomial_v = _polynomial("shifted_chebyshev_polynomial_v", "chebyshev_v", True)
shifted_chebyshev_polynomial_w = _polynomial("shifted_chebyshev_polynomial_w", "chebyshev_w", True)
hermite_polynomial_h = _polynomial("hermite_polynomial_h", "hermite_h")
hermite_polynomial_he = _polynomial("hermite_polynomial_he", "hermite_he")
laguerre_polynomial_l = _polynomial("laguerre_polynomial_l", "laguerre_l")
legendre_polynomial_p = _polynomial("legendre_polynomial_p", "legendre_p")
