"""The schedule of stochastic weight averaging."""

from __future__ import annotations

import math

from oneflow.optim.lr_scheduler.base import LRScheduler
from oneflow.optim.optimizer import Optimizer


class SWALR(LRScheduler):
    """A rate that goes from that of the group to swa_lr in anneal_epochs steps, then stays.

    anneal_strategy: "cos" or "linear".
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float,
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_step: int = -1,
        verbose: bool = False,
        *,
        last_epoch: int | None = None,
    ) -> None:
        last_step = last_step if last_epoch is None else last_epoch
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must by one of 'cos' or 'linear', got {anneal_strategy!r}"
            )
        if anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self.swa_lr, self.anneal_epochs = swa_lr, anneal_epochs
        self.anneal_strategy = anneal_strategy
        super().__init__(optimizer, last_step, verbose)

    def get_lr(self, base_lr: float, step: int) -> float:
        done = min(1.0, step / self.anneal_epochs) if self.anneal_epochs else 1.0
        if self.anneal_strategy == "cos":
            done = (1.0 - math.cos(math.pi * done)) / 2.0
        return base_lr + (self.swa_lr - base_lr) * done
