"""Modules that hold modules or parameters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeAlias, TypeVar

from oneflow.nn.module import Module
from oneflow.nn.parameter import Parameter
from oneflow.tensor.tensor import Tensor


def _position(index: int, length: int) -> int:
    if not -length <= index < length:
        raise IndexError(f"index {index} is out of range for {length} entries")
    return index % length


class _ModuleSequence(Module):
    """Modules under the names "0", "1", ..."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._from_items(list(self._modules.items())[index])
        return list(self._modules.values())[_position(index, len(self))]

    def _from_items(self, items: list[tuple[str, Any]]) -> Any:
        kind: Any = type(self)
        return kind([module for _, module in items])

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, list(self._modules)[_position(index, len(self))], module)

    def __delitem__(self, index: int | slice) -> None:
        names = list(self._modules)
        for name in (
            names[index] if isinstance(index, slice) else [names[_position(index, len(self))]]
        ):
            del self._modules[name]
        self._renumber(list(self._modules.values()))

    def _renumber(self, modules: list[Any]) -> None:
        self._modules.clear()
        for i, module in enumerate(modules):
            self._modules[str(i)] = module

    def append(self, module: Module) -> Any:
        self.add_module(str(len(self)), module)
        return self

    def insert(self, index: int, module: Module) -> Any:
        modules = list(self)
        modules.insert(index, module)
        self._renumber(modules)
        return self

    def extend(self, modules: Iterable[Module]) -> Any:
        for module in modules:
            self.append(module)
        return self

    def pop(self, index: int | slice) -> Any:
        """Takes out and returns a module."""
        found = self[index]
        del self[index]
        return found

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.isdigit()]


class Sequential(_ModuleSequence):
    """Calls its modules one after another: `Sequential(a, b)` or `Sequential(OrderedDict(first=a,
    then=b))`.
    """

    def __init__(self, *args: Module | Mapping[str, Module]) -> None:
        super().__init__()
        first = args[0] if len(args) == 1 else None
        parts: Any = first.items() if isinstance(first, OrderedDict) else enumerate(args)
        for name, module in parts:
            self.add_module(str(name), module)

    def _from_items(self, items: list[tuple[str, Any]]) -> Any:
        return type(self)(OrderedDict(items))

    def _renumber(self, modules: list[Any]) -> None:
        if all(name.isdigit() for name in self._modules):  # given names stay
            super()._renumber(modules)

    def forward(self, input: object) -> Any:
        for module in self:
            input = module(input)
        return input


class ModuleList(_ModuleSequence):
    """A list of modules; their use is up to the owner's `forward`."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:  # a subclass may have its own `extend`, which needs its members
            self.extend(modules)

    def __iadd__(self, modules: Iterable[Module]) -> ModuleList:
        self.extend(modules)
        return self

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList(chain(self, other))


V = TypeVar("V")
Named: TypeAlias = "Mapping[str, V] | Iterable[tuple[str, V]]"


def _pairs(values: Named[V]) -> Iterable[tuple[str, V]]:
    """Items of a mapping (ours too) or of an iterable of pairs."""
    pairs: Any = values
    found: Iterable[tuple[str, V]] = pairs.items() if hasattr(values, "items") else pairs
    return found


class ModuleDict(Module):
    """Modules under given names."""

    def __init__(self, modules: Named[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:  # a subclass may have its own `update`, which needs its members
            self.update(modules)

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def clear(self) -> None:
        self._modules.clear()

    def pop(self, key: str) -> Any:
        return self._modules.pop(key)

    def keys(self) -> Iterable[str]:
        return self._modules.keys()

    def values(self) -> Iterable[Any]:
        return self._modules.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        return self._modules.items()

    def update(self, modules: Named[Module]) -> None:
        for key, module in _pairs(modules):
            self[key] = module


class ParameterList(Module):
    """A list of parameters; tensors that are none become parameters.  values: PyTorch's name."""

    def __init__(
        self,
        parameters: Iterable[Tensor | None] | None = None,
        *,
        values: Iterable[Tensor | None] | None = None,
    ) -> None:
        super().__init__()
        given = values if parameters is None else parameters
        if given is not None:  # a subclass may have its own `extend`, which needs its members
            self.extend(given)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parameters.values())

    def __getitem__(self, index: int | slice) -> Any:
        values = list(self._parameters.values())
        if isinstance(index, slice):
            return type(self)(values[index])
        return values[_position(index, len(self))]

    def __setitem__(self, index: int, parameter: Tensor | None) -> None:
        self._parameters[str(_position(index, len(self)))] = _as_parameter(parameter)

    def append(self, parameter: Tensor | None) -> ParameterList:
        self.register_parameter(str(len(self)), _as_parameter(parameter))
        return self

    def extend(self, parameters: Iterable[Tensor | None]) -> ParameterList:
        for parameter in parameters:
            self.append(parameter)
        return self

    def __iadd__(self, parameters: Iterable[Tensor | None]) -> ParameterList:
        return self.extend(parameters)

    def extra_repr(self) -> str:
        return "\n".join(f"({k}): {_describe(p)}" for k, p in self._parameters.items())


class ParameterDict(Module):
    """Parameters under given names; tensors that are none become parameters."""

    def __init__(
        self,
        parameters: Named[Tensor | None] | None = None,
    ) -> None:
        super().__init__()
        if parameters is not None:  # a subclass may have its own `update`, which needs its members
            self.update(parameters)

    def __getitem__(self, key: str) -> Any:
        return self._parameters[key]

    def __setitem__(self, key: str, parameter: Tensor | None) -> None:
        self.register_parameter(key, _as_parameter(parameter))

    def __delitem__(self, key: str) -> None:
        del self._parameters[key]

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __contains__(self, key: object) -> bool:
        return key in self._parameters

    def clear(self) -> None:
        self._parameters.clear()

    def pop(self, key: str) -> Any:
        return self._parameters.pop(key)

    def popitem(self) -> tuple[str, Any]:
        """Takes out and returns the last pair."""
        return self._parameters.popitem()

    def get(self, key: str, default: object = None) -> Any:
        return self._parameters.get(key, default)

    def setdefault(self, key: str, default: Tensor | None = None) -> Any:
        """Returns the parameter, which is `default` if there was none."""
        if key not in self:
            self[key] = default
        return self[key]

    def copy(self) -> ParameterDict:
        """Another dict of the same parameters."""
        return ParameterDict(OrderedDict(self.items()))

    def fromkeys(self, keys: Iterable[str], default: Tensor | None = None) -> ParameterDict:
        """A dict with `default` under each key."""
        return ParameterDict((key, default) for key in keys)

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self))

    def __or__(self, other: Named[Tensor | None]) -> ParameterDict:
        joined = self.copy()
        joined.update(other)
        return joined

    def __ior__(self, other: Named[Tensor | None]) -> ParameterDict:
        self.update(other)
        return self

    def keys(self) -> Iterable[str]:
        return self._parameters.keys()

    def values(self) -> Iterable[Any]:
        return self._parameters.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        return self._parameters.items()

    def update(self, parameters: Named[Tensor | None]) -> None:
        for key, parameter in _pairs(parameters):
            self[key] = parameter

    def extra_repr(self) -> str:
        return "\n".join(f"({k}): {_describe(p)}" for k, p in self._parameters.items())


def _as_parameter(value: Tensor | None) -> Parameter | None:
    return value if value is None or isinstance(value, Parameter) else Parameter(value)


def _describe(parameter: Parameter | None) -> str:
    return "None" if parameter is None else f"Parameter containing: [{parameter.meta}]"
