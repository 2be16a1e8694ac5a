"""The normal distribution of vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

from oneflow.core.errors import ArgumentError
from oneflow.distributions import constraints
from oneflow.distributions.distribution import Distribution
from oneflow.functional.creation import eye, randn
from oneflow.functional.linalg.matrices import cholesky, inv, solve_triangular
from oneflow.functional.linalg.products import matmul
from oneflow.functional.shaping import broadcast_shapes, expand, reshape
from oneflow.ops.unary import log
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.tensor import Tensor


def one_of(
    covariance_matrix: Tensor | None, precision_matrix: Tensor | None, scale_tril: Tensor | None
) -> tuple[str, Tensor]:
    """The one of three matrices that was given, with its name. Raises ArgumentError for none of
    them, for several, and for less than a matrix.
    """
    matrices = {
        "covariance_matrix": covariance_matrix,
        "precision_matrix": precision_matrix,
        "scale_tril": scale_tril,
    }
    given = {name: m for name, m in matrices.items() if m is not None}
    if len(given) != 1:
        raise ArgumentError(
            "Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified."
        )
    ((name, matrix),) = given.items()
    if matrix.ndim < 2:
        raise ArgumentError(f"{name} must be at least two-dimensional, got {matrix.meta}")
    return name, matrix


class MultivariateNormal(Distribution):
    """Vectors with mean `loc` (..., n), and one of three (..., n, n): the covariance, its inverse
    (precision), or its lower Cholesky factor `scale_tril`. Only the last is used to compute.
    """

    has_rsample = True
    arg_constraints = {
        "loc": constraints.real_vector,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.real_vector
    loc: Tensor

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if loc.ndim < 1:
            raise ValueError("loc must be at least one-dimensional.")
        name, matrix = one_of(covariance_matrix, precision_matrix, scale_tril)
        batch = broadcast_shapes(loc.shape[:-1], matrix.shape[:-2])
        self.loc = expand(loc, (*batch, *loc.shape[-1:]))
        setattr(self, name, expand(matrix, (*batch, *matrix.shape[-2:])))
        super().__init__(batch, loc.shape[-1:], validate_args)
        # Subclasses of others may make this a property of theirs, and never call `__init__`.
        self._unbroadcasted_scale_tril = FACTORS[name](matrix)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> MultivariateNormal:
        """The same distributions under a larger batch shape."""
        loc, factor = self.loc, self._unbroadcasted_scale_tril
        wide = expand(loc, (*batch_shape, *loc.shape[-1:]))
        grown = expand(factor, (*batch_shape, *factor.shape[-2:]))
        return self._grown(MultivariateNormal, _instance, wide, scale_tril=grown)

    def _whole(self, matrix: Tensor) -> Tensor:
        return expand(matrix, (*self._batch_shape, *self._event_shape, *self._event_shape))

    @cached_property
    def scale_tril(self) -> Tensor:
        """Lower Cholesky factor of the covariance."""
        return self._whole(self._unbroadcasted_scale_tril)

    @cached_property
    def covariance_matrix(self) -> Tensor:
        """The covariance."""
        factor = self._unbroadcasted_scale_tril
        return self._whole(matmul(factor, factor.transpose(-2, -1)))

    @cached_property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        factor = self._unbroadcasted_scale_tril
        return self._whole(inv(matmul(factor, factor.transpose(-2, -1))))

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
        spread = (self._unbroadcasted_scale_tril**2).sum(-1)
        return expand(spread, (*self._batch_shape, *self._event_shape))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws whose gradient reaches the parameters."""
        factor = self._unbroadcasted_scale_tril
        shape = tuple(self._extended_shape(sample_shape))
        drawn = randn(shape, dtype=self.loc.dtype, **layout_of(self.loc))
        return self.loc + matmul(factor, drawn.unsqueeze(-1)).squeeze(-1)

    def _log_scale(self) -> Tensor:
        """Half the logarithm of the covariance's determinant."""
        return log(self._unbroadcasted_scale_tril.diagonal(0, -2, -1)).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density."""
        self._check_value(value)
        n = self._event_shape[0]
        distance = _squared_distance(self._unbroadcasted_scale_tril, value - self.loc)
        return -0.5 * (n * math.log(2 * math.pi) + distance) - self._log_scale()

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the density."""
        found = 0.5 * self._event_shape[0] * (1 + math.log(2 * math.pi)) + self._log_scale()
        return expand(found, tuple(self._batch_shape))


def _factor_of_inverse(precision: Tensor) -> Tensor:
    """Return the lower Cholesky factor of the inverse of a matrix.

    Turned round in both dims, the factor of the precision is that of its inverse, inverted.
    """
    factor = cholesky(precision.flip(-2, -1)).flip(-2, -1).transpose(-2, -1)
    unit = expand(eye(factor.shape[-1], dtype=factor.dtype, **layout_of(factor)), factor.shape)
    return solve_triangular(factor, unit, upper=False)


FACTORS: dict[str, Callable[[Tensor], Tensor]] = {
    "covariance_matrix": cholesky,
    "precision_matrix": _factor_of_inverse,
    "scale_tril": lambda matrix: matrix,
}
"""Matrix that is given -> the lower Cholesky factor of the covariance."""


def _squared_distance(factor: Tensor, gap: Tensor) -> Tensor:
    """The squared length of gap (..., n), where `factor` (..., n, n) is of length 1."""
    if factor.ndim == 2:
        columns = solve_triangular(
            factor, reshape(gap, (-1, gap.shape[-1])).transpose(-2, -1), upper=False
        )
        return reshape((columns**2).sum(0), gap.shape[:-1])
    shape = (*broadcast_shapes(gap.shape[:-1], factor.shape[:-2]), *factor.shape[-2:])
    wide, gap = expand(factor, shape), expand(gap, shape[:-1])
    return (solve_triangular(wide, gap.unsqueeze(-1), upper=False).squeeze(-1) ** 2).sum(-1)
