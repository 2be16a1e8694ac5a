"""Distributions of whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

from oneflow.core.size import Size
from oneflow.distributions import constraints
from oneflow.distributions.distribution import Parametric, holds
from oneflow.distributions.gamma import standard_gamma
from oneflow.functional.creation import arange, bernoulli, rand
from oneflow.functional.random_state import next_seed
from oneflow.functional.shaping import expand, reshape
from oneflow.functional.special import xlogy
from oneflow.nn import functional as F
from oneflow.ops.random import poisson
from oneflow.ops.special import lgamma
from oneflow.ops.unary import full_like, log, log1p
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.layout import finfo
from oneflow.tensor.tensor import Tensor


class _OfChances(Parametric):
    """A distribution given by `probs` or by `logits`, the logarithms of their odds."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}

    def _keep_chances(
        self,
        probs: float | Tensor | None,
        logits: float | Tensor | None,
        validate_args: bool | None,
        **more: float | Tensor,
    ) -> None:
        if (probs is None) == (logits is None):
            raise ValueError("Either `probs` or `logits` must be specified, but not both.")
        given = {"logits": logits} if probs is None else {"probs": probs}
        values = {name: v for name, v in given.items() if v is not None}
        self._keep(validate_args, None, **values, **more)

    @cached_property
    def probs(self) -> Tensor:
        """The chances of a success."""
        return self.logits.sigmoid()

    @cached_property
    def logits(self) -> Tensor:
        """Logarithms of the odds of a success."""
        eps = finfo(self._any.dtype).eps
        chances = self.probs.clamp(eps, 1 - eps)
        return log(chances) - log1p(-chances)

    @property
    def param_shape(self) -> Size:
        """Shape of the chances."""
        return Size(self._any.shape)

    def _chances(self, sample_shape: Sequence[int]) -> Tensor:
        return expand(self.probs.detach(), tuple(self._extended_shape(sample_shape)))


