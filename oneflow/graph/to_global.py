"""`to_global` and module calls while a graph is traced."""

from __future__ import annotations

from typing import Any

from oneflow.autograd.tape import CallNode
from oneflow.core.errors import GraphError, OneFlowError
from oneflow.core.location import locate, user_location
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp, without_sums
from oneflow.graph.scope import current_trace
from oneflow.graph.tree import map_tensors
from oneflow.tensor.tensor import Tensor


def traced_to_global(
    x: Tensor, placement: Placement | None, nd_sbp: NdSbp | None, grad_sbp: NdSbp | None = None
) -> Tensor:
    """A traced or captured tensor laid out otherwise; missing: keep. The gradient comes back to x's
    placement,
    with `grad_sbp` if given. Raises GraphError for a local tensor."""
    from oneflow.autograd.grad_mode import is_grad_enabled

    trace = current_trace()
    if trace is None:
        raise GraphError(f"a tensor of a graph is used outside its build() ({user_location()})")
    if x._placement is None:
        raise GraphError(
            "local_tensor.to_global() is not supported within nn.Graph for now; "
            "make the tensor global before it enters the graph"
        )
    target = placement or x._placement
    if nd_sbp is None and target.ndim != x._placement.ndim:
        raise GraphError(
            f"to_global: from {x._placement.notation} to {target} the number of hierarchy axes "
            "changes; give sbp="
        )
    out = trace.to_global(x, target, nd_sbp)
    if x.requires_grad and is_grad_enabled():
        source = x._placement

        def backward(grads: list[Any]) -> list[Any]:
            grad = grads[0]
            if grad is None or (grad_sbp is None and grad._placement == source):
                return [grad]
            wanted = grad_sbp
            if wanted is None and grad._placement.ndim != source.ndim:
                own = x._sbp if x._sbp is not None else trace.layout(x, is_fixed=False)
                wanted = without_sums(own)
            return [traced_to_global(grad, source, wanted)]

        node = CallNode("to_global_backward", (x,), 1, backward)
        out._grad_fn, out._out_index, out._requires_grad = node, 0, True
    return out


def call_traced(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls `module.forward` while a graph is traced: nodes learn their module and stage. Hooks
    do not run.
    """
    trace = current_trace()
    assert trace is not None
    path = trace.paths.get(id(module)) or f"{trace.module_path}.{type(module).__name__}".lstrip(".")
    stage = trace.stage_of.get(id(module))
    before = trace.module_path, trace.stage
    trace.module_path = path
    if stage is not None:
        trace.stage = stage.id
        if stage.placement is not None:
            trace.stages[stage.placement] = stage.id
            args = map_tensors(args, lambda x: _moved(x, stage.placement))
            kwargs = map_tensors(kwargs, lambda x: _moved(x, stage.placement))
    try:
        return module.forward(*args, **kwargs)
    except OneFlowError as error:
        locate(error, trace.module_path)
        raise
    finally:
        trace.module_path, trace.stage = before


def _moved(x: Tensor, placement: Placement | None) -> Tensor:
    if placement is None or x._placement is None or x._placement == placement:
        return x
    return traced_to_global(x, placement, None)
