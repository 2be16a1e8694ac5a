"""Sets of values: which ones a parameter may have, which ones a distribution gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from oneflow.functional.concat_split import cat as join
from oneflow.functional.concat_split import stack as pile
from oneflow.functional.linalg.matrices import eigvalsh
from oneflow.functional.shaping import tril
from oneflow.ops.unary import isnan
from oneflow.surfaces import accept_paths
from oneflow.tensor.tensor import Tensor


class Constraint:
    """A set of values. event_dim: number of last dims that make one value."""

    is_discrete: bool = False
    event_dim: int = 0

    def check(self, value: Tensor) -> Tensor:
        """Whether each value is in the set: bools, without the dims of a value."""
        raise NotImplementedError(f"{self!r} checks nothing")

    def __repr__(self) -> str:
        return type(self).__name__.lstrip("_")


class Bounded(Constraint):
    """Numbers from `low` to `high`, None for no bound; open ends leave the bound itself out."""

    def __init__(
        self,
        low: float | Tensor | None = None,
        high: float | Tensor | None = None,
        *,
        open_low: bool = False,
        open_high: bool = False,
        whole: bool = False,
    ) -> None:
        self.lower_bound, self.upper_bound = low, high
        self._open_low, self._open_high = open_low, open_high
        self.is_discrete = whole

    def check(self, value: Tensor) -> Tensor:
        is_in = ~isnan(value) if value.is_floating_point() else value == value
        if self.lower_bound is not None:
            low = self.lower_bound
            is_in = is_in & (value > low if self._open_low else value >= low)
        if self.upper_bound is not None:
            high = self.upper_bound
            is_in = is_in & (value < high if self._open_high else value <= high)
        return is_in & (value % 1 == 0) if self.is_discrete else is_in

    def __repr__(self) -> str:
        left, right = "(" if self._open_low else "[", ")" if self._open_high else "]"
        kind = "integers" if self.is_discrete else "numbers"
        return f"{kind} of {left}{self.lower_bound}, {self.upper_bound}{right}"


class _Dependent(Constraint):
    """A set that depends on other parameters; it checks nothing itself."""

    def __init__(self, *, is_discrete: bool = False, event_dim: int = 0) -> None:
        self.is_discrete, self.event_dim = is_discrete, event_dim


class dependent_property(property):
    """A set that depends on other parameters, as a property of a distribution.

    Asked of a class it is the property itself, with `is_discrete` and `event_dim`.
    """

    def __init__(
        self,
        fn: Callable[[Any], Rule | None] | None = None,
        *,
        is_discrete: bool = False,
        event_dim: int = 0,
    ) -> None:
        super().__init__(fn)
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def __call__(self, fn: Callable[[Any], Rule | None]) -> dependent_property:
        return dependent_property(fn, is_discrete=self.is_discrete, event_dim=self.event_dim)


def is_dependent(constraint: object) -> bool:
    """Return whether a constraint depends on other parameters."""
    return isinstance(constraint, _Dependent | dependent_property)


Rule: TypeAlias = Constraint | dependent_property
"""A set, or the property of a class that gives it."""


class _Independent(Constraint):
    """Values of `base`, of which those along further last dims make one value."""

    def __init__(self, base_constraint: Rule, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint: Any = base_constraint
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.is_discrete = base_constraint.is_discrete
        self.event_dim = base_constraint.event_dim + reinterpreted_batch_ndims

    def check(self, value: Tensor) -> Tensor:
        return _all(self.base_constraint.check(value), self.reinterpreted_batch_ndims)

    def __repr__(self) -> str:
        return f"{self.base_constraint!r} along {self.reinterpreted_batch_ndims} dims"


def _all(is_in: Tensor, count: int) -> Tensor:
    """Whether all along the last `count` dims are."""
    for _ in range(count):
        is_in = is_in.all(-1)
    return is_in


class _Parts(Constraint, ABC):
    """Values along one dim that are each of a set of their own."""

    def __init__(self, cseq: Sequence[Any], dim: int = 0) -> None:
        self.cseq, self.dim = list(cseq), dim
        self.is_discrete = any(c.is_discrete for c in self.cseq)
        self.event_dim = max(c.event_dim for c in self.cseq)

    @abstractmethod
    def _pieces(self, value: Tensor) -> Sequence[Tensor]: ...

    @abstractmethod
    def _joined(self, found: list[Tensor]) -> Tensor: ...

    def check(self, value: Tensor) -> Tensor:
        pairs = zip(self.cseq, self._pieces(value), strict=True)
        return self._joined([rule.check(piece) for rule, piece in pairs])


class _Cat(_Parts):
    """Values whose pieces along a dim, of `lengths`, are each of a set of their own."""

    def __init__(
        self, cseq: Sequence[Any], dim: int = 0, lengths: Sequence[int] | None = None
    ) -> None:
        super().__init__(cseq, dim)
        self.lengths = [1] * len(self.cseq) if lengths is None else list(lengths)

    def _pieces(self, value: Tensor) -> Sequence[Tensor]:
        pieces: Sequence[Tensor] = value.split(self.lengths, self.dim)
        return pieces

    def _joined(self, found: list[Tensor]) -> Tensor:
        return join(found, self.dim)


class _Stack(_Parts):
    """Values whose slices along a dim are each of a set of their own."""

    def _pieces(self, value: Tensor) -> Sequence[Tensor]:
        slices: Sequence[Tensor] = value.unbind(self.dim)
        return slices

    def _joined(self, found: list[Tensor]) -> Tensor:
        return pile(found, self.dim)


class _Boolean(Constraint):
    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return (value == 0) | (value == 1)


class _OneHot(Constraint):
    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return ((value == 0) | (value == 1)).all(-1) & (value.sum(-1) == 1)


class _Simplex(Constraint):
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < 1e-6)


class _Counts(Constraint):
    """Whole numbers that sum to at most `total`."""

    is_discrete = True
    event_dim = 1

    def __init__(self, upper_bound: int) -> None:
        self.upper_bound = upper_bound

    def check(self, value: Tensor) -> Tensor:
        return (value >= 0).all(-1) & (value.sum(-1) <= self.upper_bound)


class _LowerTriangular(Constraint):
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        return (tril(value) == value).all(-1).all(-1)


class _LowerCholesky(_LowerTriangular):
    def check(self, value: Tensor) -> Tensor:
        return super().check(value) & (value.diagonal(0, -2, -1) > 0).all(-1)


class _Square(Constraint):
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        is_square = value.shape[-1] == value.shape[-2]
        entries = (value == value).all(-1).all(-1)
        return entries | True if is_square else entries & False


class _Symmetric(_Square):
    def check(self, value: Tensor) -> Tensor:
        is_square = super().check(value)
        if value.shape[-1] != value.shape[-2]:
            return is_square
        gap = (value - value.transpose(-1, -2)).abs()
        return is_square & (gap <= 1e-6 + 1e-5 * value.abs()).all(-1).all(-1)


class _PositiveDefinite(_Symmetric):
    def check(self, value: Tensor) -> Tensor:
        is_symmetric = super().check(value)
        if value.shape[-1] != value.shape[-2]:
            return is_symmetric
        return is_symmetric & (eigvalsh(value.detach()) > 0).all(-1)


class _Interval(Bounded):
    """Numbers of [lower_bound, upper_bound]."""

    def __init__(self, lower_bound: float | Tensor, upper_bound: float | Tensor) -> None:
        super().__init__(lower_bound, upper_bound)


class _HalfOpenInterval(Bounded):
    """Numbers of [lower_bound, upper_bound)."""

    def __init__(self, lower_bound: float | Tensor, upper_bound: float | Tensor) -> None:
        super().__init__(lower_bound, upper_bound, open_high=True)


class _IntegerInterval(Bounded):
    """Integers of [lower_bound, upper_bound]."""

    def __init__(self, lower_bound: int | Tensor, upper_bound: int | Tensor) -> None:
        super().__init__(lower_bound, upper_bound, whole=True)


class _IntegerGreaterThan(Bounded):
    """Integers from a bound on."""

    def __init__(self, lower_bound: int | Tensor) -> None:
        super().__init__(lower_bound, whole=True)


class _IntegerLessThan(Bounded):
    """Integers up to a bound."""

    def __init__(self, upper_bound: int | Tensor) -> None:
        super().__init__(None, upper_bound, whole=True)


class _GreaterThan(Bounded):
    """Numbers above a bound."""

    def __init__(self, lower_bound: float | Tensor) -> None:
        super().__init__(lower_bound, open_low=True)


class _GreaterThanEq(Bounded):
    """Numbers from a bound on."""

    def __init__(self, lower_bound: float | Tensor) -> None:
        super().__init__(lower_bound)


class _LessThan(Bounded):
    """Numbers below a bound."""

    def __init__(self, upper_bound: float | Tensor) -> None:
        super().__init__(None, upper_bound, open_high=True)


class _Real(Bounded):
    """All numbers."""

    def __init__(self) -> None:
        super().__init__()


interval, half_open_interval = _Interval, _HalfOpenInterval
integer_interval = _IntegerInterval
greater_than, greater_than_eq, less_than = _GreaterThan, _GreaterThanEq, _LessThan
independent = _Independent
cat, stack = _Cat, _Stack
dependent = _Dependent()
multinomial = _Counts
boolean = _Boolean()
one_hot = _OneHot()
real = _Real()
real_vector = _Independent(real, 1)
positive = greater_than(0.0)
nonnegative = greater_than_eq(0.0)
positive_integer = _IntegerGreaterThan(1)
nonnegative_integer = _IntegerGreaterThan(0)
unit_interval = interval(0.0, 1.0)
simplex = _Simplex()
lower_triangular = _LowerTriangular()
lower_cholesky = _LowerCholesky()
square = _Square()
symmetric = _Symmetric()
positive_definite = _PositiveDefinite()

__all__ = [
    "Constraint",
    "boolean",
    "cat",
    "dependent",
    "dependent_property",
    "greater_than",
    "greater_than_eq",
    "half_open_interval",
    "independent",
    "integer_interval",
    "interval",
    "is_dependent",
    "less_than",
    "lower_cholesky",
    "lower_triangular",
    "multinomial",
    "nonnegative",
    "nonnegative_integer",
    "one_hot",
    "positive",
    "positive_definite",
    "positive_integer",
    "real",
    "real_vector",
    "simplex",
    "square",
    "stack",
    "symmetric",
    "unit_interval",
]


accept_paths(__name__)
