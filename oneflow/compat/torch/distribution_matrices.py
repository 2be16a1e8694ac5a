"""Families of `torch.distributions` beside those of `flow.distributions`: matrices and vectors,
and the base class of exponential families.
"""

from __future__ import annotations

import math
from abc import ABCMeta
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeAlias

from oneflow.autograd.api import grad
from oneflow.compat.torch.distribution_families import ContinuousBernoulli
from oneflow.compat.torch.distribution_transforms import corr_cholesky
from oneflow.core.errors import ArgumentError
from oneflow.distributions import constraints
from oneflow.distributions.categorical import Categorical
from oneflow.distributions.counts import Bernoulli, Poisson
from oneflow.distributions.distribution import Distribution, alike
from oneflow.distributions.exponential import Exponential
from oneflow.distributions.gamma import Beta, Dirichlet, Gamma
from oneflow.distributions.kl import FORMULAS, register_kl
from oneflow.distributions.location_scale import Normal
from oneflow.distributions.multivariate_normal import (
    FACTORS,
    MultivariateNormal,
    _squared_distance,
    one_of,
)
from oneflow.distributions.one_hot import OneHotCategorical
from oneflow.functional.creation import arange, eye, randn
from oneflow.functional.linalg.matrices import cholesky, inv, solve_triangular
from oneflow.functional.linalg.products import matmul
from oneflow.functional.shaping import broadcast_shapes, expand, tril
from oneflow.functional.special import multigammaln
from oneflow.ops.special import digamma, lgamma
from oneflow.ops.unary import log
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.grad_mode import enable_grad, no_grad
from oneflow.tensor.tensor import Tensor


class ExponentialFamily(Distribution, metaclass=ABCMeta):
    """A family whose log density is linear in its natural parameters and sufficient statistics.

    A subclass gives `_natural_params`, `_log_normalizer(*natural_params)` and
    `_mean_carrier_measure`, and gets its entropy. Families of `flow.distributions` that are
    exponential count as instances.
    """

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        raise self._missing("_natural_params")

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        raise self._missing("_log_normalizer")

    @property
    def _mean_carrier_measure(self) -> float | Tensor:
        raise self._missing("_mean_carrier_measure")

    def entropy(self) -> Tensor:
        """Return the entropy: the log normalizer's Bregman divergence from its tangent at 0.

        Nielsen and Nock, IEEE International Conference on Image Processing, 2010.
        """
        with enable_grad():
            params = [p.detach().requires_grad_() for p in self._natural_params]
            scale = self._log_normalizer(*params)
            slopes = grad(scale.sum(), params, create_graph=True, allow_unused=True)
        found = scale - self._mean_carrier_measure
        for param, slope in zip(params, slopes, strict=True):
            if slope is None:
                continue
            found = found - (param * slope).reshape((*self._batch_shape, -1)).sum(-1)
        return found


EXPONENTIAL: tuple[type[Distribution], ...] = (
    *(Bernoulli, Beta, Categorical, ContinuousBernoulli, Dirichlet, Exponential, Gamma, Normal),
    *(OneHotCategorical, Poisson),
)
for _family in EXPONENTIAL:
    ExponentialFamily.register(_family)


