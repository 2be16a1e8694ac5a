"""Functions as users find them: the rows of `oneflow/api`, looked up, promoted and renamed.

`find("flow", "exp")` imports the home of the row named `exp` and returns the function that users
call as `oneflow.exp`. A function is made once, so `flow.relu is flow.nn.functional.relu`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

from oneflow.api import ROWS, Row, spellings
from oneflow.api.examples import example_of

IN_PLACE = {"flow_": "flow", "tensor_": "tensor", "F_": "F"}
"""Surfaces of functions that write into their first argument, and the namespaces they join."""

FORWARDED = ("flow", "F", "linalg", "fft", "special", "tensor")
"""Surfaces whose functions `flow._C` offers too, if it has no other of the name; the first wins."""

WITH_OUT = frozenset(("flow", "linalg", "special", "fft"))
"""Surfaces whose functions may take `out=`."""

FUNCTIONS = (
    *("oneflow.functional.", "oneflow.ops.", "oneflow.compat.torch.native_functions"),
    *("oneflow.compat.torch.methods", "oneflow.compat.torch.untyped_storage"),
    *("oneflow.compat.torch.legacy_types", "oneflow.compat.torch.small"),
    "oneflow.compat.upstream.",
)
"""Beginnings of the homes of functions of tensors."""

CHECKED_INSIDE = ("add", "sub", "mul", "div", "matmul", "relu", "sigmoid", "tanh", "gelu", "silu")
"""Functions of every training step that look at their operands themselves: one call less."""

SHORT = frozenset((
    *("abs", "add", "bmm", "clamp", "cos", "cross_entropy", "div", "eq", "erf", "exp", "flatten"),
    *("ge", "gelu", "gt", "index_select", "layer_norm", "le", "linear", "log", "log_softmax"),
    *("logical_and", "logical_not", "logical_or", "lt", "matmul", "maximum", "mean", "minimum"),
    *("mish", "mm", "mse_loss", "mul", "ne", "neg", "permute", "pow", "reciprocal", "relu"),
    *("reshape", "rms_norm", "rsqrt", "sigmoid", "silu", "sin", "softmax", "softplus", "sqrt"),
    *("square", "squeeze", "sub", "sum", "t", "tanh", "transpose", "unsqueeze", "view", "where"),
))  # fmt: skip
"""Functions with a shortcut (oneflow/tensor/shortcuts.py): what they do follows from the types of
their tensors and the values of their other arguments."""

NO_TENSORS = frozenset((float, int, bool, str, tuple, list, type(None)))
"""Classes of most arguments that are to be numbers: none of these has a gradient to lose."""

NUMERIC = frozenset(("Number", "float", "int", "Size", "Factors", "str", "None"))
"""Words of annotations of parameters that take numbers, and a tensor only as one."""

NO_NUMBER = frozenset(("str", "None"))

NOWHERE = 1 << 30
"""The position of a parameter that has none."""

NUMPY_KEYWORDS = {"axis": "dim", "keepdims": "keepdim"}
"""Keywords of NumPy that PyTorch and OneFlow take wherever they have the other one."""


@cache
def index() -> dict[str, dict[str, tuple[Row, bool]]]:
    """Namespace -> public name -> its row, and whether it is the form that writes in place."""
    found: dict[str, dict[str, tuple[Row, bool]]] = {}
    for row in ROWS:
        for surface in row.surfaces:
            in_place = surface in IN_PLACE
            space = found.setdefault(IN_PLACE.get(surface, surface), {})
            for name in row.names:
                space[f"{name}_" if in_place else name] = (row, in_place)
    own = found["_C"]
    for surface in FORWARDED:
        for name, entry in found[surface].items():
            if entry[0].home.startswith(FUNCTIONS):
                own.setdefault(name, entry)
    return found


mocked: Callable[[], bool] | None = None
"""Says whether programs of PyTorch run, once mock_torch was enabled."""
asking: Callable[[str, Any], Any] | None = None
"""Makes functions of a namespace ask the classes of their arguments, once there are subclasses of
Tensor that are to be asked."""


def names(space: str) -> list[str]:
    """The public names of one namespace ("flow", "tensor", "F", "linalg", ...), sorted."""
    return sorted(index()[space])


def find(space: str, name: str) -> Any:
    """The function or object called `name` in a namespace.

    Raises AttributeError, worded as for a module, if no row puts that name there.
    """
    entry = index()[space].get(name)
    if entry is None:
        raise AttributeError(f"module {_module_of(space)!r} has no attribute {name!r}")
    found = _made(id(entry[0]), entry[1]) if entry[1] else _function(id(entry[0]))
    return found if asking is None else asking(space, found)


_BY_ID = {id(row): row for row in ROWS}


@cache
def _function(key: int) -> Any:
    """Return the function or class that a row's users call. key: the id of the row, which lives as
    long as the program.
    """
    row = _BY_ID[key]
    found = _written(key)
    if row.autocast:
        from oneflow.functional.promotion import recast

        found = recast(found, row.autocast)
    found = _placed(found, row, "")
    _add_example(found, row)
    if row.names[0] not in SHORT:
        return found
    return importlib.import_module("oneflow.tensor.shortcuts").shortcut(found)


def _placed(found: Callable[..., Any], row: Row, tail: str) -> Callable[..., Any]:
    """A function that says where it is found: pickle looks it up there."""
    spaces = [s for s in ("flow", "F", *row.surfaces) if f"{s}{tail}" in row.surfaces]
    space = next((s for s in spaces if s not in ("tensor", "tensor_", "_C")), "")
    if isinstance(found, FunctionType) and space:
        found.__module__, found.__qualname__ = _module_of(space), f"{row.names[0]}{tail}"
    return found


def _add_example(found: object, row: Row) -> None:
    """Put the row's example at the end of its docstring. A layer's docstring is its function's, and
    may have that one's example.
    """
    text = example_of(row.surfaces, row.names)
    if text and isinstance(found, (FunctionType, type)):
        said = inspect.cleandoc(found.__doc__ or "").partition("\n\n>>> ")[0]
        found.__doc__ = f"{said}\n\n{text}"


def _module_of(space: str) -> str:
    return {"flow": "oneflow", "F": "oneflow.nn.functional"}.get(space, f"oneflow.{space}")


@cache
def _written(key: int) -> Any:
    """The function of a row outside of `autocast`."""
    row = _BY_ID[key]
    own = getattr(importlib.import_module(row.home), row.own)
    if row.promote is not None:
        from oneflow.functional.promotion import promoted

        own = promoted(own, row.own, row.promote, inplace=row.inplace)
    if "F" in row.surfaces and "reduction" in _parameters(own):
        from oneflow.functional.reduction import with_old_reduction

        own = with_old_reduction(own)
    renames, order = _spellings(row, own)
    name = row.names[0]
    takes_out = name in spellings.WRITTEN and not WITH_OUT.isdisjoint(row.surfaces)
    takes_out = takes_out and "out" not in _parameters(own)  # what every step calls sees to it
    writes = name if takes_out else ""
    of_pytorch = tuple(spellings.ORDERS_OF_PYTORCH.get(name, "").split())
    if renames or order or writes or of_pytorch:
        return _taking(own, renames, order, writes, of_pytorch)
    is_checked = isinstance(own, FunctionType) and row.home.startswith(FUNCTIONS)
    return _checked(own) if is_checked and name not in CHECKED_INSIDE else own


@cache
def _made(key: int, in_place: bool) -> Any:
    from oneflow.tensor.inplace import in_place as writing

    made = writing(_written(key))  # which autocast leaves alone, as PyTorch's does
    return _placed(made, _BY_ID[key], "_")


def _parameters(function: object) -> tuple[str, ...]:
    """Names of the parameters of a function, or of the one that it wraps."""
    function = getattr(function, "__wrapped__", function)
    if not isinstance(function, FunctionType):
        return ()
    code = function.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _numpy_names(function: object) -> dict[str, str]:
    own = _parameters(function)
    return {k: v for k, v in NUMPY_KEYWORDS.items() if v in own and k not in own}


def _spellings(row: Row, own: object) -> tuple[dict[str, str], tuple[str, ...]]:
    """Other keywords of a row's function, and its positional order ((): its own one)."""
    name = row.names[0]
    renames = {**_numpy_names(own), **row.keywords}
    if row.surfaces == ("_C",):
        return renames, row.order
    renames |= dict(pair.split("=") for pair in spellings.KEYWORDS.get(name, "").split())
    plain = inspect.unwrap(own) if isinstance(own, FunctionType) else own
    if isinstance(plain, FunctionType) and (renames or name in spellings.OF_X):
        code = plain.__code__
        taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if code.co_argcount and taken[0] in spellings.FIRST:
            renames |= {x: taken[0] for x in spellings.FIRST if x not in taken and x not in renames}
    return renames, row.order or tuple(spellings.ORDERS.get(name, "").split())


