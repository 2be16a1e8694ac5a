"""`torch.compile`: the function or module as it is, eagerly; `nn.Graph` compiles a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, overload

from oneflow.core.no_effect import without_effect

T = TypeVar("T", bound=Callable[..., object])

REASON = "code runs eagerly; an nn.Graph around a step or a forward pass compiles it"


@overload
def compile(
    model: T,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: object = "inductor",
    mode: str | None = None,
    options: object = None,
    disable: bool = False,
) -> T: ...
@overload
def compile(
    model: None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: object = "inductor",
    mode: str | None = None,
    options: object = None,
    disable: bool = False,
) -> Callable[[T], T]: ...
def compile(
    model: object = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: object = "inductor",
    mode: str | None = None,
    options: object = None,
    disable: bool = False,
) -> object:
    """Return the function or module as it is, or a decorator that does; say so once.

    The other arguments choose how PyTorch compiles, and change nothing.
    """
    if not disable:
        without_effect("compile", REASON)
    return _same if model is None else model


def _same(model: T) -> T:
    return model
