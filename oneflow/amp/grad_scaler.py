"""Scalers of losses: gradients of float16 numbers that would vanish are computed larger."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from oneflow.core.device import DeviceLike
from oneflow.core.dtype import float16
from oneflow.core.errors import ArgumentError, CallError
from oneflow.ops.compare import logical_and
from oneflow.ops.reduce import reduce_all
from oneflow.ops.unary import isfinite
from oneflow.optim.optimizer import Optimizer
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

__all__ = ["GradScaler", "StaticGradScaler"]

T = TypeVar("T")


def _require_positive(name: str, value: object) -> None:
    """Raises ArgumentError for a scale by which gradients cannot be multiplied and divided."""
    if not isinstance(value, (int, float, np.number)) or not 0 < value < math.inf:
        raise ArgumentError(f"GradScaler: {name} must be a finite number above 0, got {value!r}")


class GradScaler:
    """`scale(loss).backward()`, `step(optimizer)`, `update()`: gradients are divided by the scale
    before the step, which is left out where one is not finite.

    The scale is multiplied by backoff_factor after such a step, and by growth_factor after
    growth_interval others in a row. With enabled=False all of it does nothing. device: PyTorch's,
    which changes nothing.
    """

    def __init__(
        self,
        *given: float | str,
        device: DeviceLike | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        """given: the keywords after `device` by position; PyTorch has the device before them."""
        if given and isinstance(given[0], str):
            given = given[1:]
        if len(given) > 5:
            raise CallError(f"GradScaler takes 5 numbers by position, got {len(given)}")
        rest = (init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        numbers: list[float | str] = [*given, *rest[len(given) :]]
        enabled = bool(numbers.pop())
        names = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
        for name, value in zip(names, numbers, strict=True) if enabled else ():
            _require_positive(name, value)
        init_scale, growth_factor, backoff_factor, interval = [float(x) for x in numbers]
        growth_interval = int(interval)
        if enabled and growth_factor < 1.0:
            raise ArgumentError(f"The growth factor must be > 1.0, got {growth_factor}")
        if enabled and backoff_factor > 1.0:
            raise ArgumentError(f"The backoff factor must be < 1.0, got {backoff_factor}")
        self._enabled = enabled
        self._held: tuple[Tensor, Tensor] | None = None
        self._numbers = float(init_scale), 0
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval = growth_interval
        self._finite: dict[int, bool] = {}  # id of an optimizer whose gradients are unscaled
        self._stepped: set[int] = set()

    @property
    def numbers(self) -> tuple[float, int]:
        """The scale, and the number of finite steps in a row since it changed."""
        if self._held is None:
            return self._numbers
        return float(self._held[0].item()), int(self._held[1].item())

    @numbers.setter
    def numbers(self, numbers: tuple[float, int]) -> None:
        self._numbers = numbers
        if self._held is not None:
            with no_grad():
                for tensor, number in zip(self._held, numbers, strict=True):
                    tensor.fill_(number)

    def follow(self, scale: Tensor, growth_tracker: Tensor) -> None:
        """Take these tensors of a graph, which it updates, as this scaler's numbers."""
        self._held = scale, growth_tracker

    @property
    def factors(self) -> tuple[float, float, int]:
        """The factors of growth and backoff, and the interval of growth."""
        return self._growth_factor, self._backoff_factor, self._growth_interval

    @property
    def _scale(self) -> float:
        return self.numbers[0]

    def scale(self, outputs: T) -> T:
        """A tensor, or lists and tuples of them, times the scale."""
        if not self._enabled:
            return outputs
        scaled: Any = self._scaled(outputs)
        result: T = scaled
        return result

    def _scaled(self, outputs: object) -> object:
        if isinstance(outputs, Tensor):
            return outputs * self._scale
        if isinstance(outputs, Iterable):
            made = [self._scaled(x) for x in outputs]
            return tuple(made) if isinstance(outputs, tuple) else made
        raise ValueError("outputs must be a Tensor or an iterable of Tensors")

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, to clip them, say.

        Raises RuntimeError a second time before `update`, ValueError for float16 gradients.
        """
        if not self._enabled:
            return
        if id(optimizer) in self._stepped:
            raise RuntimeError("unscale_() is being called after step().")
        if id(optimizer) in self._finite:
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last update()."
            )
        self._finite[id(optimizer)] = self._unscaled(optimizer)

    def _unscaled(self, optimizer: Optimizer) -> bool:
        """Whether all gradients were finite."""
        checks = []
        with no_grad():
            for group in optimizer.param_groups:
                for grad in (p.grad for p in group.parameters if p.grad is not None):
                    if grad.dtype is float16:
                        raise ValueError("Attempting to unscale FP16 gradients.")
                    checks.append(reduce_all(isfinite(grad), dims=tuple(range(grad.ndim))))
                    grad.mul_(1.0 / self._scale)
            if not checks:
                return True
            total = checks[0]
            for check in checks[1:]:
                total = logical_and(total, check)
        return bool(total.item())

    def step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any] | None = None,
        *args: object,
        **kwargs: object,
    ) -> Any:
        """`optimizer.step(...)` with unscaled gradients; left out, and None, if one is not finite.

        Raises RuntimeError with a closure, and a second time before `update`.
        """
        if not self._enabled:
            return optimizer.step(closure, *args, **kwargs)
        if closure is not None:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        if id(optimizer) in self._stepped:
            raise RuntimeError("step() has already been called since the last update().")
        if id(optimizer) not in self._finite:
            self.unscale_(optimizer)
        self._stepped.add(id(optimizer))
        return optimizer.step(*args, **kwargs) if self._finite[id(optimizer)] else None

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Grow or shrink the scale by how the steps since the last call went; or set it.

        Raises RuntimeError if no gradients were unscaled since.
        """
        if not self._enabled:
            return
        if new_scale is not None:
            self.numbers = float(new_scale), self.numbers[1]
        elif not self._finite:
            raise RuntimeError("No inf checks were recorded prior to update.")
        elif not all(self._finite.values()):
            self.numbers = self._scale * self._backoff_factor, 0
        else:
            self._grow()
        self._finite.clear()
        self._stepped.clear()

    def _grow(self) -> None:
        scale, count = self.numbers
        count += 1
        if count == self._growth_interval:
            grown = scale * self._growth_factor
            scale, count = (grown if math.isfinite(grown) else scale), 0
        self.numbers = scale, count

    def get_scale(self) -> float:
        """The scale; 1.0 if disabled."""
        return self._scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """The factor by which the scale grows."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Choose the factor by which the scale grows."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """The factor by which the scale shrinks."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Choose the factor by which the scale shrinks."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """Number of finite steps in a row after which the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Choose the number of finite steps in a row after which the scale grows."""
        self._growth_interval = new_interval

    def is_enabled(self) -> bool:
        """Whether it does anything."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """All numbers of it; empty if disabled."""
        if not self._enabled:
            return {}
        scale, count = self.numbers
        return {
            "scale": scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": count,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of `state_dict`. Raises RuntimeError for an empty one."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled "
                "instance of GradScaler."
            )
        self.numbers = float(state_dict["scale"]), int(state_dict["_growth_tracker"])
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]


class StaticGradScaler(GradScaler):
    """A GradScaler whose scale stays."""

    def __init__(self, scale_factor: float) -> None:
        super().__init__(scale_factor, 1.0, 1.0)
