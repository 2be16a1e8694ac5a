"""Dual objects: a value of PyTorch's and ours, on which every call runs twice.

`torch` is the pair of both packages. An attribute of a pair is a pair, and so is the result of a
call; arguments that are pairs or generators become a value for each library. Within an AutoTest
the results of each call are compared (runs.py).
"""

from __future__ import annotations

import inspect
import operator
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oneflow import sbp
from oneflow.env import all_device_placement
from oneflow.nn.module import Module
from oneflow.tensor.tensor import Tensor
from oneflow.test_utils.automated_test_util.comparing import ABSENT, Foreign, is_pytorch, named
from oneflow.test_utils.automated_test_util.generators import Nothing, generator, pytorch
from oneflow.test_utils.automated_test_util.graph_check import EAGER_ONLY, GraphCall
from oneflow.test_utils.automated_test_util.runs import DifferenceError, Run

LONGEST_NAME = 60
OWN = frozenset(("name", "pytorch", "oneflow", "owner"))
SHOWN = frozenset(("__name__", "__version__", "__module__"))
RANDOM = frozenset(("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "Tensor"))
"""Functions of `torch` whose numbers ours takes from PyTorch: they must be the same to go on."""


@dataclass
class State:
    """The test that runs. profiled: Functions by the names of pairs, which measure their calls
    instead.  libraries: Those that take part.
    """

    run: Run | None = None
    is_global: bool = False
    profiled: dict[str, Callable[..., Any]] = field(default_factory=dict)
    libraries: tuple[str, ...] = ("oneflow", "pytorch")


state = State()


class DualObject:
    """A value of each library. owner: The pair of which this is an attribute."""

    def __init__(
        self, name: str, pytorch: object, oneflow: object, owner: DualObject | None = None
    ) -> None:
        members = {"name": name, "pytorch": pytorch, "oneflow": oneflow, "owner": owner}
        self.__dict__.update(members)

    def __repr__(self) -> str:
        return f"PyTorch object:\n{self.pytorch}\n\nOneFlow object:\n{self.oneflow}"

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__") and key not in SHOWN:
            raise AttributeError(key)
        theirs, ours = _theirs(self.pytorch, key), _member(self.oneflow, key)
        if theirs is None and ours is None:
            return None
        if state.run is not None and key == "grad" and None in (theirs, ours):
            raise state.run.failure(f"gradient of {describe(self)}: one library has none")
        name = f"{self.name}.{key}" if self.name else key
        return DualObject(name, theirs, ours, self)

    def __setattr__(self, key: str, value: object) -> None:
        for side, owner in (("pytorch", self.pytorch), ("oneflow", self.oneflow)):
            if owner is not ABSENT:
                setattr(owner, key, _for_side(value, side))

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if state.profiled and (name := _op_name(self)) in state.profiled:
            return state.profiled[name](self, args, kwargs)
        _annotate(self.pytorch, args, kwargs)
        description = f"{_called_name(self)}({describe_all(args, kwargs)})"
        both = {side: arguments(args, kwargs, side) for side in ("pytorch", "oneflow")}

        def call(side: str) -> Any:
            function = getattr(self, side)
            positional, keywords = both[side]
            return ABSENT if function is ABSENT else function(*positional, **keywords)

        graph = self._graph_call(*both["oneflow"])
        theirs, ours = _run(description, call, graph)
        if self.name in RANDOM:
            ours = _same_numbers(theirs, ours)
        return made(description, theirs, ours)

    def _graph_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> GraphCall | None:
        """The call once more, to be traced; None if no graph holds it."""
        key = self.name.rpartition(".")[2]
        owner = self.owner.oneflow if self.owner is not None else None
        if key in EAGER_ONLY or isinstance(owner, Module) or not callable(self.oneflow):
            return None
        if isinstance(owner, Tensor):
            return GraphCall(lambda x, *a, **k: getattr(x, key)(*a, **k), (owner, *args), kwargs)
        return GraphCall(self.oneflow, args, kwargs)

    def __enter__(self) -> DualObject:
        for side in (self.pytorch, self.oneflow):
            if side is not ABSENT:
                side.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for side in (self.oneflow, self.pytorch):
            if side is not ABSENT:
                side.__exit__(*error)

    def __iter__(self) -> Iterator[DualObject]:
        for i in range(_number("len", len)(self)):
            yield _operate("getitem", operator.getitem, (self, i))

    def __array__(
        self, dtype: type | None = None, copy: bool | None = None
    ) -> np.ndarray[Any, Any]:
        """Return PyTorch's array for functions of NumPy."""
        array: np.ndarray[Any, Any] = np.array(self.pytorch, dtype)
        return array

    def __setitem__(self, key: object, value: object) -> None:
        _operate("setitem", operator.setitem, (self, key, value))

    def __delitem__(self, key: object) -> None:
        _operate("delitem", operator.delitem, (self, key))

    __hash__ = object.__hash__
    __array_ufunc__ = None  # so that operators between arrays and pairs are those of pairs


def _operator(name: str, function: Callable[..., Any], is_reflected: bool = False) -> Any:
    """The method of an operator, which gives a pair."""

    def method(self: DualObject, *others: object) -> Any:
        operands = (*others, self) if is_reflected else (self, *others)
        return _operate(name, function, operands)

    return method


def _number(name: str, function: Callable[[Any], Any]) -> Any:
    """The method of a conversion, which gives one value that both libraries must agree on."""

    def method(self: DualObject) -> Any:
        values = [function(x) for x in (self.pytorch, self.oneflow) if x is not ABSENT]
        if len(values) == 2 and not np.isclose(values[0], values[1], equal_nan=True):
            said = f"{name} of {describe(self)}: PyTorch {values[0]}, OneFlow {values[1]}"
            raise DifferenceError(said) if state.run is None else state.run.failure(said)
        return values[0]

    return method


REFLECTED = "add sub mul matmul truediv floordiv mod pow and_ or_ xor lshift rshift"
COMPARED = "eq ne lt le gt ge"
UNARY = "neg pos abs invert getitem"
for _name in (REFLECTED + " " + COMPARED + " " + UNARY).split():
    _bare = _name.rstrip("_")
    setattr(DualObject, f"__{_bare}__", _operator(_bare, getattr(operator, _name)))
for _name in REFLECTED.split():
    _bare = _name.rstrip("_")
    setattr(DualObject, f"__r{_bare}__", _operator(_bare, getattr(operator, _name), True))
    setattr(DualObject, f"__i{_bare}__", _operator(f"i{_bare}", getattr(operator, f"i{_bare}")))
for _convert in (bool, int, float, complex, len, operator.index):
    setattr(DualObject, f"__{_convert.__name__}__", _number(_convert.__name__, _convert))


class _Packages(DualObject):
    """Both packages; PyTorch is imported at its first use."""

    def __init__(self) -> None:
        self.__dict__.update(name="", owner=None)

    @property
    def pytorch(self) -> Any:
        return pytorch() if "pytorch" in state.libraries else ABSENT

    @property
    def oneflow(self) -> Any:
        return sys.modules["oneflow"] if "oneflow" in state.libraries else ABSENT


torch = _Packages()


def made(name: str, theirs: object, ours: object) -> Any:
    """Return the pair of two results: modules get the same parameters, tensors are noted."""
    if is_pytorch(theirs, "nn.Module") and isinstance(ours, Module):
        ours = _same_parameters(theirs, ours)
    if theirs is None and ours in (None, ABSENT):
        return None
    is_kept = is_pytorch(theirs) or is_pytorch(theirs, "nn.Module")
    if state.run is not None and is_kept and ours is not ABSENT:
        state.run.note(name, theirs, ours)
    return DualObject(name, theirs, ours)


def _same_parameters(theirs: Foreign, ours: Module) -> Module:
    """Copy the parameters and buffers of a module into ours, which is made global if need be."""
    own = ours.state_dict()
    given = {k: v.detach().cpu().numpy() for k, v in theirs.state_dict().items() if k in own}
    if state.is_global and not any(x.is_global for x in own.values()):
        ours = ours.to_global(placement=all_device_placement("cpu"), sbp=[sbp.broadcast])
        own = ours.state_dict()
    for key, value in given.items():
        _write(own[key], value)
    return ours


def _write(x: Tensor, value: np.ndarray[Any, Any]) -> None:
    """Write values into a tensor, which may be global."""
    flow: Any = sys.modules["oneflow"]
    with flow.no_grad():
        where = {"placement": x.placement, "sbp": x.sbp} if x.is_global else {}
        x.copy_(flow.tensor(value, dtype=x.dtype, **where))


def _same_numbers(theirs: object, ours: object) -> object:
    """Give our random tensor PyTorch's numbers, if it has their shape."""
    if not is_pytorch(theirs) or not isinstance(ours, Tensor):
        return ours
    if tuple(ours.shape) == tuple(theirs.shape):
        _write(ours, theirs.detach().cpu().numpy())
    return ours


def _run(text: str, call: Callable[[str], Any], graph: GraphCall | None) -> tuple[Any, Any]:
    """Call both sides, which the AutoTest that runs compares."""
    if state.run is None:
        return call("pytorch"), call("oneflow")
    return state.run.call(text, lambda: call("pytorch"), lambda: call("oneflow"), graph)


def _operate(name: str, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """Apply an operator to both sides."""
    both = {side: arguments(operands, {}, side)[0] for side in ("pytorch", "oneflow")}
    text = f"{name}({describe_all(operands, {})})"

    def call(side: str) -> Any:
        given = both[side]
        return ABSENT if any(x is ABSENT for x in given) else function(*given)

    graph = GraphCall(function, both["oneflow"], {}) if name not in ("setitem", "delitem") else None
    return made(text, *_run(text, call, graph))


def _member(x: object, key: str) -> Any:
    return ABSENT if x is ABSENT else getattr(x, key)


def _theirs(x: object, key: str) -> Any:
    """The attribute of PyTorch's value; for names that it lacks, the value on one rank."""
    if x is ABSENT or key in ("placement", "sbp"):
        return ABSENT
    if key in ("to_global", "to_local"):
        return lambda *_, **__: x.clone() if is_pytorch(x) else x
    if key == "broadcast_like" and is_pytorch(x):
        expand = x.broadcast_to
        return lambda other, *_, **__: expand(other.size())
    return getattr(x, key)


def _for_side(x: object, side: str) -> Any:
    """The value of an argument for a library."""
    if isinstance(x, generator):
        x = x.value()
    if isinstance(x, DualObject):
        return getattr(x, side)
    if isinstance(x, (list, tuple)) and type(x) in (list, tuple):
        return type(x)(_for_side(one, side) for one in x)
    if type(x) is dict:
        return {key: _for_side(value, side) for key, value in x.items()}
    if isinstance(x, slice):
        return slice(*(_for_side(one, side) for one in (x.start, x.stop, x.step)))
    return x


def arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], side: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call for one library, without those that are nothing."""
    positional = (_for_side(x, side) for x in args)
    keywords = {key: _for_side(x, side) for key, x in kwargs.items()}
    return (
        tuple(x for x in positional if not isinstance(x, Nothing)),
        {key: x for key, x in keywords.items() if not isinstance(x, Nothing)},
    )


def _annotate(function: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Tell generators among the arguments the types of PyTorch's parameters."""
    if function is ABSENT or not any(isinstance(x, generator) for x in (*args, *kwargs.values())):
        return
    if is_pytorch(function, "nn.Module"):
        function = function.forward
    target: Any = function
    hinted = target.__init__ if inspect.isclass(function) else target
    try:
        types = typing.get_type_hints(hinted)
        names = list(inspect.signature(target).parameters)
    except (TypeError, ValueError, NameError):  # a function that is compiled
        return
    for name, given in (*zip(names, args, strict=False), *kwargs.items()):
        if isinstance(given, generator) and (name in types or name not in names):
            given.to(types.get(name, float))  # PyTorch refuses a name that it does not have


def _op_name(pair: DualObject) -> str:
    """The name by which `profile` knows a function: a method of a tensor is one of its class."""
    owner = pair.owner
    is_method = owner is not None and any(
        is_pytorch(x) or isinstance(x, Tensor) for x in (owner.pytorch, owner.oneflow)
    )
    return f"Tensor.{pair.name.rpartition('.')[2]}" if is_method else pair.name


def _called_name(pair: DualObject) -> str:
    """The name of a function, or of a method of a value; a module by its class."""
    if is_pytorch(pair.pytorch, "nn.Module"):
        return type(pair.pytorch).__name__
    owner = pair.owner
    is_method = owner is not None and (is_pytorch(owner.pytorch) or len(pair.name) > LONGEST_NAME)
    return f"{describe(owner)}.{pair.name.rpartition('.')[2]}" if is_method else pair.name


def describe(x: object) -> str:
    """Return an argument as text: tensors by dtype and shape, where their names are long."""
    if isinstance(x, generator):
        x = x.value()
    if isinstance(x, DualObject):
        held = x.pytorch if x.pytorch is not ABSENT else x.oneflow
        is_tensor = is_pytorch(held) or isinstance(held, Tensor)
        return named(held) if is_tensor and state.run is not None else x.name[:LONGEST_NAME]
    if isinstance(x, (list, tuple)):
        inner = ", ".join(describe(one) for one in x)
        return f"[{inner}]" if isinstance(x, list) else f"({inner}{',' if len(x) == 1 else ''})"
    return repr(x) if len(repr(x)) <= LONGEST_NAME else type(x).__name__


def describe_all(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return the arguments of a call as text."""
    words = [describe(x) for x in args] + [f"{key}={describe(x)}" for key, x in kwargs.items()]
    return ", ".join(words)
