"""The normal distribution of vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

from oneflow.distributions import constraints
from oneflow.distributions.distribution import Parametric
from oneflow.functional.creation import eye, randn
from oneflow.functional.linear_algebra import matmul
from oneflow.functional.matrices import cholesky, inv, solve_triangular
from oneflow.functional.shaping import expand
from oneflow.ops.unary import log
from oneflow.tensor.alike import layout_of
from oneflow.tensor.tensor import Tensor


class MultivariateNormal(Parametric):
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
        matrices = {
            "covariance_matrix": covariance_matrix,
            "precision_matrix": precision_matrix,
            "scale_tril": scale_tril,
        }
        given = {name: m for name, m in matrices.items() if m is not None}
        if len(given) != 1:
            raise ValueError(
                "Exactly one of covariance_matrix or precision_matrix or scale_tril may be "
                "specified."
            )
        ((name, matrix),) = given.items()
        if matrix.ndim < 2:
            raise ValueError(f"{name} must be at least two-dimensional")
        self._keep(validate_args, {"loc": 1, name: 2}, loc=loc, **given)

    def _event_of(self, params: Mapping[str, Tensor]) -> tuple[int, ...]:
        return tuple(params["loc"].shape[-1:])

    @cached_property
    def scale_tril(self) -> Tensor:
        """Lower Cholesky factor of the covariance."""
        if "covariance_matrix" in self._params:
            return cholesky(self._params["covariance_matrix"])
        precision = self._params["precision_matrix"]
        # Turned round in both dims, the factor of the precision is that of its inverse, inverted.
        factor = cholesky(precision.flip(-2, -1)).flip(-2, -1).transpose(-2, -1)
        unit = expand(eye(factor.shape[-1], dtype=factor.dtype, **layout_of(factor)), factor.shape)
        return solve_triangular(factor, unit, upper=False)

    @cached_property
    def covariance_matrix(self) -> Tensor:
        """The covariance."""
        return matmul(self.scale_tril, self.scale_tril.transpose(-2, -1))

    @cached_property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        return inv(self.covariance_matrix)

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
        return (self.scale_tril**2).sum(-1)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws whose gradient reaches the parameters."""
        drawn = randn(tuple(self._extended_shape(sample_shape)), **self._kind())
        return self.loc + matmul(self.scale_tril, drawn.unsqueeze(-1)).squeeze(-1)

    def _log_scale(self) -> Tensor:
        """Half the logarithm of the covariance's determinant."""
        return log(self.scale_tril.diagonal(0, -2, -1)).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density."""
        self._check_value(value)
        n = self._event_shape[0]
        distance = _squared_distance(self.scale_tril, value - self.loc)
        return -0.5 * (n * math.log(2 * math.pi) + distance) - self._log_scale()

    def entropy(self) -> Tensor:
        """The expected negative logarithm of the density."""
        return 0.5 * self._event_shape[0] * (1 + math.log(2 * math.pi)) + self._log_scale()


def _squared_distance(factor: Tensor, gap: Tensor) -> Tensor:
    """The squared length of gap (..., n), where `factor` (..., n, n) is of length 1."""
    shape = (*gap.shape[:-1], *factor.shape[-2:])
    wide = expand(factor, shape)
    return (solve_triangular(wide, gap.unsqueeze(-1), upper=False).squeeze(-1) ** 2).sum(-1)
