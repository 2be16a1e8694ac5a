"""Distributions of numbers above 0."""

from __future__ import annotations

import math
from collections.abc import Sequence

from oneflow.distributions import constraints
from oneflow.distributions.distribution import Parametric
from oneflow.distributions.location_scale import Cauchy, Normal
from oneflow.functional.creation import full, rand
from oneflow.ops.unary import full_like, log, log1p
from oneflow.tensor.tensor import Tensor


class Exponential(Parametric):
    """The exponential distribution: waiting times between events of a `rate`."""

    has_rsample = True
    arg_constraints = {"rate": constraints.positive}
    support = constraints.nonnegative
    rate: Tensor

    def __init__(self, rate: float | Tensor, validate_args: bool | None = None) -> None:
        self._keep(validate_args, rate=rate)

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return 1 / self.rate

    @property
    def mode(self) -> Tensor:
        """Zero."""
        return full_like(self.rate.detach(), value=0.0)

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return 1 / self.rate

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        return self.rate**-2

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws whose gradient reaches the parameters."""
        drawn = rand(tuple(self._extended_shape(sample_shape)), **self._kind())
        return -log1p(-drawn) / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density."""
        self._check_value(value)
        return log(self.rate) - self.rate * value

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of a value at most this large."""
        self._check_value(value)
        return 1 - (-self.rate * value).exp()

    def icdf(self, value: Tensor) -> Tensor:
        """The value up to which this much probability lies."""
        return -log1p(-value) / self.rate

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the density."""
        return 1.0 - log(self.rate)


class _Half(Parametric):
    """The absolute value of a number of a distribution around 0."""

    has_rsample = True
    arg_constraints = {"scale": constraints.positive}
    support = constraints.nonnegative
    scale: Tensor

    def __init__(self, scale: float | Tensor, validate_args: bool | None = None) -> None:
        self._keep(validate_args, scale=scale)

    @property
    def _whole(self) -> Normal | Cauchy:
        raise self._missing("rsample")

    @property
    def mode(self) -> Tensor:
        """Zero."""
        return full_like(self.scale.detach(), value=0.0)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws whose gradient reaches the parameters."""
        return self._whole.rsample(sample_shape).abs()

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density."""
        self._check_value(value)
        found = self._whole.log_prob(value) + math.log(2)
        return found.masked_fill((value < 0).expand_as(found), -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of a value at most this large."""
        self._check_value(value)
        return 2 * self._whole.cdf(value) - 1

    def icdf(self, value: Tensor) -> Tensor:
        """The value up to which this much probability lies."""
        return self._whole.icdf((value + 1) / 2)

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the density."""
        return self._whole.entropy() - math.log(2)


class HalfNormal(_Half):
    """The absolute value of a normal number."""

    @property
    def _whole(self) -> Normal:
        return Normal(0.0, self.scale, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        return self.scale**2 * (1 - 2 / math.pi)


class HalfCauchy(_Half):
    """The absolute value of a number of the Cauchy distribution."""

    @property
    def _whole(self) -> Cauchy:
        return Cauchy(0.0, self.scale, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Infinite."""
        return full(self._extended_shape(), math.inf, **self._kind())

    @property
    def variance(self) -> Tensor:
        """Infinite."""
        return self.mean
