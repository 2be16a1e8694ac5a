"""An optimizer and a gradient scaler inside a graph.

The optimizer's update is traced, its learning rate and step count are fed at each call. The
scaler's numbers are variables, which the pass `scale_loss` reads and updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from oneflow.amp.grad_scaler import GradScaler
from oneflow.core.dtype import DType, float32, float64, int64
from oneflow.core.errors import GraphError
from oneflow.core.graph import GRADIENT
from oneflow.core.job_config import SCALE, SKIPPED, TRACKER, Scaling
from oneflow.core.operand import Attrs
from oneflow.core.placement import Placement
from oneflow.core.tensor_type import TensorType
from oneflow.ops.scalar import scalar_add
from oneflow.optim.lr_scheduler import LRScheduler
from oneflow.optim.optimizer import Optimizer, ParamGroup, scalar_beside
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from oneflow.graph.trace import Trace


class GraphOptimizer:
    """An optimizer inside a graph.

    optim: the eager optimizer, whose groups, state and update are used. lr_sch: its scheduler or
    None.
    """

    def __init__(self, optim: Optimizer, lr_sch: LRScheduler | None, number: int) -> None:
        if not isinstance(optim, Optimizer):
            raise TypeError(f"add_optimizer takes an Optimizer, got {type(optim).__name__}")
        if lr_sch is not None:
            if not isinstance(lr_sch, LRScheduler):
                raise TypeError(f"lr_sch must be an LRScheduler, got {type(lr_sch).__name__}")
            if lr_sch.optimizer is not optim:
                raise ValueError("lr_scheduler doesn't match optimizer.")
            if lr_sch.cycle_momentum and not optim.follows_momentum:
                raise ValueError(
                    f"{type(lr_sch).__name__}: a graph keeps the momentum of {type(optim).__name__}"
                    " that it was traced with; give cycle_momentum=False"
                )
        self.optim, self.lr_sch, self.number = optim, lr_sch, number
        self._counted: list[dict[str, Any]] | None = None
        """The states whose "step" counts the updates of this graph."""
        self._numbers: dict[tuple[str, Placement], Tensor] = {}
        self._steps: dict[tuple[Placement, int], Tensor] = {}

    def parameters(self) -> Iterator[Tensor]:
        for group in self.optim.param_groups:
            yield from group["params"]

    def state_of(self, parameter: Tensor) -> dict[str, Any]:
        """State tensors of a parameter, made if they are not there yet."""
        self.optim.init_state(parameter)
        state: dict[str, Any] = self.optim.state[parameter]
        return state

    # ---- tracing ---------------------------------------------------------------------------------

    def has_gradients(self) -> bool:
        """Did the traced backward reach any of its parameters?"""
        return any(p.grad is not None for p in self.parameters())

    def trace(self, trace: Trace) -> None:
        """Adds clipping and the update to the graph, behind marks of the gradients; leaves the
        parameters without gradients.
        """
        self._counted = None
        self._numbers.clear()  # of an earlier trace that failed
        self._steps.clear()
        try:
            for parameter in self.parameters():
                if parameter.grad is not None:
                    grad, name = parameter.grad, trace.known.names[id(parameter)]
                    marks: Attrs = {"of": name, "optimizer": self.number}
                    parameter.grad = trace.structural(GRADIENT, grad, grad.meta, marks)
            if any("clip_grad_max_norm" in g for g in self.optim.param_groups):
                self.optim.clip_grad()
            with self._momentum(trace):
                self.optim.update(
                    lambda group, p: self._rate(trace, group, p), lambda p: self._step(trace, p)
                )
        finally:
            for parameter in self.parameters():
                parameter.grad = None

    def _rate(self, trace: Trace, group: ParamGroup, parameter: Tensor) -> Tensor:
        index = next(i for i, g in enumerate(self.optim.param_groups) if g is group)
        return self._number(trace, f"lr.{self.number}.{index}", parameter)

    def _number(self, trace: Trace, name: str, parameter: Tensor) -> Tensor:
        """A number of a group that is fed at each step, float64[], beside a parameter."""
        key = name, trace._placement_of(parameter)
        if key not in self._numbers:
            self._numbers[key] = self._scalar(trace, name, float64, parameter)
        return self._numbers[key]

    @contextmanager
    def _momentum(self, trace: Trace) -> Iterator[None]:
        """The groups' momentum is fed, if the schedule sets it."""
        cycles = self.lr_sch is not None and self.lr_sch.cycle_momentum
        groups = self.optim.param_groups if cycles else []
        try:
            for index, group in enumerate(groups):
                group.momentum_of = partial(self._number, trace, f"momentum.{self.number}.{index}")
            yield
        finally:
            for group in groups:
                group.momentum_of = None

    def _step(self, trace: Trace, parameter: Tensor) -> Tensor:
        """The number of the update, without those that the parameter, added later or without a
        gradient, took no part in.
        """
        missed = self.optim.state["step"] - self.optim.state[parameter]["step"]
        key = trace._placement_of(parameter), missed
        if key not in self._steps:
            number = self._scalar(trace, f"step.{self.number}", int64, parameter)
            self._steps[key] = scalar_add(number, value=-missed) if missed else number
        return self._steps[key]

    def _scalar(self, trace: Trace, name: str, dtype: DType, parameter: Tensor) -> Tensor:
        return trace.scalar_input(name, TensorType((), dtype), parameter)

    # ---- running ---------------------------------------------------------------------------------

    def feed(self, step: int, feeds: dict[str, Any]) -> None:
        """Numbers of the groups at step `step` (from 0), and the number of the update (from 1): the
        optimizer's own, so that it may also be used eagerly, before the graph or after.
        """
        numbers = self.numbers_at(step)
        for name in numbers:
            feeds[name] = np.array(numbers[name])
        feeds[f"step.{self.number}"] = np.array(self.optim.state.steps + 1, dtype=np.int64)

    def advance(self) -> None:
        """Counts an update."""
        self._count(1)

    def resume(self, step: int) -> None:
        """Let `step` updates have been made before."""
        self._count(step - self.optim.state["step"])

    def _count(self, steps: int) -> None:
        state = self.optim.state
        state.steps += steps
        if self._counted is None:
            self._counted = [state[p] for p in self.parameters() if state[p]]
        for states in self._counted:
            states["step"] += steps

    def numbers_at(self, step: int) -> dict[str, float]:
        """The learning rate of each group at step `step`, and its momentum if that is fed."""
        numbers, schedule = {}, self.lr_sch
        for index, group in enumerate(self.optim.param_groups):
            name = f"{self.number}.{index}"
            if schedule is None:
                numbers[f"lr.{name}"] = group.rate
                continue
            rate = schedule.group_lr(index, step) * group.get("lr_scale", 1.0)
            numbers[f"lr.{name}"] = float(rate)
            if schedule.cycle_momentum:
                numbers[f"momentum.{name}"] = schedule.momentum_at(index, step)
        return numbers


class GraphScaler:
    """A scaler's numbers as variables of a graph.

    scaler: gives the factors and the numbers to begin with, and shows the graph's from then on.
    """

    def __init__(self, scaler: GradScaler) -> None:
        self.scaler = scaler
        self._tensors: dict[str, Tensor] = {}

    def tensors(self, optimizers: Sequence[GraphOptimizer]) -> dict[str, Tensor]:
        """The variables by name, beside the first parameter: the scale, the finite steps since it
        changed, and of each optimizer the number of steps left out.
        """
        first = next((p for o in optimizers for p in o.parameters()), None)
        if first is None:
            raise GraphError("set_grad_scaler: the graph has no optimizer with parameters")
        if not self._tensors:
            scale, tracker = self.scaler.numbers
            self._tensors = {
                SCALE: scalar_beside(first, scale, float32),
                TRACKER: scalar_beside(first, tracker, int64),
            }
            self.scaler.follow(*self._tensors.values())
        for o in optimizers:
            name = f"{SKIPPED}{o.number}"
            if name not in self._tensors:
                self._tensors[name] = scalar_beside(first, 0, int64)
        return self._tensors

    @property
    def settings(self) -> Scaling:
        """The factors for the compiler."""
        return Scaling(*self.scaler.factors)
