"""Schedules that are one formula of the step number. Each holds its numbers; `get_lr` is the
formula.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from oneflow.optim.lr_scheduler.base import LRScheduler
from oneflow.optim.optimizer import Optimizer


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


class StepLR(LRScheduler):
    """lr = base · gamma^(step // step_size)."""

    def __init__(
        self,
        optimizer: Optimizer,
        step_size: int,
        gamma: float = 0.1,
        last_step: int = -1,
        verbose: bool = False,
        *,
        last_epoch: int | None = None,
    ) -> None:
        _require(step_size > 0, f"step_size must be greater than zero, but got {step_size}")
        _require(gamma > 0.0, f"gamma must be greater than zero, but got {gamma}")
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def get_lr(self, base_lr: float, step: float) -> float:
        return base_lr * float(self.gamma ** (step // self.step_size))


class MultiStepLR(LRScheduler):
    """lr = base · gamma^(number of milestones reached). milestones: increasing step numbers."""

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_step: int = -1,
        verbose: bool = False,
        *,
        last_epoch: int | None = None,
    ) -> None:
        self.milestones = list(milestones)
        ordered = all(a < b for a, b in zip(self.milestones, self.milestones[1:], strict=False))
        _require(ordered, f"milestones must be strictly increasing, but got {self.milestones}")
        _require(gamma > 0.0, f"gamma must be greater than zero, but got {gamma}")
        self.gamma = gamma
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def get_lr(self, base_lr: float, step: float) -> float:
        return base_lr * float(self.gamma ** bisect_right(self.milestones, step))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if isinstance(self.milestones, Mapping):  # PyTorch's: how many there are at each step
            self.milestones = sorted(s for s, n in self.milestones.items() for _ in range(n))


class ExponentialLR(LRScheduler):
    """lr = base · gamma^step."""

    def __init__(
        self,
        optimizer: Optimizer,
        gamma: float,
        last_step: int = -1,
        verbose: bool = False,
        *,
        last_epoch: int | None = None,
    ) -> None:
        _require(gamma > 0.0, f"gamma must be greater than zero, but got {gamma}")
        self.gamma = gamma
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def get_lr(self, base_lr: float, step: float) -> float:
        return base_lr * float(self.gamma**step)


class ConstantLR(LRScheduler):
    """lr = base · factor for the first total_iters steps, then base."""

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_step: int = -1,
        verbose: bool = False,
        *,
        last_epoch: int | None = None,
    ) -> None:
        _require(0 <= factor <= 1, f"factor must be between 0 and 1, but got {factor}")
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def get_lr(self, base_lr: float, step: float) -> float:
        return base_lr * (self.factor if step < self.total_iters else 1.0)


class LinearLR(LRScheduler):
    """lr = base times a factor that goes from start_factor to end_factor in total_iters steps."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_step: int = -1,
        verbose: bool = False,
        *,
        last_epoch: int | None = None,
    ) -> None:
        _require(0 < start_factor <= 1, f"start_factor must be in (0, 1], but got {start_factor}")
        _require(0 <= end_factor <= 1, f"end_factor must be in [0, 1], but got {end_factor}")
        _require(total_iters > 0, f"total_iters must be greater than zero, but got {total_iters}")
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def get_lr(self, base_lr: float, step: float) -> float:
        done = min(step, self.total_iters) / self.total_iters
        return base_lr * (self.start_factor + (self.end_factor - self.start_factor) * done)


class CosineDecayLR(LRScheduler):
    """Half a cosine from base to alpha · base in decay_steps steps, then alpha · base."""

    def __init__(
        self,
        optimizer: Optimizer,
        decay_steps: int,
        alpha: float = 0.0,
        last_step: int = -1,
        verbose: bool = False,
        *,
        last_epoch: int | None = None,
    ) -> None:
        _require(decay_steps > 0, f"decay_steps must be greater than zero, but got {decay_steps}")
        _require(alpha >= 0.0, f"alpha must not be negative, but got {alpha}")
        self.decay_steps = decay_steps
        self.alpha = alpha
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def get_lr(self, base_lr: float, step: float) -> float:
        if step >= self.decay_steps:
            return base_lr * self.alpha
        cosine = 0.5 * (1.0 + math.cos(math.pi * step / self.decay_steps))
        return base_lr * ((1.0 - self.alpha) * cosine + self.alpha)


class CosineAnnealingLR(LRScheduler):
    """A cosine between base and eta_min of period 2 · T_max; after T_max steps it rises again."""

    def __init__(
        self,
        optimizer: Optimizer,
        T_max: int,
        eta_min: float = 0.0,
        last_step: int = -1,
        verbose: bool = False,
        *,
        last_epoch: int | None = None,
    ) -> None:
        _require(T_max > 0, f"T_max must be greater than zero, but got {T_max}")
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def get_lr(self, base_lr: float, step: float) -> float:
        cosine = 0.5 * (1.0 + math.cos(math.pi * step / self.T_max))
        return self.eta_min + (base_lr - self.eta_min) * cosine


class CosineAnnealingWarmRestarts(LRScheduler):
    """Cosines from base · decay_rate^cycle to eta_min, the n-th T_0 · T_mult^n steps long.

    restart_limit: number of cycles, after which lr stays eta_min; 0: no limit.
    SGDR: Loshchilov and Hutter, ICLR 2017.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        decay_rate: float = 1.0,
        restart_limit: int = 0,
        last_step: int = -1,
        verbose: bool = False,
        *,
        last_epoch: int | None = None,
    ) -> None:
        _require(T_0 > 0, f"T_0 must be a positive integer, but got {T_0}")
        _require(T_mult >= 1, f"T_mult must be an integer of at least 1, but got {T_mult}")
        _require(decay_rate > 0.0, f"decay_rate must be greater than zero, but got {decay_rate}")
        self.T_0 = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        self.decay_rate = decay_rate
        self.restart_limit = restart_limit
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def _locate(self, step: float) -> tuple[int, float, int]:
        """Return the cycle a step falls into, where in it, and the cycle's length."""
        if self.T_mult == 1:
            return int(step // self.T_0), step % self.T_0, self.T_0
        cycle, length = 0, self.T_0
        while step >= length:
            step -= length
            length *= self.T_mult
            cycle += 1
        return cycle, step, length

    def get_lr(self, base_lr: float, step: float) -> float:
        cycle, inside, length = self._locate(step)
        if 0 < self.restart_limit <= cycle:
            return self.eta_min
        top = base_lr * float(self.decay_rate**cycle)
        return self.eta_min + 0.5 * (top - self.eta_min) * (
            1.0 + math.cos(math.pi * inside / length)
        )


class PolynomialLR(LRScheduler):
    """lr = (base - end) · (1 - step / decay_batch)^power + end.

    cycle: after decay_batch steps go on with the next multiple of decay_batch; else stay at
    end_learning_rate.  steps: the name of decay_batch in older upstream.  PyTorch's form:
    total_iters=, and an end of 0.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        decay_batch: int | None = None,
        end_learning_rate: float | None = None,
        power: float = 1.0,
        cycle: bool = False,
        last_step: int = -1,
        verbose: bool = False,
        *,
        steps: int | None = None,
        total_iters: int = 5,
        last_epoch: int | None = None,
    ) -> None:
        if decay_batch is not None and steps is not None:
            raise TypeError("PolynomialLR takes decay_batch, or steps, its older name")
        given = steps if decay_batch is None else decay_batch
        decay_batch = total_iters if given is None else given
        if end_learning_rate is None:
            end_learning_rate = 0.0 if given is None else 0.0001
        _require(decay_batch > 0, f"decay_batch must be greater than zero, but got {decay_batch}")
        self.decay_batch = decay_batch
        self.end_learning_rate = end_learning_rate
        self.power = power
        self.cycle = cycle
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def get_lr(self, base_lr: float, step: float) -> float:
        length = self.decay_batch
        if self.cycle:
            step = step or 1  # as upstream takes it, so that the first two rates are equal
            length *= math.ceil(step / length)
        left = 1.0 - min(step, length) / length
        return (base_lr - self.end_learning_rate) * float(left**self.power) + self.end_learning_rate


class LambdaLR(LRScheduler):
    """lr = base · lr_lambda(step). lr_lambda: one function, or a list with one per group."""

    _not_saved = ("optimizer", "lr_lambdas")
    _per_group = ("lr_lambdas",)
    lr_lambdas: list[Callable[[int], float]]

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | list[Callable[[int], float]],
        last_step: int = -1,
        verbose: bool = False,
        *,
        last_epoch: int | None = None,
    ) -> None:
        self._set_per_group("lr_lambdas", lr_lambda, optimizer)
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def get_lr(self, base_lr: float, step: float) -> float:
        """Return the rate by the first group's function; `lr_of` knows them all."""
        return self.lr_of(base_lr, 0, step)

    def lr_of(self, base_lr: float, index: int, step: float) -> float:
        return base_lr * self.lr_lambdas[index](int(step))


class MultiplicativeLR(LRScheduler):
    """lr = base · lr_lambda(1) · … · lr_lambda(step). lr_lambda: as in LambdaLR."""

    _not_saved = ("optimizer", "lr_lambdas", "_products")
    _per_group = ("lr_lambdas",)
    lr_lambdas: list[Callable[[int], float]]

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | list[Callable[[int], float]],
        last_step: int = -1,
        verbose: bool = False,
        *,
        last_epoch: int | None = None,
    ) -> None:
        self._set_per_group("lr_lambdas", lr_lambda, optimizer)
        self._products: dict[int, list[float]] = {}
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def _product(self, index: int, step: int) -> float:
        known = self._products.setdefault(index, [1.0])
        while len(known) <= step:
            known.append(known[-1] * self.lr_lambdas[index](len(known)))
        return known[step]

    def get_lr(self, base_lr: float, step: float) -> float:
        """Return the rate by the first group's function; `lr_of` knows them all."""
        return self.lr_of(base_lr, 0, step)

    def lr_of(self, base_lr: float, index: int, step: float) -> float:
        return base_lr * self._product(index, int(step))
