"""The base of learning-rate schedules: a closed form in the step number, applied to every parameter
group.

A schedule is a function of (base_lr, step), so a graph can evaluate it for any step without
touching the Python object, and a resumed run needs nothing but the step number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from oneflow.optim.optimizer import Optimizer


class LRScheduler(ABC):
    """Sets `lr` of each group of `optimizer` at every `step()`; the constructor makes the first
    step (step 0).

    last_step: number of the last step taken, -1 for a new run; to go on from another, each group
    must have `initial_lr`.
    verbose: print the rates at each step.
    Raises TypeError for anything but an Optimizer, KeyError for a missing `initial_lr`.
    """

    _not_saved: tuple[str, ...] = ("optimizer",)

    def __init__(self, optimizer: Optimizer, last_step: int = -1, verbose: bool = False) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer object")
        self.optimizer = optimizer
        self.last_step = last_step
        self.verbose = verbose
        self.base_lrs = self._read_base_lrs()
        self._last_lr: list[float] = []
        self.step()

    def _read_base_lrs(self) -> list[float]:
        groups = self.optimizer.param_groups
        if self.last_step == -1:
            for group in groups:
                group.setdefault("initial_lr", group["lr"])
        for i, group in enumerate(groups):
            if "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming "
                    "an optimizer"
                )
        return [group["initial_lr"] for group in groups]

    @abstractmethod
    def get_lr(self, base_lr: float, step: int) -> float:
        """The rate at step number `step` (0 for the first update) of a group that starts with
        `base_lr`.
        """

    def group_lr(self, index: int, step: int) -> float:
        """The rate of group number `index` at `step`, without its `lr_scale`."""
        return self.get_lr(self.base_lrs[index], step)

    def step(self) -> None:
        """Goes on by one step and sets the groups' rates."""
        self.last_step += 1
        self._set_lrs([self.group_lr(i, self.last_step) for i in range(len(self.base_lrs))])

    def _set_lrs(self, lrs: list[float]) -> None:
        self._last_lr = []
        for i, (group, lr) in enumerate(zip(self.optimizer.param_groups, lrs, strict=True)):
            group["lr"] = lr * group.get("lr_scale", 1.0)
            self._last_lr.append(group["lr"])
            if self.verbose:
                self.print_lr(i, group["lr"])

    def get_last_lr(self) -> list[float]:
        """The rates set by the last step, one per group."""
        return self._last_lr

    def print_lr(self, group: int, lr: float) -> None:
        """One line that says which group has got which rate."""
        print(f"Last step {self.last_step} adjusting learning rate of group {group} to {lr:.4e}")

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on, but the optimizer and functions: plain values."""
        return {k: v for k, v in self.__dict__.items() if k not in self._not_saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.__dict__.update(state_dict)


def per_group(
    value: Callable[[int], float] | list[Callable[[int], float]], count: int, what: str
) -> list[Callable[[int], float]]:
    """One function per group: the same for all, or a list of that length. Raises ValueError."""
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"Expected {count} {what}, but got {len(value)}")
    return list(value)
