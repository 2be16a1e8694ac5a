"""Results written into tensors that the caller gives: `flow.add(x, y, out=z)`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from oneflow.api.spellings import APART, EXACT
from oneflow.core.dtype import category
from oneflow.core.errors import ArgumentError, AutogradError, CallError, DTypeError, PlacementError
from oneflow.tensor.grad_mode import no_grad, state
from oneflow.tensor.inplace import overwrite
from oneflow.tensor.tensor import Tensor


def written(
    result: Tensor | Sequence[Tensor], out: object, inputs: Iterable[object], name: str = ""
) -> Any:
    """`out`, which holds the result afterwards; several for a function that has several.

    A tensor of another shape takes the result's (with a warning unless it was empty).  name: of the
    function. Raises DTypeError for a dtype that the result cannot become, AutogradError where a
    gradient is wanted, ArgumentError for memory that cannot be written so.
    """
    inputs = tuple(inputs)
    if isinstance(result, Tensor):
        return into(result, out, inputs, name)
    targets = out if isinstance(out, Sequence) else (out,)
    if len(targets) != len(result):
        raise CallError(f"out= holds {len(targets)} tensors, but there are {len(result)} results")
    kept = [into(one, target, inputs, name) for one, target in zip(result, targets, strict=True)]
    kind: Any = type(result)
    return kind(*kept) if hasattr(result, "_fields") else kind(kept)


def into(result: Tensor, out: object, inputs: Iterable[object], name: str = "") -> Tensor:
    """The same for one tensor."""
    if not isinstance(out, Tensor):
        raise CallError(f"out= must be a tensor, got {type(out).__name__}")
    if state.enabled and (out._requires_grad or any(map(_wants_gradient, inputs))):
        raise AutogradError(
            "functions with out=... arguments don't support automatic differentiation, but one of "
            "the arguments requires grad: leave out= away, or use no_grad()"
        )
    have, wanted = result.meta.dtype, out.meta.dtype
    if category(have) > category(wanted) or (have is not wanted and name in EXACT):
        where = f"{name}: " if name else ""
        raise DTypeError(
            f"{where}result type {have} can't be cast to the desired output type {wanted}"
        )
    if result._placement is not out._placement:
        raise PlacementError(f"out= lies on {out._placement}, the result on {result._placement}")
    _check_memory(out, inputs if name in APART else (), name)
    with no_grad():
        if out.meta.shape != result.meta.shape:
            _resize(out, result)
        return overwrite(out, result)


def _check_memory(out: Tensor, inputs: Iterable[object], name: str) -> None:
    """Raises ArgumentError if elements of `out` share memory, with one another or with an input."""
    array = out._array
    if array is None:
        return
    if any(n > 1 and not step for n, step in zip(array.shape, array.strides, strict=True)):
        raise ArgumentError(
            f"{name}: unsupported operation: several elements of out= {out.meta} lie in one place "
            "of memory; give a clone() of it"
        )
    operands = [p for x in inputs for p in (x if isinstance(x, list | tuple) else (x,))]
    for x in operands:
        if isinstance(x, Tensor) and x._array is not None and np.may_share_memory(array, x._array):
            raise ArgumentError(
                f"{name}: unsupported operation: out= {out.meta} and the operand {x.meta} share "
                "memory; give another tensor, or a clone() of it"
            )


def _wants_gradient(value: object) -> bool:
    if isinstance(value, Tensor):
        return value._requires_grad
    return isinstance(value, list | tuple) and any(map(_wants_gradient, value))


def _resize(out: Tensor, result: Tensor) -> None:
    if out.numel():
        warnings.warn(
            f"out= was {out.meta} and takes the result's shape {tuple(result.meta.shape)}; give a "
            "tensor of that shape, or an empty one",
            stacklevel=6,
        )
    out.data = result.to(out.meta.dtype).clone()
