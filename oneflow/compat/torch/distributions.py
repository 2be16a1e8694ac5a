"""Inner names of `torch.distributions`, with which distributions written by others are made."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar, cast

from oneflow import surfaces
from oneflow.core.device import DeviceLike
from oneflow.core.dtype import DType
from oneflow.core.errors import ArgumentError
from oneflow.core.operand import Number
from oneflow.distributions.composed import TransformedDistribution
from oneflow.distributions.constraints import positive, real, simplex
from oneflow.distributions.location_scale import Normal
from oneflow.distributions.transforms import StickBreakingTransform, _Inverse
from oneflow.functional.creation import randn
from oneflow.functional.from_data import tensor
from oneflow.functional.promotion import get_default_dtype
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.grad_mode import enable_grad
from oneflow.tensor.tensor import Tensor

Value = TypeVar("Value")

euler_constant = 0.57721566490153286060
_InverseTransform = _Inverse


def broadcast_all(*values: Tensor | Number) -> tuple[Tensor, ...]:
    """Return tensors of one shape: numbers become tensors of the first one's dtype and place.

    Raises ArgumentError for any other value.
    """
    if not all(isinstance(v, Tensor | numbers.Number) for v in values):
        raise ArgumentError("broadcast_all: expected numbers and tensors")
    like = next((v for v in values if isinstance(v, Tensor)), None)
    where: dict[str, Any] = {"dtype": get_default_dtype()}
    if like is not None:
        where = {"dtype": like.dtype, **layout_of(like)}
    made = [v if isinstance(v, Tensor) else tensor(v, **where) for v in values]
    wide: tuple[Tensor, ...] = tuple(surfaces.find("flow", "broadcast_tensors")(*made))
    return wide


class lazy_property(cached_property[Value]):
    """A property that is computed when it is first asked for, with gradients, and kept."""

    def __init__(self, wrapped: Callable[[Any], Value]) -> None:
        super().__init__(wrapped)
        self.wrapped, self.__name__ = wrapped, wrapped.__name__

    def __get__(self, instance: object, kind: type | None = None) -> Any:
        if instance is None:
            return self
        with enable_grad():
            value = self.wrapped(instance)
        setattr(instance, self.wrapped.__name__, value)
        return value


def _sum_rightmost(value: Tensor, dim: int) -> Tensor:
    """Return the sum over the last `dim` dims."""
    return value.sum(tuple(range(-dim, 0))) if dim else value


def _standard_normal(shape: tuple[int, ...], dtype: DType, device: DeviceLike) -> Tensor:
    """Return standard normal numbers."""
    return randn(*shape, dtype=dtype, device=device)


class LogisticNormal(TransformedDistribution):
    """Probabilities whose log odds, stick by stick, are normal: one more than `loc` has."""

    arg_constraints = {"loc": real, "scale": positive}
    support = simplex

    def __init__(
        self, loc: Tensor | float, scale: Tensor | float, validate_args: bool | None = None
    ) -> None:
        base = Normal(loc, scale, validate_args=validate_args)
        wide = base if base.batch_shape else base.expand((1,))
        super().__init__(wide, StickBreakingTransform(), validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> LogisticNormal:
        """Return the same distributions under a larger batch shape."""
        made = self._get_checked_instance(LogisticNormal, cast("Any", _instance))
        super().expand(batch_shape, made)
        return made

    @property
    def _normal(self) -> Normal:
        """The normal numbers, which are made one draw."""
        base: Any = self.base_dist
        found: Normal = base.base_dist
        return found

    @property
    def loc(self) -> Tensor:
        """The means of the normal numbers."""
        return self._normal.loc

    @property
    def scale(self) -> Tensor:
        """The deviations of the normal numbers."""
        return self._normal.scale
