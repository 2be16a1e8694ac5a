"""Distributions made of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from oneflow.core.size import Size
from oneflow.distributions import constraints
from oneflow.distributions.categorical import Categorical
from oneflow.distributions.distribution import Distribution, alike
from oneflow.distributions.exponential import Exponential
from oneflow.distributions.location_scale import EULER, Normal
from oneflow.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    PowerTransform,
    Transform,
)
from oneflow.functional.gather_scatter import gather
from oneflow.functional.reduction import logsumexp
from oneflow.functional.shaping import broadcast_shapes, expand, reshape
from oneflow.nn import functional as F
from oneflow.ops.special import lgamma
from oneflow.ops.unary import full_like, log
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor


def _summed(x: Tensor, count: int) -> Tensor:
    return x.sum(tuple(range(-count, 0))) if count else x


class Independent(Distribution):
    """A distribution of which the last batch dims are made part of one draw."""

    def __init__(
        self,
        base_distribution: Distribution,
        reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        batch, event = tuple(base_distribution.batch_shape), tuple(base_distribution.event_shape)
        count = reinterpreted_batch_ndims
        if count > len(batch):
            raise ValueError(
                "Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), actual "
                f"{count} vs {len(batch)}"
            )
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, count
        cut = len(batch) - count
        super().__init__(batch[:cut], batch[cut:] + event, validate_args)

    has_rsample = cast("bool", property(lambda self: self.base_dist.has_rsample))

    has_enumerate_support = cast("bool", property(lambda self: self._can_enumerate()))

    def _can_enumerate(self) -> bool:
        """Whether the values can be listed: only where each draw is a single one."""
        return self.reinterpreted_batch_ndims == 0 and self.base_dist.has_enumerate_support

    @constraints.dependent_property
    def support(self) -> constraints.Constraint | None:
        """That of the inner distribution, for the dims of a draw together."""
        rule, count = self.base_dist.support, self.reinterpreted_batch_ndims
        return constraints.independent(rule, count) if rule and count else rule

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        return self.base_dist.variance

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> Independent:
        """The same distributions under a larger batch shape."""
        inner = self.event_shape[: self.reinterpreted_batch_ndims]
        wide = self.base_dist.expand(Size((*batch_shape, *inner)))
        return self._grown(Independent, _instance, wide, self.reinterpreted_batch_ndims)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of shape sample_shape + batch_shape + event_shape."""
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws whose gradient reaches the parameters."""
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """The sum over the dims of one draw."""
        return _summed(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values along a new first dim. Raises NotImplementedError for draws of several."""
        if self.reinterpreted_batch_ndims > 0:
            raise NotImplementedError("Enumeration over cartesian product is not implemented")
        return self.base_dist.enumerate_support(expand)

    def entropy(self) -> Tensor:
        """The sum over the dims of one draw."""
        return _summed(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def __repr__(self) -> str:
        return f"Independent({self.base_dist!r}, {self.reinterpreted_batch_ndims})"


class TransformedDistribution(Distribution):
    """The distribution of f(x), with x drawn from another."""

    def __init__(
        self,
        base_distribution: Distribution,
        transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:
        chain = [transforms] if isinstance(transforms, Transform) else list(transforms)
        if not all(isinstance(t, Transform) for t in chain):
            raise ValueError("transforms must be a Transform or a list of Transforms")
        whole = ComposeTransform(chain)
        base = base_distribution
        shape = (*base.batch_shape, *base.event_shape)
        reached = whole.forward_shape(shape)
        wide = whole.inverse_shape(reached)
        if wide != shape:
            base = base.expand(Size(wide[: len(wide) - len(base.event_shape)]))
        more = whole.domain.event_dim - len(base.event_shape)
        if more > 0:
            base = Independent(base, more, validate_args=False)
        dims = whole.codomain.event_dim + max(len(base.event_shape) - whole.domain.event_dim, 0)
        self.base_dist, self.transforms = base, chain
        cut = len(reached) - dims
        super().__init__(reached[:cut], reached[cut:], validate_args)

    has_rsample = cast("bool", property(lambda self: self.base_dist.has_rsample))

    @constraints.dependent_property
    def support(self) -> constraints.Constraint | None:
        """The set that the last transform leads to, for the dims of a draw together."""
        if not self.transforms:
            found: constraints.Constraint | None = self.base_dist.support
            return found
        rule = self.transforms[-1].codomain
        more = len(self.event_shape) - rule.event_dim
        return constraints.independent(rule, more) if more > 0 else rule

    def expand(
        self, batch_shape: Sequence[int], _instance: object = None
    ) -> TransformedDistribution:
        """The same distributions under a larger batch shape."""
        chain = ComposeTransform(self.transforms)
        shape = chain.inverse_shape((*batch_shape, *self.event_shape))
        wide = self.base_dist.expand(Size(shape[: len(shape) - len(self.base_dist.event_shape)]))
        return self._grown(TransformedDistribution, _instance, wide, self.transforms)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of shape sample_shape + batch_shape + event_shape."""
        with no_grad():
            return self._moved(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws whose gradient reaches the parameters."""
        return self._moved(self.base_dist.rsample(sample_shape))

    def _moved(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density, by way of the place that the transforms came from."""
        self._check_value(value)
        dims, total, y = len(self.event_shape), None, value
        for transform in reversed(self.transforms):
            x = transform.inv(y)
            dims += transform.domain.event_dim - transform.codomain.event_dim
            found = transform.log_abs_det_jacobian(x, y)
            part = _summed(found, dims - transform.domain.event_dim)
            total = part if total is None else total + part
            y = x
        base = _summed(self.base_dist.log_prob(y), dims - len(self.base_dist.event_shape))
        return base if total is None else base - total

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of a value at most this large."""
        self._check_value(value)
        for transform in reversed(self.transforms):
            value = transform.inv(value)
        return self._turned(self.base_dist.cdf(value))

    def icdf(self, value: Tensor) -> Tensor:
        """The value up to which this much probability lies."""
        return self._moved(self.base_dist.icdf(self._turned(value)))

    def _turned(self, share: Tensor) -> Tensor:
        """The share itself, or the rest of it where the transforms fall."""
        sign = ComposeTransform(self.transforms).sign
        return sign * (share - 0.5) + 0.5


class LogNormal(TransformedDistribution):
    """Numbers whose logarithms are normal."""

    arg_constraints = Normal.arg_constraints
    base_dist: Normal

    def __init__(
        self,
        loc: float | Tensor,
        scale: float | Tensor,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(Normal(loc, scale, validate_args), ExpTransform(), validate_args)

    @property
    def loc(self) -> Tensor:
        """Mean of the logarithms."""
        return self.base_dist.loc

    @property
    def scale(self) -> Tensor:
        """Standard deviation of the logarithms."""
        return self.base_dist.scale

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return (self.loc + self.scale**2 / 2).exp()

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return (self.loc - self.scale**2).exp()

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        square = self.scale**2
        return square.expm1() * (2 * self.loc + square).exp()

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> LogNormal:
        """The same distributions under a larger batch shape."""
        wide = self.base_dist.expand(batch_shape)
        return self._grown(LogNormal, _instance, wide.loc, wide.scale)

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the density."""
        return self.base_dist.entropy() + self.loc


class Weibull(TransformedDistribution):
    """`scale` times an exponential number to the power of 1 / `concentration`."""

    arg_constraints = {"scale": constraints.positive, "concentration": constraints.positive}
    support = constraints.positive

    def __init__(
        self,
        scale: float | Tensor,
        concentration: float | Tensor,
        validate_args: bool | None = None,
    ) -> None:
        self.scale, self.concentration = alike(scale=scale, concentration=concentration)
        chain = [PowerTransform(1 / self.concentration), AffineTransform(0.0, self.scale)]
        ones = full_like(self.scale.detach(), value=1.0)
        super().__init__(Exponential(ones, False), chain, validate_args)

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self.scale * lgamma(1 + 1 / self.concentration).exp()

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        power = 1 / self.concentration
        return self.scale * (1 - power).clamp(min=0.0) ** power

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        power = 1 / self.concentration
        gap = lgamma(1 + 2 * power).exp() - (2 * lgamma(1 + power)).exp()
        return self.scale**2 * gap

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> Weibull:
        """The same distributions under a larger batch shape."""
        scale, power = (expand(p, tuple(batch_shape)) for p in (self.scale, self.concentration))
        return self._grown(Weibull, _instance, scale, power)

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the density."""
        power = 1 / self.concentration
        return EULER * (1 - power) + log(self.scale * power) + 1


class Pareto(TransformedDistribution):
    """Numbers above `scale` with a tail of power `alpha`."""

    arg_constraints = {"alpha": constraints.positive, "scale": constraints.positive}

    def __init__(
        self, scale: float | Tensor, alpha: float | Tensor, validate_args: bool | None = None
    ) -> None:
        self.scale, self.alpha = alike(scale=scale, alpha=alpha)
        chain = [ExpTransform(), AffineTransform(0.0, self.scale)]
        super().__init__(Exponential(self.alpha, False), chain, validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        """Numbers from the scale on."""
        return constraints.greater_than_eq(self.scale)

    @property
    def mean(self) -> Tensor:
        """The expected value, infinite where alpha is at most 1."""
        alpha = self.alpha.clamp(min=1)
        return alpha * self.scale / (alpha - 1)

    @property
    def mode(self) -> Tensor:
        """The scale."""
        return self.scale

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean, infinite where alpha is at most 2."""
        alpha = self.alpha.clamp(min=2)
        return self.scale**2 * alpha / ((alpha - 1) ** 2 * (alpha - 2))

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> Pareto:
        """The same distributions under a larger batch shape."""
        scale, alpha = (expand(p, tuple(batch_shape)) for p in (self.scale, self.alpha))
        return self._grown(Pareto, _instance, scale, alpha)

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the density."""
        return log(self.scale / self.alpha) + (1 + 1 / self.alpha)


class MixtureSameFamily(Distribution):
    """Draws of one of several distributions of one family, along the last batch dim."""

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        mix, parts = mixture_distribution, component_distribution
        if not isinstance(mix, Categorical):
            raise ValueError("The Mixture distribution needs to be a Categorical")
        batch = tuple(parts.batch_shape[:-1])
        broadcast_shapes(tuple(mix.batch_shape), batch)
        if mix.param_shape[-1] != parts.batch_shape[-1]:
            raise ValueError(
                f"`mixture_distribution` has {mix.param_shape[-1]} components, "
                f"`component_distribution` {parts.batch_shape[-1]}"
            )
        self._mixture_distribution, self._component_distribution = mix, parts
        self._num_component = int(mix.param_shape[-1])
        super().__init__(batch, parts.event_shape, validate_args)

    @constraints.dependent_property
    def support(self) -> constraints.Constraint | None:
        """That of the components."""
        found: constraints.Constraint | None = self._component_distribution.support
        return found

    @property
    def mixture_distribution(self) -> Categorical:
        """The distribution over the components."""
        return self._mixture_distribution

    @property
    def component_distribution(self) -> Distribution:
        """The components."""
        return self._component_distribution

    def _shares(self) -> Tensor:
        """Chances of the components, with dims of one for those of a draw."""
        chances = self._mixture_distribution.probs
        return reshape(chances, (*chances.shape, *(1 for _ in self._event_shape)))

    @property
    def _at(self) -> int:
        return -1 - len(self._event_shape)

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return (self._shares() * self._component_distribution.mean).sum(self._at)

    @property
    def variance(self) -> Tensor:
        """The mean variance and the variance of the means."""
        gaps = self._component_distribution.mean - self.mean.unsqueeze(self._at)
        return (self._shares() * (self._component_distribution.variance + gaps**2)).sum(self._at)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> MixtureSameFamily:
        """The same distributions under a larger batch shape."""
        parts = self._component_distribution
        parts = parts.expand(Size((*batch_shape, parts.batch_shape[-1])))
        chances = self._mixture_distribution.expand(batch_shape)
        return self._grown(MixtureSameFamily, _instance, chances, parts)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of shape sample_shape + batch_shape + event_shape."""
        with no_grad():
            drawn = self._component_distribution.sample(sample_shape)
            chosen = self._mixture_distribution.expand(self._batch_shape).sample(sample_shape)
            where = reshape(chosen, (*chosen.shape, *(1 for _ in range(-self._at))))
            shape = list(drawn.shape)
            shape[self._at] = 1
            return gather(drawn, self._at, expand(where, tuple(shape))).squeeze(self._at)

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the mean density of the components."""
        found = self._component_distribution.log_prob(value.unsqueeze(self._at))
        return logsumexp(found + F.log_softmax(self._mixture_distribution.logits, -1), -1)

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of a value at most this large."""
        shares = self._component_distribution.cdf(value.unsqueeze(self._at))
        return (shares * self._mixture_distribution.probs).sum(-1)
