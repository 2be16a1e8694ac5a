"""Objects and layers in other programs' pickles: of classes that the caller lists, and of PyTorch's
layers, which become ours of the same name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from oneflow.core.errors import CheckpointError
from oneflow.io import modules, objects
from oneflow.io.safe_names import Names, torch_layer
from oneflow.io.unpickle import Build, Name, Reader, SetState
from oneflow.nn.module import HOOK_KINDS, Module
from oneflow.nn.parameter import Parameter
from oneflow.surfaces import find
from oneflow.tensor.tensor import Tensor

Constant = Callable[[Name], object]


class RefusedError(CheckpointError):
    """A name in a pickle that is none of a plain value."""


class ForeignObjects:
    """Meanings of names for a Reader: those of plain values, and where these refuse a name, the
    classes and functions that `names` follows.
    """

    def __init__(self, names: Names, make: Build, set_state: SetState, constant: Constant) -> None:
        self._names = names
        self._make, self._set_state, self._constant = make, set_state, constant
        self._made: dict[int, Any] = {}

    def reader(self, persistent: Callable[[object], object]) -> Reader:
        return Reader(self.make, self.set_state, self.constant, persistent)

    def make(self, name: Name, args: tuple[Any, ...]) -> object:
        """Return an object without its state, an enum's member or a named tuple."""
        try:
            return self._make(name, args)
        except RefusedError as error:
            kind = self._class_named(name, error)
        if issubclass(kind, tuple):
            return tuple.__new__(kind, args)
        if len(args) == 1 and not issubclass(kind, Module):
            return objects.enum_member(kind, args[0])
        if args:
            raise CheckpointError(f"load: the pickle calls {name} with {len(args)} arguments")
        made = objects.blank(kind)
        self._made[id(made)] = made
        return made

    def _class_named(self, name: Name, error: RefusedError) -> type:
        layer = torch_layer(name.module, name.name)
        if layer is not None:
            return layer
        if not self._names.may(_ours(name)):
            self._refuse(name, error)
        return self._names.kind(_ours(name))

    def _refuse(self, name: Name, error: RefusedError) -> None:
        """Raise the error, with a hint for a name that may be a class of a program."""
        if name.module.split(".")[0] in ("torch", "numpy"):
            raise error
        try:
            self._names.value(_ours(name))
        except CheckpointError as hint:
            raise CheckpointError(f"{error}. {str(hint).removeprefix('load: ')}") from None

    def set_state(self, value: object, state: object) -> object:
        if id(value) not in self._made:
            return self._set_state(value, state)
        if isinstance(value, Module) and isinstance(state, dict):
            state = _as_ours(value, state)
        objects.fill(value, state)
        return value

    def constant(self, name: Name) -> object:
        """Return the class or the function that stands as a value."""
        try:
            return self._constant(name)
        except RefusedError as error:
            layer = torch_layer(name.module, name.name)
            if layer is not None:
                return layer
            function = _function(name)
            if function is not None:
                return function
            if not self._names.may(_ours(name)):
                self._refuse(name, error)
            return self._names.value(_ours(name))


def _ours(name: Name) -> str:
    return f"{name.module}:{name.name}"


def _function(name: Name) -> Callable[..., Any] | None:
    """Return our function for one of PyTorch's."""
    spaces = {"torch.nn.functional": "F", "torch._C._nn": "F", "torch": "flow"}
    if name.module not in spaces or name.name.startswith("_"):
        return None
    try:
        found = find(spaces[name.module], name.name)
    except AttributeError:
        return None
    return found if callable(found) and not isinstance(found, type) else None


def _as_ours(made: Module, state: dict[Any, Any]) -> dict[Any, Any]:
    """Return the state of a module of PyTorch as that of ours: attributes that only PyTorch's has
    stay, those that only ours has are as `__init__` makes them.
    """
    state = {key: value for key, value in state.items() if key not in _INNER}
    parameters = state.get("_parameters")
    if isinstance(parameters, dict):
        state["_parameters"] = {
            key: Parameter(x, x.requires_grad)
            if isinstance(x, Tensor) and not isinstance(x, Parameter)
            else x
            for key, x in parameters.items()
        }
    if modules.class_name(made) is None:
        return state
    return _own_attributes(type(made), state) | state


_INNER = frozenset(
    ("_is_full_backward_hook", "_forward_hooks_always_called", "_load_state_dict_post_hooks")
) | frozenset(f"{kind}_with_kwargs" for kind in HOOK_KINDS)


def _own_attributes(kind: type[Module], state: dict[Any, Any]) -> dict[str, Any]:
    parameters = inspect.signature(kind).parameters
    args = {name: state[name] for name in parameters if name in state}
    if "bias" in parameters and isinstance(state.get("_parameters"), dict):
        args["bias"] = state["_parameters"].get("bias") is not None
    if "device" in parameters:
        args["device"] = "meta"
    try:
        example = kind(**args)
    except (TypeError, ValueError):  # containers, and layers made of other numbers than they keep
        return {}
    tables = {attribute for _, attribute, _ in modules.TABLES}
    return {name: value for name, value in vars(example).items() if name not in tables}
