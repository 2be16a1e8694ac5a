"""Categories as vectors: one-hot, counted, and relaxed to shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, cast

from oneflow.distributions import constraints
from oneflow.distributions.categorical import Categorical
from oneflow.distributions.composed import TransformedDistribution
from oneflow.distributions.counts import Bernoulli
from oneflow.distributions.distribution import Distribution
from oneflow.distributions.transforms import ExpTransform, SigmoidTransform
from oneflow.functional.creation import arange, eye, rand
from oneflow.functional.reduction import logsumexp
from oneflow.functional.shaping import expand, reshape
from oneflow.functional.special import xlogy
from oneflow.nn import functional as F
from oneflow.ops.special import lgamma
from oneflow.ops.unary import log, log1p
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.layout import finfo
from oneflow.tensor.tensor import Tensor


class _OfCategories(Distribution):
    """A distribution of vectors over the categories of a `Categorical`."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}

    def __init__(
        self,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._keep_categories(Categorical(probs, logits, validate_args), validate_args)

    def _keep_categories(self, categories: Categorical, validate_args: bool | None) -> None:
        self._categorical = categories
        event = categories.param_shape[-1:]
        Distribution.__init__(self, categories.batch_shape, event, validate_args)

    @property
    def probs(self) -> Tensor:
        """The probabilities, which sum to 1."""
        return self._categorical.probs

    @property
    def logits(self) -> Tensor:
        """Logarithms of the probabilities."""
        return self._categorical.logits

    @property
    def param_shape(self) -> Sequence[int]:
        """Shape of the probabilities."""
        return self._categorical.param_shape

    def _one_hot(self, index: Tensor) -> Tensor:
        return F.one_hot(index, self._event_shape[0]).type_as(self.probs)


class OneHotCategorical(_OfCategories):
    """A category as a vector of zeros and a one."""

    has_enumerate_support: ClassVar[bool] = True
    support = constraints.one_hot

    @property
    def mean(self) -> Tensor:
        """The probabilities."""
        return self.probs

    @property
    def mode(self) -> Tensor:
        """The most probable category."""
        return self._one_hot(self.probs.argmax(-1))

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        return self.probs * (1 - self.probs)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> OneHotCategorical:
        """The same distributions under a larger batch shape."""
        wide = expand(self.logits, (*batch_shape, *self._event_shape))
        return self._grown(OneHotCategorical, _instance, logits=wide)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of shape sample_shape + batch_shape + (categories,)."""
        return self._one_hot(self._categorical.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the probability."""
        self._check_value(value)
        return self._categorical.log_prob(value.argmax(-1))

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the probability."""
        return self._categorical.entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All categories along a new first dim."""
        n = self._event_shape[0]
        rows = eye(n, dtype=self.probs.dtype, **layout_of(self.probs))
        values = reshape(rows, (n, *(1 for _ in self._batch_shape), n))
        return _wide(values, (n, *self._batch_shape, n)) if expand else values


_wide = expand  # a method's argument is called so, too


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """One-hot draws whose gradient is that of the probabilities."""

    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws whose gradient reaches the parameters."""
        return self.sample(sample_shape) + (self.probs - self.probs.detach())


class Multinomial(_OfCategories):
    """Numbers of draws of each category among `total_count` draws."""

    total_count: int

    def __init__(
        self,
        total_count: int = 1,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(total_count, int):
            raise NotImplementedError("inhomogeneous total_count is not supported")
        self.total_count = total_count
        super().__init__(probs, logits, validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> constraints.Constraint:
        """Counts that sum to the number of draws."""
        return constraints.multinomial(self.total_count)

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self.probs * self.total_count

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        return self.total_count * self.probs * (1 - self.probs)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> Multinomial:
        """The same distributions under a larger batch shape."""
        wide = expand(self.logits, (*batch_shape, *self._event_shape))
        return self._grown(Multinomial, _instance, self.total_count, logits=wide)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of shape sample_shape + batch_shape + (categories,)."""
        drawn = self._categorical.sample((self.total_count, *sample_shape))
        return self._one_hot(drawn).sum(0)

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the probability."""
        self._check_value(value)
        ways = lgamma(value.sum(-1) + 1) - lgamma(value + 1).sum(-1)
        chances = self.logits.masked_fill((value == 0) & (self.logits == -math.inf), 0.0)
        return ways + (chances * value).sum(-1)

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the probability."""
        n = self.total_count
        numbers = arange(1, n + 1, dtype=self.probs.dtype, **layout_of(self.probs))
        numbers = reshape(numbers, (n, *(1 for _ in self.probs.shape)))
        p = self.probs
        ways = math.lgamma(n + 1) - lgamma(numbers + 1) - lgamma(n - numbers + 1)
        chances = (ways + xlogy(numbers, p) + xlogy(n - numbers, 1 - p)).exp()
        spread = (chances * lgamma(numbers + 1)).sum((0, -1))
        return n * self._categorical.entropy() - math.lgamma(n + 1) + spread


class ExpRelaxedCategorical(_OfCategories):
    """The logarithm of a relaxed one-hot vector (Maddison and others, ICLR 2017)."""

    has_rsample = True
    support = constraints.real_vector

    def __init__(
        self,
        temperature: Tensor,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.temperature = temperature
        super().__init__(probs, logits, validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> ExpRelaxedCategorical:
        """The same distributions under a larger batch shape."""
        wide = expand(self.logits, (*batch_shape, *self._event_shape))
        return self._grown(ExpRelaxedCategorical, _instance, self.temperature, logits=wide)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws whose gradient reaches the parameters."""
        shape, like = tuple(self._extended_shape(sample_shape)), self.logits
        info = finfo(like.dtype)
        u = rand(shape, dtype=like.dtype, **layout_of(like)).clamp(info.tiny, 1 - info.eps)
        scores = (self.logits - log(-log(u))) / self.temperature
        return scores - logsumexp(scores, -1, keepdim=True)

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density."""
        n, t = self._event_shape[0], self.temperature
        scale = math.lgamma(n) + (n - 1) * log(t)
        score = self.logits - value * t
        return (score - logsumexp(score, -1, keepdim=True)).sum(-1) + scale


class _Relaxed(TransformedDistribution):
    """Numbers in (0, 1), near 0 or 1 at a low temperature; `base_dist` has the parameters."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    base_dist: ExpRelaxedCategorical | LogitRelaxedBernoulli

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> _Relaxed:
        """The same distributions under a larger batch shape."""
        made = self._get_checked_instance(type(self), cast("Any", _instance))
        super().expand(batch_shape, made)
        return made

    @property
    def temperature(self) -> Tensor:
        """The temperature."""
        return self.base_dist.temperature

    @property
    def probs(self) -> Tensor:
        """The chances of each category, or of a one."""
        return self.base_dist.probs

    @property
    def logits(self) -> Tensor:
        """Logarithms of the chances, or of the odds of a one."""
        return self.base_dist.logits


class RelaxedOneHotCategorical(_Relaxed):
    """Shares of categories, close to one-hot where the temperature is low."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.simplex
    base_dist: ExpRelaxedCategorical

    def __init__(
        self,
        temperature: Tensor,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        base = ExpRelaxedCategorical(temperature, probs, logits, validate_args)
        super().__init__(base, ExpTransform(), validate_args)


class LogitRelaxedBernoulli(Bernoulli):
    """The logit of a relaxed coin."""

    has_rsample = True
    support = constraints.real

    def __init__(
        self,
        temperature: Tensor,
        probs: float | Tensor | None = None,
        logits: float | Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.temperature = temperature
        super().__init__(probs, logits, validate_args)

    def _fixed(self) -> dict[str, Tensor]:
        return {"temperature": self.temperature}

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of shape sample_shape + batch_shape, without a gradient."""
        return Distribution.sample(self, sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws whose gradient reaches the parameters."""
        info = finfo(self._any.dtype)
        u = rand(tuple(self._extended_shape(sample_shape)), **self._kind())
        u = u.clamp(info.tiny, 1 - info.eps)
        return (log(u) - log1p(-u) + self.logits) / self.temperature

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density."""
        self._check_value(value)
        gap = self.logits - value * self.temperature
        return log(self.temperature) + gap - 2 * F.softplus(gap)


class RelaxedBernoulli(_Relaxed):
    """Numbers of (0, 1), close to its ends where the temperature is low."""

    support = constraints.unit_interval
    base_dist: LogitRelaxedBernoulli

    def __init__(
        self,
        temperature: Tensor,
        probs: float | Tensor | None = None,
        logits: float | Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        base = LogitRelaxedBernoulli(temperature, probs, logits, validate_args)
        super().__init__(base, SigmoidTransform(), validate_args)
