"""A schedule that follows a measured quantity; it has no closed form, so a graph cannot evaluate
it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from oneflow.optim.lr_scheduler.base import set_rate
from oneflow.optim.optimizer import Optimizer
from oneflow.tensor.tensor import Tensor

_TORCH_NAMES = {"last_epoch": "last_step", "num_bad_epochs": "num_bad_steps"}


class ReduceLROnPlateau:
    """Multiplies the rates by `factor` when `metrics` has not got better for more than `patience`
    steps.

    mode: "min" or "max", which direction is better.  threshold, threshold_mode: how much better
    counts, relative ("rel") or absolute ("abs").  cooldown: steps to wait after a reduction.
    min_lr: one bound, or one per group.
    eps: a smaller change of a rate is not made.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0,
        eps: float = 1e-8,
        verbose: bool = False,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer object")
        if factor >= 1.0:
            raise ValueError(f"Factor should be < 1.0, but got {factor}")
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown; use min or max")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown; use rel or abs")
        self.optimizer = optimizer
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.eps, self.verbose = cooldown, eps, verbose
        self.default_min_lr = None if isinstance(min_lr, Sequence) else min_lr
        self.min_lrs = self._lower_bounds(min_lr)
        self.last_step = 0
        self._reset()
        self._last_lr = [float(group["lr"]) for group in optimizer.param_groups]

    def _reset(self) -> None:
        """Forget all measurements."""
        self.best = self.mode_worse
        self.num_bad_steps = 0
        self.cooldown_counter = 0

    @property
    def mode_worse(self) -> float:
        """The worst value that there can be."""
        return math.inf if self.mode == "min" else -math.inf

    @property
    def num_bad_epochs(self) -> int:
        """PyTorch's name for `num_bad_steps`."""
        return self.num_bad_steps

    @property
    def last_epoch(self) -> int:
        """PyTorch's name for `last_step`."""
        return self.last_step

    def _lower_bounds(self, min_lr: float | Sequence[float]) -> list[float]:
        count = len(self.optimizer.param_groups)
        if not isinstance(min_lr, Sequence):
            return [min_lr] * count
        if len(min_lr) != count:
            raise ValueError(f"expected {count} min_lrs, got {len(min_lr)}")
        return list(min_lr)

    def step(self, metrics: float | Tensor, epoch: int | None = None) -> None:
        """Take a measurement into account.

        metrics: a number or a tensor of one element.  epoch: the number of this step; None: the
        next one.
        """
        current = float(metrics)
        self.last_step = self.last_step + 1 if epoch is None else epoch
        if self.is_better(current, self.best):
            self.best = current
            self.num_bad_steps = 0
        else:
            self.num_bad_steps += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_steps = 0
        if self.num_bad_steps > self.patience:
            self._reduce()
            self.cooldown_counter = self.cooldown
            self.num_bad_steps = 0
        self._last_lr = [float(group["lr"]) for group in self.optimizer.param_groups]

    def _reduce(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):
            if self.default_min_lr is None:
                raise RuntimeError(
                    f"the optimizer has {len(groups)} groups, but min_lrs has {len(self.min_lrs)} "
                    "bounds; set min_lrs when a group is added"
                )
            self.min_lrs = [self.default_min_lr] * len(groups)
        for i, group in enumerate(groups):
            old = float(group["lr"])
            new = max(old * self.factor, self.min_lrs[i])
            if old - new > self.eps:
                set_rate(group, new)
                if self.verbose:
                    print(
                        f"step {self.last_step}: reducing learning rate of group {i} to {new:.4e}"
                    )

    @property
    def in_cooldown(self) -> bool:
        return self.cooldown_counter > 0

    def is_better(self, a: float, best: float) -> bool:
        """Is `a` better than `best` by more than the threshold?"""
        sign = 1.0 if self.mode == "max" else -1.0
        if self.threshold_mode == "rel":
            return sign * a > sign * best * (1.0 + sign * self.threshold)
        return sign * a > sign * best + self.threshold

    def get_last_lr(self) -> list[float]:
        """The rates after the last step, one per group."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """All but the optimizer, the numbers of steps under PyTorch's names besides."""
        saved = {k: v for k, v in self.__dict__.items() if k != "optimizer"}
        return {**saved, **{theirs: saved[own] for theirs, own in _TORCH_NAMES.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of `state_dict`; PyTorch's is taken too."""
        named = {_TORCH_NAMES.get(k, k): v for k, v in state_dict.items()}
        self.__dict__.update({k: v for k, v in named.items() if k in self.__dict__})
