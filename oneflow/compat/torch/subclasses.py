"""Subclasses of Tensor that programs define, and PyTorch's protocol for them.

The first such class changes the functions that programs call: methods, operators and functions that
are given an instance ask its class, by `__torch_function__`, for the result. A program without one
pays nothing.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from types import FunctionType
from typing import Any, NoReturn, TypeVar

from oneflow import surfaces
from oneflow.core.errors import CallError, OneFlowError
from oneflow.functional.shaping import view_as
from oneflow.nn.parameter import Parameter, ParameterClass
from oneflow.tensor.shortcuts import shortcut, shortcut_class
from oneflow.tensor.tensor import MEMBERS, Tensor

T = TypeVar("T", bound=Tensor)

SPACES = {
    "flow": "oneflow",
    "F": "oneflow.nn.functional",
    "linalg": "oneflow.linalg",
    "special": "oneflow.special",
    "fft": "oneflow.fft",
    "autograd": "oneflow.autograd",
}
"""The namespaces of functions that ask the classes of their arguments, and their modules."""

OPERATORS = (
    *("add", "radd", "iadd", "sub", "rsub", "isub", "mul", "rmul", "imul", "truediv", "rtruediv"),
    *("itruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow", "rpow", "matmul", "rmatmul"),
    *("neg", "pos", "abs", "invert", "and", "rand", "or", "ror", "xor", "rxor", "eq", "ne", "lt"),
    *("le", "gt", "ge", "getitem", "setitem", "len", "contains", "bool", "int", "float", "index"),
    "repr",
)
SAME = ("add", "sub", "mul", "matmul", "neg", "abs", "pow", "ne", "lt", "le", "gt", "ge")
NAMED = {f"__{name}__": name for name in SAME} | {
    "__truediv__": "div",
    "__iadd__": "add_",
    "__isub__": "sub_",
    "__imul__": "mul_",
    "__itruediv__": "div_",
    "__mod__": "remainder",
    "__pos__": "positive",
    "__radd__": "add",
    "__rmul__": "mul",
    "__rand__": "bitwise_and",
    "__ror__": "bitwise_or",
    "__rxor__": "bitwise_xor",
}
"""Operators that a class is asked about under the name of the method that does the same."""
OWN_NAMES = {"__rtruediv__": "__rdiv__"}
"""Operators that PyTorch names in another way than Python."""

WRAPPED_PROPERTIES = ("T", "mT", "H", "mH", "data", "real", "imag")
"""Properties whose values are tensors that keep the class."""

ASK_NOBODY = ("as_tensor", "asarray", "from_numpy", "is_tensor", "load", "save", "typename")
"""Functions that PyTorch runs without asking the classes of their arguments."""

UNTOUCHED = frozenset(("as_subclass", "requires_grad_", "register_hook", "retain_grad", "backward"))
"""Methods that ask nobody, and whose results stay as they are."""


class _State(threading.local):
    is_off = False


_state = _State()
_begun: list[bool] = []
answering: set[type] = set()
"""Classes of our own that calls ask."""


@contextmanager
def without_subclasses() -> Iterator[None]:
    """A block in which calls ask no class."""
    before, _state.is_off = _state.is_off, True
    try:
        yield
    finally:
        _state.is_off = before


def take_subclass(kind: type[Tensor]) -> None:
    """Let the methods and operators of a class that a program has defined ask it."""
    if not _begun:
        _begin()
    if not _asks(kind):
        return
    known = {name for base in kind.__mro__ for name in vars(base) if _is_users(base)}
    names = [n for n in dir(Tensor) if not n.startswith("_") and n not in UNTOUCHED]
    names += [f"__{name}__" for name in OPERATORS]
    for name in names:
        if name in known or not hasattr(Tensor, name):
            continue
        found = getattr(Tensor, name)
        if name in WRAPPED_PROPERTIES:
            setattr(kind, name, _property(name))
        elif callable(found):
            setattr(kind, name, _method(name, found))
    for name in MEMBERS:
        if not name.startswith("_"):
            setattr(kind, name, _Member(name, kind))


def _begin() -> None:
    _begun.append(True)
    type.__setattr__(Tensor, "__torch_function__", classmethod(_default))
    _name_methods()
    _let_parameters_keep_their_class()
    surfaces.asking = _asking
    for space, module in SPACES.items():
        here = sys.modules.get(module)
        for name in surfaces.names(space):
            found = vars(here).get(name) if here is not None else None
            if isinstance(found, (FunctionType, shortcut_class())):
                vars(here)[name] = _asking(space, found)


def _name_methods() -> None:
    """Give methods and operators the names under which PyTorch asks a class about them. One that
    has several public names becomes one function for each.
    """
    operators = [f"__{name}__" for name in OPERATORS]
    for name in (*operators, *(n for n in dir(Tensor) if not n.startswith("_"))):
        wanted = OWN_NAMES.get(name, name)
        found: Any = getattr(Tensor, name, None)
        is_short = isinstance(found, shortcut_class())
        if not is_short and not isinstance(found, FunctionType):
            continue
        if found.__name__ == wanted or name in NAMED:
            continue
        if isinstance(inspect.getattr_static(Tensor, name), staticmethod):
            continue
        is_named_twice = getattr(Tensor, found.__name__, None) is found
        if is_named_twice:
            made = _named(found.__wrapped__ if is_short else found, wanted)
            type.__setattr__(Tensor, name, shortcut(made) if is_short else made)
        else:
            found.__name__ = wanted


def _named(function: FunctionType, name: str) -> FunctionType:
    """The same function under another name."""
    made = FunctionType(
        function.__code__, function.__globals__, name, function.__defaults__, function.__closure__
    )
    for key in ("__kwdefaults__", "__module__", "__doc__", "__annotations__"):
        setattr(made, key, getattr(function, key))
    vars(made).update(vars(function))
    return made


def _is_parameter(cls: type, value: object) -> bool:
    """Tell whether `isinstance` finds a value to be a parameter, of which one may have been made
    that kept its class."""
    if type.__instancecheck__(cls, value):
        return True
    return cls is Parameter and isinstance(value, Tensor) and "_is_param" in vars(value)


def _let_parameters_keep_their_class() -> None:
    """Let `nn.Parameter(x)` of an instance of a program's class be one of that class."""
    make: Any = Parameter.__new__

    def new(cls: type[Parameter], data: object = None, requires_grad: bool = True) -> Any:
        kind = type(data)
        if cls is not Parameter or not isinstance(data, Tensor) or not _is_kept(kind):
            return make(cls, data, requires_grad)
        made: Any = data.detach()
        given = type(made)
        if given is not kind:
            raise CallError(
                f"Parameter: detach() of a {kind.__name__} gave a {given.__name__}; it must give "
                "an instance of the same class"
            )
        made.requires_grad = requires_grad
        made._is_param = True
        return made

    type.__setattr__(Parameter, "__new__", staticmethod(new))
    type.__setattr__(ParameterClass, "__instancecheck__", _is_parameter)


