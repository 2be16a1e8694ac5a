"""The device "fake": NumPy under another name, whose arrays never become NumPy's by themselves."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from oneflow.kernels.hardware import Hardware

UNARY = ("neg", "pos", "abs", "invert")
BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor"),
    *("lshift", "rshift", "lt", "le", "eq", "ne", "gt", "ge"),
)


def lower(value: Any) -> Any:
    """Return the NumPy value of an array of this device, also within lists, tuples and dicts."""
    if isinstance(value, FakeArray):
        return value.held
    if isinstance(value, dict):
        return {key: lower(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(lower, value))
    return value


def lift(value: Any) -> Any:
    """Return the array of this device over a NumPy value; reductions give arrays of no dims."""
    if isinstance(value, np.ndarray | np.generic) and not isinstance(value, FakeArray):
        return FakeArray(np.asarray(value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(lift, value))
    if type(value) in (list, tuple):
        return type(value)(map(lift, value))
    return value


def on_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of NumPy as one of this device's arrays."""

    def run(*args: Any, **keywords: Any) -> Any:
        made = function(*lower(args), **lower(keywords))
        out = keywords.get("out")
        return out if isinstance(out, FakeArray) else lift(made)

    if isinstance(function, np.ufunc):
        run.at = on_device(function.at)  # type: ignore[attr-defined]
    return run


class FakeArray:
    """An array of the device. held: its values, which only the device reads."""

    def __init__(self, held: np.ndarray[Any, Any]) -> None:
        self.held = held

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # no protocol by which NumPy could read the values
            raise AttributeError(name)
        found = getattr(self.held, name)
        return on_device(found) if callable(found) else lift(found)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "held":
            object.__setattr__(self, name, value)
        else:
            setattr(self.held, name, value)

    def __array__(self, *_: object, **__: object) -> Any:
        raise TypeError("an array of fake is not converted implicitly: use Fake.to_host")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        if any(type(x) is np.ndarray and x.ndim for x in inputs):
            raise TypeError(f"{ufunc.__name__} of an array of fake and one of NumPy")
        made = getattr(ufunc, method)(*lower(inputs), **lower(keywords))
        outs = keywords.get("out")
        return outs[0] if outs else lift(made)

    def __array_function__(self, function: Any, _: object, args: Any, keywords: Any) -> Any:
        if any(type(x) is np.ndarray and x.ndim for x in args):
            raise TypeError(f"{function.__name__} of an array of fake and one of NumPy")
        return on_device(function)(*args, **keywords)

    def __getitem__(self, index: Any) -> Any:
        return lift(self.held[lower(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        if type(value) is np.ndarray and value.ndim:
            raise TypeError("a NumPy array is written into an array of fake: use Fake.from_host")
        self.held[lower(index)] = lower(value)

    def __len__(self) -> int:
        return len(self.held)

    def __bool__(self) -> bool:
        return bool(self.held)

    def __int__(self) -> int:
        return int(self.held)

    def __index__(self) -> int:
        return operator.index(self.held.item())

    def __float__(self) -> float:
        return float(self.held)

    __hash__ = None  # type: ignore[assignment]


def _add_operators() -> None:
    for name in (*UNARY, *BINARY):
        plain, special = getattr(operator, name), f"__{name.strip('_')}__"
        setattr(FakeArray, special, on_device(plain))
        if name in BINARY[:13]:

            def turned(self: Any, other: Any, plain: Any = plain) -> Any:
                return lift(plain(lower(other), self.held))

            def in_place(self: Any, other: Any, name: str = name) -> Any:
                operator.attrgetter(f"__i{name.strip('_')}__")(operator)(self.held, lower(other))
                return self

            setattr(FakeArray, f"__r{name.strip('_')}__", turned)
            setattr(FakeArray, f"__i{name.strip('_')}__", in_place)


_add_operators()


class FakeModule:
    """NumPy as the device's array module."""

    def __init__(self, module: Any, name: str) -> None:
        self._module, self.__name__ = module, name

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if isinstance(found, type) or not callable(found):
            is_module = type(found) is type(np)
            return FakeModule(found, f"{self.__name__}.{name}") if is_module else found
        return on_device(found)


MODULE: Any = FakeModule(np, "fake")


class Fake(Hardware):
    """One device of the kind, for any number of ranks, which share it."""

    array_class = FakeArray
    goes_by_host = True

    @classmethod
    def count(cls) -> int:
        return 1

    @classmethod
    def address(cls, array: Any) -> int:
        return int(array.held.ctypes.data)

    def use(self) -> Any:
        return MODULE

    def from_host(self, array: np.ndarray[Any, Any], non_blocking: bool = False) -> Any:
        return FakeArray(array.copy())

    @classmethod
    def to_host(cls, array: Any) -> np.ndarray[Any, Any]:
        held: np.ndarray[Any, Any] = array.held.copy()
        return held

    def synchronize(self) -> None:
        return
