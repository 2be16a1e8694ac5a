"""A gradient scaler inside a graph: the loss's gradient begins as the scale, gradients are divided
by it before they are used, and a step with a gradient that is not finite changes nothing.

The scale and its counts are variables of the graph, so that they are in its state, in job files,
and never leave the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oneflow.amp.grad_scaler import GradScaler
from oneflow.core.dtype import float16, float32, int64
from oneflow.core.errors import GraphError
from oneflow.core.placement import Placement
from oneflow.core.sbp import all_broadcast
from oneflow.ops.assign import assign
from oneflow.ops.binary import add, mul, sub
from oneflow.ops.cast import cast
from oneflow.ops.compare import logical_and, scalar_compare
from oneflow.ops.reduce import reduce_sum
from oneflow.ops.scalar import scalar_add, scalar_mul, scalar_rdiv
from oneflow.ops.shape import reshape
from oneflow.ops.unary import isfinite
from oneflow.ops.where import masked_fill, where
from oneflow.optim.optimizer import scalar_beside
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from oneflow.graph.optimizer import GraphOptimizer
    from oneflow.graph.trace import Trace

PREFIX = "System-GradScaler"


class GraphScaler:
    """A scaler's numbers as variables of a graph, and what it adds to the graph.

    scaler: gives the factors and the numbers to begin with, and shows the graph's from then on.
    """

    def __init__(self, scaler: GradScaler) -> None:
        self.scaler = scaler
        self._tensors: dict[str, Tensor] = {}

    def tensors(self, optimizers: Sequence[GraphOptimizer]) -> dict[str, Tensor]:
        """The variables by name, beside the first parameter: the scale, the finite steps since it
        changed, and of each optimizer the number of steps left out.
        """
        first = next((p for o in optimizers for p in o.parameters()), None)
        if first is None:
            raise GraphError("set_grad_scaler: the graph has no optimizer with parameters")
        if not self._tensors:
            scale, tracker = self.scaler.numbers
            self._tensors = {
                f"{PREFIX}-scale": scalar_beside(first, scale, float32),
                f"{PREFIX}-growth_tracker": scalar_beside(first, tracker, int64),
            }
            self.scaler.follow(*self._tensors.values())
        for o in optimizers:
            name = f"{PREFIX}-skipped.{o.number}"
            if name not in self._tensors:
                self._tensors[name] = scalar_beside(first, 0, int64)
        return self._tensors

    def attach(self, trace: Trace, optimizers: Sequence[GraphOptimizer]) -> TracedScaler:
        """Let backward passes of a trace begin with the scale."""
        traced = TracedScaler(self, trace, self.tensors(optimizers))
        trace.scale_gradient = traced.scale
        return traced


class TracedScaler:
    """The part of a scaler in one trace."""

    def __init__(self, scaler: GraphScaler, trace: Trace, tensors: dict[str, Tensor]) -> None:
        self._scaler, self._trace, self._tensors = scaler.scaler, trace, tensors
        self._scale = tensors[f"{PREFIX}-scale"]
        self._finite: dict[int, Tensor] = {}

    def scale(self, grad: Tensor) -> Tensor:
        """A gradient times the scale."""
        with no_grad():
            factor = cast(self._beside(self._scale, grad), dtype=grad.meta.dtype)
            return mul(grad, reshape(factor, shape=(1,) * grad.meta.ndim))

    def unscale(self, optimizer: GraphOptimizer) -> None:
        """Divide the gradients of an optimizer by the scale, and tell whether all are finite.
        Raises GraphError for float16 gradients.
        """
        inverse = scalar_rdiv(self._scale, value=1.0)
        sums: dict[Placement | None, Tensor] = {}
        for parameter in optimizer.parameters():
            grad = parameter.grad
            if grad is None:
                continue
            if grad.meta.dtype is float16:
                raise GraphError(
                    "a GradScaler cannot unscale float16 gradients: keep parameters in float32, "
                    "with config.enable_amp(True)"
                )
            if parameter._placement is not None:  # as it is used: a sum may overflow
                layout = self._trace.split.get(id(parameter), parameter._sbp)
                grad = self._trace.lay_out(grad, parameter._placement, layout)
            factor = cast(self._beside(inverse, grad), dtype=grad.meta.dtype)
            parameter.grad = grad = mul(grad, reshape(factor, shape=(1,) * grad.meta.ndim))
            # 0 if all is finite, else NaN: a sum, so shards need no gathering.
            zeros = cast(scalar_mul(grad, value=0.0), dtype=float32)
            total = reduce_sum(zeros, dims=tuple(range(grad.meta.ndim)))
            known = sums.get(grad._placement)
            sums[grad._placement] = total if known is None else add(known, total)
        first, *others = [self._beside(total, self._scale) for total in sums.values()]
        for other in others:
            first = add(first, other)
        self._finite[optimizer.number] = isfinite(first)

    def is_finite(self, optimizer: GraphOptimizer, like: Tensor) -> Tensor:
        """Bool[], beside `like`: whether the optimizer may update."""
        return self._beside(self._finite[optimizer.number], like)

    def skipped(self, optimizer: GraphOptimizer, like: Tensor) -> Tensor:
        """int64[], beside `like`: the steps that were left out before."""
        return self._beside(self._tensors[f"{PREFIX}-skipped.{optimizer.number}"], like)

    def end(self) -> None:
        """Count steps left out, and grow or shrink the scale."""
        everywhere = None
        for number, finite in self._finite.items():
            count = self._tensors[f"{PREFIX}-skipped.{number}"]
            assign(count, where(finite, count, scalar_add(count, value=1)))
            everywhere = finite if everywhere is None else logical_and(everywhere, finite)
        growth, backoff, interval = self._scaler.factors
        if everywhere is None or growth == backoff == 1.0:
            return
        tracker, scale = self._tensors[f"{PREFIX}-growth_tracker"], self._scale
        count = scalar_add(tracker, value=1)
        is_due = scalar_compare(count, kind="eq", value=interval)
        grown = scalar_mul(scale, value=growth)
        grown = where(logical_and(is_due, isfinite(grown)), grown, scale)
        shrunk = scalar_mul(scale, value=backoff)
        none = sub(count, count)
        assign(tracker, where(everywhere, masked_fill(count, is_due, value=0), none))
        assign(scale, where(everywhere, grown, shrunk))

    def _beside(self, scalar: Tensor, like: Tensor) -> Tensor:
        """A number on the placement of another tensor, whole on every rank."""
        if like._placement is None:
            return scalar
        return self._trace.lay_out(scalar, like._placement, all_broadcast(like._placement.ndim))
