"""Calls of functions and modules that are compiled where they can be, and else run as they are."""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, TypeVar, cast

from oneflow.amp.autocasting import Autocasting
from oneflow.core.dispatch import Mode, current_mode
from oneflow.core.location import package_file
from oneflow.graph.functions.function import CompiledFunction
from oneflow.graph.functions.plan import FunctionPlan
from oneflow.graph.functions.traces import PARAMETERS, apart_of, modules_of
from oneflow.nn.module import Module
from oneflow.tensor.gate import Place, lifted

F = TypeVar("F", bound=Callable[..., Any])

PLANS = 8
"""Plans of a function that are kept."""
PATIENCE = 4
"""A function of which so many times PLANS kinds of calls came, and few of them again, is given up.
"""
TRIES = 2
"""Calls of one kind that are tried, with other objects each time, where none of them compiled."""


class NotCompiledWarning(UserWarning):
    """A function that is to be compiled runs as it is; the text says why, and where."""


class CompiledCalls:
    """Calls a function: compiled, or, where it cannot be, as it is, which it says once.

    fullgraph: a call that cannot be compiled is an error.
    """

    def __init__(self, function: Callable[..., Any], fullgraph: bool = False) -> None:
        self._begin(function, fullgraph)

    def _begin(self, function: Callable[..., Any], fullgraph: bool) -> None:
        self._function, self._fullgraph = function, fullgraph
        self._compiled = CompiledFunction(function, PLANS)
        self._refused: set[Hashable] = set()
        self._tries: Counter[Hashable] = Counter()
        """Failed traces of each kind of call, in which objects are told apart by their types; -1
        where a trace succeeded."""
        self._made = self._reused = 0
        self._is_given_up = False

    def __getstate__(self) -> tuple[Callable[..., Any], bool]:
        return self._function, self._fullgraph

    def __setstate__(self, state: tuple[Callable[..., Any], bool]) -> None:
        self._begin(*state)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if self._is_given_up or not _is_plain(current_mode()):
            return self._function(*args, **kwargs)
        given: tuple[Any, ...] = args, kwargs
        with lifted() as gates:
            places: list[Place] = []
            if gates.apart:
                places, parameters = apart_of(modules_of(self._function, given), gates)
                given = args, {**kwargs, PARAMETERS: parameters}
            key = self._compiled.key(given, places)
            found = self._look_up(key, given, places)
            if isinstance(found, FunctionPlan):
                return found.run(given, gates.behind)
        if found is None:
            return self._function(*args, **kwargs)
        return self._run_as_it_is(key, (args, kwargs), found)

    def _look_up(
        self, key: Hashable, given: tuple[Any, ...], places: list[Place]
    ) -> FunctionPlan | Exception | None:
        """The plan of a call; the error of the first call that has none, and None thereafter."""
        if key in self._refused:
            return None
        plan = self._compiled.find(key)
        kind = self._compiled.key(given, places, by_type=True) if plan is None else None
        plan = plan or self._compiled.take_over(key, kind, given)
        if plan is not None:
            self._reused += 1
            return plan
        if self._tries[kind] >= TRIES:
            self._refused.add(key)
            return None
        try:
            plan = self._compiled.add(key, kind, given, places)
        except Exception as error:
            if self._fullgraph:
                raise
            self._tries[kind] += self._tries[kind] >= 0
            return error
        self._tries[kind] = -1
        self._count()
        return plan

    def forget(self) -> None:
        """Give up all plans, and all refusals."""
        self._compiled.forget()
        self._refused.clear()
        self._tries.clear()
        self._made = self._reused = 0
        self._is_given_up = False

    def _run_as_it_is(self, key: Hashable, given: tuple[Any, ...], error: Exception) -> Any:
        args, kwargs = given
        result = self._function(*args, **kwargs)  # raises itself what is wrong with the call
        self._refused.add(key)
        text = str(error).partition("\n")[0] or type(error).__name__
        self._say(f"{text}{_place(error)}")
        if not self._made and len(self._tries) >= PLANS:
            self._is_given_up = True
        return result

    def _count(self) -> None:
        self._made += 1
        if self._made >= PATIENCE * PLANS and self._reused < self._made:
            self._is_given_up = True
            self._compiled.forget()
            self._say(
                f"{self._made} kinds of calls came, and hardly one of them twice; pad what is "
                "given to a few shapes"
            )

    def _say(self, why: str) -> None:
        name = getattr(self._function, "__qualname__", type(self._function).__name__)
        warnings.warn(f"{name} runs as it is: {why}", NotCompiledWarning, stacklevel=5)


def _is_plain(mode: Mode) -> bool:
    """Whether ops run at once, on real values: in no other mode calls are compiled."""
    while isinstance(mode, Autocasting):
        mode = mode.inner
    return mode.replays and mode.draws is None


def _place(error: Exception) -> str:
    """The line of the user's code in which an error was raised, unless its text has it."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not package_file(frame.filename):
            place = f"{frame.filename}:{frame.lineno}"
            return "" if place in str(error) else f" ({place})"
    return ""


def compiled_call(function: F, fullgraph: bool = False) -> F:
    """A function that calls another one compiled; `calls` of it are its `CompiledCalls`."""
    calls = CompiledCalls(function, fullgraph)

    @wraps(function)
    def call(*args: object, **kwargs: object) -> Any:
        return calls(*args, **kwargs)

    vars(call)["calls"] = calls
    return cast(F, call)


def compile_forward(module: Module, fullgraph: bool) -> None:
    """Let the `forward` of a module be compiled from now on."""
    forward = type(module).forward.__get__(module)
    module.forward = CompiledCalls(forward, fullgraph)
