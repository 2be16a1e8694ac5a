"""What a graph hands out for its modules: a proxy that calls the module and lets the user place it in the pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oneflow.core.errors import GraphError
from oneflow.core.placement import Placement
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from oneflow.graph.graph import Graph


@dataclass
class Stage:
    """Pipeline stage of a module. placement: where its inputs are moved to, if given."""

    id: int = 0
    placement: Placement | None = None


class GraphModule:
    """The graph's view of a module: `proxy.to(GraphModule)`."""

    def __init__(self, module: Any, graph: Graph, path: str) -> None:
        self._module = module
        self._graph = graph
        self.name = path

    @property
    def type(self) -> str:
        return "MODULE"

    @property
    def name_prefix(self) -> str:
        head, _, _ = self.name.rpartition(".")
        return f"{head}." if head else ""

    @property
    def _stage(self) -> Stage:
        return self._graph._stages.setdefault(id(self._module), Stage())

    def set_stage(self, stage_id: int, placement: Placement | None = None) -> None:
        """Makes the module stage `stage_id` of the pipeline; its inputs are moved to `placement` if given."""
        if not isinstance(stage_id, int) or stage_id < 0:
            raise GraphError(f"set_stage: the stage id must be an integer >= 0, got {stage_id!r}")
        if self._graph.is_compiled:
            raise GraphError(f"set_stage: graph {self._graph.name} is compiled already")
        self._graph._stages[id(self._module)] = Stage(stage_id, placement)

    @property
    def stage_id(self) -> int:
        return self._stage.id

    @property
    def stage_placement(self) -> Placement | None:
        return self._stage.placement

    def __repr__(self) -> str:
        return f"(GraphModule:{self.name}(stage_id={self.stage_id}))"


class GraphTensor:
    """The graph's view of a parameter or buffer."""

    def __init__(self, tensor: Tensor, name: str) -> None:
        self.origin = tensor
        self.name = name


class Proxy:
    """A module of a graph. Calls and attributes go to the module; child modules come out as proxies."""

    def __init__(self, module: Any, graph: Graph, path: str) -> None:
        object.__setattr__(self, "_module", module)
        object.__setattr__(self, "_graph", graph)
        object.__setattr__(self, "_path", path)

    def to(self, view: Any) -> Any:
        """The view asked for: GraphModule, or nn.Module for the module itself."""
        if view is GraphModule:
            return GraphModule(self._module, self._graph, self._path)
        if isinstance(self._module, view):
            return self._module
        raise GraphError(
            f"{self._path} is a module of a graph: to() takes GraphModule or nn.Module"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return self._graph._proxied(getattr(self._module, name), f"{self._path}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._graph._proxied(self._module[key], f"{self._path}.{key}")

    def __iter__(self) -> Any:
        for i, child in enumerate(self._module):
            yield self._graph._proxied(child, f"{self._path}.{i}")

    def __len__(self) -> int:
        return len(self._module)

    def __repr__(self) -> str:
        return f"(MODULE:{self._path}:{self._module!r})"
