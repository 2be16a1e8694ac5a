"""Graphs of global tensors on several ranks of this process, for comparison with eager code."""

from __future__ import annotations

from typing import Any

import numpy as np

import oneflow as flow
from oneflow import nn
from oneflow.actors.in_process import InProcessCluster
from oneflow.boxing.boxes import shard_box
from oneflow.core.graph import Node, Value
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST as B
from oneflow.core.sbp import PARTIAL as P
from oneflow.core.sbp import NdSbp
from oneflow.scheduler.compiler.pipeline import compile_graph

Array = Any


def placed(array: Array, nd_sbp: NdSbp) -> Any:
    """A tensor on one rank, in a hierarchy with as many axes as the one to come."""
    place = flow.placement("cpu", np.zeros((1,) * len(nd_sbp), int))
    return flow.tensor(array).to_global(place, [B] * len(nd_sbp)).to_global(sbp=list(nd_sbp))


class Spread:
    """A graph of global tensors of one rank, run on the ranks of `hierarchy`."""

    def __init__(
        self, graph: nn.Graph, example: Any, hierarchy: tuple[int, ...], seed: int | None = None
    ) -> None:
        trace = graph._trace_apart(((example,), {}))[0]
        self.place = Placement("cpu", np.arange(np.prod(hierarchy)).reshape(hierarchy))
        for node in trace.graph:
            node.placement = self.place
        self.graph, self.tensors, self.step = graph, trace.variables, 0
        config = JobConfig("spread", trace.graph.num_pieces)
        self.plan = compile_graph(trace.graph, config, Cluster(self.place.size))
        self.nodes = {str(n.attrs["name"]): n for n in self.plan.graph.of_kind("variable")}
        self.held = [
            {name: self.part(node, x._array, rank).copy() for name, (node, x) in self._both()}
            for rank in self.place.rank_ids
        ]
        self.cluster = InProcessCluster(self.plan, self.held, seed)

    def _both(self) -> list[tuple[str, tuple[Node, Any]]]:
        return [(name, (node, self.tensors[name])) for name, node in self.nodes.items()]

    def part(self, node: Node, array: Array, rank: int) -> Array:
        """The part of one rank; of partial sums the first is the tensor, the others are 0."""
        box = shard_box(array.shape, node.outputs[0].sbp, self.place, rank)
        return np.array(array[box.slices] if box.is_first else np.zeros_like(array[box.slices]))

    def __call__(self, x: Array) -> Array:
        feeds: dict[str, Any] = {"input.0": x}
        for optimizer in self.graph._optimizers:
            optimizer.feed(self.step, feeds)
            optimizer.advance()
        self.step += 1
        given = {str(n.attrs["name"]): n for n in self.plan.graph.of_kind("input")}
        parts = [
            {k: self.part(node, feeds[k], rank) for k, node in given.items()}
            for rank in self.place.rank_ids
        ]
        results = self.cluster.step(parts)
        out = next(iter(self.plan.graph.of_kind("output"))).inputs[0]
        return self.whole(out, [r[0] for r in results])

    def whole(self, value: Value, parts: list[Array]) -> Array:
        made = np.zeros(value.type.shape, value.type.dtype.np)
        for rank, part in zip(self.place.rank_ids, parts, strict=True):
            box = shard_box(made.shape, value.sbp, self.place, rank)
            if P in (value.sbp or ()):
                made[box.slices] += part
            else:
                made[box.slices] = part
        return made

    def variable(self, name: str) -> Array:
        return self.whole(self.nodes[name].outputs[0], [held[name] for held in self.held])
