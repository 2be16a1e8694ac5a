"""A graph as its user has defined it, and the plans that were made of it so far."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oneflow.boxing import settings as boxing_settings
from oneflow.core.errors import GraphError
from oneflow.core.job_config import JobConfig
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.graph.compile_log import CompileLog
from oneflow.graph.config import GraphConfig
from oneflow.graph.debugging import Debugging
from oneflow.graph.optimizer import GraphOptimizer, GraphScaler
from oneflow.graph.plans import Plans
from oneflow.nn.module import Module
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from oneflow.graph.choosing import Choice
    from oneflow.graph.graph import Graph


@dataclass
class Stage:
    """Pipeline stage of a module. placement: where its inputs are moved to, if given."""

    id: int = 0
    placement: Placement | None = None


@dataclass
class VariableState:
    """State of tensors that graphs work on; graphs that share these share it.

    whole: the layouts that parameters and states had which ZeRO has split, by their ids.  halves:
    parameters and their copies in half precision, by the parameter's id
    (low_precision_weights.py).
    """

    whole: dict[int, NdSbp] = field(default_factory=dict)
    halves: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


@dataclass
class GraphSpec:
    """A graph, but for its `build`.

    stages: of modules and tensors, by id.  recomputed: ids of modules that the backward pass
    computes again.  choice: of auto-parallel of level "full"; None before it.
    """

    name: str
    debugging: Debugging
    plans: Plans
    config: GraphConfig = field(default_factory=GraphConfig)
    modules: OrderedDict[str, Module] = field(default_factory=OrderedDict)
    optimizers: list[GraphOptimizer] = field(default_factory=list)
    scaler: GraphScaler | None = None
    stages: dict[int, Stage] = field(default_factory=dict)
    recomputed: set[int] = field(default_factory=set)
    choice: Choice | None = None
    variables: VariableState = field(default_factory=VariableState)

    def __post_init__(self) -> None:
        self.compile_log = CompileLog(self.name, self.debugging)

    @property
    def is_compiled(self) -> bool:
        return self.plans.now is not None

    def check_open(self, asked: str) -> None:
        """Raises GraphError for a request that comes after the graph is compiled."""
        if self.is_compiled:
            raise GraphError(f"{asked}: graph {self.name} is compiled already")

    def parameters(self) -> Iterator[Tensor]:
        """The parameters that its optimizers update."""
        for optimizer in self.optimizers:
            yield from optimizer.parameters()

    def paths(self) -> dict[int, str]:
        """Path of every module, by its id."""
        paths: dict[int, str] = {}
        for prefix, module in self.modules.items():
            for name, child in module.named_modules(prefix=prefix):
                paths.setdefault(id(child), name)
        return paths

    def job_config(self) -> JobConfig:
        """The ways to compile and bind the graph that it asks for."""
        asked, scaler = self.config, self.scaler if self.optimizers else None
        return JobConfig(
            self.name,
            asked.num_pieces,
            asked.order_mode,
            asked.auto_parallel_settings,
            compress_memory=asked.compress_memory,
            pipeline=asked.pipeline,
            bucket_nbytes=asked.bucket_nbytes,
            best_offsets=asked.best_offsets,
            batch_updates=asked.batch_updates,
            unfused=tuple(sorted(asked.unfused)),
            amp="" if asked.amp_dtype is None else asked.amp_dtype.name,
            casts_in_updates=asked.fused_update_cast,
            zero=asked.zero,
            scaling=None if scaler is None else scaler.settings,
            recomputed=self._recomputed_paths(),
            means=() if self.choice is None else self.choice.means,
            **boxing_settings.current().job_fields(),
        )

    def _recomputed_paths(self) -> tuple[str, ...]:
        if not self.recomputed:
            return ()
        return tuple(p for i, p in self.paths().items() if i in self.recomputed)


def spec_of(graph: Graph) -> GraphSpec:
    """The one way from a graph to its definition, for those that are given the graph by a user."""
    return graph._spec
