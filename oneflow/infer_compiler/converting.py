"""PyTorch's modules as modules of ours: instances of twin classes over the same parameters."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial, singledispatch
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

from oneflow.core.errors import OneFlowError
from oneflow.infer_compiler.types import from_torch, our_argument
from oneflow.mock_torch import enable
from oneflow.nn.module import Module
from oneflow.nn.parameter import Parameter

if TYPE_CHECKING:
    import torch

TWINS: dict[type, type] = {}
"""Class of a program -> the class of ours in its place."""

PACKAGES: set[str] = set()
"""Packages of which the twins are imported with the others'."""

Converter = Callable[[Any], Any]


def register(
    *,
    package_names: Iterable[str | Path] | str | None = None,
    torch2oflow_class_map: Mapping[type, type] | None = None,
    torch2oflow_funcs: Iterable[Converter] | Converter | None = None,
) -> None:
    """Say how classes of a program become ours.

    Args:
        package_names: Packages written for PyTorch, to be imported anew under mock_torch. Those of
            the classes that are met are found by themselves.
        torch2oflow_class_map: Class of PyTorch's program -> ours: needed for classes of
            `__main__` and of functions.
        torch2oflow_funcs: Functions of one object that return ours; the annotation of their first
            parameter says for which class.
    """
    if package_names is not None:
        names = [package_names] if isinstance(package_names, str) else package_names
        PACKAGES.update(str(name) for name in names)
    if torch2oflow_class_map:
        TWINS.update(torch2oflow_class_map)
    if torch2oflow_funcs is not None:
        functions = [torch2oflow_funcs] if callable(torch2oflow_funcs) else torch2oflow_funcs
        for function in functions:
            first = next(iter(inspect.signature(function, eval_str=True).parameters.values()))
            if first.annotation is first.empty or not isinstance(first.annotation, type):
                raise OneFlowError(
                    f"register: the first parameter of {function.__name__} needs a class as its "
                    "annotation, that of the objects which it converts"
                )
            _converters().register(first.annotation, function)


def torch2oflow(value: object) -> Any:
    """Return our counterpart of an object of PyTorch's, or an object of another library itself.

    Raises:
        OneFlowError: For a module whose class has no twin.
    """
    return _converters()(value)


@cache
def _converters() -> Any:
    import torch

    @singledispatch
    def convert(value: object) -> Any:
        return our_argument(value)

    convert.register(torch.nn.Module, _module)
    convert.register(torch.Tensor, from_torch)
    convert.register(torch.nn.Parameter, _parameter)
    convert.register(list, lambda value: [torch2oflow(x) for x in value])
    convert.register(set, lambda value: {torch2oflow(x) for x in value})
    convert.register(tuple, _tuple)
    convert.register(dict, _dict)
    convert.register(partial, _partial)
    convert.register(type, _of_name)
    convert.register(FunctionType, _of_name)
    convert.register(BuiltinFunctionType, _of_name)
    return convert


def _parameter(value: torch.nn.Parameter) -> Parameter:
    return Parameter(from_torch(value.data), requires_grad=False)


def _tuple(value: tuple[Any, ...]) -> tuple[Any, ...]:
    made = [torch2oflow(x) for x in value]
    return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)


def _dict(value: dict[Any, Any]) -> Any:
    made = {key: torch2oflow(x) for key, x in value.items()}
    if type(value) is dict:
        return made
    # Clients' own dicts have constructors and members of all kinds (FrozenDict, ...).
    return value if all(made[key] is x for key, x in value.items()) else made


def _partial(value: partial[Any]) -> partial[Any]:
    args, kwargs = torch2oflow(value.args), torch2oflow(value.keywords)
    return partial(torch2oflow(value.func), *args, **kwargs)


def _of_name(value: object) -> Any:
    """The twin of a function or class of PyTorch; others stay, unless they are registered."""
    if isinstance(value, type) and value in TWINS:
        return TWINS[value]
    module = getattr(value, "__module__", None) or ""
    if module != "torch" and not module.startswith("torch."):
        return value
    home = "torch.nn.functional" if module.startswith("torch._C") else module
    return _mocked_name(home, getattr(value, "__name__", str(value)))


def _mocked_name(module: str, qualname: str, package: str | None = None) -> Any:
    import torch

    version = torch.__version__.partition("+")[0]  # which packages may ask for
    found: Any
    with enable(
        lazy=True,
        main_pkg=package,
        mock_version=version,
        required_dependencies=sorted(PACKAGES),
    ):
        found = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    return found


def twin_of(kind: type) -> Any:
    """Our class for a module's class: the one that the same file defines under mock_torch."""
    if kind in TWINS:
        return TWINS[kind]
    module, name = kind.__module__, kind.__qualname__
    found: Any = None
    if module != "__main__" and "<locals>" not in name:
        package = None if module.startswith("torch.") else module.partition(".")[0]
        found = _mocked_name(module, name, package)
    if not (isinstance(found, type) and issubclass(found, Module)):
        raise OneFlowError(
            f"compile_from_torch: {module}.{name} cannot be imported anew as a module of oneflow; "
            "register(torch2oflow_class_map={TheClass: OurClass}) says what stands for it"
        )
    TWINS[kind] = found
    return found


TABLES = ("_parameters", "_buffers", "_modules")


def _module(value: torch.nn.Module) -> Module:
    kind = twin_of(type(value))
    made: Module = kind.__new__(kind)
    Module.__init__(made)
    for name in TABLES:
        table = {k: None if x is None else torch2oflow(x) for k, x in getattr(value, name).items()}
        getattr(made, name).update(table)
    own = vars(Module()).keys()
    for name, held in vars(value).items():
        if name not in own and not name.startswith("_forward") and not name.startswith("_backward"):
            made.__dict__.setdefault(name, torch2oflow(held))
    made.training = value.training
    made._non_persistent_buffers_set = set(value._non_persistent_buffers_set)
    return made
