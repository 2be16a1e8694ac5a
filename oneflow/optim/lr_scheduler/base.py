"""The base of learning-rate schedules: a closed form in the step number, applied to every parameter
group.

A schedule is a function of (base_lr, step), so a graph can evaluate it for any step without
touching the Python object, and a resumed run needs nothing but the step number.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any, ClassVar

from oneflow.core.errors import OneFlowError
from oneflow.optim.optimizer import Optimizer
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor


class LRScheduler(ABC):
    """Sets `lr` of each group of `optimizer` at every `step()`; the constructor makes the first
    step (step 0).

    last_step: number of the last step taken, -1 for a new run; to go on from another, each group
    must have `initial_lr`. PyTorch's name for it, `last_epoch`, is taken too.
    verbose: print the rates at each step.
    A subclass gives `get_lr(base_lr, step)`; or, as in PyTorch, a `get_lr()` that returns the
    rates of all groups at `self.last_epoch`. Either way `get_lr()` can be called, and
    `super().get_lr()` in a subclass of another schedule.
    Raises TypeError for anything but an Optimizer, KeyError for a missing `initial_lr`.
    """

    _not_saved: tuple[str, ...] = ("optimizer",)
    _per_group: tuple[str, ...] = ()
    """Names of attributes that are lists with a value per group."""
    _for_all: dict[str, Any]
    """The values that were given once for all groups, by those names."""

    _asks_for_all: ClassVar[bool] = False
    """Whether `get_lr` is PyTorch's, which takes nothing and returns every group's rate."""

    cycle_momentum: bool = False
    """Whether the schedule sets the momentum, too; then it has `momentum_at`."""

    def __init_subclass__(cls) -> None:
        if "get_lr" in vars(cls):
            formula = vars(cls)["get_lr"]
            cls._asks_for_all = formula.__code__.co_argcount == 1
            if not cls._asks_for_all:
                setattr(cls, "get_lr", _for_one_or_all(formula))  # noqa: B010

    def __init__(
        self,
        optimizer: Optimizer,
        last_step: int = -1,
        verbose: bool = False,
        *,
        last_epoch: int | None = None,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer object")
        self.optimizer = optimizer
        self.last_step = last_step if last_epoch is None else last_epoch
        self.verbose = verbose
        self.base_lrs = self._read_base_lrs()
        self._last_lr: list[float] = []
        self.step()

    # ---- parameter groups ------------------------------------------------------------------------

    def _set_per_group(self, name: str, value: object, optimizer: Optimizer) -> None:
        """Set the attribute `name` to a list with a value per group: the same for all, or those of
        a list. Raises ValueError for a list of another length.
        """
        count = len(optimizer.param_groups)
        if not isinstance(value, Sequence):
            self.__dict__.setdefault("_for_all", {})[name] = value
            value = [value] * count
        if len(value) != count:
            raise ValueError(f"Expected {count} {name}, but got {len(value)}: one per group")
        setattr(self, name, list(value))

    def _take_in(self) -> None:
        """Let groups that were added since the last step follow the schedule from here on."""
        groups = self.optimizer.param_groups
        for index in range(len(self.base_lrs), len(groups)):
            self._extend(index)
            base = self._base_of(index, float(groups[index]["lr"]))
            groups[index].setdefault("initial_lr", base)
            self.base_lrs.append(base)

    def _extend(self, index: int) -> None:
        """Give group number `index`, which is new, its place in all lists with a value per group.

        Raises ValueError where the schedule was made with a list of values.
        """
        for name in self._per_group:
            values = self.__dict__.get(name)
            if values is None or len(values) > index:
                continue
            if name not in self.__dict__.get("_for_all", ()):
                raise ValueError(
                    f"Expected {index + 1} {name}, but got {len(values)}: {type(self).__name__} "
                    "was made with one per group, and the optimizer has a new group; append its "
                    f"own to the schedule's `{name}`"
                )
            values.append(self._for_all[name])

    def _base_of(self, index: int, rate: float) -> float:
        """The rate with which a group would have started that has `rate` now.

        As in PyTorch, whose schedules multiply the rate of the last step: a new group keeps its
        rate and takes part in later steps. Rates are linear in that of the start.
        """
        if self._asks_for_all or self.last_step < 0:
            return rate
        none, one = (self.lr_of(base, index, self.last_step) for base in (0.0, 1.0))
        base = (rate - none) / (one - none) if one != none else rate
        is_found = math.isclose(self.lr_of(base, index, self.last_step), rate, rel_tol=1e-6)
        return base if is_found else rate

    def _read_base_lrs(self) -> list[float]:
        groups = self.optimizer.param_groups
        if self.last_step == -1:
            for group in groups:
                group.setdefault("initial_lr", float(group["lr"]))
        for i, group in enumerate(groups):
            if "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming "
                    "an optimizer"
                )
        return [float(group["initial_lr"]) for group in groups]

    @property
    def last_epoch(self) -> int:
        """PyTorch's name for `last_step`."""
        return self.last_step

    @last_epoch.setter
    def last_epoch(self, step: int) -> None:
        self.last_step = step

    @property
    def _step_count(self) -> int:
        """Number of calls of `step`, the constructor's included."""
        return self.last_step + 1

    @abstractmethod
    def get_lr(self, base_lr: float, step: float) -> float:
        """The rate at step number `step` (0 for the first update) of a group that starts with
        `base_lr`.
        """

    def lr_of(self, base_lr: float, index: int, step: float) -> float:
        """The rate at `step` of group number `index`, if it starts with `base_lr`."""
        return self.get_lr(base_lr, step)

    def group_lr(self, index: int, step: float) -> float:
        """The rate of group number `index` at `step`, without its `lr_scale`."""
        if index >= len(self.base_lrs):
            self._take_in()
        if self._asks_for_all:
            return self._all_at(step)[index]
        return self.lr_of(self.base_lrs[index], index, step)

    def momentum_at(self, index: int, step: float) -> float:
        """The momentum of group number `index` at `step`. Raises OneFlowError for a schedule that
        sets none.
        """
        raise OneFlowError(f"{type(self).__name__} does not set the momentum")

    def _all_at(self, step: float) -> list[float]:
        """Return the result of a `get_lr` without arguments at `step`."""
        now, self.last_step = self.last_step, int(step)
        try:
            rates: list[float] = methodcaller("get_lr")(self)
            return rates
        finally:
            self.last_step = now

    def step(self, epoch: float | None = None) -> None:
        """Goes on by one step, or to `epoch`, and sets the groups' rates."""
        self._take_in()
        at = self.last_step + 1 if epoch is None else epoch
        self.last_step = math.floor(at)
        if self._asks_for_all:
            self._set_lrs(self._all_at(at))
        else:
            self._set_lrs([self.group_lr(i, at) for i in range(len(self.base_lrs))])

    def _set_lrs(self, lrs: list[float]) -> None:
        self._last_lr = []
        for i, (group, lr) in enumerate(zip(self.optimizer.param_groups, lrs, strict=True)):
            scaled = lr * group.get("lr_scale", 1.0)
            set_rate(group, scaled)
            self._last_lr.append(scaled)
            if self.verbose:
                self.print_lr(i, scaled)

    def get_last_lr(self) -> list[float]:
        """The rates set by the last step, one per group."""
        return self._last_lr

    def print_lr(self, group: int, lr: float) -> None:
        """One line that says which group has got which rate."""
        print(f"Last step {self.last_step} adjusting learning rate of group {group} to {lr:.4e}")

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on, but the optimizer and functions: plain values."""
        left_out = (*self._not_saved, "_for_all")
        saved = {k: v for k, v in self.__dict__.items() if k not in left_out}
        return {**saved, "last_epoch": self.last_step, "_step_count": self._step_count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of `state_dict`; PyTorch's is taken too."""
        step = state_dict.get("last_step", state_dict.get("last_epoch", self.last_step))
        skipped = ("last_step", "last_epoch", "_step_count", *self._not_saved)
        self.__dict__.update({k: v for k, v in state_dict.items() if k not in skipped})
        self.last_step = step


def _for_one_or_all(
    formula: Callable[[Any, float, float], float],
) -> Callable[..., float | list[float]]:
    """Return a `get_lr` that gives one rate, or without arguments those of all groups."""

    @functools.wraps(formula)
    def get_lr(
        self: LRScheduler, base_lr: float | None = None, step: float | None = None
    ) -> float | list[float]:
        if base_lr is not None and step is not None:
            return formula(self, base_lr, step)
        # A subclass may have put its own `get_lr` before this one: the common `lr_of` asks that.
        if type(self).lr_of is LRScheduler.lr_of:
            return [formula(self, base, self.last_step) for base in self.base_lrs]
        rates = enumerate(self.base_lrs)
        return [self.lr_of(base, index, self.last_step) for index, base in rates]

    return get_lr


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Give a group a learning rate; one that is a tensor is filled."""
    if isinstance(group["lr"], Tensor):
        with no_grad():
            group["lr"].fill_(rate)
    else:
        group["lr"] = rate