def _taking(
    function: Callable[..., Any],
    renames: dict[str, str],
    order: tuple[str, ...],
    writes: str,
    of_pytorch: tuple[str, ...] = (),
) -> Callable[..., Any]:
    """`function` under other spellings of its keywords, and in another positional order.

    writes: the name under which it takes `out=`, too; "" if it does not. of_pytorch: the positional
    order in programs of PyTorch, if it is another one.
    """
    numbers = _numbers_of(function)

    def apply(*args: Any, **keywords: Any) -> Any:
        places = of_pytorch if of_pytorch and mocked is not None and mocked() else order
        if places:
            keywords = {**dict(zip(places, args, strict=False)), **keywords}
            args = args[len(places) :]
        if keywords:
            if writes and "out" in keywords and (out := keywords.pop("out")) is not None:
                from oneflow.functional.results import written

                result = apply(*args, **keywords)
                return written(result, out, (*args, *keywords.values()), writes)
            for theirs in renames.keys() & keywords.keys():
                ours = renames[theirs]
                if not ours:
                    del keywords[theirs]
                    continue
                if ours in keywords:
                    raise TypeError(
                        f"{function.__name__}() got {ours} and {theirs}, which mean the same"
                    )
                keywords[ours] = keywords.pop(theirs)
        try:
            if numbers:
                args, keywords = _as_numbers(function, numbers, args, keywords)
            return function(*args, **keywords)
        except Exception as error:
            if (plain := _misuse().plain(args, keywords)) is None:
                _misuse().explain(function, args, keywords, error)
                raise
        return apply(*plain[0], **plain[1])

    return _named_as(apply, function)


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose errors inside name the argument that is to blame.

    NumPy's numbers are numbers: a call that fails with some is made again with Python's.
    """
    numbers = _numbers_of(function)

    def apply(*args: object, **keywords: object) -> Any:
        try:
            if numbers:
                args, keywords = _as_numbers(function, numbers, args, keywords)
            return function(*args, **keywords)
        except Exception as error:
            if (plain := _misuse().plain(args, keywords)) is None:
                _misuse().explain(function, args, keywords, error)
                raise
        return apply(*plain[0], **plain[1])

    return _named_as(apply, function)


def _numbers_of(function: Callable[..., Any]) -> tuple[tuple[str, int], ...]:
    """Name and position of each parameter of a function that takes numbers and no tensors."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(
        (p.name, place if p.kind is p.POSITIONAL_OR_KEYWORD else NOWHERE)
        for place, p in enumerate(parameters)
        if set(words := str(p.annotation).split(" | ")) <= NUMERIC
        and not NO_NUMBER.issuperset(words)
    )


