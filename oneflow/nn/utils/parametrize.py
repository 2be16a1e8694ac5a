"""Parametrizations: a parameter or buffer that modules compute from others at each use.

The module's class is exchanged for one of its own in which the name is a property; its source is
`module.parametrizations.<name>.original`, or `original0`, `original1` ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from oneflow.nn.module import Module
from oneflow.nn.modules.containers import ModuleDict, ModuleList
from oneflow.nn.parameter import Parameter
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

__all__ = [
    "ParametrizationList",
    "cached",
    "is_parametrized",
    "register_parametrization",
    "remove_parametrizations",
    "type_before_parametrizations",
]

M = TypeVar("M", bound=Module)
_cache: dict[tuple[int, str], Tensor] = {}
_cached_blocks = 0


@contextmanager
def cached() -> Iterator[None]:
    """Inside, each parametrized tensor is computed once, at its first use."""
    global _cached_blocks
    _cached_blocks += 1
    try:
        yield
    finally:
        _cached_blocks -= 1
        if not _cached_blocks:
            _cache.clear()


class ParametrizationList(ModuleList):
    """The steps from the stored tensors, `original` or `original0` ..., to the one that is used."""

    def __init__(
        self, modules: Sequence[Module], original: Tensor | Parameter, unsafe: bool = False
    ) -> None:
        super().__init__(modules)
        self.unsafe = unsafe
        stored: Any = original
        with no_grad():
            for module in reversed(modules):
                if hasattr(module, "right_inverse"):
                    stored = module.right_inverse(stored)
        self.is_tensor = isinstance(stored, Tensor)
        parts = (stored,) if self.is_tensor else tuple(stored)
        self.ntensors = len(parts)
        for name, part in zip(self._names(), parts, strict=True):
            if isinstance(original, Parameter):
                # the object stays where it fits: optimizers know it
                kept = original if self.is_tensor else Parameter(part, original.requires_grad)
                if kept is original:
                    kept.data = part.detach()
                self.register_parameter(name, kept)
            else:
                self.register_buffer(name, part.detach())

    def _names(self) -> list[str]:
        if self.is_tensor:
            return ["original"]
        return [f"original{i}" for i in range(self.ntensors)]

    def right_inverse(self, value: Tensor) -> None:
        """Store the tensors that give `value`, found by the `right_inverse` of every step."""
        stored: Any = value
        with no_grad():
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise RuntimeError(
                        f"parametrization {type(module).__name__} does not implement "
                        "right_inverse, so its tensor cannot be assigned"
                    )
                stored = module.right_inverse(stored)
            parts = (stored,) if self.is_tensor else tuple(stored)
            for name, part in zip(self._names(), parts, strict=True):
                getattr(self, name).data = part.detach()

    def forward(self) -> Tensor:
        """The tensor."""
        steps = list(self)
        stored = [getattr(self, name) for name in self._names()]
        x: Tensor = steps[0](*stored)
        for step in steps[1:]:
            x = step(x)
        return x


def _property(name: str) -> property:
    def get(module: Module) -> Tensor:
        compute: Any = module.parametrizations[name]
        if not _cached_blocks:
            made: Tensor = compute()
            return made
        key = (id(module), name)
        if key not in _cache:
            _cache[key] = compute()
        return _cache[key]

    def put(module: Module, value: Tensor) -> None:
        _cache.pop((id(module), name), None)
        module.parametrizations[name].right_inverse(value)

    return property(get, put)


def register_parametrization(
    module: M, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> M:
    """Let `module.tensor_name` be the result of `parametrization` on the stored tensor.

    A further one takes the result of those that are there. unsafe: shape and dtype may change, and
    are not compared. Raises ValueError for a name that is no parameter or buffer, or a result of
    another shape or dtype.
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        _append(module, tensor_name, parametrization, unsafe)
        return module
    original = {**module._parameters, **module._buffers}.get(tensor_name)
    if original is None:
        raise ValueError(
            f"Module '{module}' does not have a parameter, a buffer, or a parametrized element "
            f"with name '{tensor_name}'"
        )
    before = (tuple(original.shape), original.dtype)
    steps = ParametrizationList([parametrization], original, unsafe)
    delattr(module, tensor_name)
    base = type_before_parametrizations(module)
    if not is_parametrized(module):
        module.parametrizations = ModuleDict()
    module.parametrizations[tensor_name] = steps
    _set_class(module, base)
    if not unsafe:
        _check(module, tensor_name, before)
    return module


def _append(module: Module, name: str, parametrization: Module, unsafe: bool) -> None:
    steps = module.parametrizations[name]
    now = getattr(module, name)
    before = (tuple(now.shape), now.dtype)
    if hasattr(parametrization, "right_inverse"):
        with no_grad():
            steps.right_inverse(parametrization.right_inverse(now.detach()))
    steps.append(parametrization)
    steps.unsafe |= unsafe
    if not unsafe:
        _check(module, name, before)


def _check(module: Module, name: str, before: tuple[object, object]) -> None:
    """Raises ValueError where the parametrization changes shape or dtype, after taking it away."""
    with no_grad():
        made = getattr(module, name)
    found = (tuple(made.shape), made.dtype)
    if found != before:
        steps = module.parametrizations[name]
        if len(steps) > 1:
            steps.pop(-1)
        raise ValueError(
            f"the parametrization of {name} changes its shape or dtype from {before} to {found}; "
            "give unsafe=True if that is meant"
        )


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether the module has parametrizations, or one of that name."""
    known = module._modules.get("parametrizations")
    if not isinstance(known, ModuleDict) or not len(known):
        return False
    return tensor_name is None or tensor_name in known


def remove_parametrizations(module: M, tensor_name: str, leave_parametrized: bool = True) -> M:
    """Make `tensor_name` a parameter or buffer again.

    leave_parametrized: with its present value, else with the stored one. Raises ValueError.
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    steps = module.parametrizations[tensor_name]
    if not leave_parametrized and not steps.is_tensor:
        raise ValueError(
            "leave_parametrized=False needs a parametrization of one tensor; this one stores "
            f"{steps.ntensors}"
        )
    with no_grad():
        value = getattr(module, tensor_name).detach()
    is_parameter = bool(steps._parameters)
    stored = getattr(steps, steps._names()[0])
    del module.parametrizations[tensor_name]
    _set_class(module, type(module).__bases__[0])
    _cache.pop((id(module), tensor_name), None)
    if steps.is_tensor:
        if leave_parametrized:
            stored.data = value
    else:
        stored = Parameter(value, stored.requires_grad) if is_parameter else value
    if is_parameter:
        module.register_parameter(tensor_name, stored)
    else:
        module.register_buffer(tensor_name, stored)
    return module


def _set_class(module: Module, base: type[Module]) -> None:
    """Gives the module a class of its own with a property for each of its parametrizations; copies
    of the module keep theirs.
    """
    names = list(module.parametrizations)
    changed: Any = module
    if names:
        properties = {name: _property(name) for name in names}
        changed.__class__ = type(f"Parametrized{base.__name__}", (base,), properties)
    else:
        del module._modules["parametrizations"]
        changed.__class__ = base


def type_before_parametrizations(module: Module) -> type[Module]:
    """The class of the module without its parametrizations."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)
