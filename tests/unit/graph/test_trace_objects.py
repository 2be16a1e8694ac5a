"""Objects that differ where no code names it are seen by the key of a trace."""

from __future__ import annotations

import abc
import copy
import enum
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn

from .found_traces import Run, assert_eager, keeps_all, run

__all__ = ["keeps_all"]


@dataclass(frozen=True)
class Widths:
    by: float


class Helper:
    def __init__(self, by: float) -> None:
        self.by = by * 2


class Again(nn.Module):
    """Makes an object of the class of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.helper, self.widths = Helper(1.0), Widths(2.0)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return x * type(self.helper)(3.0).by + self.widths.by * (self.widths == self.widths)


def test_constructors_are_read_where_classes_may_be_called(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not run(Run(Again()))[0]
    assert run(Run(Again()))[0]

    def init(self: Helper, by: float) -> None:
        self.by = by

    init.__name__, init.__code__ = "__init__", init.__code__.replace(co_name="__init__")
    monkeypatch.setattr(Helper, "__init__", init)
    module = Again()
    was_found, result = run(Run(module))
    assert not was_found
    assert_eager(module, result)


class Uses(nn.Module):
    """Multiplies by what a function makes of an object."""

    def __init__(self, use: Callable[[Any], float], what: object) -> None:
        super().__init__()
        self.use, self.what = use, what

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return x * self.use(self.what)


def _kind(**entries: object) -> Any:
    """A class of one name, whatever it has."""
    return type("Kind", (), entries)


class Count(int):
    def __int__(self) -> int:
        return 7


class Word(str):
    def __str__(self) -> str:
        return self


class Listed(list[float]):
    def __iter__(self) -> Iterator[float]:
        return iter(())


class Keyed(dict[int, float]):
    def items(self) -> Any:
        return ()


class Slots:
    __slots__ = ("held",)

    def __init__(self, held: dict[str, float]) -> None:
        self.held = held

    def __getattr__(self, name: str) -> float:
        return self.held[name]


@runtime_checkable
class HasMore(Protocol):
    def more(self) -> None: ...


class Base(abc.ABC):  # noqa: B024
    pass


class Derived:
    pass


def _of_values(kind: Any) -> float:
    return float(sum(item.value for item in kind))


def _matched(x: Any) -> float:
    match x:
        case object(by=2.0):
            return 2.0
    return 3.0


def _aliased(pair: Any) -> float:
    pair[0]["n"] = 2.0
    found = pair[1].get("n", 3.0)
    pair[0].clear()
    return float(found)


EMPTY: dict[str, float] = {}
PAIRS: dict[str, tuple[Callable[[Any], float], object, object]] = {
    "attribute by a text": (
        lambda x: operator.attrgetter("by")(x), _kind(by=2.0)(), _kind(by=3.0)()),
    "method by a text": (
        lambda x: operator.methodcaller("get")(x),
        _kind(get=lambda self: 2.0)(), _kind(get=lambda self: 3.0)()),
    "attribute in a format": (
        lambda x: float("{x.by}".format_map({"x": x})), _kind(by=2.0)(), _kind(by=3.0)()),
    "text of an object": (
        lambda x: float(f"{x}"),
        _kind(__str__=lambda self: "2")(), _kind(__str__=lambda self: "3")()),
    "copy of an object": (
        lambda x: copy.copy(x),
        _kind(__copy__=lambda self: 2.0)(), _kind(__copy__=lambda self: 3.0)()),
    "documentation": (
        lambda x: len(x.__doc__) + 1.0, _kind(__doc__="a")(), _kind(__doc__="bc")()),
    "pattern": (_matched, _kind(by=2.0)(), _kind(by=3.0)()),
    "members of an enumeration": (
        _of_values, enum.Enum("Kind", {"A": 2.0}), enum.Enum("Kind", {"A": 3.0})),
    "kind of a dict": (
        lambda x: 2.0 if isinstance(x, OrderedDict) else 3.0, {"a": 1}, OrderedDict(a=1)),
    "one empty dict or two": (_aliased, [EMPTY, EMPTY], [{}, {}]),
    "protocol": (
        lambda x: 2.0 if isinstance(x, HasMore) else 3.0,
        _kind()(), _kind(more=lambda self: None)()),
    "integer": (lambda x: 0.0 + x, Count(2), Count(3)),
    "text": (lambda x: 2.0 if x == "a" else 3.0, Word("a"), Word("b")),
    "list": (lambda x: x[0], Listed([2.0]), Listed([3.0])),
    "dict": (lambda x: x[0], Keyed({0: 2.0}), Keyed({0: 3.0})),
    "slots": (lambda x: x.by, Slots({"by": 2.0}), Slots({"by": 3.0})),
    "ufunc": (
        lambda x: float(x(1.0)),
        np.frompyfunc(lambda x: 2 * x, 1, 1), np.frompyfunc(lambda x: 3 * x, 1, 1)),
    "unit": (
        lambda x: float(x / np.timedelta64(1, "s")),
        np.timedelta64(2, "s"), np.timedelta64(2, "m")),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_objects_that_differ_in_hidden_places_are_seen(name: str) -> None:
    use, *both = PAIRS[name]
    for what in both:
        module = Uses(use, what)
        was_found, result = run(Run(module))
        assert not was_found
        assert_eager(module, result)


def test_registered_classes_and_values_put_on_the_package_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asks(x: Any) -> float:
        return 2.0 if isinstance(x, Base) else 3.0

    def check(module: nn.Module) -> None:
        was_found, result = run(Run(module))
        assert not was_found
        assert_eager(module, result)

    check(Uses(asks, Derived()))
    Base.register(Derived)
    check(Uses(asks, Derived()))
    for by in (2.0, 3.0):
        monkeypatch.setattr(nn.Module, "by_all", by, raising=False)
        check(Uses(lambda x: x.by_all, nn.ReLU()))