def _as_numbers(
    function: Callable[..., Any],
    numbers: tuple[tuple[str, int], ...],
    args: tuple[Any, ...],
    keywords: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, with a number in place of each tensor that stands for one."""
    given = len(args)
    for name, place in numbers:
        value = args[place] if place < given else keywords.get(name)
        if value.__class__ not in NO_TENSORS:
            found: tuple[Any, Any] = _misuse().as_numbers(function, numbers, args, keywords)
            return found
    return args, keywords


def _misuse() -> Any:
    return importlib.import_module("oneflow.functional.argument_errors")


def _named_as(apply: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    apply.__name__ = function.__name__
    apply.__qualname__ = function.__qualname__
    apply.__module__ = function.__module__
    apply.__doc__ = function.__doc__
    apply.__dict__.update(function.__dict__)
    apply.__dict__["__wrapped__"] = function  # inspect.signature follows it
    return apply


class _Namespace(ModuleType):
    """A module whose public names are not hidden by modules imported below it: `oneflow.tensor` and
    `nn.functional.pad` are functions to users, and a package or a path of upstream besides.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in self.__dict__["_own_names"]):
            super().__setattr__(name, value)


def open_module(module: str, space: str, modules: tuple[str, ...] = ()) -> None:
    """Lets the module of that name answer for a namespace: its attributes, `dir()`, `__all__`.

    modules: sub-modules that are imported when users first ask for them.  Names that the module
    defines itself come first.
    """
    here = sys.modules[module]

    def get(name: str) -> Any:
        if name in modules:
            found: Any = importlib.import_module(f"{module}.{name}")
        elif name.startswith("__") and name != "__config__":  # a module of PyTorch's
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        elif name in index().get(space, ()):
            found = find(space, name)
        else:
            found = below(module, name)
        setattr(here, name, found)
        return found

    offered = sorted({*names(space), *modules})
    here.__dict__.update(__getattr__=get, __dir__=lambda: offered, __all__=offered)
    accept_paths(module, names(space))


