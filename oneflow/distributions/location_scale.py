"""Distributions of real numbers with a place and a width."""

from __future__ import annotations

import math
from collections.abc import Sequence

from oneflow.distributions import constraints
from oneflow.distributions.distribution import Parametric, holds
from oneflow.distributions.gamma import standard_gamma
from oneflow.functional.creation import full, rand, randn
from oneflow.functional.shaping import expand
from oneflow.nn import functional as F
from oneflow.ops.special import erfinv, lgamma
from oneflow.ops.unary import atan, erf, log, log1p, tan
from oneflow.tensor.layout import finfo
from oneflow.tensor.tensor import Tensor

EULER = 0.57721566490153286061
"""The Euler-Mascheroni constant, the mean of the standard Gumbel distribution."""


class _LocationScale(Parametric):
    """`loc` + `scale` times a number of the standard distribution, which `_standard` draws."""

    has_rsample = True
    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    loc: Tensor
    scale: Tensor

    def __init__(
        self, loc: float | Tensor, scale: float | Tensor, validate_args: bool | None = None
    ) -> None:
        self._keep(validate_args, loc=loc, scale=scale)

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.loc

    def _standard(self, shape: tuple[int, ...]) -> Tensor:
        raise self._missing("rsample")

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws whose gradient reaches the parameters."""
        return self.loc + self.scale * self._standard(tuple(self._extended_shape(sample_shape)))

    def _scaled(self, value: Tensor) -> Tensor:
        self._check_value(value)
        return (value - self.loc) / self.scale

    def _unit(self, shape: tuple[int, ...]) -> Tensor:
        """Uniform over (0, 1)."""
        info = finfo(self._any.dtype)
        return rand(shape, **self._kind()).clamp(info.tiny, 1 - info.eps)


class Normal(_LocationScale):
    """The normal distribution with mean `loc` and standard deviation `scale`."""

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self.loc

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return self.scale

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        return self.scale**2

    def _standard(self, shape: tuple[int, ...]) -> Tensor:
        return randn(shape, **self._kind())

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density."""
        z = self._scaled(value)
        return -0.5 * z * z - log(self.scale) - 0.5 * math.log(2 * math.pi)

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of a value at most this large."""
        return 0.5 * (1 + erf(self._scaled(value) / math.sqrt(2)))

    def icdf(self, value: Tensor) -> Tensor:
        """The value up to which this much probability lies."""
        return self.loc + self.scale * erfinv(2 * value - 1) * math.sqrt(2)

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the density."""
        return 0.5 + 0.5 * math.log(2 * math.pi) + log(self.scale)


