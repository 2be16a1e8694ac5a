"""State dicts: from a tree of modules to a flat dict of names, and back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oneflow.core.errors import OneFlowError
from oneflow.functional.initial import assign
from oneflow.kernels.array import Array
from oneflow.tensor.tensor import Tensor

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


def state_dict(
    module: Module, destination: OrderedDict[str, Tensor] | None, prefix: str, keep_vars: bool
) -> OrderedDict[str, Tensor]:
    """See Module.state_dict."""
    if destination is None:
        destination = OrderedDict()
    for hook in list(module._state_dict_pre_hooks.values()):
        hook(module, prefix, keep_vars)
    for name, own in _own_state(module):
        destination[prefix + name] = own if keep_vars else own.detach()
    for name, child in module._modules.items():
        if child is not None:
            child.state_dict(destination, f"{prefix}{name}.", keep_vars)
    for hook in list(module._state_dict_hooks.values()):
        changed = hook(module, destination, prefix, {})
        destination = destination if changed is None else changed
    result: OrderedDict[str, Tensor] = destination
    return result


def _own_state(module: Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield name, parameter
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            yield name, buffer


class _Load:
    """One load in progress: what was asked for and what did not fit."""

    def __init__(self, values: Mapping[str, Tensor | Array], strict: bool) -> None:
        self.values = OrderedDict(values)
        self.strict = strict
        self.known: set[str] = set()
        self.missing: list[str] = []
        self.unexpected: list[str] = []
        self.errors: list[str] = []

    def module(self, module: Module, prefix: str) -> None:
        for hook in list(module._load_state_dict_pre_hooks.values()):
            hook(self.values, prefix, {}, self.strict, self.missing, self.unexpected, self.errors)
        for name, own in _own_state(module):
            self.one(prefix + name, own)
        for name, child in module._modules.items():
            if child is not None:
                self.module(child, f"{prefix}{name}.")
        for hook in list(module._load_state_dict_post_hooks.values()):
            hook(module, IncompatibleKeys(self.missing, self.unexpected))

    def one(self, key: str, own: Tensor) -> None:
        self.known.add(key)
        if key not in self.values:
            self.missing.append(key)
            return
        value = self.values[key]
        shape = tuple(np.shape(value) if not isinstance(value, Tensor) else value.shape)
        if own.shape == () and shape == (1,):
            value, shape = value.reshape(()), ()
        if shape != tuple(own.shape):
            self.errors.append(
                f"size mismatch for {key}: copying a param with shape {shape} from checkpoint, "
                f"the shape in current model is {tuple(own.shape)}."
            )
            return
        assign(own, value)


def load_state_dict(
    module: Module, values: Mapping[str, Tensor | Array], strict: bool
) -> IncompatibleKeys:
    """See Module.load_state_dict."""
    if not isinstance(values, Mapping):
        raise TypeError(f"Expected state_dict to be dict-like, got {type(values).__name__}.")
    load = _Load(values, strict)
    load.module(module, "")
    load.unexpected += [key for key in load.values if key not in load.known]
    errors = list(load.errors)
    if strict:
        for what, names in (("Missing", load.missing), ("Unexpected", load.unexpected)):
            if names:
                listed = ", ".join(f'"{n}"' for n in names)
                errors.append(f"{what} key(s) in state_dict: {listed}.")
    if errors:
        raise OneFlowError(
            f"Error(s) in loading state_dict for {type(module).__name__}:\n\t" + "\n\t".join(errors)
        )
    return IncompatibleKeys(load.missing, load.unexpected)
