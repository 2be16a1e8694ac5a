"""The base of all optimizers: parameter groups, states, the step.

An optimizer's arithmetic is one update op per parameter (oneflow/ops/update.py), which `rule`
names. `step()` runs it on all local parameters of a group in one pass (together.py), else one by
one, with scalars of its own; a graph under construction calls `update` with its inputs for learning
rate and step number instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np

from oneflow.core.dispatch import call
from oneflow.core.dtype import DType, float64, int64
from oneflow.core.errors import InternalError, OneFlowError
from oneflow.core.op import Op
from oneflow.core.operand import Attrs
from oneflow.core.sbp import all_broadcast
from oneflow.core.tensor_type import TensorType
from oneflow.functional.initial import assign
from oneflow.kernels.cuda_device import use_device
from oneflow.nn.module import zero_gradients
from oneflow.nn.utils.clip_grad import clip_grad_norm_
from oneflow.optim.together import GroupPass
from oneflow.tensor.grad_mode import enable_grad, no_grad
from oneflow.tensor.tensor import Tensor, device_type, wrap, wrap_global

Rule: TypeAlias = tuple[type[Op], Attrs]

Params: TypeAlias = "Iterable[Tensor] | Iterable[dict[str, Any]]"
"""Parameters, or groups of them: dicts {"params": ..., options}."""


class ParamGroup(dict[str, Any]):
    """Parameters that share options: "params" and one entry per option."""

    def __init__(self, parameters: dict[str, Any], default_options: dict[str, Any]) -> None:
        super().__init__({**default_options, **parameters})
        params = parameters["params"]
        self["params"] = [params] if isinstance(params, Tensor) else list(params)
        for name, value in self.items():
            if isinstance(value, Sequence) and not isinstance(value, (str, tuple, list)):
                self[name] = tuple(
                    value
                )  # a sequence of a configuration, which no checkpoint takes
        if "clip_grad_max_norm" in self:
            self.setdefault("clip_grad_norm_type", 2.0)

    @property
    def parameters(self) -> list[Tensor]:
        params: list[Tensor] = self["params"]
        return params

    @property
    def options(self) -> dict[str, Any]:
        """All entries but the parameters."""
        return {k: v for k, v in self.items() if k != "params"}

    @property
    def rate(self) -> float:
        """The learning rate of the next update: `lr` times `lr_scale`.

        A schedule has multiplied `lr` by `lr_scale` already; a group it rules has `initial_lr`.
        """
        scale = 1.0 if "initial_lr" in self else self.get("lr_scale", 1.0)
        return float(self["lr"] * scale)

    @property
    def _enable_clip_grad(self) -> bool:
        return "clip_grad_max_norm" in self


class Optimizer:
    """Holds what it updates in `param_groups` and what it remembers in `state`.

    params: an iterable of leaf tensors, or of dicts {"params": ..., options of this group}.
    options: the defaults. `state[param]` is a dict of tensors laid out like the parameter;
    `state["step"]` counts the updates made.
    """

    state_names: ClassVar[tuple[str, ...]] = ()
    """Names of the states of a parameter; each starts with zeros unless `initial_value` says
    otherwise.
    """

    _has_rule: ClassVar[bool] = False
    """Whether `update_param` does what `rule` says, and no more that concerns local parameters."""

    def __init_subclass__(cls) -> None:
        first = next(c for c in cls.__mro__ if {"rule", "update_param"} & vars(c).keys())
        cls._has_rule = "rule" in vars(first) and first is not Optimizer

    def __init__(self, params: Params, options: dict[str, Any]) -> None:
        self.defaults = dict(options)
        self.param_groups: list[ParamGroup] = []
        self.state: dict[Any, Any] = {"step": 0}
        self._passes: dict[int, GroupPass] = {}
        for group in self._groups_of(params):
            self.add_param_group(group)

    @staticmethod
    def _groups_of(params: Params) -> list[dict[str, Any]]:
        if isinstance(params, Tensor) or not isinstance(params, Iterable):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, "
                f"but got {type(params).__name__}"
            )
        _refuse_set(params)
        listed = list(params)
        groups: list[Any] = listed
        return groups if listed and isinstance(listed[0], dict) else [{"params": listed}]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds {"params": ..., options}. Raises TypeError, ValueError for what is no leaf or is
        there already.
        """
        if not isinstance(param_group, dict) or "params" not in param_group:
            raise TypeError(f"param group must be a dict with 'params', got {param_group!r}")
        _refuse_set(param_group["params"])
        group = ParamGroup(param_group, self.defaults)
        known = {id(p) for g in self.param_groups for p in g.parameters}
        for param in group.parameters:
            if not isinstance(param, Tensor):
                raise TypeError(
                    "optimizer can only optimize Tensors, but one of the params is "
                    f"{type(param).__name__}"
                )
            if not param.is_leaf:
                raise ValueError("can't optimize a non-leaf Tensor")
            if id(param) in known:
                raise ValueError(
                    "some parameters appear in more than one parameter group, or twice in one"
                )
            known.add(id(param))
        self.check_options(group)
        self.param_groups.append(group)

    def check_options(self, group: ParamGroup) -> None:
        """Raises ValueError for options out of range. Subclasses add theirs."""
        for name, low in (("lr", 0.0), ("eps", 0.0), ("weight_decay", 0.0), ("momentum", 0.0)):
            if group.get(name, low) < low:
                raise ValueError(f"Invalid {name}: {group[name]}; it must be at least {low}")
        for i, beta in enumerate(group.get("betas", ())):
            if not 0.0 <= beta < 1.0:
                raise ValueError(
                    f"Invalid beta parameter at index {i}: {beta}; it must be in [0, 1)"
                )

    # ---- states ----------------------------------------------------------------------------------

    def initial_value(self, group: ParamGroup, name: str) -> float:
        """Return the initial value of optimizer state `name`."""
        return 0.0

    def state_names_of(self, group: ParamGroup) -> tuple[str, ...]:
        """The states that parameters of a group need."""
        return self.state_names

    def init_state(self, param: Tensor) -> dict[str, Tensor]:
        """The states of a parameter; made, where there are none yet, in its dtype and layout."""
        if param not in self.state:
            group = self._group_of(param)
            self.state[param] = {
                name: filled_like(param, self.initial_value(group, name))
                for name in self.state_names_of(group)
            }
        states: dict[str, Tensor] = self.state[param]
        return states

    state_of = init_state

    def _group_of(self, param: Tensor) -> ParamGroup:
        for group in self.param_groups:
            if any(param is p for p in group.parameters):
                return group
        raise ValueError(f"a tensor {param.type} is not among this optimizer's parameters")

    # ---- the step --------------------------------------------------------------------------------

    def rule(self, group: ParamGroup) -> Rule:
        """The update op of this group's parameters, and its attributes.

        Its operands are the parameter, its gradient, its states in the order of `state_names_of`,
        the learning rate and, where it has an operand of that name, the step. An optimizer that
        defines `update_param()` or `step()` itself needs none.
        """
        raise OneFlowError(f"{type(self).__name__} defines no step(), update_param() or rule()")

    def update_param(
        self, group: ParamGroup, param: Tensor, states: dict[str, Tensor], lr: Tensor, step: Tensor
    ) -> None:
        """Updates one parameter, whose `grad` is there, and its states in place."""
        op, attrs = self.rule(group)
        numbers = (lr, step) if "step" in op.operands else (lr,)
        call(op, param, gradient_of(param), *self._listed(group, states), *numbers, **attrs)

    def _listed(self, group: ParamGroup, states: dict[str, Tensor]) -> list[Tensor]:
        return [states[name] for name in self.state_names_of(group)]

    def update(
        self,
        lr_of: Callable[[ParamGroup, Tensor], Tensor],
        step_of: Callable[[Tensor], Tensor],
    ) -> None:
        """Updates all parameters that have gradients. Ops only, so that it can be traced.

        lr_of(group, param): float64[] in the parameter's placement.  step_of(param): int64[], 1 for
        the first update.
        """
        with no_grad():
            for group in self.param_groups:
                self._update_group(group, lr_of, step_of)

    def _update_group(
        self,
        group: ParamGroup,
        lr_of: Callable[[ParamGroup, Tensor], Tensor],
        step_of: Callable[[Tensor], Tensor],
    ) -> None:
        for param in group.parameters:
            if param.grad is not None:
                states = self.init_state(param)
                self.update_param(group, param, states, lr_of(group, param), step_of(param))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update. closure: evaluates the model, calls backward and returns the loss, which is
        returned.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        number = self.state["step"] + 1
        scalars: dict[Any, Tensor] = {}

        def scalar(param: Tensor, value: float, dtype: DType) -> Tensor:
            key = (value, dtype, param._device if param._placement is None else param._placement)
            found = scalars.get(key)
            if found is None:
                found = scalars[key] = scalar_beside(param, value, dtype)
            return found

        with no_grad():
            for group in self.param_groups:
                if not self._update_together(group, number):
                    self._update_group(
                        group,
                        lambda group, param: scalar(param, group.rate, float64),
                        lambda param: scalar(param, number, int64),
                    )
        self.state["step"] = number
        return loss

    def _update_together(self, group: ParamGroup, number: int) -> bool:
        """Updates a group in one pass, without dispatch; False if that cannot be done."""
        if not self._has_rule:
            return False
        rows = []
        for param in group.parameters:
            if param.grad is not None:
                states = self._listed(group, self.init_state(param))
                rows.append((param, param.grad, *states))
        found = self._passes.get(id(group))
        if found is None:
            found = self._passes[id(group)] = GroupPass()
        return found.run(*self.rule(group), rows, group.rate, number)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Clears all gradients: to zeros, or to None."""
        for group in self.param_groups:
            zero_gradients(group.parameters, set_to_none)

    def clip_grad(self, error_if_nonfinite: bool = False) -> None:
        """Clips the gradients of each group that has `clip_grad_max_norm` (`clip_grad_norm_type`: 2
        by default).
        """
        for group in self.param_groups:
            if group._enable_clip_grad:
                clip_grad_norm_(
                    group.parameters,
                    group["clip_grad_max_norm"],
                    group["clip_grad_norm_type"],
                    error_if_nonfinite,
                )

    # ---- state dicts -----------------------------------------------------------------------------

    def _indices(self) -> dict[int, int]:
        """id of a parameter -> its number over all groups."""
        flat = [p for g in self.param_groups for p in g.parameters]
        return {id(p): i for i, p in enumerate(flat)}

    @property
    def support_sparse(self) -> bool:
        """False: gradients are dense."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """{"state": {"step": n, parameter number: its states}, "param_groups": options and
        parameter numbers}.
        """
        index = self._indices()
        state = {index[id(k)] if isinstance(k, Tensor) else k: v for k, v in self.state.items()}
        groups = [
            {**g.options, "params": [index[id(p)] for p in g.parameters]} for g in self.param_groups
        ]
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of `state_dict`; values are copied into this optimizer's layout. Raises
        ValueError.
        """
        saved = state_dict["param_groups"]
        if len(saved) != len(self.param_groups):
            raise ValueError(
                "loaded state dict has a different number of parameter groups: "
                f"{len(saved)} instead of {len(self.param_groups)}"
            )
        by_number: dict[Any, Tensor] = {}
        for number, (group, other) in enumerate(zip(self.param_groups, saved, strict=True)):
            if len(group.parameters) != len(other["params"]):
                raise ValueError(
                    "loaded state dict contains a parameter group that doesn't match the size of "
                    f"optimizer's group {number}: {len(other['params'])} parameters instead of "
                    f"{len(group.parameters)}"
                )
            by_number.update(zip(other["params"], group.parameters, strict=True))
        for group, other in zip(self.param_groups, saved, strict=True):
            group.update({k: v for k, v in other.items() if k != "params"})
        for key, value in state_dict["state"].items():
            param = by_number.get(int(key) if str(key).isdigit() else key)
            if param is None:
                self.state[key] = value
                continue
            states = self.init_state(param)
            for name, saved_state in value.items():
                if name in states:
                    assign(states[name], saved_state)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {k}: {v}" for k, v in sorted(group.options.items())]
        return "\n".join([*lines, ")"])


