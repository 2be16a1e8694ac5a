"""Optimizers around another optimizer, as libraries of training loops make them."""

from __future__ import annotations

from typing import Any

import oneflow as flow


class Wrapped(flow.optim.Optimizer):  # type: ignore[misc]
    """Holds an optimizer and leaves out its own `__init__`."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def test_wrapper_without_init_steps_and_takes_hooks() -> None:
    p = flow.nn.Parameter(flow.ones(1))
    p.sum().backward()
    outer = Wrapped(flow.optim.SGD([p], lr=1.0))
    seen: list[object] = []
    outer.register_step_post_hook(lambda *_: seen.append("after"))
    outer.step()
    assert p.tolist() == [0.0] and seen == ["after"]
