"""Traced tensors in other layouts, with history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oneflow.core.errors import GraphError
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp, SbpLike, as_nd_sbp, without_sums
from oneflow.tensor.tape import nothing_saved, record_call
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from oneflow.graph.trace import Trace


def lay_out_traced(
    trace: Trace,
    x: Tensor,
    placement: Placement | None,
    sbp: SbpLike | None,
    grad_sbp: SbpLike | None,
) -> Tensor:
    """A traced or captured tensor laid out otherwise; missing: keep. The gradient comes back to
    x's placement, with `grad_sbp` if given. Raises GraphError for a local tensor.
    """
    source = x._placement
    if source is None:
        raise GraphError(
            "local_tensor.to_global() is not supported within nn.Graph for now; "
            "make the tensor global before it enters the graph"
        )
    target = placement or source
    if sbp is None and target.ndim != source.ndim:
        raise GraphError(
            f"to_global: from {source.notation} to {target} the number of hierarchy axes "
            "changes; give sbp="
        )
    nd_sbp = None if sbp is None else as_nd_sbp(sbp, target.ndim)
    wanted = None if grad_sbp is None else as_nd_sbp(grad_sbp, source.ndim)
    out = trace.fix_layout(x, target, nd_sbp)

    def backward(grads: list[Any]) -> list[Any]:
        return [_back(trace, x, source, grads[0], wanted)]

    record_call("to_global", (x,), (out,), backward, on_release=nothing_saved)
    if x.value is not None:
        trace.note_maker(out, x.value.node)
    return out


def _back(
    trace: Trace, x: Tensor, source: Placement, grad: Tensor | None, wanted: NdSbp | None
) -> Tensor | None:
    """The gradient of `x`, which lies on `source`."""
    if grad is None or (wanted is None and grad._placement == source):
        return grad
    if wanted is None and grad.placement.ndim != source.ndim:
        wanted = without_sums(x._sbp if x._sbp is not None else trace.layout(x, is_fixed=False))
    return lay_out_traced(trace, grad, source, wanted, None)
