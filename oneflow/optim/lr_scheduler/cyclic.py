"""Schedules that go up and down, and let the momentum go down and up meanwhile."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from oneflow.optim.lr_scheduler.base import LRScheduler, set_rate
from oneflow.optim.optimizer import Optimizer

Rates = float | Sequence[float]


class _Cycled(LRScheduler):
    """A schedule that sets the momentum, too: `momentum`, or the first of `betas`."""

    _per_group = ("lowest_lrs", "max_lrs", "base_momentums", "max_momentums")
    lowest_lrs: list[float]
    max_lrs: list[float]
    base_momentums: list[float]
    max_momentums: list[float]

    def _start_momentum(self, optimizer: Optimizer, base: Rates, largest: Rates) -> None:
        """Read the ends. Raises ValueError for an optimizer without momentum."""
        if not self.cycle_momentum:
            return
        if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
            raise ValueError(
                "optimizer must support momentum or beta1 with `cycle_momentum` option enabled"
            )
        self._set_per_group("base_momentums", base, optimizer)
        self._set_per_group("max_momentums", largest, optimizer)

    @abstractmethod
    def momentum_at(self, index: int, step: float) -> float:
        """The momentum of group number `index` at `step`."""

    def _set_lrs(self, lrs: list[float]) -> None:
        super()._set_lrs(lrs)
        if not self.cycle_momentum:
            return
        for i, group in enumerate(self.optimizer.param_groups):
            momentum = self.momentum_at(i, self.last_step)
            if "betas" in self.optimizer.defaults:
                group["betas"] = (momentum, *group["betas"][1:])
            else:
                group["momentum"] = momentum


class CyclicLR(_Cycled):
    """Rates from base_lr up to max_lr in step_size_up steps, down again in step_size_down, and so
    on (Smith, WACV 2017).

    mode: "triangular"; "triangular2": every cycle rises half as high; "exp_range": gamma^step as
    high. scale_fn: another factor of the height, of the number of the cycle (from 1), or with
    scale_mode="iterations" of the step. cycle_momentum: the momentum goes from max_momentum to
    base_momentum meanwhile.
    """

    _not_saved = ("optimizer", "_scale")

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: Rates,
        max_lr: Rates,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: Rates = 0.8,
        max_momentum: Rates = 0.9,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        known: dict[str, tuple[str, Callable[[float], float]]] = {
            "triangular": ("cycle", lambda x: 1.0),
            "triangular2": ("cycle", lambda x: 1 / 2.0 ** (x - 1)),
            "exp_range": ("iterations", lambda x: gamma**x),
        }
        if scale_fn is None and mode not in known:
            raise ValueError(f"mode {mode!r} is invalid and scale_fn is None; use {list(known)}")
        if scale_fn is None:
            scale_mode, scale_fn = known[mode]
        self.mode, self.gamma, self.scale_mode, self._scale = mode, gamma, scale_mode, scale_fn
        down = step_size_up if step_size_down is None else step_size_down
        self.total_size = float(step_size_up + down)
        self.step_ratio = step_size_up / self.total_size
        self._set_per_group("lowest_lrs", base_lr, optimizer)
        self._set_per_group("max_lrs", max_lr, optimizer)
        if last_epoch == -1:
            for group, rate in zip(optimizer.param_groups, self.lowest_lrs, strict=True):
                set_rate(group, rate)
                group["initial_lr"] = rate
        self.cycle_momentum = cycle_momentum
        self._start_momentum(optimizer, base_momentum, max_momentum)
        super().__init__(optimizer, last_epoch, verbose)

    def _height(self, step: float) -> float:
        """Height of the rate: 0 at base_lr, 1 at max_lr."""
        cycle = math.floor(1 + step / self.total_size)
        x = 1.0 + step / self.total_size - cycle
        up = x <= self.step_ratio
        height = x / self.step_ratio if up else (x - 1) / (self.step_ratio - 1)
        return height * self._scale(cycle if self.scale_mode == "cycle" else step)

    def get_lr(self, base_lr: float, step: float) -> float:
        """Return the rate of the first group; `lr_of` knows them all."""
        return self.lr_of(base_lr, 0, step)

    def lr_of(self, base_lr: float, index: int, step: float) -> float:
        return base_lr + (self.max_lrs[index] - base_lr) * self._height(step)

    def momentum_at(self, index: int, step: float) -> float:
        top = self.max_momentums[index]
        return top - (top - self.base_momentums[index]) * self._height(step)


class OneCycleLR(_Cycled):
    """Rates from max_lr / div_factor up to max_lr in the first pct_start of total_steps, then down
    to 1 / final_div_factor of the start (Smith and Topin, 2018).

    total_steps, or epochs and steps_per_epoch.  anneal_strategy: "cos" or "linear".  three_phase:
    down to the start in as many steps as up, then further.  cycle_momentum: the momentum goes from
    max_momentum to base_momentum and back.  Raises ValueError for a step after the last.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: Rates,
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: Rates = 0.85,
        max_momentum: Rates = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        self.total_steps = _count_steps(total_steps, epochs, steps_per_epoch)
        if not isinstance(pct_start, float) or not 0.0 <= pct_start <= 1.0:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        self.anneal_strategy = anneal_strategy
        top = pct_start * self.total_steps - 1
        last = (self.total_steps - 1, "initial_lr", "min_lr", False, False)
        if three_phase:
            back = (2 * top, "max_lr", "initial_lr", True, False)
            self.phases = [(top, "initial_lr", "max_lr", False, True), back, last]
        else:
            last = (self.total_steps - 1, "max_lr", "min_lr", True, False)
            self.phases = [(top, "initial_lr", "max_lr", False, True), last]
        self.div_factor, self.final_div_factor = div_factor, final_div_factor
        self._set_per_group("max_lrs", max_lr, optimizer)
        if last_epoch == -1:
            for group, rate in zip(optimizer.param_groups, self.max_lrs, strict=True):
                self._set_ends(group, rate)
        self.cycle_momentum = cycle_momentum
        self._start_momentum(optimizer, base_momentum, max_momentum)
        super().__init__(optimizer, last_epoch, verbose)

    def _set_ends(self, group: dict[str, Any], rate: float) -> None:
        group["initial_lr"], group["max_lr"] = rate / self.div_factor, rate
        group["min_lr"] = rate / self.div_factor / self.final_div_factor

    def _extend(self, index: int) -> None:
        super()._extend(index)
        self._set_ends(self.optimizer.param_groups[index], self.max_lrs[index])

    def _phase(self, step: float) -> tuple[Any, float]:
        """The phase that `step` falls into, and which part of it is over."""
        if step > self.total_steps:
            raise ValueError(
                f"Tried to step {step} times. The specified number of total steps is "
                f"{self.total_steps}"
            )
        start = 0.0
        for phase in self.phases[:-1]:
            if step <= phase[0]:
                break
            start = phase[0]
        else:
            phase = self.phases[-1]
        return phase, (step - start) / (phase[0] - start)

    def _between(self, start: float, end: float, done: float) -> float:
        if self.anneal_strategy == "linear":
            return (end - start) * done + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * done) + 1)

    def get_lr(self, base_lr: float, step: float) -> float:
        """Return the rate of the first group; `lr_of` knows them all."""
        return self.lr_of(base_lr, 0, step)

    def lr_of(self, base_lr: float, index: int, step: float) -> float:
        (_, start, end, *_rest), done = self._phase(step)
        group = self.optimizer.param_groups[index]
        return self._between(group[start], group[end], done)

    def momentum_at(self, index: int, step: float) -> float:
        (_, _, _, *is_low), done = self._phase(step)
        ends = self.max_momentums[index], self.base_momentums[index]
        start, end = (ends[low] for low in is_low)
        return self._between(start, end, done)


def _count_steps(total: int | None, epochs: int | None, per_epoch: int | None) -> int:
    if total is None and (epochs is None or per_epoch is None):
        raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
    given = (
        {"total_steps": total}
        if total is not None
        else {"epochs": epochs, "steps_per_epoch": per_epoch}
    )
    for name, value in given.items():
        if not isinstance(value, int) or value <= 0:
            raise ValueError(f"Expected positive integer {name}, but got {value}")
    return math.prod(v for v in given.values() if v is not None)