def _is_kept(kind: type) -> bool:
    return _is_users(kind) and not issubclass(kind, Parameter)


def _asking(space: str, function: object) -> Any:
    """A function that asks the classes of its arguments."""
    if space not in SPACES or not isinstance(function, (FunctionType, shortcut_class())):
        return function
    if function.__name__ in ASK_NOBODY or (space == "autograd" and function.__name__ != "grad"):
        return function
    return _asking_always(function)


@cache
def _asking_always(function: FunctionType) -> Callable[..., Any]:
    """Return the one function that asks the classes of its arguments before it calls another."""

    @wraps(function)
    def call(*args: object, **kwargs: object) -> Any:
        if _state.is_off:
            return function(*args, **kwargs)
        kinds = _kinds((*args, *kwargs.values()))
        return function(*args, **kwargs) if not kinds else _ask(call, kinds, args, kwargs)

    return call


def _method(name: str, found: Callable[..., Any]) -> Callable[..., Any]:
    own = NAMED.get(name, name)

    def call(self: Tensor, *args: object, **kwargs: object) -> Any:
        function = getattr(Tensor, own)
        if _state.is_off:
            return function(self, *args, **kwargs)
        given = (self, *args)
        return _ask(function, _kinds((*given, *kwargs.values())), given, kwargs)

    call.__name__, call.__doc__ = name, found.__doc__
    return call


