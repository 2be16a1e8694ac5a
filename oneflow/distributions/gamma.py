"""Distributions made of gamma numbers: Gamma, Chi2, Dirichlet and Beta."""

from __future__ import annotations

from collections.abc import Sequence

from oneflow.distributions import constraints
from oneflow.distributions.distribution import Parametric, alike
from oneflow.functional.concat_split import stack
from oneflow.functional.elementwise import pick
from oneflow.functional.random_state import next_seed
from oneflow.functional.shaping import expand
from oneflow.functional.special import xlogy
from oneflow.nn import functional as F
from oneflow.ops.random import standard_gamma as drawn_gamma
from oneflow.ops.random import standard_gamma_grad
from oneflow.ops.special import digamma, lgamma
from oneflow.ops.unary import log
from oneflow.tensor.layout import finfo
from oneflow.tensor.tensor import Tensor


def standard_gamma(shape: Tensor) -> Tensor:
    """Gamma numbers of rate 1, whose gradient reaches their shapes: that of the place below which
    the distribution has the same share.
    """
    fixed = shape.detach()
    drawn = drawn_gamma(fixed, seed=next_seed())
    if not shape.requires_grad:
        return drawn
    return drawn + (shape - fixed) * standard_gamma_grad(fixed, drawn)


class Gamma(Parametric):
    """The gamma distribution; `concentration` is its shape."""

    has_rsample = True
    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.nonnegative
    concentration: Tensor
    rate: Tensor

    def __init__(
        self,
        concentration: float | Tensor,
        rate: float | Tensor,
        validate_args: bool | None = None,
    ) -> None:
        self._keep(validate_args, concentration=concentration, rate=rate)

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return ((self.concentration - 1) / self.rate).clamp(min=0)

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        return self.concentration / self.rate**2

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws whose gradient reaches the parameters."""
        wide = expand(self.concentration, tuple(self._extended_shape(sample_shape)))
        return (standard_gamma(wide) / self.rate).clamp(min=finfo(wide.dtype).tiny)

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density."""
        self._check_value(value)
        shape, rate = self.concentration, self.rate
        return xlogy(shape, rate) + xlogy(shape - 1, value) - rate * value - lgamma(shape)

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the density."""
        shape = self.concentration
        return shape - log(self.rate) + lgamma(shape) + (1 - shape) * digamma(shape)


class Chi2(Gamma):
    """The sum of `df` squared standard normal numbers."""

    arg_constraints = {"df": constraints.positive}

    def __init__(self, df: float | Tensor, validate_args: bool | None = None) -> None:
        (degrees,) = alike(df=df)
        super().__init__(0.5 * degrees, 0.5, validate_args)

    @property
    def df(self) -> Tensor:
        """Degrees of freedom."""
        return self.concentration * 2

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> Chi2:
        """The same distributions under a larger batch shape."""
        wide = expand(self.concentration, tuple(batch_shape))
        return self._grown(Chi2, _instance, wide * 2)


class Dirichlet(Parametric):
    """Shares that sum to 1 over the last dim."""

    has_rsample = True
    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    support = constraints.simplex
    concentration: Tensor

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        if concentration.ndim < 1:
            raise ValueError("`concentration` parameter must be at least one-dimensional.")
        self._keep(validate_args, {"concentration": 1}, concentration=concentration)

    def _event_of(self) -> tuple[int, ...]:
        return tuple(self.concentration.shape[-1:])

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def mode(self) -> Tensor:
        """The most probable value, at a corner where all concentrations are below 1."""
        above = (self.concentration - 1).clamp(min=0.0)
        total = above.sum(-1, keepdim=True)
        best = self.concentration.argmax(-1)
        corner = F.one_hot(best, self._event_shape[-1]).type_as(above)
        is_inside = total > 0
        return pick(is_inside, above / pick(is_inside, total, 1.0), corner)

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        total = self.concentration.sum(-1, keepdim=True)
        return self.concentration * (total - self.concentration) / (total**2 * (total + 1))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws whose gradient reaches the parameters."""
        wide = expand(self.concentration, tuple(self._extended_shape(sample_shape)))
        parts = standard_gamma(wide)
        return parts / parts.sum(-1, keepdim=True)

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density."""
        self._check_value(value)
        shape = self.concentration
        total = xlogy(shape - 1, value).sum(-1) + lgamma(shape.sum(-1))
        return total - lgamma(shape).sum(-1)

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the density."""
        shape, count = self.concentration, self._event_shape[-1]
        total = shape.sum(-1)
        value = lgamma(shape).sum(-1) - lgamma(total) - (count - total) * digamma(total)
        return value - ((shape - 1) * digamma(shape)).sum(-1)


class Beta(Parametric):
    """The first of two shares of a Dirichlet distribution."""

    has_rsample = True
    arg_constraints = {
        "concentration1": constraints.positive,
        "concentration0": constraints.positive,
    }
    support = constraints.unit_interval
    concentration1: Tensor
    concentration0: Tensor

    def __init__(
        self,
        concentration1: float | Tensor,
        concentration0: float | Tensor,
        validate_args: bool | None = None,
    ) -> None:
        self._keep(validate_args, concentration1=concentration1, concentration0=concentration0)

    @property
    def _shares(self) -> Dirichlet:
        both = stack([self.concentration1, self.concentration0], -1)
        return Dirichlet(both, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self._shares.mode[..., 0]

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total**2 * (total + 1))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws whose gradient reaches the parameters."""
        return self._shares.rsample(sample_shape)[..., 0]

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density."""
        self._check_value(value)
        return self._shares.log_prob(stack([value, 1.0 - value], -1))

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the density."""
        return self._shares.entropy()
