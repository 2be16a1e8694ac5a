"""The schedule of stochastic weight averaging."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import SupportsIndex

from oneflow.optim.lr_scheduler.base import LRScheduler
from oneflow.optim.optimizer import Optimizer


class SWALR(LRScheduler):
    """A rate that goes from that of the group to swa_lr in anneal_epochs steps, then stays.

    swa_lr: one rate, or one per group.  anneal_strategy: "cos" or "linear".  The way begins at the
    rate that the group has when `step` is called, which another schedule may have set.
    """

    _per_group = ("swa_lrs",)
    swa_lrs: list[float]

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | Sequence[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_step: int = -1,
        verbose: bool = False,
        *,
        last_epoch: int | None = None,
    ) -> None:
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must by one of 'cos' or 'linear', got {anneal_strategy!r}"
            )
        if not isinstance(anneal_epochs, SupportsIndex) or int(anneal_epochs) < 0:
            raise ValueError(
                "anneal_epochs must be an integer, equal or greater than 0, got "
                f"anneal_epochs={anneal_epochs!r}"
            )
        self._set_per_group("swa_lrs", swa_lr, optimizer)
        self.swa_lr, self.anneal_epochs = swa_lr, anneal_epochs
        self.anneal_strategy = anneal_strategy
        super().__init__(optimizer, last_step, verbose, last_epoch=last_epoch)

    def _done(self, step: float) -> float:
        """The share of swa_lr in the rate at `step`."""
        done = min(1.0, step / self.anneal_epochs) if self.anneal_epochs else 1.0
        return (1.0 - math.cos(math.pi * done)) / 2.0 if self.anneal_strategy == "cos" else done

    def get_lr(self, base_lr: float, step: float) -> float:
        """Return the rate of the first group; `lr_of` knows them all."""
        return self.lr_of(base_lr, 0, step)

    def lr_of(self, base_lr: float, index: int, step: float) -> float:
        done = self._done(step)
        return base_lr * (1.0 - done) + self.swa_lrs[index] * done

    def step(self, epoch: float | None = None) -> None:
        self._take_in()
        done = self._done(self.last_step) if self.last_step > 0 else 0.0
        if self.last_step >= 0 and done < 1.0:
            for i, group in enumerate(self.optimizer.param_groups):
                rate = float(group["lr"]) / group.get("lr_scale", 1.0)
                self.base_lrs[i] = (rate - self.swa_lrs[i] * done) / (1.0 - done)
        super().step(epoch)
