"""State dicts: from a tree of modules to a flat dict of names, and back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from oneflow.core.errors import OneFlowError
from oneflow.functional.initial import assign
from oneflow.kernels.array import Array
from oneflow.nn.parameter import Parameter
from oneflow.tensor.grad_mode import switches
from oneflow.tensor.tensor import Tensor, wrap

if TYPE_CHECKING:
    from oneflow.nn.module import Module


class IncompatibleKeys(NamedTuple):
    """Names the module has and the dict lacks, and the other way round."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return (
            f"IncompatibleKeys(missing_keys={self.missing_keys}, "
            f"unexpected_keys={self.unexpected_keys})"
        )


EXTRA_STATE = "_extra_state"
"""Key under which a state dict holds what `get_extra_state` gives."""


@dataclass(frozen=True, slots=True)
class WithModule:
    """A hook before loading that gets the module first."""

    hook: Callable[..., Any]
    module: Module

    def __call__(self, *args: object) -> Any:
        return self.hook(self.module, *args)


class StateDict(OrderedDict[str, Any]):
    """Names and values; `_metadata` has the version of each module by its path."""

    _metadata: OrderedDict[str, dict[str, Any]]


def state_dict(
    module: Module, destination: OrderedDict[str, Tensor] | None, prefix: str, keep_vars: bool
) -> OrderedDict[str, Tensor]:
    """See Module.state_dict."""
    if destination is None:
        destination = StateDict()
        destination._metadata = OrderedDict()
    metadata: dict[str, Any] = {"version": module._version}
    if hasattr(destination, "_metadata"):
        destination._metadata[prefix[:-1]] = metadata
    for hook in list(module._state_dict_pre_hooks.values()):
        hook(module, prefix, keep_vars)
    module._save_to_state_dict(destination, prefix, keep_vars)
    for name, child in module._modules.items():
        if child is not None:
            child.state_dict(
                destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars
            )
    for hook in list(module._state_dict_hooks.values()):
        changed = hook(module, destination, prefix, metadata)
        destination = destination if changed is None else changed
    result: OrderedDict[str, Tensor] = destination
    return result


def save_own(module: Module, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
    """See Module._save_to_state_dict."""
    for name, own in _own_state(module):
        destination[prefix + name] = own if keep_vars else own.detach()
    if _has_extra_state(module, "get_extra_state"):
        destination[prefix + EXTRA_STATE] = module.get_extra_state()


def _has_extra_state(module: Module, method: str) -> bool:
    """Whether the class of the module has a method of its own for extra state."""
    definer = next(base for base in type(module).__mro__ if method in vars(base))
    return definer.__module__ != "oneflow.nn.module"


def _own_state(module: Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield name, parameter
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            yield name, buffer


def load_own(
    module: Module,
    values: dict[str, Any],
    prefix: str,
    metadata: dict[str, Any],
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """See Module._load_from_state_dict."""
    for hook in list(module._load_state_dict_pre_hooks.values()):
        hook(values, prefix, metadata, strict, missing, unexpected, errors)
    own_state = dict(_own_state(module))
    for name, own in own_state.items():
        key = prefix + name
        if key not in values:
            missing.append(key)
            continue
        value, problem = _fitting(key, own, values[key])
        if problem:
            errors.append(problem)
        elif metadata.get("assign_to_params_buffers"):
            _put(module, name, own, value)
        else:
            assign(own, value)
    known = {*own_state, *(n for n, child in module._modules.items() if child is not None)}
    if _has_extra_state(module, "set_extra_state"):
        known.add(EXTRA_STATE)
        if prefix + EXTRA_STATE in values:
            module.set_extra_state(values[prefix + EXTRA_STATE])
        else:
            missing.append(prefix + EXTRA_STATE)
    for key in values:
        if key.startswith(prefix):
            rest = key[len(prefix) :]
            first, dot, _ = rest.partition(".")
            is_part = first in module._modules if dot else first in own_state
            if not is_part and rest not in known:
                unexpected.append(key)


def _fitting(key: str, own: Tensor, value: Tensor | Array) -> tuple[Tensor | Array, str]:
    """The value in the shape of `own`, and its fault, "" if there is none."""
    shape = tuple(value.shape if isinstance(value, Tensor) else np.shape(value))
    if own.shape == () and shape == (1,):
        value, shape = value.reshape(()), ()
    if shape == tuple(own.shape):
        return value, ""
    return value, (
        f"size mismatch for {key}: copying a param with shape {shape} from checkpoint, "
        f"the shape in current model is {tuple(own.shape)}."
    )


def _put(module: Module, name: str, own: Tensor, value: Tensor | Array) -> None:
    """Lets the value take the place of a parameter or buffer; a parameter stays one."""
    given = value if isinstance(value, Tensor) else wrap(np.asarray(value))
    switches.count += 1
    if name in module._buffers:
        module._buffers[name] = given
        return
    made = given if isinstance(given, Parameter) else Parameter(given)
    made.requires_grad = own.requires_grad
    module._parameters[name] = made


def load_state_dict(
    module: Module, values: Mapping[str, Tensor | Array], strict: bool, put: bool = False
) -> IncompatibleKeys:
    """See Module.load_state_dict."""
    if not isinstance(values, Mapping):
        raise TypeError(f"Expected state_dict to be dict-like, got {type(values).__name__}.")
    metadata = getattr(values, "_metadata", {})
    given: OrderedDict[str, Any] = OrderedDict(values)
    missing: list[str] = []
    unexpected: list[str] = []
    errors: list[str] = []

    def load(part: Module, prefix: str) -> None:
        known = dict(metadata.get(prefix[:-1], {}))
        if put:
            known["assign_to_params_buffers"] = True
        part._load_from_state_dict(given, prefix, known, True, missing, unexpected, errors)
        for name, child in part._modules.items():
            if child is not None:
                load(child, f"{prefix}{name}.")
        for hook in list(part._load_state_dict_post_hooks.values()):
            hook(part, IncompatibleKeys(missing, unexpected))

    load(module, "")
    problems = list(errors)
    if strict:
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                listed = ", ".join(f'"{n}"' for n in names)
                problems.append(f"{what} key(s) in state_dict: {listed}.")
    if problems:
        raise OneFlowError(
            f"Error(s) in loading state_dict for {type(module).__name__}:\n\t"
            + "\n\t".join(problems)
        )
    return IncompatibleKeys(missing, unexpected)
