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


class UpstreamNames:
    """The names, as properties and methods of nn.Graph."""

    @property
    def _dynamic_input_graph_cache(self: Graph) -> Plans | None:
        return self._plans

    @property
    def _c_nn_graph(self: Graph) -> CompiledNames:
        return CompiledNames(self)

    @property
    def _blocks(self: Graph) -> dict[str, Proxy]:
        return {name: getattr(self, name) for name in self._modules}

    def _state(self: Graph) -> Iterator[Tensor]:
        yield from model_tensors(self)
