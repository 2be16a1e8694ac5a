"""Transforms and sets of `torch.distributions` for correlations, covariances and slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from oneflow.distributions import constraints
from oneflow.distributions.constraints import Constraint, _Symmetric, dependent_property
from oneflow.distributions.distribution import Distribution
from oneflow.distributions.transforms import LowerCholeskyTransform, Transform
from oneflow.distributions.utils import tril_matrix_to_vec, vec_to_tril_matrix
from oneflow.functional.concat_split import stack
from oneflow.functional.creation import eye
from oneflow.functional.linalg.matrices import cholesky, eigvalsh
from oneflow.functional.linalg.products import matmul
from oneflow.nn import functional as F
from oneflow.ops.unary import log, log1p
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.layout import finfo
from oneflow.tensor.tensor import Tensor


class _CorrCholesky(Constraint):
    """Lower Cholesky factors of correlations: each row is of length 1."""

    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        room = finfo(value.dtype).eps * value.shape[-1] * 10
        lengths = (value.detach() ** 2).sum(-1).sqrt()
        are_one = ((lengths - 1).abs() <= room).all(-1)
        return constraints.lower_cholesky.check(value) & are_one


class _PositiveSemidefinite(_Symmetric):
    """Symmetric matrices without a negative eigenvalue."""

    def check(self, value: Tensor) -> Tensor:
        is_symmetric = super().check(value)
        if value.shape[-1] != value.shape[-2]:
            return is_symmetric
        return is_symmetric & (eigvalsh(value.detach()) >= 0).all(-1)


class MixtureSameFamilyConstraint(Constraint):
    """The values of a mixture: those that every component may give."""

    def __init__(self, base_constraint: Constraint) -> None:
        self.base_constraint = base_constraint
        self.is_discrete, self.event_dim = base_constraint.is_discrete, base_constraint.event_dim

    def check(self, value: Tensor) -> Tensor:
        """Whether each value is one of all components."""
        found = self.base_constraint.check(value.unsqueeze(-1 - self.event_dim))
        return found.all(-1)


corr_cholesky, positive_semidefinite = _CorrCholesky(), _PositiveSemidefinite()


class CorrCholeskyTransform(Transform):
    """n (n - 1) / 2 numbers -> the lower Cholesky factor of an n by n correlation.

    The tangents of the numbers are partial correlations, which take shares of the rest of
    each row's length 1: Lewandowski, Kurowicka and Joe, J. Multivariate Analysis 100(9), 2009.
    """

    domain = constraints.real_vector
    codomain = corr_cholesky
    bijective = True

    def _call(self, x: Tensor) -> Tensor:
        parts = x.tanh()
        eps = finfo(parts.dtype).eps
        parts = vec_to_tril_matrix(parts.clamp(-1 + eps, 1 - eps), -1)
        left = (1 - parts**2).sqrt().cumprod(-1)
        n = parts.shape[-1]
        whole = parts + eye(n, dtype=parts.dtype, **layout_of(parts))
        return whole * F.pad(left[..., :-1], [1, 0], value=1.0)

    def _inverse(self, y: Tensor) -> Tensor:
        left = 1 - (y * y).cumsum(-1)
        before = F.pad(left[..., :-1], [1, 0], value=1.0)
        parts = tril_matrix_to_vec(y, -1) / tril_matrix_to_vec(before, -1).sqrt()
        return (log1p(parts) - log1p(-parts)) / 2

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log |det dy/dx|: of the shares that are left, and of the tangents."""
        left = 1 - (y * y).cumsum(-1)
        rests = 0.5 * log(tril_matrix_to_vec(left, -2)).sum(-1)
        tangents = -2 * (x + F.softplus(-2 * x) - 0.6931471805599453).sum(-1)
        return rests + tangents

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of y, given that of x.

        Raises ValueError if x has not n (n - 1) / 2 numbers.
        """
        count = shape[-1]
        n = round((0.25 + 2 * count) ** 0.5 + 0.5)
        if n * (n - 1) // 2 != count:
            raise ValueError(f"{count} numbers are not n (n - 1) / 2 of any n")
        return (*shape[:-1], n, n)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of x, given that of y. Raises ValueError if y is not square."""
        n = shape[-1]
        if len(shape) < 2 or shape[-2] != n:
            raise ValueError(f"a Cholesky factor is square, got {tuple(shape)}")
        return (*shape[:-2], n * (n - 1) // 2)


class PositiveDefiniteTransform(Transform):
    """Square matrices -> positive definite ones, by way of their Cholesky factors."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.positive_definite
    _equals_its_kind = True

    def _call(self, x: Tensor) -> Tensor:
        factor = LowerCholeskyTransform()(x)
        return matmul(factor, factor.transpose(-2, -1))

    def _inverse(self, y: Tensor) -> Tensor:
        return LowerCholeskyTransform().inv(cholesky(y))


class CumulativeDistributionTransform(Transform):
    """The share of a distribution below a value; the inverse is its quantile."""

    bijective = True
    codomain = constraints.unit_interval
    sign = 1
    _made_of = ("distribution",)

    def __init__(self, distribution: Distribution, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.distribution = distribution

    @dependent_property
    def domain(self) -> Any:
        """The values of the distribution."""
        return self.distribution.support

    def _call(self, x: Tensor) -> Tensor:
        return self.distribution.cdf(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.distribution.icdf(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the logarithm of the density."""
        return self.distribution.log_prob(x)


class StackTransform(Transform):
    """Transforms of the slices along a dim, one each."""

    _made_of = ("transforms", "dim")

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.transforms, self.dim = [t.with_cache(cache_size) for t in tseq], dim

    bijective = cast("bool", property(lambda self: all(t.bijective for t in self.transforms)))

    @dependent_property
    def domain(self) -> Constraint:
        """Those of the parts."""
        return constraints.stack([t.domain for t in self.transforms], self.dim)

    @dependent_property
    def codomain(self) -> Constraint:
        """Those of the parts."""
        return constraints.stack([t.codomain for t in self.transforms], self.dim)

    def _each(self, run: Callable[..., Tensor], *values: Tensor) -> Tensor:
        slices = [v.unbind(self.dim) for v in values]
        return stack(
            [run(t, *parts) for t, *parts in zip(self.transforms, *slices, strict=True)], self.dim
        )

    def _call(self, x: Tensor) -> Tensor:
        return self._each(lambda t, part: t(part), x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._each(lambda t, part: t._inv_call(part), y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return those of the parts."""
        return self._each(lambda t, a, b: t.log_abs_det_jacobian(a, b), x, y)
