"""Absolute values of numbers of distributions around 0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from oneflow.distributions import constraints
from oneflow.distributions.composed import TransformedDistribution
from oneflow.distributions.location_scale import Cauchy, Normal
from oneflow.distributions.transforms import AbsTransform
from oneflow.ops.unary import full_like
from oneflow.tensor.tensor import Tensor


class _Half(TransformedDistribution):
    """The absolute value of a number of `base_dist`, which is symmetric around 0."""

    arg_constraints = {"scale": constraints.positive}
    support = constraints.nonnegative
    base_dist: Normal | Cauchy

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> _Half:
        """The same distributions under a larger batch shape."""
        made = self._get_checked_instance(type(self), cast("Any", _instance))
        super().expand(batch_shape, made)
        return made

    @property
    def scale(self) -> Tensor:
        """The scale of the numbers of both signs."""
        return self.base_dist.scale

    @property
    def mode(self) -> Tensor:
        """Zero."""
        return full_like(self.scale.detach(), value=0.0)

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density."""
        self._check_value(value)
        found = self.base_dist.log_prob(value) + math.log(2)
        return found.masked_fill((value < 0).expand_as(found), -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of a value at most this large."""
        self._check_value(value)
        return 2 * self.base_dist.cdf(value) - 1

    def icdf(self, value: Tensor) -> Tensor:
        """The value up to which this much probability lies."""
        return self.base_dist.icdf((value + 1) / 2)

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the density."""
        return self.base_dist.entropy() - math.log(2)


class HalfNormal(_Half):
    """The absolute value of a normal number.

    d = HalfNormal(1.0)
    d.mean  # 0.7979
    """

    def __init__(self, scale: float | Tensor, validate_args: bool | None = None) -> None:
        super().__init__(Normal(0.0, scale, False), AbsTransform(), validate_args)

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

    def __init__(self, scale: float | Tensor, validate_args: bool | None = None) -> None:
        super().__init__(Cauchy(0.0, scale, False), AbsTransform(), validate_args)

    @property
    def mean(self) -> Tensor:
        """Infinite."""
        return full_like(self.scale.detach(), value=math.inf)

    @property
    def variance(self) -> Tensor:
        """Infinite."""
        return self.mean
