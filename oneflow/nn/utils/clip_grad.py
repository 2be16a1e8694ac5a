"""Clipping of gradients. Made of ops alone, so it works on local and global gradients and inside a
graph.

Gradients of several placements (pipeline stages) have one norm together: each placement sums its
own, and only the sums travel.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from oneflow.core.config import current_config
from oneflow.core.dtype import float32, promote
from oneflow.core.errors import NonFiniteError
from oneflow.core.metrics import METRICS
from oneflow.core.placement import Placement, lines
from oneflow.core.sbp import all_broadcast
from oneflow.functional.creation import zeros
from oneflow.ops import binary
from oneflow.ops.cast import cast
from oneflow.ops.compare import scalar_compare
from oneflow.ops.reduce import reduce_max, reduce_min, reduce_sum
from oneflow.ops.scalar import scalar_add, scalar_pow, scalar_rdiv
from oneflow.ops.unary import abs as absolute
from oneflow.ops.unary import clamp, sqrt
from oneflow.ops.update import square_sum
from oneflow.tensor.eager_global import number_on
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor, wrap

Parameters = Iterable[Tensor] | Tensor


def clip_grad_norm_(
    parameters: Parameters,
    max_norm: float,
    norm_type: float = 2.0,
    fused: bool = False,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scales all gradients together so that their norm is at most max_norm; returns the norm
    before, a 0-d tensor.

    norm_type: p of the p-norm, math.inf for the largest absolute value, -math.inf for the smallest,
    0 for the number of gradients that are not all zeros.
    error_if_nonfinite: raises NonFiniteError if the norm is NaN or infinite, which reads the value
    and so cannot be traced.  fused and foreach are accepted and change nothing.
    """
    owners = _listed(parameters)
    grads = [p.grad for p in owners if p.grad is not None]
    total = get_total_norm(grads, norm_type, error_if_nonfinite)
    clip_grads_with_norm_(owners, max_norm, total)
    return total


def get_total_norm(
    tensors: Parameters,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The norm of all tensors together, a 0-d tensor; 0 of none. norm_type, error_if_nonfinite:
    see `clip_grad_norm_`.
    """
    listed = _listed(tensors)
    with no_grad():
        if not listed:
            return zeros(())
        total = _total_norm(listed, float(norm_type))
        if error_if_nonfinite and not math.isfinite(total.item()):
            METRICS.nonfinite(current_config().job_id, "grad")
            raise NonFiniteError(
                f"The total norm of order {norm_type} for gradients from `parameters` is "
                "non-finite, "
                "so it cannot be clipped; set error_if_nonfinite=False to scale by it anyway"
            )
    return total


def clip_grads_with_norm_(
    parameters: Parameters, max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scales all gradients by max_norm / total_norm, where that is below 1.

    total_norm: a 0-d tensor, the norm of these gradients and perhaps of others.
    """
    owners = [p for p in _listed(parameters) if p.grad is not None]
    with no_grad():
        below = scalar_add(total_norm, value=1e-6)
        factor = clamp(scalar_rdiv(below, value=float(max_norm)), min=None, max=1.0)
        for owner in owners:
            _scale(owner, factor)


def _listed(parameters: Parameters) -> list[Tensor]:
    return [parameters] if isinstance(parameters, Tensor) else list(parameters)


def _scale(owner: Tensor, factor: Tensor) -> None:
    grad: Any = owner.grad
    beside = cast(_on(factor, grad.placement) if grad.is_global else factor, dtype=grad.dtype)
    owner.grad = binary.mul(grad, beside)


def _on(scalar: Tensor, placement: Placement) -> Tensor:
    """A 0-d global tensor, whole on every rank of a placement; that of a local one, which must be
    the same there. Nothing is sent to ranks that have it.
    """
    held = scalar._placement
    if scalar.value is None and held is not placement:
        is_here = held in lines or (held and set(placement.rank_ids) <= set(held.rank_ids))
        if held is not None and is_here:
            scalar = wrap(scalar.to_global(sbp=all_broadcast(held.ndim))._array)
        if scalar._placement is None:
            return number_on(placement, scalar)
    moved: Tensor = scalar.to_global(placement=placement, sbp=all_broadcast(placement.ndim))
    return moved


def _total_norm(tensors: list[Tensor], norm_type: float) -> Tensor:
    measure, meet, finish = _norm_parts(norm_type)
    by_place: dict[Any, list[Tensor]] = {}
    for grad in tensors:
        by_place.setdefault(grad.placement if grad.is_global else None, []).append(grad)
    sums = [_reduce([measure(grad) for grad in grads], meet) for grads in by_place.values()]
    first = min(by_place, key=lambda place: 0 if place is None else place.size)
    if first is not None:
        sums = [_on(s, first) for s in sums]
    return finish(_reduce(sums, meet))


def _norm_parts(
    p: float,
) -> tuple[
    Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], Tensor]
]:
    """Return functions: measure one gradient, combine two measures, turn the total into a norm."""
    if p == 2.0:
        return square_sum, binary.add, sqrt
    if math.isinf(p):
        extreme, meet = (reduce_max, binary.maximum) if p > 0 else (reduce_min, binary.minimum)
        return (
            lambda g: extreme(absolute(_at_least_float32(g)), dims=tuple(range(g.ndim))),
            meet,
            lambda total: total,
        )
    if p == 0:
        return _is_any_nonzero, binary.add, lambda total: total
    return (
        lambda g: reduce_sum(
            scalar_pow(absolute(_at_least_float32(g)), value=p), dims=tuple(range(g.ndim))
        ),
        binary.add,
        lambda total: scalar_pow(total, value=1.0 / p),
    )


def _is_any_nonzero(gradient: Tensor) -> Tensor:
    """1.0 for a gradient with an element that is not zero, else 0.0."""
    wide = _at_least_float32(gradient)
    hits = cast(scalar_compare(wide, value=0, kind="ne"), dtype=wide.dtype)
    return clamp(reduce_sum(hits, dims=tuple(range(gradient.ndim))), min=None, max=1.0)


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype.bytes >= 4 else cast(x, dtype=float32)


def _reduce(values: list[Tensor], meet: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    dtype = functools.reduce(promote, (v.dtype for v in values))
    return functools.reduce(meet, (v if v.dtype is dtype else cast(v, dtype=dtype) for v in values))


def clip_grad_norm(
    parameters: Parameters,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """`clip_grad_norm_` under its deprecated name."""
    warnings.warn(
        "nn.utils.clip_grad_norm is deprecated; use nn.utils.clip_grad_norm_",
        FutureWarning,
        stacklevel=2,
    )
    return clip_grad_norm_(parameters, max_norm, norm_type, False, error_if_nonfinite)


def clip_grad_value_(
    parameters: Parameters, clip_value: float, foreach: bool | None = None
) -> None:
    """Limits every element of every gradient to [-clip_value, clip_value]."""
    bound = float(clip_value)
    with no_grad():
        for parameter in _listed(parameters):
            if parameter.grad is not None:
                parameter.grad = clamp(parameter.grad, min=-bound, max=bound)
