"""`@profile(op)`: calls of an op within a method are measured, not only made."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from oneflow.autoprof.measuring import Row, measure_call
from oneflow.test_utils.automated_test_util.dual_object import (
    DualObject,
    arguments,
    describe_all,
    state,
)

reporters: list[Callable[[list[Row]], object]] = []
"""Functions that are given the measurements of each call."""


def profile(op: DualObject) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """Return a decorator of a method whose calls of `op` are measured on each library.

    Such a call returns its measurements. `python -m oneflow.autoprof` makes a table of them.
    """

    def decorate(method: Callable[..., object]) -> Callable[..., None]:
        @functools.wraps(method)
        def run(*args: object, **kwargs: object) -> None:
            before = state.profiled
            state.profiled = {**before, op.name: functools.partial(measure, op.name)}
            try:
                method(*args, **kwargs)
            finally:
                state.profiled = before

        return run

    return decorate


def measure(name: str, op: DualObject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Row]:
    """Measure one call on the libraries that take part, and report it by the name of its op."""
    description = str(kwargs.pop("profile_description", "") or "")
    text = describe_all(args, kwargs)
    rows = []
    for library in state.libraries:
        positional, keywords = arguments(args, kwargs, library)
        times = measure_call(library, getattr(op, library), positional, keywords)
        rows.append(Row(name, text, library, times, description))
    for report in reporters:
        report(rows)
    return rows
