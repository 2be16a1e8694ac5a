"""The exponential distribution."""

from __future__ import annotations

from collections.abc import Sequence

from oneflow.distributions import constraints
from oneflow.distributions.distribution import Parametric
from oneflow.functional.creation import rand
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
