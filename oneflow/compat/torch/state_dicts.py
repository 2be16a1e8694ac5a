"""`torch.distributed.checkpoint.state_dict`: state dicts of modules and optimizers under the names
of the plain module, whatever wraps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oneflow.nn.module import Module
from oneflow.nn.parallel import DataParallel, DistributedDataParallel
from oneflow.tensor.tensor import Tensor

__all__ = [
    "StateDictOptions",
    "get_model_state_dict",
    "get_optimizer_state_dict",
    "get_state_dict",
    "set_model_state_dict",
    "set_optimizer_state_dict",
    "set_state_dict",
]


@dataclass
class StateDictOptions:
    """Options of state dicts. cpu_offload: copies in host memory.  ignore_frozen_params: without
    parameters that require no gradient.  strict: as of `load_state_dict`.  The others change
    nothing: a tensor of several ranks is a global tensor.
    """

    full_state_dict: bool = False
    cpu_offload: bool = False
    ignore_frozen_params: bool = False
    keep_submodule_prefixes: bool = True
    strict: bool = True
    broadcast_from_rank0: bool = False
    flatten_optimizer_state_dict: bool = False
    dsd_fqn_modifiers: str = "_fqn_modifiers"


def _plain(model: Module) -> Module:
    while isinstance(model, DataParallel | DistributedDataParallel):
        model = model.module
    return model


def _offloaded(value: object, options: StateDictOptions) -> Any:
    if isinstance(value, dict):
        return {key: _offloaded(one, options) for key, one in value.items()}
    return value.cpu() if options.cpu_offload and isinstance(value, Tensor) else value


def get_model_state_dict(
    model: Module, *, submodules: object = None, options: StateDictOptions | None = None
) -> dict[str, Any]:
    """Return the state dict of the module within its wrappers."""
    how, plain = options or StateDictOptions(), _plain(model)
    frozen = {name for name, p in plain.named_parameters() if not p.requires_grad}
    found = plain.state_dict()
    kept = {k: v for k, v in found.items() if not (how.ignore_frozen_params and k in frozen)}
    return {name: _offloaded(value, how) for name, value in kept.items()}


def set_model_state_dict(
    model: Module, model_state_dict: Mapping[str, Any], *, options: StateDictOptions | None = None
) -> Any:
    """Load a state dict into the module within its wrappers."""
    how = options or StateDictOptions()
    return _plain(model).load_state_dict(dict(model_state_dict), strict=how.strict)


def _names(model: Module) -> dict[int, str]:
    return {id(p): name for name, p in _plain(model).named_parameters()}


def get_optimizer_state_dict(
    model: Module,
    optimizers: object,
    *,
    submodules: object = None,
    options: StateDictOptions | None = None,
) -> dict[str, Any]:
    """Return the state dict of an optimizer, or of several, with names in place of numbers."""
    names, how = _names(model), options or StateDictOptions()
    state: dict[str, Any] = {}
    groups: list[dict[str, Any]] = []
    for optimizer in _listed(optimizers):
        found = optimizer.state_dict()
        order = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
        state |= {order[at]: one for at, one in found["state"].items()}
        for group in found["param_groups"]:
            groups.append({**group, "params": [order[at] for at in group["params"]]})
    return {"state": _offloaded(state, how), "param_groups": groups}


def set_optimizer_state_dict(
    model: Module,
    optimizers: object,
    optim_state_dict: Mapping[str, Any],
    *,
    options: StateDictOptions | None = None,
) -> None:
    """Load what `get_optimizer_state_dict` gave."""
    names = _names(model)
    rest = list(optim_state_dict["param_groups"])
    for optimizer in _listed(optimizers):
        order = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
        numbers = {name: at for at, name in enumerate(order)}
        own, rest = rest[: len(optimizer.param_groups)], rest[len(optimizer.param_groups) :]
        groups = [{**g, "params": [numbers[name] for name in g["params"]]} for g in own]
        state = {numbers[n]: v for n, v in optim_state_dict["state"].items() if n in numbers}
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def _listed(optimizers: object) -> list[Any]:
    return list(optimizers) if isinstance(optimizers, list | tuple) else [optimizers]


def get_state_dict(
    model: Module,
    optimizers: object,
    *,
    submodules: object = None,
    options: StateDictOptions | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state dicts of a module and its optimizers."""
    return (
        get_model_state_dict(model, options=options),
        get_optimizer_state_dict(model, optimizers, options=options),
    )


def set_state_dict(
    model: Module,
    optimizers: object,
    *,
    model_state_dict: Mapping[str, Any],
    optim_state_dict: Mapping[str, Any],
    options: StateDictOptions | None = None,
) -> Any:
    """Load the state dicts of a module and its optimizers."""
    set_optimizer_state_dict(model, optimizers, optim_state_dict, options=options)
    return set_model_state_dict(model, model_state_dict, options=options)