def _property(name: str) -> property:
    found: Any = getattr(Tensor, name)

    def get(self: Tensor) -> Any:
        if _state.is_off:
            return found.__get__(self)
        return _ask(found.__get__, [type(self)], (self,), {})

    return property(get, found.fset, doc=found.__doc__)


class _Member:
    """A member of Tensor that programs do not know, so that a class may use its name for something
    else (`meta` of MONAI): modules of this library get the member, all others the class's own.
    """

    def __init__(self, name: str, kind: type[Tensor]) -> None:
        self._name = name
        self._slot: Any = getattr(Tensor, name)
        users = (
            vars(base)[name] for base in kind.__mro__ if _is_users(base) and name in vars(base)
        )
        self._own: Any = next((found for found in users if not isinstance(found, _Member)), None)

    def __get__(self, x: Tensor | None, kind: type[Tensor]) -> Any:
        if x is None:
            return self._slot if self._own is None else self._own
        if _is_called_by_library():
            return self._slot.__get__(x, kind)
        if self._name in x.__dict__:
            return x.__dict__[self._name]
        if self._own is None:
            raise AttributeError(f"{kind.__name__!r} object has no attribute {self._name!r}")
        bind = getattr(self._own, "__get__", None)
        return self._own if bind is None else bind(x, kind)

    def __set__(self, x: Tensor, value: object) -> None:
        if _is_called_by_library():
            self._slot.__set__(x, value)
        elif hasattr(self._own, "__set__"):
            self._own.__set__(x, value)
        else:
            x.__dict__[self._name] = value


def _is_called_by_library() -> bool:
    """Whether the attribute is asked for in a module of this library."""
    name: str = sys._getframe(2).f_globals.get("__name__", "")
    return name.partition(".")[0] == "oneflow"


def answer_calls(kind: type[Tensor]) -> None:
    """Let calls with an instance of a class of our own ask it, like one that a program defines."""
    answering.add(kind)
    take_subclass(kind)


def _is_users(kind: type) -> bool:
    return kind in answering or kind.__module__.partition(".")[0] not in ("oneflow", "builtins")


def _asks(kind: type) -> bool:
    """Whether calls with an instance of a class ask it."""
    if not _is_users(kind):
        return False
    found = getattr(kind, "__torch_function__", None)
    if found is None or getattr(found, "asks_nobody", False):
        return False
    own = any("__torch_function__" in vars(base) for base in kind.__mro__ if _is_users(base))
    return own or not issubclass(kind, Parameter)


def _kinds(values: Sequence[object]) -> list[Any]:
    """The classes to ask among those of the values, also inside of lists: subclasses first."""
    found: list[type] = []
    for value in values:
        kind = value.__class__
        if kind is Tensor:
            continue
        if isinstance(value, (list, tuple)):
            for inner in _kinds(value):
                _enter(found, inner)
        elif _asks(kind):
            _enter(found, kind)
    return found


def _enter(found: list[type], kind: type) -> None:
    if kind in found:
        return
    at = next((i for i, known in enumerate(found) if issubclass(kind, known)), len(found))
    found.insert(at, kind)


