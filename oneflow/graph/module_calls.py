"""Module calls while a graph is traced: nodes learn their module and their pipeline stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oneflow.core.errors import OneFlowError
from oneflow.core.location import locate
from oneflow.core.placement import Placement
from oneflow.graph.tree import map_tensors
from oneflow.nn.forward_hooks import call_with_hooks
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from oneflow.graph.trace import Trace
    from oneflow.nn.module import Module


def call_traced(trace: Trace, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls `module.forward` between its hooks, whose ops are traced as those of `forward`."""
    known, before = trace.known, trace.at
    path = known.paths.get(id(module)) or f"{before.module}.{type(module).__name__}".lstrip(".")
    stage = known.stage_of.get(id(module))
    trace.called[id(module)] = module
    trace.at = before.inside(path, before.stage if stage is None else stage.id)
    if stage is not None and stage.placement is not None:
        placement = stage.placement
        args = map_tensors(args, lambda x: _moved(trace, x, placement))
        kwargs = map_tensors(kwargs, lambda x: _moved(trace, x, placement))
    try:
        return call_forward(module, args, kwargs)
    except OneFlowError as error:
        locate(error, trace.at.module)
        raise
    finally:
        before.opens = trace.at.opens
        trace.at = before


def call_forward(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `module.forward` between its hooks. Weights that those compute anew at each
    call are afterwards as before: those of the graph are none to keep.
    """
    own, kept = vars(module), {}
    if module._forward_pre_hooks:
        kept = {name: x for name, x in own.items() if isinstance(x, Tensor)}
    try:
        return call_with_hooks(module, args, kwargs)
    finally:
        own.update(kept)


def _moved(trace: Trace, x: Tensor, placement: Placement) -> Tensor:
    if x._placement is None or x._placement == placement:
        return x
    return trace.lay_out(x, placement, None)