class LKJCholesky(Distribution):
    """Lower Cholesky factors of `dim` by `dim` correlation matrices, whose determinants' powers of
    `concentration` - 1 are their densities.

    Lewandowski, Kurowicka and Joe, J. Multivariate Analysis 100(9), 2009.
    """

    arg_constraints = {"concentration": constraints.positive}
    support = corr_cholesky
    concentration: Tensor

    def __init__(
        self, dim: int, concentration: float | Tensor = 1.0, validate_args: bool | None = None
    ) -> None:
        if dim < 2:
            raise ArgumentError(f"Expected dim to be an integer greater than or equal to 2: {dim}")
        self.dim = dim
        (self.concentration,) = alike(concentration=concentration)
        super().__init__(self.concentration.shape, (dim, dim), validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> LKJCholesky:
        """Return the same distributions under a larger batch shape."""
        return self._grown(
            LKJCholesky, _instance, self.dim, expand(self.concentration, tuple(batch_shape))
        )

    def _rows(self) -> Tensor:
        """The numbers 1 .. dim - 1 of the rows below the first."""
        like = self.concentration
        return arange(1, self.dim, dtype=like.dtype, **layout_of(like))

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return draws of shape sample_shape + batch_shape + (dim, dim), by the onion method: the
        squared length of each row's part left of the diagonal is a Beta number, its direction
        uniform.
        """
        with no_grad():
            rows, like = self._rows(), self.concentration
            rest = like.unsqueeze(-1) + 0.5 * (self.dim - 1 - rows)
            share = Beta(0.5 * rows, rest, validate_args=False).sample(sample_shape)
            shape = tuple(self._extended_shape(sample_shape))
            drawn = tril(randn(shape, dtype=like.dtype, **layout_of(like)), -1)[..., 1:, :]
            lengths = (drawn**2).sum(-1, keepdim=True).sqrt()
            below = drawn / lengths * share.sqrt().unsqueeze(-1)
            first = eye(self.dim, dtype=like.dtype, **layout_of(like))
            ends = first[1:] * (1 - share).sqrt().unsqueeze(-1)
            top = expand(first[:1], (*below.shape[:-2], 1, self.dim))
            found: Tensor = top.new_zeros(shape)
            found[..., :1, :] = top
            found[..., 1:, :] = below + ends
            return found

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        self._check_value(value)
        ends, shape = value.diagonal(0, -2, -1)[..., 1:], self.concentration
        powers = 2 * (shape.unsqueeze(-1) - 1) + self.dim - 1 - self._rows()
        found = (powers * log(ends)).sum(-1)
        count = self.dim - 1
        alpha = shape + 0.5 * count
        scale = 0.5 * count * math.log(math.pi) + multigammaln(alpha - 0.5, count)
        return found - scale + lgamma(alpha) * count


class LowRankMultivariateNormal(Distribution):
    """Vectors with mean `loc` (..., n) and covariance W W^T + D: `cov_factor` W (..., n, k) and
    `cov_diag`, the diagonal of D (..., n). Only matrices of k by k are factored.
    """

    has_rsample = True
    arg_constraints = {
        "loc": constraints.real_vector,
        "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1),
    }
    support = constraints.real_vector

    def __init__(
        self,
        loc: Tensor,
        cov_factor: Tensor,
        cov_diag: Tensor,
        validate_args: bool | None = None,
    ) -> None:
        if loc.ndim < 1 or cov_diag.ndim < 1 or cov_factor.ndim < 2:
            raise ArgumentError(
                "loc and cov_diag must be at least one-dimensional, cov_factor at least "
                f"two-dimensional: got {loc.meta}, {cov_diag.meta}, {cov_factor.meta}"
            )
        n = loc.shape[-1]
        if cov_factor.shape[-2] != n or cov_diag.shape[-1] != n:
            raise ArgumentError(
                f"cov_factor {cov_factor.meta} must be (..., {n}, k) and cov_diag "
                f"{cov_diag.meta} (..., {n})"
            )
        batch = broadcast_shapes(loc.shape[:-1], cov_factor.shape[:-2], cov_diag.shape[:-1])
        self.loc = expand(loc, (*batch, n))
        self.cov_factor = expand(cov_factor, (*batch, *cov_factor.shape[-2:]))
        self.cov_diag = expand(cov_diag, (*batch, n))
        super().__init__(batch, (n,), validate_args)

    def expand(
        self, batch_shape: Sequence[int], _instance: object = None
    ) -> LowRankMultivariateNormal:
        """Return the same distributions under a larger batch shape."""
        wide = [expand(p, (*batch_shape, p.shape[-1])) for p in (self.loc, self.cov_diag)]
        factor = expand(self.cov_factor, (*batch_shape, *self.cov_factor.shape[-2:]))
        return self._grown(LowRankMultivariateNormal, _instance, wide[0], factor, wide[1])

    @cached_property
    def _capacitance_tril(self) -> Tensor:
        """The lower Cholesky factor of 1 + W^T D^-1 W."""
        scaled = self.cov_factor.transpose(-2, -1) / self.cov_diag.unsqueeze(-2)
        k = self.cov_factor.shape[-1]
        unit = eye(k, dtype=self.loc.dtype, **layout_of(self.loc))
        return cholesky(matmul(scaled, self.cov_factor) + unit)

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The diagonal of the covariance."""
        return (self.cov_factor**2).sum(-1) + self.cov_diag

    @cached_property
    def covariance_matrix(self) -> Tensor:
        """The covariance."""
        return (
            matmul(self.cov_factor, self.cov_factor.transpose(-2, -1)) + self.cov_diag.diag_embed()
        )

    @cached_property
    def scale_tril(self) -> Tensor:
        """The lower Cholesky factor of the covariance."""
        return cholesky(self.covariance_matrix)

    @cached_property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance, by Woodbury's identity."""
        scaled = self.cov_factor.transpose(-2, -1) / self.cov_diag.unsqueeze(-2)
        half = solve_triangular(self._capacitance_tril, scaled, upper=False)
        return (1 / self.cov_diag).diag_embed() - matmul(half.transpose(-2, -1), half)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return draws whose gradient reaches the parameters."""
        shape = tuple(self._extended_shape(sample_shape))
        kind = {"dtype": self.loc.dtype, **layout_of(self.loc)}
        draw: Callable[..., Tensor] = randn
        low = draw((*shape[:-1], self.cov_factor.shape[-1]), **kind)
        own = draw(shape, **kind)
        moved = matmul(self.cov_factor, low.unsqueeze(-1)).squeeze(-1)
        return self.loc + moved + self.cov_diag.sqrt() * own

    def _log_det(self) -> Tensor:
        """Logarithm of the covariance's determinant."""
        inner = log(self._capacitance_tril.diagonal(0, -2, -1)).sum(-1)
        return 2 * inner + log(self.cov_diag).sum(-1)

    def _distance(self, gap: Tensor) -> Tensor:
        """The squared length of a vector where the covariance is the unit."""
        scaled = self.cov_factor.transpose(-2, -1) / self.cov_diag.unsqueeze(-2)
        inner = matmul(scaled, gap.unsqueeze(-1)).squeeze(-1)
        outer = (gap**2 / self.cov_diag).sum(-1)
        return outer - _squared_distance(self._capacitance_tril, inner)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        self._check_value(value)
        n = self._event_shape[0]
        distance = self._distance(value - self.loc)
        return -0.5 * (n * math.log(2 * math.pi) + self._log_det() + distance)

    def entropy(self) -> Tensor:
        """Return the expected negative logarithm of the density."""
        n = self._event_shape[0]
        return 0.5 * (n * (1 + math.log(2 * math.pi)) + self._log_det())


Gaussian: TypeAlias = MultivariateNormal | LowRankMultivariateNormal


def _of_gaussians(p: Gaussian, q: Gaussian) -> Tensor:
    """Return the divergence of two normal distributions by their Cholesky factors."""
    return _VECTORS(
        MultivariateNormal(p.loc, scale_tril=p.scale_tril, validate_args=False),
        MultivariateNormal(q.loc, scale_tril=q.scale_tril, validate_args=False),
    )


_VECTORS: Callable[[Any, Any], Tensor] = FORMULAS[MultivariateNormal, MultivariateNormal]
register_kl(LowRankMultivariateNormal, LowRankMultivariateNormal)(_of_gaussians)
register_kl(LowRankMultivariateNormal, MultivariateNormal)(_of_gaussians)
register_kl(MultivariateNormal, LowRankMultivariateNormal)(_of_gaussians)


class Wishart(Distribution):
    """Positive definite n by n matrices: sums of `df` outer products of normal vectors with one
    of three: their covariance, its inverse (precision), or its Cholesky factor `scale_tril`.
    """

    has_rsample = True
    arg_constraints = {
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.positive_definite

    def __init__(
        self,
        df: float | Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        name, matrix = one_of(covariance_matrix, precision_matrix, scale_tril)
        n = int(matrix.shape[-1])
        degrees, _ = alike(df=df, like=matrix[..., 0, 0])
        if validate_args is not False and not bool((degrees > n - 1).all()):
            raise ArgumentError(f"Value of df={df} expected to be greater than ndim - 1 = {n - 1}.")
        batch = tuple(degrees.shape)
        self.df = degrees
        setattr(self, name, expand(matrix, (*batch, n, n)))
        super().__init__(batch, (n, n), validate_args)
        self._unbroadcasted_scale_tril = FACTORS[name](matrix)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> Wishart:
        """Return the same distributions under a larger batch shape."""
        factor = self._unbroadcasted_scale_tril
        grown = expand(factor, (*batch_shape, *factor.shape[-2:]))
        return self._grown(
            Wishart, _instance, expand(self.df, tuple(batch_shape)), scale_tril=grown
        )

    def _whole(self, matrix: Tensor) -> Tensor:
        return expand(matrix, (*self._batch_shape, *self._event_shape))

    @cached_property
    def scale_tril(self) -> Tensor:
        """Lower Cholesky factor of the vectors' covariance."""
        return self._whole(self._unbroadcasted_scale_tril)

    @cached_property
    def covariance_matrix(self) -> Tensor:
        """The vectors' covariance."""
        factor = self._unbroadcasted_scale_tril
        return self._whole(matmul(factor, factor.transpose(-2, -1)))

    @cached_property
    def precision_matrix(self) -> Tensor:
        """The inverse of the vectors' covariance."""
        return inv(self.covariance_matrix)

    def _degrees(self, more: float = 0.0) -> Tensor:
        return (self.df + more).reshape((*self._batch_shape, 1, 1))

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self._degrees() * self.covariance_matrix

    @property
    def mode(self) -> Tensor:
        """The most probable value; NaN up to n + 1 degrees of freedom."""
        more = self._degrees(-self._event_shape[-1] - 1)
        return more.masked_fill(more <= 0, math.nan) * self.covariance_matrix

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean, element by element."""
        v = self.covariance_matrix
        ends = v.diagonal(0, -2, -1)
        return self._degrees() * (v**2 + ends.unsqueeze(-1) * ends.unsqueeze(-2))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return draws whose gradient reaches the parameters, by Bartlett's decomposition."""
        shape, n = tuple(self._extended_shape(sample_shape)), self._event_shape[-1]
        like = self._unbroadcasted_scale_tril
        kind = {"dtype": like.dtype, **layout_of(like)}
        draw: Callable[..., Tensor] = randn
        rows = arange(n, dtype=like.dtype, **layout_of(like))
        squares = Gamma(0.5 * (self.df.unsqueeze(-1) - rows), 0.5, False).rsample(sample_shape)
        noise = tril(draw(shape, **kind), -1) + squares.sqrt().diag_embed()
        factor = matmul(like, noise)
        return matmul(factor, factor.transpose(-2, -1))

    def _log_det(self) -> Tensor:
        """Logarithm of the covariance's determinant."""
        return 2 * log(self._unbroadcasted_scale_tril.diagonal(0, -2, -1)).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        self._check_value(value)
        n, df = self._event_shape[-1], self.df
        own = 2 * log(cholesky(value).diagonal(0, -2, -1)).sum(-1)
        trace = matmul(self.precision_matrix, value).diagonal(0, -2, -1).sum(-1)
        scale = df * (0.5 * n * math.log(2) + 0.5 * self._log_det()) + multigammaln(df / 2, n)
        return 0.5 * (df - n - 1) * own - 0.5 * trace - scale

    def entropy(self) -> Tensor:
        """Return the expected negative logarithm of the density."""
        n, df = self._event_shape[-1], self.df
        halves = 0.5 * (df.unsqueeze(-1) - arange(n, dtype=df.dtype, **layout_of(df)))
        spread = -0.5 * (df - n - 1) * digamma(halves).sum(-1) + 0.5 * n * df
        found = 0.5 * (n + 1) * (self._log_det() + n * math.log(2)) + multigammaln(df / 2, n)
        return found + spread


ExponentialFamily.register(Wishart)