def _ask(
    function: Callable[..., Any],
    kinds: list[Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    for kind in kinds:
        made = kind.__torch_function__(function, tuple(kinds), args, kwargs)
        if made is not NotImplemented:
            return made
    name = getattr(function, "__name__", "a function")
    raise CallError(
        f"{name}: all __torch_function__ handlers returned NotImplemented: "
        f"{[kind.__name__ for kind in kinds]}"
    )


def _default(
    cls: type[Tensor],
    func: Callable[..., Any],
    types: Sequence[type],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Call the function; its tensors become instances of the class."""
    if not all(issubclass(cls, kind) for kind in types):
        return NotImplemented
    with without_subclasses():
        return _convert(func(*args, **(kwargs or {})), cls)


def _convert(value: object, kind: type[Tensor]) -> Any:
    if isinstance(value, Tensor):
        return value if isinstance(value, kind) or kind is Tensor else _copied(value, kind)
    if isinstance(value, (list, tuple)):
        made = [_convert(one, kind) for one in value]
        make: Any = type(value)
        return make(*made) if hasattr(value, "_fields") else make(made)
    return value


def _copied(x: Tensor, kind: type[T]) -> T:
    """An instance of a class that is the tensor in all else."""
    made: T = object.__new__(kind)
    for name in MEMBERS:
        setattr(made, name, getattr(x, name))
    return made


def as_subclass(self: Tensor, cls: type[T]) -> T:
    """The tensor as an instance of a subclass, over the same memory, with its history."""
    if not (isinstance(cls, type) and issubclass(cls, Tensor)):
        raise CallError(f"as_subclass takes a subclass of Tensor, got {cls!r}")
    with without_subclasses():
        x = view_as(self, self) if self.requires_grad else self.detach()
    return _copied(x, cls)


def make_subclass(
    cls: type[Tensor], data: Tensor, require_grad: bool = False, *_: object, **__: object
) -> Any:
    """A leaf that is an instance of a subclass, over the memory of `data`."""
    with without_subclasses():
        made = _copied(data.detach(), cls)
        made.requires_grad = require_grad
    return made


def make_wrapper_subclass(cls: type, *_: object, **__: object) -> NoReturn:
    """Refuse: a tensor without memory of its own would need modes of dispatch."""
    raise OneFlowError(
        "Tensor._make_wrapper_subclass: a subclass here has memory; make it with as_subclass, or "
        "keep the inner tensor in an attribute and define __torch_function__"
    )


# ---- torch.overrides -----------------------------------------------------------------------------


def has_torch_function(relevant_args: Sequence[Any]) -> bool:
    """Return whether the class of an argument is asked."""
    return not _state.is_off and bool(_kinds(relevant_args))


has_torch_function_variadic: Callable[..., bool]


def handle_torch_function(
    public_api: Callable[..., Any],
    relevant_args: Sequence[Any],
    *args: object,
    **kwargs: object,
) -> Any:
    """Return the result that the classes of the arguments give a call."""
    return _ask(public_api, _kinds(relevant_args), args, kwargs)


def is_tensor_like(inp: object) -> bool:
    """Return whether a value is a tensor, or its class has `__torch_function__`."""
    return isinstance(inp, Tensor) or hasattr(type(inp), "__torch_function__")


def is_tensor_method_or_property(func: Callable[..., Any]) -> bool:
    """Return whether a function is a method of Tensor."""
    name = getattr(func, "__name__", "")
    return getattr(Tensor, name, None) is func


def get_default_nowrap_functions() -> set[Callable[..., Any]]:
    """Return the functions whose results keep their class: none beside the properties."""
    return set()


def resolve_name(f: Callable[..., Any]) -> str:
    """Return the name of a function with its module."""
    return f"{f.__module__}.{f.__qualname__}"


def _variadic(*args: object) -> bool:
    return has_torch_function(args)


has_torch_function_variadic = has_torch_function_unary = _variadic


class TorchFunctionMode:
    """A mode that is asked about every function: refused."""

    def __init__(self) -> None:
        raise OneFlowError(
            "TorchFunctionMode: functions ask the classes of their arguments alone; define "
            "__torch_function__ in a subclass of Tensor"
        )
