"""`torch.compile(model, backend=oneflow_backend)`: AOTAutograd makes the graphs of the forward and
the backward pass out of aten's operators; ours run them, PyTorch those that we do not have.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from oneflow.infer_compiler.aten import CALLS
from oneflow.infer_compiler.calls import Compiled, Statics
from oneflow.infer_compiler.running import Program, is_ours, operator_of
from oneflow.infer_compiler.types import from_torch

if TYPE_CHECKING:
    import torch
    import torch.fx

DRAWS = ("bernoulli.p", "rand_like.default", "randn_like.default")
"""Operators whose numbers depend on the shape of their argument alone."""

KEPT = frozenset(name.partition(".")[0] for name in CALLS) | {"bernoulli", "addmm", "baddbmm"}
"""Operators that are not to be taken apart."""


def oneflow_backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **_: object) -> Any:
    """Compile a graph of Dynamo's: the `backend` of `torch.compile`.

    Parameters and buffers are read where they lie, inputs and outputs share their memory. Random
    numbers are PyTorch's own, so that dropout is that of the module without a compiler.

    Args:
        gm: The graph.
        example_inputs: Its inputs.

    Returns:
        A function of the same arguments, whose outputs have gradients.
    """
    from torch._dynamo.backends.common import aot_autograd

    statics = Statics()

    def forward(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        places = static_inputs()
        run = compiled(graph, statics)

        def call(args: list[Any]) -> Any:
            statics.add([args[i] for i in places if i < len(args)])
            return run(*args)

        return boxed(call)

    def backward(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        run = compiled(graph, statics)
        return boxed(lambda args: run(*args))

    wrapped = aot_autograd(
        fw_compiler=forward, bw_compiler=backward, decompositions=decompositions()
    )
    return wrapped(gm, example_inputs)


def boxed(call: Callable[[list[Any]], Any]) -> Any:
    """Mark a function whose only argument is the list of inputs."""

    def run(args: list[Any]) -> Any:
        taken = list(args)
        args.clear()  # so that PyTorch may free what only it holds
        return call(taken)

    marked: Any = run
    marked._boxed_call = True
    return marked


def static_inputs() -> list[int]:
    """Numbers of the inputs that are parameters or buffers, as AOTAutograd says."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return [] if metadata is None else list(metadata.static_input_indices or [])


def decompositions() -> dict[Any, Any]:
    """PyTorch's compositions of operators, without those that we have as one."""
    import torch
    from torch._decomp import core_aten_decompositions

    table = dict(core_aten_decompositions())
    table[torch.ops.aten.native_dropout.default] = _dropout
    for op in list(table):
        name = str(op).removeprefix("aten.")
        if name in CALLS or name.partition(".")[0] in KEPT:
            del table[op]
    return table


def _dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw as PyTorch does without a compiler, so that the next number is the same, too."""
    import torch

    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    kept = torch.ops.aten.bernoulli.p(x, 1 - p)
    return x * (kept / (1 - p) if p < 1 else kept), kept.bool()


def compiled(graph: torch.fx.GraphModule, statics: Statics) -> Callable[..., Any]:
    """A graph of aten's operators as a function; what is not ours stays PyTorch's."""
    _draw_first(graph)
    foreign = [n for n in graph.graph.nodes if n.op == "call_function" and not is_ours(n)]
    if not foreign:
        return _whole(graph, statics)
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
    from torch.fx.passes.operator_support import create_op_support

    support = create_op_support(
        lambda _, node: is_ours(node) and node.target is not operator.getitem
    )
    parts = CapabilityBasedPartitioner(
        graph, support, allows_single_node_partition=False
    ).partition_and_fuse()
    for name, part in list(parts.named_children()):
        if name.startswith("fused_"):
            _run_ours(part, statics)
    return parts


def _run_ours(part: torch.nn.Module, statics: Statics) -> None:
    of_part: Any = part
    of_part.forward = _whole(of_part, statics)


def _drawn(
    target: Callable[..., torch.Tensor],
    shape: list[int],
    strides: list[int],
    dtype: torch.dtype,
    *given: float,
) -> torch.Tensor:
    """Numbers in the order in which a tensor lies in memory, as without a compiler."""
    import torch

    empty: torch.Tensor = torch.empty_strided(shape, strides, dtype=dtype)
    if target is torch.ops.aten.bernoulli.p:
        (p,) = given
        return empty.bernoulli_(p)
    return target(empty, *given)


def _draw_first(graph: torch.fx.GraphModule) -> None:
    """Let PyTorch draw random numbers before all else, so that they do not cut our graph."""
    nodes = graph.graph.nodes
    first = next((n for n in nodes if n.op not in ("placeholder", "get_attr")), None)
    for node in list(nodes):
        if operator_of(node) not in DRAWS or first is None:
            continue
        like = node.args[0].meta["val"]
        if not all(isinstance(n, int) for n in like.shape):
            continue  # a shape that only a run knows
        place = list(like.shape), list(like.stride()), like.dtype
        with graph.graph.inserting_before(first):
            drawn = graph.graph.call_function(_drawn, (node.target, *place, *node.args[1:]))
            drawn.meta = node.meta
        node.replace_all_uses_with(drawn)
        graph.graph.erase_node(node)
    graph.recompile()


def _whole(graph: torch.fx.GraphModule, statics: Statics) -> Callable[..., Any]:
    nodes = list(graph.graph.nodes)
    constants = {
        str(n.target): from_torch(getattr(graph, str(n.target)))
        for n in nodes
        if n.op == "get_attr"
    }
    return Compiled(Program(nodes, constants), statics)
