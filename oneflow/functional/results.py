"""Results written into tensors that the caller gives: `flow.add(x, y, out=z)`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from oneflow.core.errors import AutogradError, CallError, DTypeError, PlacementError
from oneflow.functional.promotion import category
from oneflow.tensor.grad_mode import no_grad, state
from oneflow.tensor.inplace import overwrite
from oneflow.tensor.tensor import Tensor


def written(result: Tensor | Sequence[Tensor], out: object, inputs: Iterable[object]) -> Any:
    """`out`, which holds the result afterwards; several for a function that has several.

    A tensor of another shape takes the result's (with a warning unless it was empty). Raises
    DTypeError for a dtype that the result cannot become, AutogradError where a gradient is wanted.
    """
    if isinstance(result, Tensor):
        return into(result, out, inputs)
    targets = out if isinstance(out, Sequence) else (out,)
    if len(targets) != len(result):
        raise CallError(f"out= holds {len(targets)} tensors, but there are {len(result)} results")
    kept = [into(one, target, inputs) for one, target in zip(result, targets, strict=True)]
    kind: Any = type(result)
    return kind(*kept) if hasattr(result, "_fields") else kind(kept)


def into(result: Tensor, out: object, inputs: Iterable[object]) -> Tensor:
    """The same for one tensor."""
    if not isinstance(out, Tensor):
        raise CallError(f"out= must be a tensor, got {type(out).__name__}")
    if state.enabled and (out._requires_grad or any(map(_wants_gradient, inputs))):
        raise AutogradError(
            "functions with out=... arguments don't support automatic differentiation, but one of "
            "the arguments requires grad: leave out= away, or use no_grad()"
        )
    have, wanted = result.type.dtype, out.type.dtype
    if category(have) > category(wanted):
        raise DTypeError(f"result type {have} can't be cast to the desired output type {wanted}")
    if result._placement is not out._placement:
        raise PlacementError(f"out= lies on {out._placement}, the result on {result._placement}")
    with no_grad():
        if out.type.shape != result.type.shape:
            _resize(out, result)
        return overwrite(out, result)


def _wants_gradient(value: object) -> bool:
    if isinstance(value, Tensor):
        return value._requires_grad
    return isinstance(value, list | tuple) and any(map(_wants_gradient, value))


def _resize(out: Tensor, result: Tensor) -> None:
    if out.numel():
        warnings.warn(
            f"out= was {out.type} and takes the result's shape {tuple(result.type.shape)}; give a "
            "tensor of that shape, or an empty one",
            stacklevel=6,
        )
    out.data = result.to(out.type.dtype).clone()
