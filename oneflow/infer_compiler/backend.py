"""`torch.compile(model, backend=oneflow_backend)`: AOTAutograd makes the graphs of the forward and
the backward pass out of aten's operators; ours run them, PyTorch those that we do not have.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from oneflow.core.errors import GraphError
from oneflow.infer_compiler.calls import Compiled, Places
from oneflow.infer_compiler.decompositions import decompositions
from oneflow.infer_compiler.running import is_ours, operator_of
from oneflow.infer_compiler.types import from_torch

if TYPE_CHECKING:
    import torch
    import torch.fx

DRAWS = ("bernoulli.p", "rand_like.default", "randn_like.default")
"""Operators whose numbers depend on the shape of their argument alone."""

NOWHERE = Places()


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
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    registers: dict[int, Any] = {}
    staying: set[str] = set()
    """Names of the values that a forward pass hands over in one place in each call."""

    def forward(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        metadata = forward_metadata()
        held, saved = static_inputs(metadata), outputs_of(graph)[metadata.num_forward :]
        names = {n.name for i, n in enumerate(inputs_of(graph)) if i not in held}
        staying.update(n.name for n in saved if n.name not in names)
        first = metadata.num_forward
        places = Places(held, range(first, first + len(saved)), registers)
        return boxed(compiled(graph, places))

    def inference(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return boxed(compiled(graph, Places(static_inputs(forward_metadata()))))

    def backward(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        held = [i for i, n in enumerate(inputs_of(graph)) if n.name in staying and is_tensor(n)]
        return boxed(compiled(graph, Places(held, range(len(outputs_of(graph))), registers)))

    wrapped = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=decompositions(),
    )
    return wrapped(gm, example_inputs)


def boxed(call: Callable[..., Any]) -> Any:
    """Return a function, marked as one whose only argument is the list of inputs."""

    def run(args: list[Any]) -> Any:
        taken = list(args)
        args.clear()  # so that PyTorch may free what only it holds
        return call(*taken)

    marked: Any = run
    marked._boxed_call = True
    return marked


def forward_metadata() -> Any:
    """Facts about the forward pass that AOTAutograd is compiling."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    found = None if context is None else context.fw_metadata
    if found is None:
        raise GraphError("oneflow_backend: AOTAutograd tells nothing about the forward pass")
    return found


def static_inputs(metadata: object) -> list[int]:
    """Numbers of the inputs that are parameters or buffers."""
    return list(getattr(metadata, "static_input_indices", None) or [])


def inputs_of(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """The nodes of the inputs."""
    return [n for n in graph.graph.nodes if n.op == "placeholder"]


def outputs_of(graph: torch.fx.GraphModule) -> list[Any]:
    """The outputs: nodes and constants."""
    *_, output = graph.graph.nodes
    outputs: Any = output.args[0]
    return list(outputs)


def is_tensor(node: torch.fx.Node) -> bool:
    """Whether the value of a node is a tensor."""
    return hasattr(node.meta.get("val"), "stride")


def compiled(graph: torch.fx.GraphModule, places: Places = NOWHERE) -> Callable[..., Any]:
    """A graph of aten's operators as a function; operators that we lack stay PyTorch's."""
    draws = _draws(graph)
    if not draws:
        return _compiled(graph, places)
    run = _compiled(graph, places)
    return lambda *args: run(*args, *(draw() for draw in draws))


def _compiled(graph: torch.fx.GraphModule, places: Places) -> Callable[..., Any]:
    foreign = [n for n in graph.graph.nodes if n.op == "call_function" and not is_ours(n)]
    if not foreign:
        return _whole(graph, places)
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
            _run_ours(part)
    run: Callable[..., Any] = parts
    return run


def _run_ours(part: torch.nn.Module) -> None:
    of_part: Any = part
    of_part.forward = _whole(of_part, NOWHERE)


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


def _draws(graph: torch.fx.GraphModule) -> list[Callable[[], torch.Tensor]]:
    """Make inputs of the random numbers that a graph draws. Returns the calls that draw them."""
    nodes, draws = graph.graph, list[Callable[[], "torch.Tensor"]]()
    *_, last = inputs_of(graph)
    for node in list(nodes.nodes):
        if operator_of(node) not in DRAWS:
            continue
        like = node.args[0].meta["val"]
        if not all(isinstance(n, int) for n in like.shape):
            continue  # a shape that only a run knows
        place = list(like.shape), list(like.stride()), like.dtype
        draws.append(partial(_drawn, node.target, *place, *node.args[1:]))
        with nodes.inserting_after(last):
            last = nodes.placeholder(f"drawn_{len(draws)}")
        last.meta = node.meta
        node.replace_all_uses_with(last)
        nodes.erase_node(node)
    graph.recompile()
    return draws


def _whole(graph: torch.fx.GraphModule, places: Places) -> Compiled:
    nodes = list(graph.graph.nodes)
    constants = {
        str(n.target): from_torch(getattr(graph, str(n.target)))
        for n in nodes
        if n.op == "get_attr"
    }
    return Compiled(nodes, constants, places)
