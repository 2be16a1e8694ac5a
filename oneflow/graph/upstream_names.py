"""Names inside of upstream's nn.Graph that onediff reads, answered by what stands for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from oneflow.graph.names import model_tensors

if TYPE_CHECKING:
    from oneflow.graph.graph import Graph
    from oneflow.graph.plans import Plans
    from oneflow.graph.proxy import Proxy
    from oneflow.tensor.tensor import Tensor


class CompiledNames:
    """The part of upstream's `graph._c_nn_graph` that says which variables a compiled graph has."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def get_runtime_var_states(self) -> tuple[list[str], list[Tensor]]:
        """Names and tensors of the variables. No constants are among them: none are folded."""
        compiled = self._graph._compiled
        variables = {} if compiled is None else compiled.variables
        return list(variables), list(variables.values())


def plans_of(graph: Graph) -> Plans | None:
    """Return the plans for several shapes: upstream's `_dynamic_input_graph_cache`."""
    return graph._plans if graph._takes_shapes else None


def blocks_of(graph: Graph) -> dict[str, Proxy]:
    """Return the modules by name: upstream's `_blocks`."""
    return {name: getattr(graph, name) for name in graph._modules}


def state_tensors(graph: Graph) -> Iterator[Tensor]:
    """Yield parameters and buffers: upstream's `_state()`."""
    yield from model_tensors(graph)
