"""One of a number of categories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

from oneflow.core.dtype import int64
from oneflow.core.size import Size
from oneflow.distributions import constraints
from oneflow.distributions.distribution import Distribution
from oneflow.distributions.utils import logits_to_probs, probs_to_logits
from oneflow.functional.creation import arange, full
from oneflow.functional.gather_scatter import gather
from oneflow.functional.reduction import argmax, logsumexp
from oneflow.functional.shaping import expand, reshape, transpose
from oneflow.functional.sort_and_search import multinomial
from oneflow.ops.cast import cast
from oneflow.ops.unary import clamp
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.layout import finfo
from oneflow.tensor.tensor import Tensor


class Categorical(Distribution):
    """Integers 0 .. n - 1, given their probabilities (not normalised) or the logarithms of these
    over the last dim. Raises ValueError for both, none, or a 0-d tensor.
    """

    has_enumerate_support: ClassVar[bool] = True
    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}

    def __init__(
        self,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        given = logits if probs is None else probs
        if given is None or (probs is not None and logits is not None):
            raise ValueError("Either `probs` or `logits` must be specified, but not both.")
        if given.ndim < 1:
            raise ValueError("`probs` and `logits` must be at least one-dimensional.")
        if probs is not None:
            self.probs = probs / probs.sum(-1, keepdim=True)
        else:
            self.logits = given - logsumexp(given, -1, keepdim=True)
        self._num_events = given.shape[-1]
        super().__init__(given.shape[:-1], (), validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> constraints.Constraint:
        """The numbers of the categories."""
        return constraints.integer_interval(0, self._num_events - 1)

    @cached_property
    def logits(self) -> Tensor:
        """Logarithms of the probabilities."""
        return probs_to_logits(self.probs)

    @cached_property
    def probs(self) -> Tensor:
        """The probabilities, which sum to 1."""
        return logits_to_probs(self.logits)

    @property
    def _param(self) -> Tensor:
        return self.probs if "probs" in self.__dict__ else self.logits

    @property
    def param_shape(self) -> Size:
        """Shape of the probabilities."""
        return Size(self._param.shape)

    @property
    def mean(self) -> Tensor:
        """NaN: categories have no mean."""
        return full(
            self._extended_shape(), math.nan, dtype=self._param.dtype, **layout_of(self._param)
        )

    variance = mean

    @property
    def mode(self) -> Tensor:
        """The most probable category."""
        return argmax(self._param, -1)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> Categorical:
        """The same categories under a larger batch shape."""
        wide = expand(self._param, (*batch_shape, self._num_events))
        name = "probs" if "probs" in self.__dict__ else "logits"
        return self._grown(Categorical, _instance, **{name: wide})

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Categories of shape sample_shape + batch_shape."""
        rows = reshape(self.probs.detach(), (-1, self._num_events))
        drawn = multinomial(rows, math.prod(sample_shape), True)
        return reshape(transpose(drawn, 0, 1), tuple(self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the probability of categories, broadcast against the batch shape."""
        self._check_value(value)
        shape = _broadcast(tuple(value.shape), tuple(self._batch_shape))
        index = expand(cast(value, dtype=int64), shape).unsqueeze(-1)
        return gather(expand(self.logits, (*shape, self._num_events)), -1, index).squeeze(-1)

    def entropy(self) -> Tensor:
        """The negative sum of p log p over the categories."""
        lowest = finfo(self.logits.dtype).min
        products = clamp(self.logits, min=lowest, max=None) * self.probs
        total: Tensor = -products.sum(-1)
        return total

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All categories along a new first dim."""
        where = layout_of(self._param)
        values = arange(self._num_events, dtype=int64, **where)
        ones = reshape(values, (-1, *(1 for _ in self._batch_shape)))
        return _expanded(ones, (self._num_events, *self._batch_shape)) if expand else ones


_expanded = expand  # the method's own argument is called so, too


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which two shapes meet."""
    wide = max(len(a), len(b))
    pairs = zip((1,) * (wide - len(a)) + a, (1,) * (wide - len(b)) + b, strict=True)
    return tuple(y if x == 1 else x for x, y in pairs)
