"""Schedules made of schedules: one after another, one on top of another, and warm-up before
another.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

from oneflow.core.spelling import is_mocked
from oneflow.optim.lr_scheduler.base import LRScheduler
from oneflow.optim.optimizer import Optimizer


class _Composed(LRScheduler):
    """Holds inner schedules, whose formulas it uses; it steps alone, the inner ones are never
    stepped.
    """

    _not_saved = ("optimizer", "schedulers", "_schedulers")
    schedulers: list[LRScheduler]

    def get_lr(self, base_lr: float, step: float) -> float:
        """Return the rate of the first group; `lr_of` knows them all."""
        return self.lr_of(base_lr, 0, step)

    def _extend(self, index: int) -> None:
        for scheduler in self.schedulers:
            scheduler._extend(index)

    def _check(self, schedulers: Iterable[LRScheduler], optimizer: Optimizer) -> list[LRScheduler]:
        checked = list(schedulers)
        for i, scheduler in enumerate(checked):
            if not isinstance(scheduler, LRScheduler):
                raise TypeError(f"schedulers[{i}] is not a LRScheduler object: {scheduler!r}")
            if scheduler.optimizer is not optimizer:
                raise ValueError(
                    f"{type(self).__name__} expects all schedulers to belong to the same "
                    "optimizer, "
                    f"but the scheduler at index {i} is of another"
                )
        return checked

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "schedulers": [s.state_dict() for s in self.schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        theirs = state_dict.get("_schedulers", ())
        inner = state_dict.get("schedulers", theirs)
        # PyTorch's ChainedScheduler counts no steps of its own: those of what it holds are.
        last = {"last_step": inner[0]["last_epoch"]} if "last_epoch" in [*inner, {}][0] else {}
        super().load_state_dict({**last, **state_dict})
        for scheduler, state in zip(self.schedulers, inner, strict=True):
            scheduler.load_state_dict(state)


class SequentialLR(_Composed):
    """schedulers[0] until milestones[0], then schedulers[1] until milestones[1], and so on.

    interval_rescaling: whether a later schedule counts its steps from its milestone (True) or from
    the start of the run (False); one bool, or one per milestone. By default False, and True under
    the mock of PyTorch.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        interval_rescaling: bool | Sequence[bool] | None = None,
        last_step: int = -1,
        verbose: bool = False,
        *,
        last_epoch: int | None = None,
    ) -> None:
        self.schedulers = self._check(schedulers, optimizer)
        self.milestones = list(milestones)
        if not self.schedulers or len(self.milestones) != len(self.schedulers) - 1:
            raise ValueError(
                "SequentialLR expects the number of schedulers to be one more than the number "
                "of milestones, "
                f"but got {len(self.schedulers)} schedulers and {len(self.milestones)} milestones"
            )
        if any(a >= b for a, b in zip([0, *self.milestones], self.milestones, strict=False)):
            raise ValueError(f"milestones must be strictly increasing, but got {self.milestones}")
        rescaling = is_mocked() if interval_rescaling is None else interval_rescaling
        self.interval_rescaling = self._rescaling(rescaling)
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def _rescaling(self, value: bool | Sequence[bool]) -> list[bool]:
        if isinstance(value, bool):
            return [value] * len(self.milestones)
        if len(value) != len(self.milestones):
            raise ValueError(
                f"'interval_rescaling' must have one bool per milestone ({len(self.milestones)}), "
                f"but got {len(value)}"
            )
        return list(value)

    def _active(self, step: float) -> tuple[LRScheduler, float]:
        """The schedule in force at `step`, and the step number it is to be asked for."""
        i = bisect_right(self.milestones, step)
        if i and self.interval_rescaling[i - 1]:
            step -= self.milestones[i - 1]
        return self.schedulers[i], step

    def lr_of(self, base_lr: float, index: int, step: float) -> float:
        scheduler, inner_step = self._active(step)
        return scheduler.lr_of(base_lr, index, inner_step)


class ChainedScheduler(_Composed):
    """Each schedule starts from the rate of the one before it: their factors multiply."""

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        if not schedulers:
            raise ValueError("ChainedScheduler needs at least one scheduler")
        optimizer = schedulers[0].optimizer if optimizer is None else optimizer
        self.schedulers = self._check(schedulers, optimizer)
        super().__init__(optimizer)

    def lr_of(self, base_lr: float, index: int, step: float) -> float:
        lr = base_lr
        for scheduler in self.schedulers:
            lr = scheduler.lr_of(lr, index, step)
        return lr


class WarmupLR(_Composed):
    """A warm-up of warmup_iters steps, then the wrapped schedule (or the constant base rate).

    warmup_method: "linear" goes from warmup_factor · base to the rate that follows the warm-up;
    "constant" stays at warmup_factor · base.  warmup_prefix: the wrapped schedule starts from its
    step 0 after the warm-up (True), or runs on underneath it (False).
    """

    def __init__(
        self,
        scheduler_or_optimizer: LRScheduler | Optimizer,
        warmup_factor: float = 1.0 / 3,
        warmup_iters: int = 5,
        warmup_method: str = "linear",
        warmup_prefix: bool = False,
        last_step: int = -1,
        verbose: bool = False,
        *,
        last_epoch: int | None = None,
    ) -> None:
        if not isinstance(scheduler_or_optimizer, LRScheduler | Optimizer):
            raise TypeError(
                "'scheduler_or_optimizer' must be a LRScheduler or an Optimizer, "
                f"but got {type(scheduler_or_optimizer).__name__}"
            )
        if warmup_method not in ("linear", "constant"):
            raise ValueError(
                f"'warmup_method' must be 'linear' or 'constant', but got {warmup_method!r}"
            )
        if warmup_iters < 0:
            raise ValueError(f"'warmup_iters' must not be negative, but got {warmup_iters}")
        self.warmup_factor = warmup_factor
        self.warmup_iters = warmup_iters
        self.warmup_method = warmup_method
        self.warmup_prefix = warmup_prefix
        inner = scheduler_or_optimizer
        self.schedulers = [inner] if isinstance(inner, LRScheduler) else []
        optimizer = inner.optimizer if isinstance(inner, LRScheduler) else inner
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def lr_of(self, base_lr: float, index: int, step: float) -> float:
        if step >= self.warmup_iters:
            return self._after(base_lr, index, step)
        start = base_lr * self.warmup_factor
        if self.warmup_method == "constant":
            return start
        end = self._after(base_lr, index, self.warmup_iters)
        return start + (end - start) * step / self.warmup_iters

    def _after(self, base_lr: float, index: int, step: float) -> float:
        """The wrapped schedule at a step of this one that is not before the end of the warm-up."""
        if not self.schedulers:
            return base_lr
        inner_step = step - self.warmup_iters if self.warmup_prefix else step
        return self.schedulers[0].lr_of(base_lr, index, inner_step)


WarmUpLR = WarmupLR