class Laplace(_LocationScale):
    """The Laplace distribution: exponential on both sides of `loc`."""

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        return 2 * self.scale**2

    def _standard(self, shape: tuple[int, ...]) -> Tensor:
        return _laplace_place(self._unit(shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density."""
        return -log(2 * self.scale) - self._scaled(value).abs()

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of a value at most this large."""
        z = self._scaled(value)
        return 0.5 - 0.5 * z.sign() * (-z.abs()).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        """The value up to which this much probability lies."""
        return self.loc + self.scale * _laplace_place(value)

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the density."""
        return 1 + log(2 * self.scale)


def _laplace_place(share: Tensor) -> Tensor:
    gap = share - 0.5
    return -gap.sign() * log1p(-2 * gap.abs())


class Cauchy(_LocationScale):
    """The Cauchy distribution, which has neither mean nor variance."""

    @property
    def mean(self) -> Tensor:
        """NaN."""
        return full(self._extended_shape(), math.nan, **self._kind())

    @property
    def variance(self) -> Tensor:
        """Infinite."""
        return full(self._extended_shape(), math.inf, **self._kind())

    def _standard(self, shape: tuple[int, ...]) -> Tensor:
        return tan((self._unit(shape) - 0.5) * math.pi)

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density."""
        return -math.log(math.pi) - log(self.scale) - log1p(self._scaled(value) ** 2)

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of a value at most this large."""
        return atan(self._scaled(value)) / math.pi + 0.5

    def icdf(self, value: Tensor) -> Tensor:
        """The value up to which this much probability lies."""
        return self.loc + self.scale * tan((value - 0.5) * math.pi)

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the density."""
        return math.log(4 * math.pi) + log(self.scale)


class Gumbel(_LocationScale):
    """The Gumbel distribution: of the largest among many numbers."""

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self.loc + self.scale * EULER

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        return self.scale**2 * (math.pi**2 / 6)

    def _standard(self, shape: tuple[int, ...]) -> Tensor:
        return -log(-log(self._unit(shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density."""
        z = self._scaled(value)
        return -z - (-z).exp() - log(self.scale)

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of a value at most this large."""
        return (-(-self._scaled(value)).exp()).exp()

    def icdf(self, value: Tensor) -> Tensor:
        """The value up to which this much probability lies."""
        return self.loc - self.scale * log(-log(value))

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the density."""
        return log(self.scale) + (1 + EULER)


class StudentT(_LocationScale):
    """Student's t distribution with `df` degrees of freedom."""

    arg_constraints = {"df": constraints.positive, **_LocationScale.arg_constraints}
    df: Tensor

    def __init__(
        self,
        df: float | Tensor,
        loc: float | Tensor = 0.0,
        scale: float | Tensor = 1.0,
        validate_args: bool | None = None,
    ) -> None:
        self._keep(validate_args, df=df, loc=loc, scale=scale)

    @property
    def mean(self) -> Tensor:
        """The expected value; NaN up to one degree of freedom."""
        return self.loc.masked_fill(self.df <= 1, math.nan)

    @property
    def variance(self) -> Tensor:
        """Infinite up to two degrees of freedom, NaN up to one."""
        wide = self.scale**2 * self.df / (self.df - 2)
        return wide.masked_fill(self.df <= 2, math.inf).masked_fill(self.df <= 1, math.nan)

    def _standard(self, shape: tuple[int, ...]) -> Tensor:
        half = expand(self.df / 2, shape)
        return randn(shape, **self._kind()) * (half / standard_gamma(half)) ** 0.5

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density."""
        z, df = self._scaled(value), self.df
        total = log(self.scale) + 0.5 * log(df) + 0.5 * math.log(math.pi)
        total = total + lgamma(0.5 * df) - lgamma(0.5 * (df + 1))
        return -0.5 * (df + 1) * log1p(z**2 / df) - total

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the density."""
        df = self.df
        beta = lgamma(0.5 * df) + math.lgamma(0.5) - lgamma(0.5 * (df + 1))
        gap = (0.5 * (df + 1)).digamma() - (0.5 * df).digamma()
        return log(self.scale) + 0.5 * (df + 1) * gap + 0.5 * log(df) + beta


class Uniform(Parametric):
    """Uniform over [low, high)."""

    has_rsample = True
    arg_constraints = {"low": constraints.dependent, "high": constraints.dependent}
    low: Tensor
    high: Tensor

    def __init__(
        self, low: float | Tensor, high: float | Tensor, validate_args: bool | None = None
    ) -> None:
        self._keep(validate_args, low=low, high=high)
        if self._validate_args and not holds(constraints.greater_than(self.low), self.high):
            raise ValueError("Uniform is not defined when low >= high")

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        """Numbers between the bounds."""
        return constraints.interval(self.low, self.high)

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return (self.high + self.low) / 2

    @property
    def mode(self) -> Tensor:
        """NaN: all values are alike."""
        return math.nan * self.high

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return (self.high - self.low) / math.sqrt(12)

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        return (self.high - self.low) ** 2 / 12

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws whose gradient reaches the parameters."""
        drawn = rand(tuple(self._extended_shape(sample_shape)), **self._kind())
        return self.low + drawn * (self.high - self.low)

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density."""
        self._check_value(value)
        is_in = (value >= self.low) & (value < self.high)
        return log(is_in.type_as(self.low)) - log(self.high - self.low)

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of a value at most this large."""
        self._check_value(value)
        return F.hardtanh((value - self.low) / (self.high - self.low), 0.0, 1.0)

    def icdf(self, value: Tensor) -> Tensor:
        """The value up to which this much probability lies."""
        return self.low + value * (self.high - self.low)

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the density."""
        return log(self.high - self.low)
