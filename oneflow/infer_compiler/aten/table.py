"""Aten's operators as calls of ours: most by their name, the others by a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from oneflow.autograd.api import grad
from oneflow.infer_compiler.names import function
from oneflow.tensor.grad_mode import enable_grad
from oneflow.tensor.tensor import Tensor

Call = Callable[..., Any]

Size = Sequence[int]

CALLS: dict[str, Call] = {}
"""Operator below `aten`, with or without its overload -> a function of the same arguments."""

RENAMED = {
    "_adaptive_avg_pool2d": "adaptive_avg_pool2d",
    "_unsafe_view": "view",
    "linalg_vector_norm": "linalg.vector_norm",
}

UNLIKE = frozenset(
    [
        "copy",
        "copy_",
        "empty_strided",
        "index_put_",
        "new_empty_strided",
        "resize",
        "set_",
        "normal",
        "uniform",
        "random",
        "bernoulli",
        "rand",
        "randn",
        "randint",
        "rand_like",
        "randn_like",
        "randperm",
        "multinomial",
        "exponential",
    ]
)
"""Operators whose names mean something else here, or whose numbers PyTorch draws."""


def call_of(operator: str) -> Call | None:
    """Return the function for an operator, `mm.default`; None if there is none."""
    name, _, _ = operator.partition(".")
    found = CALLS.get(operator) or CALLS.get(name)
    if found is not None or name in UNLIKE or (name.startswith("_") and name not in RENAMED):
        return found
    return function(RENAMED.get(name, name))


def takes(*operators: str) -> Callable[[Call], Call]:
    """Put a function into the table."""

    def put(made: Call) -> Call:
        CALLS.update(dict.fromkeys(operators, made))
        return made

    return put


def back(made: Call, d_out: Tensor, *inputs: Tensor | None) -> list[Tensor]:
    """Gradients of `made(*inputs)` for the inputs that are given. The graph drops the forward
    computation where the gradient does not need it.
    """
    with enable_grad():
        own = [None if x is None else x.detach().requires_grad_() for x in inputs]
        wanted = [x for x in own if x is not None]
        found = grad([made(*own)], wanted, [d_out])
        return [x for x in found if x is not None]


def chosen(mask: Iterable[bool], made: Iterable[Tensor]) -> list[Tensor | None]:
    """One of `made` for each True."""
    rest = iter(made)
    return [next(rest) if wanted else None for wanted in mask]


@cache
def f(name: str) -> Call:
    found = function(name)
    if found is None:
        raise AttributeError(f"oneflow has no {name}")
    return found
