"""Context managers as decorators of functions and of generators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import oneflow as flow
from oneflow import profiler

DECORATORS: dict[str, Callable[[Any], Any]] = {
    "no_grad()": lambda f: f.no_grad(),
    "no_grad": lambda f: f.no_grad,
    "inference_mode()": lambda f: f.inference_mode(),
    "inference_mode(False)": lambda f: f.inference_mode(False),
    "set_grad_enabled(False)": lambda f: f.set_grad_enabled(False),
    "autograd.no_grad": lambda f: f.autograd.no_grad(),
}


def _events(f: Any, decorator: Any) -> list[Any]:
    """Whether gradients are recorded in each step of a generator, and between them."""
    seen = []

    @decorator
    def numbers(count: int) -> Iterator[int]:
        for i in range(count):
            seen.append(f.is_grad_enabled())
            try:
                given = yield i
            except KeyError:
                seen.append(("thrown", f.is_grad_enabled()))
                given = "k"
            finally:
                seen.append(("finally", f.is_grad_enabled()))
            seen.append(given)
        return "end"

    steps = numbers(3)
    seen.append(("made", f.is_grad_enabled()))
    seen.append(next(steps))
    seen.append(("between", f.is_grad_enabled()))
    seen.append(steps.send("sent"))
    seen.append(steps.throw(KeyError()))
    try:
        next(steps)
    except StopIteration as end:
        seen.append(end.value)
    early = numbers(2)
    next(early)
    early.close()
    seen.append(list(numbers(1)))
    with pytest.raises(ValueError, match="not caught"):
        other = numbers(1)
        next(other)
        other.throw(ValueError("not caught"))
    return [*seen, f.is_grad_enabled()]


@pytest.mark.parametrize("name", DECORATORS)
def test_steps_of_a_generator_run_inside(name: str) -> None:
    ours, theirs = (_events(f, DECORATORS[name](f)) for f in (flow, torch))
    assert ours == theirs


def test_gradients_are_recorded_again_in_steps() -> None:
    @flow.enable_grad()
    def results() -> Iterator[bool]:
        for _ in range(2):
            yield flow.is_grad_enabled()

    with flow.no_grad():
        assert list(results()) == [True, True]
        assert not flow.is_grad_enabled()


def test_steps_run_in_mixed_precision() -> None:
    x = flow.ones(2, 2)

    @flow.autocast("cpu")
    def products() -> Iterator[Any]:
        for _ in range(2):
            yield (x @ x).dtype

    found = products()
    assert next(found) is flow.bfloat16
    assert (x @ x).dtype is flow.float32
    assert next(found) is flow.bfloat16


def test_each_step_is_an_event() -> None:
    @profiler.record_function("step")
    def numbers() -> Iterator[int]:
        yield from range(2)

    with profiler.profile() as found:
        assert list(numbers()) == [0, 1]
    (row,) = [e for e in found.key_averages() if e.name == "step"]
    assert row.count == 3  # the last one finds the end
