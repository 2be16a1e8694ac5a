"""`torch.distributions.constraint_registry`: transforms of all real numbers into sets of values.

    transform_to(constraints.positive)(flow.randn(3))  # three numbers above 0

`biject_to` gives transforms that can be inverted everywhere, for densities; `transform_to` may give
one with more coordinates than the set has, for optimizers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from oneflow.compat.torch.distribution_transforms import (
    CorrCholeskyTransform,
    PositiveDefiniteTransform,
    StackTransform,
    corr_cholesky,
    positive_semidefinite,
)
from oneflow.core.errors import ArgumentError
from oneflow.distributions import constraints
from oneflow.distributions.constraints import Bounded, Constraint, _Cat, _Independent, _Stack
from oneflow.distributions.transforms import (
    AffineTransform,
    CatTransform,
    ComposeTransform,
    ExpTransform,
    IndependentTransform,
    LowerCholeskyTransform,
    SigmoidTransform,
    SoftmaxTransform,
    StickBreakingTransform,
    Transform,
    identity_transform,
)

Factory: TypeAlias = Callable[[Any], Transform]


class ConstraintRegistry:
    """A table from classes of constraints to functions that make a transform of one.

    Raises NotImplementedError when it is called with a constraint of a class that it lacks.
    """

    def __init__(self) -> None:
        self._registry: dict[type[Constraint], Factory] = {}

    def register(
        self, constraint: Constraint | type[Constraint], factory: Factory | None = None
    ) -> Callable[..., Any]:
        """Add the class of a constraint; without a factory it decorates one.

            @biject_to.register(MyConstraint)
            def to_mine(constraint):
                return MyTransform(constraint.bound)

        Raises TypeError for an object that is no constraint.
        """
        if factory is None:
            return lambda given: self.register(constraint, given)
        kind = type(constraint) if isinstance(constraint, Constraint) else constraint
        if not (isinstance(kind, type) and issubclass(kind, Constraint)):
            raise ArgumentError(
                "Expected constraint to be either a Constraint subclass or instance, but got "
                f"{constraint!r}"
            )
        self._registry[kind] = factory
        return factory

    def __call__(self, constraint: Constraint) -> Transform:
        factory = self._registry.get(type(constraint))
        if factory is None:
            raise NotImplementedError(
                f"Cannot transform {type(constraint).__name__} constraints: register one"
            )
        return factory(constraint)


biject_to, transform_to = ConstraintRegistry(), ConstraintRegistry()
BOTH = (biject_to, transform_to)


def _bounded(constraint: Bounded) -> Transform:
    """Return the transform into an interval, which may have no end on one side."""
    low, high = constraint.lower_bound, constraint.upper_bound
    if low is None:
        return ComposeTransform(
            [ExpTransform(), AffineTransform(0.0 if high is None else high, -1)]
        )
    if high is None:
        if isinstance(low, int | float) and low == 0:
            return ExpTransform()
        return ComposeTransform([ExpTransform(), AffineTransform(low, 1)])
    if isinstance(low, int | float) and isinstance(high, int | float) and (low, high) == (0, 1):
        return SigmoidTransform()
    return ComposeTransform([SigmoidTransform(), AffineTransform(low, high - low)])


for _table in BOTH:
    _table.register(constraints.real, lambda _: identity_transform)
    for _set in ("greater_than", "greater_than_eq", "less_than", "interval", "half_open_interval"):
        _table.register(getattr(constraints, _set), _bounded)
    _table.register(constraints.lower_cholesky, lambda _: LowerCholeskyTransform())
    _table.register(constraints.positive_definite, lambda _: PositiveDefiniteTransform())
    _table.register(positive_semidefinite, lambda _: PositiveDefiniteTransform())
    _table.register(corr_cholesky, lambda _: CorrCholeskyTransform())


def _of_parts(table: ConstraintRegistry) -> None:
    """Register the sets that are made of others, whose transforms come of the same table."""

    @table.register(constraints.independent)
    def independent(constraint: _Independent) -> Transform:
        count = constraint.reinterpreted_batch_ndims
        return IndependentTransform(table(constraint.base_constraint), count)

    @table.register(constraints.cat)
    def cat(constraint: _Cat) -> Transform:
        parts = [table(c) for c in constraint.cseq]
        return CatTransform(parts, constraint.dim, constraint.lengths)

    @table.register(constraints.stack)
    def stack(constraint: _Stack) -> Transform:
        return StackTransform([table(c) for c in constraint.cseq], constraint.dim)


_of_parts(biject_to)
_of_parts(transform_to)
biject_to.register(constraints.simplex, lambda _: StickBreakingTransform())
transform_to.register(constraints.simplex, lambda _: SoftmaxTransform())
