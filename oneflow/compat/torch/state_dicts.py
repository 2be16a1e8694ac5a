"""`torch.distributed.checkpoint.state_dict`: state dicts of modules and optimizers under the
names of the plain module inside all wrappers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from oneflow import distributed
from oneflow.compat.torch.compiling import OptimizedModule
from oneflow.compat.torch.device_mesh import DeviceMesh
from oneflow.compat.torch.dtensor import distribute_tensor, full_tensor, placements_of
from oneflow.compat.torch.fsdp import FullyShardedDataParallel
from oneflow.core.config import current_config
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
    """Options of state dicts. full_state_dict: whole tensors instead of global ones, with
    cpu_offload on rank 0 alone.  cpu_offload: copies in host memory.  ignore_frozen_params:
    without parameters that require no gradient.  broadcast_from_rank0: rank 0 alone has the state
    to load.  strict: as of `load_state_dict`.  The others change nothing.
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
    wrappers = DataParallel, DistributedDataParallel, FullyShardedDataParallel, OptimizedModule
    while isinstance(model, wrappers):
        model = model._orig_mod if isinstance(model, OptimizedModule) else model.module
    return model


def _given(value: object, options: StateDictOptions) -> Any:
    """A state as the options want it."""
    if isinstance(value, dict):
        made = {key: _given(one, options) for key, one in value.items()}
        is_elsewhere = options.full_state_dict and options.cpu_offload and current_config().rank
        return {} if is_elsewhere and any(isinstance(x, Tensor) for x in made.values()) else made
    if not isinstance(value, Tensor):
        return value
    if options.full_state_dict and value.is_global:
        value = full_tensor(value).detach()
    return value.cpu() if options.cpu_offload and not value.is_global else value


def _taken(value: object, like: Tensor | None) -> object:
    """A state laid out as the parameter that it is of."""
    if not isinstance(value, Tensor) or like is None or value.shape != like.shape:
        return value
    if like.is_global and not value.is_global:
        mesh = DeviceMesh(like.placement.type, like.placement.ranks)
        return distribute_tensor(value, mesh, placements_of(like.sbp), src_data_rank=None)
    return value


def _from_first(given: Mapping[str, Any]) -> Any:
    """Rank 0's mapping, on every rank."""
    listed = [_given(dict(given), StateDictOptions()) if current_config().rank == 0 else None]
    distributed.broadcast_object_list(listed)
    return listed[0]


def get_model_state_dict(
    model: Module, *, submodules: object = None, options: StateDictOptions | None = None
) -> dict[str, Any]:
    """Return the state dict of the module within its wrappers."""
    how, plain = options or StateDictOptions(), _plain(model)
    frozen = {name for name, p in plain.named_parameters() if not p.requires_grad}
    found = plain.state_dict()
    kept = {k: v for k, v in found.items() if not (how.ignore_frozen_params and k in frozen)}
    made: dict[str, Any] = _given(kept, how)
    return made


def set_model_state_dict(
    model: Module, model_state_dict: Mapping[str, Any], *, options: StateDictOptions | None = None
) -> Any:
    """Load a state dict into the module within its wrappers."""
    how, plain = options or StateDictOptions(), _plain(model)
    given = _from_first(model_state_dict) if how.broadcast_from_rank0 else model_state_dict
    known = {**dict(plain.named_parameters()), **dict(plain.named_buffers())}
    taken = {name: _taken(value, known.get(name)) for name, value in given.items()}
    return plain.load_state_dict(cast(Any, taken), strict=how.strict)


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
    return {"state": _given(state, how), "param_groups": groups}


def set_optimizer_state_dict(
    model: Module,
    optimizers: object,
    optim_state_dict: Mapping[str, Any],
    *,
    options: StateDictOptions | None = None,
) -> None:
    """Load a result of `get_optimizer_state_dict`."""
    names, how = _names(model), options or StateDictOptions()
    if how.broadcast_from_rank0:
        optim_state_dict = _from_first(optim_state_dict)
    known = dict(_plain(model).named_parameters())
    rest = list(optim_state_dict["param_groups"])
    for optimizer in _listed(optimizers):
        order = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
        numbers = {name: at for at, name in enumerate(order)}
        own, rest = rest[: len(optimizer.param_groups)], rest[len(optimizer.param_groups) :]
        groups = [{**g, "params": [numbers[name] for name in g["params"]]} for g in own]
        state = {
            numbers[name]: {key: _taken(x, known.get(name)) for key, x in values.items()}
            for name, values in optim_state_dict["state"].items()
            if name in numbers
        }
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