def accept_paths(module: str, own_names: Iterable[str] | None = None) -> None:
    """Let upstream's paths below a module of ours be imported: see oneflow/paths.py.

    own_names: those that no such import hides; all that the module has so far, by default.
    """
    here = sys.modules[module]
    space = here.__dict__
    space["_own_names"] = frozenset(space if own_names is None else own_names)
    if own_names is None and "__all__" in space:
        more = index().get(module.removeprefix("oneflow."), {})
        space["__all__"] = sorted({*space["__all__"], *(n for n in more if n[0] != "_")})
    space.setdefault("__path__", [])
    space.setdefault("__getattr__", partial(below, module))
    here.__class__ = _Namespace


def open_later(package: str, homes: dict[str, str]) -> None:
    """Let a package of ours answer for names that its modules define, each imported at first use.

    homes: public name -> the module below the package that defines it, or that is called so.
    """
    here = sys.modules[package].__dict__

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = importlib.import_module(f"{package}.{homes[name]}")
        return home if homes[name] == name else getattr(home, name)

    here.update(__getattr__=get, __dir__=lambda: sorted({*here, *homes}))


def below(module: str, name: str) -> Any:
    """Return another name below a module of ours: one that the table puts there from another
    home, or a module of upstream's (oneflow/paths.py).

    Raises AttributeError, worded as for a module, if there is neither.
    """
    space = module.removeprefix("oneflow.")
    if name in index().get(space, ()):
        return find(space, name)
    found = importlib.import_module("oneflow.paths").child(module, name)
    if found is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return found


class _PathFinder:
    """A finder that Python's import asks last."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith(("oneflow.", "oneflow_onnx")):
            return None
        found: ModuleSpec | None = importlib.import_module("oneflow.paths").find_spec(name)
        return found


sys.meta_path.append(_PathFinder)


class _Method:
    """A method that is looked up in the table, and takes its place, when it is first asked for."""

    def __init__(self, owner: type, name: str) -> None:
        self.owner, self.name = owner, name

    def __get__(self, instance: object, _: type | None = None) -> Any:
        setattr(self.owner, self.name, find("tensor", self.name))
        return getattr(self.owner if instance is None else instance, self.name)


def install_methods(tensor: type) -> None:
    """Give the Tensor class the methods of the table, whose homes are imported at their first use.

    A program uses few of them: its first op needs half of the modules that define them all.
    """
    for name in names("tensor"):
        setattr(tensor, name, _Method(tensor, name))