def _refuse_set(params: Params) -> None:
    if isinstance(params, set | frozenset):
        raise TypeError(
            "optimizer parameters need to be organized in ordered collections, but the "
            "ordering of tensors "
            "in sets will change between runs. Please use a list instead."
        )


def _array_module(x: Tensor) -> Any:
    if device_type(x) == "cpu":
        return np
    return use_device(x._device.index)


def gradient_of(param: Tensor) -> Tensor:
    """The gradient of a parameter that is being updated. Raises InternalError if there is none."""
    if param.grad is None:
        raise InternalError(f"a parameter {param.type} without a gradient is updated")
    return param.grad


def filled_like(param: Tensor, value: float) -> Tensor:
    """A tensor of the parameter's type and layout, filled with `value`; made without an op."""
    array = _array_module(param).full(param._array.shape, value, param.dtype.np)
    if param.is_global:
        return wrap_global(array, param.type, param.placement, param.sbp)
    return wrap(array, param.device)


def scalar_beside(param: Tensor, value: float, dtype: DType) -> Tensor:
    """A 0-d tensor on the parameter's device, or whole on all ranks of its placement."""
    array = _array_module(param).full((), value, dtype.np)
    if param.is_global:
        sbp = all_broadcast(param.placement.ndim)
        return wrap_global(array, TensorType((), dtype), param.placement, sbp)
    return wrap(array, param.device)