class Bernoulli(_OfChances):
    """1 with probability `probs`, else 0."""

    has_enumerate_support: ClassVar[bool] = True
    support: constraints.Constraint | None = constraints.boolean

    def __init__(
        self,
        probs: float | Tensor | None = None,
        logits: float | Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._keep_chances(probs, logits, validate_args)

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self.probs

    @property
    def mode(self) -> Tensor:
        """The more probable value; NaN where both are."""
        chances = self.probs
        found = (chances >= 0.5).type_as(chances)
        return found.masked_fill(chances == 0.5, float("nan"))

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of shape sample_shape + batch_shape."""
        return bernoulli(self._chances(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the probability."""
        self._check_value(value)
        value, odds = value + 0 * self.logits.detach(), self.logits + 0 * value
        return -F.binary_cross_entropy_with_logits(odds, value, reduction="none")

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the probability."""
        return F.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """0 and 1 along a new first dim."""
        values = arange(2, **self._kind())
        values = reshape(values, (-1, *(1 for _ in self._batch_shape)))
        return _wide(values, (2, *self._batch_shape)) if expand else values


_wide = expand  # a method's argument is called so, too


class Geometric(_OfChances):
    """The number of failures before the first success."""

    support = constraints.nonnegative_integer

    def __init__(
        self,
        probs: float | Tensor | None = None,
        logits: float | Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._keep_chances(probs, logits, validate_args)
        if self._validate_args and not holds(constraints.positive, self.probs):
            raise ValueError("Geometric: every chance must be above 0")

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return 1 / self.probs - 1

    @property
    def mode(self) -> Tensor:
        """Zero."""
        return full_like(self.probs.detach(), value=0.0)

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        return (1 / self.probs - 1) / self.probs

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of shape sample_shape + batch_shape."""
        chances = self._chances(sample_shape)
        with no_grad():
            u = rand(tuple(chances.shape), **self._kind()).clamp(min=finfo(chances.dtype).tiny)
            return (log(u) / log1p(-chances)).floor()

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the probability."""
        self._check_value(value)
        return xlogy(value, 1 - self.probs) + log(self.probs)

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the probability."""
        odds = self.logits
        return F.binary_cross_entropy_with_logits(odds, self.probs, reduction="none") / self.probs


class _OfTrials(_OfChances):
    """Counts of successes; total_count: a number or a tensor."""

    total_count: Tensor

    def __init__(
        self,
        total_count: float | Tensor = 1,
        probs: float | Tensor | None = None,
        logits: float | Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._keep_chances(probs, logits, validate_args, total_count=total_count)


class Binomial(_OfTrials):
    """The number of successes among `total_count` trials."""

    arg_constraints = {**_OfChances.arg_constraints, "total_count": constraints.nonnegative_integer}
    has_enumerate_support: ClassVar[bool] = True

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> constraints.Constraint:
        """Integers up to the number of trials."""
        return constraints.integer_interval(0, self.total_count)

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self.total_count * self.probs

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return ((self.total_count + 1) * self.probs).floor().clamp(max=self.total_count)

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of shape sample_shape + batch_shape, each the sum of its trials."""
        chances = self._chances(sample_shape)
        most = int(self.total_count.max().item()) if self.total_count.numel() else 0
        trials = bernoulli(chances.unsqueeze(-1).expand((*chances.shape, most)))
        number = arange(most, **self._kind())
        return (trials * (number < self.total_count.unsqueeze(-1))).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the probability."""
        self._check_value(value)
        n, odds = self.total_count, self.logits
        ways = lgamma(n + 1) - lgamma(value + 1) - lgamma(n - value + 1)
        return ways + value * odds - n * F.softplus(odds)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All counts along a new first dim. Raises NotImplementedError for unlike numbers of
        trials.
        """
        most = int(self.total_count.max().item())
        if not int(self.total_count.min().item()) == most:
            raise NotImplementedError("Binomial: the numbers of trials differ")
        values = reshape(arange(most + 1, **self._kind()), (-1, *(1 for _ in self._batch_shape)))
        return _wide(values, (most + 1, *self._batch_shape)) if expand else values

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the probability, where all numbers of trials are
        alike.
        """
        scores = Binomial(self.total_count, logits=self.logits, validate_args=False)
        logs = scores.log_prob(self.enumerate_support(False))
        return -(logs.exp() * logs).sum(0)


class NegativeBinomial(_OfTrials):
    """The number of successes before `total_count` failures."""

    arg_constraints = {
        "total_count": constraints.greater_than_eq(0),
        "probs": constraints.half_open_interval(0.0, 1.0),
        "logits": constraints.real,
    }
    support = constraints.nonnegative_integer

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self.total_count * self.logits.exp()

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0.0)

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        return self.mean / (-self.logits).sigmoid()

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of shape sample_shape + batch_shape."""
        with no_grad():
            wide = expand(self.total_count, tuple(self._extended_shape(sample_shape)))
            return poisson(standard_gamma(wide) * self.logits.exp(), seed=next_seed())

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the probability."""
        self._check_value(value)
        n = self.total_count
        ways = lgamma(n + value) - lgamma(1 + value) - lgamma(n)
        ways = ways.masked_fill(n + value == 0, 0.0)
        return ways + n * F.logsigmoid(-self.logits) + value * F.logsigmoid(self.logits)


class Poisson(Parametric):
    """The number of events of a `rate` in a unit of time."""

    arg_constraints = {"rate": constraints.nonnegative}
    support = constraints.nonnegative_integer
    rate: Tensor

    def __init__(self, rate: float | Tensor, validate_args: bool | None = None) -> None:
        self._keep(validate_args, rate=rate)

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self.rate

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.rate.floor()

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        return self.rate

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of shape sample_shape + batch_shape."""
        wide = expand(self.rate.detach(), tuple(self._extended_shape(sample_shape)))
        return poisson(wide, seed=next_seed())

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the probability."""
        self._check_value(value)
        return xlogy(value, self.rate) - self.rate - lgamma(value + 1)
