"""The base of all optimizers: parameter groups, states, the step.

An optimizer's arithmetic is one update op per parameter (oneflow/ops/update.py), which `rule`
names. `step()` runs it on all local parameters of a group in one pass (together.py), else one by
one, with scalars of its own; a graph under construction calls `update` with its inputs for learning
rate and step number instead.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np

from oneflow.core.dispatch import call
from oneflow.core.dtype import DType, float64, int64
from oneflow.core.errors import CallError, InternalError, OneFlowError
from oneflow.core.op import Op
from oneflow.core.operand import Attrs
from oneflow.core.sbp import all_broadcast
from oneflow.core.spelling import also_called, is_mocked
from oneflow.core.tensor_type import TensorType
from oneflow.distributed.world import world
from oneflow.functional.initial import assign
from oneflow.kernels.hardware import array_module
from oneflow.nn.module import zero_gradients
from oneflow.nn.parameter import RowTable
from oneflow.nn.utils.clip_grad import clip_grad_norm_
from oneflow.ops.one_embedding import one_embedding_update
from oneflow.ops.update import Update
from oneflow.optim.hooks import Hooks, with_hooks
from oneflow.optim.options import warn_of_effects
from oneflow.optim.together import GroupPass
from oneflow.surfaces import accept_paths
from oneflow.tensor.eager_global import empty_shard
from oneflow.tensor.grad_mode import enable_grad, no_grad
from oneflow.tensor.tensor import RemovableHandle, Tensor, device_type, wrap, wrap_global

Rule: TypeAlias = tuple[type[Op], Attrs]

Params: TypeAlias = "Iterable[Tensor] | Iterable[dict[str, Any]]"
"""Parameters, or groups of them: dicts {"params": ..., options}."""


OLD_NAMES = {
    "momentum_buf": "momentum_buffer",
    "square_avgs": "square_avg",
    "acc_deltas": "acc_delta",
    "momentum": "momentum_buffer",
    "m": "exp_avg",
    "v": "exp_avg_sq",
    "max_v": "max_exp_avg_sq",
    "mean_square": "square_avg",
    "mean_gradient": "grad_avg",
}
"""Names of states of OneFlow's optimizers and graphs -> PyTorch's, which are ours."""


class ParamGroup(dict[str, Any]):
    """Parameters that share options: "params" and one entry per option."""

    momentum_of: Callable[[Tensor], Tensor] | None = None
    """While a graph is traced whose schedule sets the momentum: the number, float64[], beside a
    parameter."""

    def __init__(self, parameters: dict[str, Any], default_options: dict[str, Any]) -> None:
        super().__init__({**default_options, **parameters})
        params = parameters["params"]
        listed = [params] if isinstance(params, Tensor) else list(params)
        if listed and all(isinstance(p, tuple) for p in listed):
            self["param_names"] = [name for name, _ in listed]
            listed = [p for _, p in listed]
        self["params"] = listed
        for name, value in self.items():
            if isinstance(value, Sequence) and not isinstance(value, str | tuple | list):
                # A sequence of a configuration, which no checkpoint takes.
                self[name] = tuple(value)
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


class States(dict[Any, Any]):
    """The states of every parameter by name; empty for one that has none yet.

    `states["step"]` counts the updates made; it is no entry, so that a loop finds parameters alone.
    """

    steps = 0

    def __missing__(self, key: object) -> Any:
        if isinstance(key, str):
            if key == "step":
                return self.steps
            raise KeyError(key)
        made: dict[str, Any] = {}
        super().__setitem__(key, made)
        return made

    def __setitem__(self, key: object, value: object) -> None:
        if isinstance(key, str) and key == "step" and isinstance(value, int):
            self.steps = value
        else:
            super().__setitem__(key, value)


class Optimizer:
    """Updates the tensors in `param_groups` by rules that remember numbers in `state`.

    params: an iterable of leaf tensors, or of dicts {"params": ..., options of this group}.
    defaults: options and their values. `state[param]` is a dict of tensors, most laid out like the
    parameter, and the number "step" of its updates; `state["step"]` counts the steps made.
    """

    state_names: ClassVar[tuple[str, ...]] = ()
    """Names of the states of a parameter; each starts with zeros unless `initial_value` says
    otherwise.
    """

    number_states: ClassVar[tuple[str, ...]] = ()
    """Those of the states that are one number, float64[]."""

    saves_steps: ClassVar[bool] = True
    """Whether a state dict has the number of each parameter's updates."""

    follows_momentum: ClassVar[bool] = False
    """Whether `rule` knows groups with `momentum_of`."""

    _has_rule: ClassVar[bool] = False
    """Whether `update_param` does what `rule` says, and no more that concerns local parameters."""

    @cached_property
    def _hooks(self) -> Hooks:
        """The hooks, also of a wrapper around an optimizer that leaves out `__init__`."""
        return Hooks()

    def __init_subclass__(cls) -> None:
        if "step" in vars(cls):
            name = "step"
            setattr(cls, name, with_hooks(vars(cls)[name]))
        first = next(c for c in cls.__mro__ if {"rule", "update_param"} & vars(c).keys())
        cls._has_rule = "rule" in vars(first) and first is not Optimizer

    @also_called(parameters="params", options="defaults")
    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        self.defaults = dict(defaults)
        self.param_groups: list[ParamGroup] = []
        self.state = States()
        self._passes: dict[int, GroupPass] = {}
        warn_of_effects(defaults)
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
        return groups if listed and isinstance(listed[0], dict) else [{"params": groups}]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add {"params": ..., options}. Raises TypeError, ValueError for tensors that are no leaves
        or are there already.
        """
        if not isinstance(param_group, dict) or "params" not in param_group:
            raise TypeError(f"param group must be a dict with 'params', got {param_group!r}")
        _refuse_set(param_group["params"])
        group = ParamGroup(param_group, self.defaults)
        if any(("param_names" in g) != ("param_names" in group) for g in self.param_groups):
            raise ValueError(
                "all optimizer param groups should be with/without names: some have names, this "
                "one differs"
            )
        known = {id(p) for g in self.param_groups for p in g.parameters}
        everyone = [p for g in (*self.param_groups, group) for p in g.parameters]
        if len({p._device.rematable for p in everyone if isinstance(p, Tensor)}) > 1:
            raise ValueError(
                "an optimizer takes either all of its parameters on cpu+remat or none of them"
            )
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
        if isinstance(group.get("lr"), Tensor) and group["lr"].numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        for name, low in (("lr", 0.0), ("eps", 0.0), ("weight_decay", 0.0), ("momentum", 0.0)):
            value = group.get(name, low)
            if not isinstance(value, tuple) and not value >= low:
                raise ValueError(f"Invalid {name}: {value}; it must be at least {low}")
        for i, beta in enumerate(group.get("betas", ())):
            if not 0.0 <= float(beta) < 1.0:
                raise ValueError(
                    f"Invalid beta parameter at index {i}: {beta}; it must be in [0, 1)"
                )

    # ---- states ----------------------------------------------------------------------------------

    _places: dict[int, tuple[ParamGroup, int]] = {}
    """Group and position of each parameter when it was last looked for, by id."""

    def initial_value(self, group: ParamGroup, name: str) -> float:
        """Return the initial value of optimizer state `name`."""
        return 0.0

    def state_names_of(self, group: ParamGroup) -> tuple[str, ...]:
        """The states that parameters of a group need."""
        return self.state_names

    def init_state(self, param: Tensor) -> dict[str, Any]:
        """The states of a parameter; made, where there are none yet, in its dtype and layout."""
        states: dict[str, Any] = self.state[param]
        if not states:
            group = self._group_of(param)
            states["step"] = 0
            is_dense = not isinstance(param, RowTable)  # states of rows lie beside them
            for name in self.state_names_of(group) if is_dense else ():
                states[name] = self.new_state(param, name, self.initial_value(group, name))
        return states

    state_of = init_state

    def new_state(self, param: Tensor, name: str, value: float) -> Tensor:
        """A new state of a parameter, filled with `value`."""
        if name in self.number_states:
            return scalar_beside(param, value, float64)
        return filled_like(param, value)

    def _group_of(self, param: Tensor) -> ParamGroup:
        for _ in range(2):
            group, index = self._places.get(id(param), (None, 0))
            listed = [] if group is None else group.parameters
            if group is not None and index < len(listed) and listed[index] is param:
                return group
            # Not looked for yet, or groups have changed since.
            self._places = {
                id(p): (group, i)
                for group in reversed(self.param_groups)
                for i, p in enumerate(group.parameters)
            }
        raise ValueError(f"a tensor {param.meta} is not among this optimizer's parameters")

    # ---- the step --------------------------------------------------------------------------------

    def rule(self, group: ParamGroup) -> Rule:
        """The update op of this group's parameters, and its attributes.

        Its operands are the parameter, its gradient, its states in the order of `state_names_of`,
        the learning rate and, where it has an operand of that name, the step. An optimizer that
        defines `update_param()` or `step()` itself needs none. For a group with `momentum_of` the
        momentum is the last operand.
        """
        raise OneFlowError(f"{type(self).__name__} defines no step(), update_param() or rule()")

    def update_param(
        self, group: ParamGroup, param: Tensor, states: dict[str, Tensor], lr: Tensor, step: Tensor
    ) -> None:
        """Updates one parameter, whose `grad` is there, and its states in place."""
        op, attrs = self.rule(group)
        numbers = [x for name, x in (("lr", lr), ("step", step)) if name in op.operands]
        if group.momentum_of is not None:
            numbers.append(group.momentum_of(param))
        call(op, param, gradient_of(param), *self._listed(group, states), *numbers, **attrs)

    catches_up: ClassVar[bool] = False
    """Whether a row that gets a gradient makes up for the steps in which it got none."""

    def update_rows(self, group: ParamGroup, shadow: RowTable, lr: Tensor, step: Tensor) -> None:
        """Updates the rows of a OneEmbedding that got gradients, and their states beside them, as
        `rule` would update them were they parameters. Raises CallError if it looks at more than an
        element at a time.
        """
        op, attrs = self.rule(group) if self._has_rule else (None, {})
        if op is None or not issubclass(op, Update) or "sbp" in vars(op):
            raise CallError(
                f"{type(self).__name__} has no form for the rows of a OneEmbedding; use SGD, "
                "Adagrad, Adam, AdamW, RMSprop, one_embedding.Ftrl or one_embedding.SmartDecayAdam"
            )
        names = self.state_names_of(group)
        one_embedding_update(
            shadow,
            gradient_of(shadow),
            lr,
            step,
            table=shadow.table,
            rule=op.name,
            options=tuple(sorted((op.defaults | attrs).items())),
            first_states=tuple(float(self.initial_value(group, name)) for name in names),
            catches_up=self.catches_up,
        )

    def _listed(self, group: ParamGroup, states: dict[str, Tensor]) -> list[Tensor]:
        return [states[name] for name in self.state_names_of(group)]

    def update(
        self,
        lr_of: Callable[[ParamGroup, Tensor], Tensor],
        step_of: Callable[[Tensor], Tensor],
    ) -> None:
        """Updates all parameters that have gradients. Ops only, so that it can be traced: numbers
        of updates are the caller's to count.

        lr_of(group, param): float64[] in the parameter's placement.  step_of(param): int64[], 1 for
        the first update.
        """
        with no_grad():
            for group in self.param_groups:
                self._update_each(group, group.parameters, lr_of, step_of)

    def _update_each(
        self,
        group: ParamGroup,
        params: Sequence[Tensor],
        lr_of: Callable[[ParamGroup, Tensor], Tensor],
        step_of: Callable[[Tensor], Tensor],
    ) -> None:
        for param in params:
            if param.grad is None:
                continue
            states, lr, step = self.init_state(param), lr_of(group, param), step_of(param)
            if isinstance(param, RowTable):
                self.update_rows(group, param, lr, step)
            else:
                self.update_param(group, param, states, lr, step)

    @with_hooks
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update. closure: evaluates the model, calls backward and returns the loss, which is
        returned.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        scalars: dict[Any, Tensor] = {}

        def scalar(param: Tensor, value: float, dtype: DType) -> Tensor:
            key = (value, dtype, param._device if param._placement is None else param._placement)
            found = scalars.get(key)
            if found is None:
                found = scalars[key] = scalar_beside(param, value, dtype)
            return found

        with no_grad():
            for group in self.param_groups:
                left: Sequence[Tensor] = group.parameters
                if self._update_together(group):
                    left = [p for p in left if isinstance(p, RowTable)]
                self._update_each(
                    group,
                    left,
                    lambda group, param: scalar(param, group.rate, float64),
                    lambda param: scalar(param, self.state[param]["step"] + 1, int64),
                )
                for param in left:
                    if param.grad is not None:
                        self.state[param]["step"] += 1
        self.state.steps += 1
        return loss

    def _update_together(self, group: ParamGroup) -> bool:
        """Updates a group in one pass, without dispatch; False if that cannot be done."""
        if not self._has_rule:
            return False
        rows, held = [], []
        names = self.state_names_of(group)
        for param in group.parameters:
            if param.grad is not None and not isinstance(param, RowTable):
                states = self.init_state(param)
                rows.append((param, param.grad, *[states[name] for name in names]))
                held.append(states)
        found = self._passes.get(id(group))
        if found is None:
            found = self._passes[id(group)] = GroupPass()
        steps = [states["step"] + 1 for states in held]
        if not found.run(*self.rule(group), rows, group.rate, steps):
            return False
        for states in held:
            states["step"] += 1
        return True

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Clears all gradients: to zeros, or to None, the default under the mock of PyTorch."""
        to_none = is_mocked() if set_to_none is None else set_to_none
        for group in self.param_groups:
            zero_gradients(group.parameters, to_none)

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
        """{"state": {parameter number: its states}, "param_groups": options and parameter numbers},
        in PyTorch's form: "step" is float32[].
        """
        self._hooks.run("state_dict_pre", self)
        index = self._indices()
        state = {
            index[id(k)] if isinstance(k, Tensor) else k: self._saved(v)
            for k, v in self.state.items()
            if v
        }
        groups = [
            {**g.options, "params": [index[id(p)] for p in g.parameters]} for g in self.param_groups
        ]
        made = {"state": {k: v for k, v in state.items() if v}, "param_groups": groups}
        return self._hooks.replaced("state_dict_post", self, made)

    def _saved(self, states: dict[str, Any]) -> dict[str, Any]:
        """The states of a parameter as a state dict has them."""
        if not isinstance(states, dict) or not isinstance(states.get("step"), int):
            return states
        if not self.saves_steps:
            return {k: v for k, v in states.items() if k != "step"}
        return {**states, "step": wrap(np.array(states["step"], np.float32))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of `state_dict`; values are copied into this optimizer's layout. PyTorch's state
        dicts and those of OneFlow, with one "step" for all, are taken too. Raises ValueError.
        """
        state_dict = self._hooks.replaced("load_state_dict_pre", self, dict(state_dict))
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
        known = self._apart(state_dict["state"])
        self._forget_states()
        whole = int(known["step"]) if "step" in known else None
        for key, value in known.items():
            param = by_number.get(int(key) if str(key).isdigit() else key)
            if param is not None:
                self._load_states(param, value, whole)
            elif key != "step":
                self.state[key] = value
        steps = [s.get("step", 0) for s in self.state.values() if isinstance(s, dict)]
        self.state["step"] = max(map(int, steps), default=0) if whole is None else whole
        self._hooks.run("load_state_dict_post", self)

    def _apart(self, given: dict[Any, Any]) -> dict[Any, Any]:
        """The states to load, with copies in place of this optimizer's own tensors."""
        held = (states for states in self.state.values() if isinstance(states, dict))
        own = {id(x._array) for states in held for x in states.values() if isinstance(x, Tensor)}

        def apart(value: object) -> object:
            if isinstance(value, dict):
                return {key: apart(one) for key, one in value.items()}
            return value.clone() if isinstance(value, Tensor) and id(value._array) in own else value

        return {key: apart(value) for key, value in given.items()}

    def _forget_states(self) -> None:
        """Let all states be as before the first step; their tensors stay, for graphs that use
        them.
        """
        for key, states in list(self.state.items()):
            if not isinstance(key, Tensor):
                del self.state[key]
                continue
            del self.state[key]
            for name, fresh in self.init_state(key).items():
                own = states.get(name)
                if isinstance(own, Tensor) and isinstance(fresh, Tensor):
                    assign(own, fresh)
                    self.state[key][name] = own

    def _load_states(self, param: Tensor, saved: dict[str, Any], whole: int | None) -> None:
        """whole: the number of updates of all parameters, of a state dict that has but one."""
        states = self.init_state(param)
        named = {OLD_NAMES.get(name, name): state for name, state in saved.items()}
        states["step"] = int(named.pop("step", 1 if whole is None else whole))
        for name, state in named.items():
            own = states.get(name)
            if state is None or not (name in states or self._keeps_unknown):
                continue
            if isinstance(own, Tensor):
                assign(own, state)
            else:
                states[name] = copy.deepcopy(state)

    @property
    def _keeps_unknown(self) -> bool:
        """Whether states that no name announces are kept: of a subclass with a step of its own."""
        return type(self).step is not Optimizer.step

    # ---- hooks -----------------------------------------------------------------------------------

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call hook(optimizer, args, kwargs) before every step; the (args, kwargs) that it returns,
        if any, take the place of the step's own.
        """
        return self._hooks.add("step_pre", hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call hook(optimizer, args, kwargs) after every step."""
        return self._hooks.add("step_post", hook)

    def register_state_dict_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call hook(optimizer) before `state_dict`."""
        return self._hooks.add("state_dict_pre", hook, prepend)

    def register_state_dict_post_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call hook(optimizer, state dict); the dict that it returns, if any, is the result."""
        return self._hooks.add("state_dict_post", hook, prepend)

    def register_load_state_dict_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call hook(optimizer, state dict); the dict that it returns, if any, is loaded."""
        return self._hooks.add("load_state_dict_pre", hook, prepend)

    def register_load_state_dict_post_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call hook(optimizer) after `load_state_dict`."""
        return self._hooks.add("load_state_dict_post", hook, prepend)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

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
    return array_module(device_type(x), x._device.index)


def gradient_of(param: Tensor) -> Tensor:
    """The gradient of a parameter that is being updated. Raises InternalError if there is none."""
    if param.grad is None:
        raise InternalError(f"a parameter {param.meta} without a gradient is updated")
    return param.grad


def attrs_of(op: type[Update], group: ParamGroup) -> Attrs:
    """The options of a group that an update takes under the same names."""
    return {name: group[name] for name in (*op.required, *op.defaults) if name in group}


def filled_like(param: Tensor, value: float) -> Tensor:
    """A tensor of the parameter's type and layout, filled with `value`; made without an op."""
    array = _array_module(param).full(param._array.shape, value, param.dtype.np)
    if param.is_global:
        return wrap_global(array, param.meta, param.placement, param.sbp)
    return wrap(array, param.device)


def scalar_beside(param: Tensor, value: float, dtype: DType) -> Tensor:
    """A 0-d tensor on the parameter's device, or whole on all ranks of its placement."""
    return whole_beside(param, TensorType((), dtype), value)


def whole_beside(param: Tensor, type: TensorType, value: float) -> Tensor:
    """A tensor of one number on the parameter's device, or whole on all ranks of its placement."""
    array = _array_module(param).full(type.shape, value, type.dtype.np)
    if param.is_global:
        place = param.placement
        shard = array if world().rank in place else empty_shard(type, place)
        return wrap_global(shard, type, place, all_broadcast(place.ndim))
    return wrap(array, param.device)


accept_paths(__name__)
