"""Graphs of global tensors on several ranks of this process, for comparison with eager code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import oneflow as flow
from oneflow import nn
from oneflow.actors.in_process import InProcessCluster
from oneflow.boxing.boxes import shard_box
from oneflow.core.graph import LogicalGraph, Node, Value
from oneflow.core.job_config import Cluster
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST as B
from oneflow.core.sbp import PARTIAL as P
from oneflow.core.sbp import NdSbp
from oneflow.graph.binding import cluster_of
from oneflow.graph.tracing import trace_build
from oneflow.scheduler.compiler.pipeline import compile_graph, run_passes

Array = Any


def placed(array: Array, nd_sbp: NdSbp) -> Any:
    """A tensor on one rank, in a hierarchy with as many axes as the one to come."""
    place = flow.placement("cpu", np.zeros((1,) * len(nd_sbp), int))
    return flow.tensor(array).to_global(place, [B] * len(nd_sbp)).to_global(sbp=list(nd_sbp))


def lowered(graph: nn.Graph, given: Any) -> LogicalGraph:
    """The graph of (args, kwargs) in mixed precision, otherwise as traced."""
    traced = trace_build(graph._spec, graph.build, given).trace.graph
    made: LogicalGraph = run_passes(
        traced, graph._spec.job_config(), cluster_of(traced), until="mixed_precision"
    )
    return made


class Spread:
    """A graph of global tensors of one rank, run on the ranks of `hierarchy`; its pipeline stages
    dealt out to `num_devices` sets of such ranks.
    """

    def __init__(
        self,
        graph: nn.Graph,
        example: Any,
        hierarchy: tuple[int, ...],
        seed: int | None = None,
        num_devices: int = 1,
    ) -> None:
        trace = trace_build(graph._spec, graph.build, ((example,), {}))[0]
        size = int(np.prod(hierarchy))
        places = [
            Placement("cpu", np.arange(i * size, (i + 1) * size).reshape(hierarchy))
            for i in range(num_devices)
        ]
        for node in trace.graph:
            is_variable = node.op == "variable" and node.outputs[0].users
            stage = node.outputs[0].users[0].stage if is_variable else node.stage
            node.placement = places[stage % num_devices]
        _join(trace.graph)
        self.graph, self.tensors, self.step = graph, trace.variables, 0
        config = graph._spec.job_config()
        self.world_size = size * num_devices
        self.plan = compile_graph(trace.graph, config, Cluster(self.world_size))
        self.nodes = {str(n.attrs["name"]): n for n in self.plan.graph.of_kind("variable")}
        self.held = [
            {name: self.part(node, x._array, rank).copy() for name, (node, x) in self._both(rank)}
            for rank in range(self.world_size)
        ]
        self.cluster = InProcessCluster(self.plan, self.held, seed, config.binding)

    def _both(self, rank: int) -> list[tuple[str, tuple[Node, Any]]]:
        """The variables of a rank."""
        return [
            (name, (node, self.tensors[name]))
            for name, node in self.nodes.items()
            if rank in node.placement
        ]

    def part(self, node: Node, array: Array, rank: int) -> Array:
        """The part of one rank; of partial sums the first is the tensor, the others are 0."""
        box = shard_box(array.shape, node.outputs[0].sbp, node.placement, rank)
        return np.array(array[box.slices] if box.is_first else np.zeros_like(array[box.slices]))

    def __call__(self, x: Array) -> Array:
        feeds: dict[str, Any] = {"input.0": x}
        for optimizer in self.graph._spec.optimizers:
            optimizer.feed(self.step, feeds)
            optimizer.advance()
        self.step += 1
        given = {str(n.attrs["name"]): n for n in self.plan.graph.of_kind("input")}
        parts = [
            {
                k: self.part(node, feeds[k], rank)
                for k, node in given.items()
                if rank in node.placement
            }
            for rank in range(self.world_size)
        ]
        results = self.cluster.step(parts)
        out = next(iter(self.plan.graph.of_kind("output"))).inputs[0]
        return whole(out, [r.get(0) for r in results])

    def variable(self, name: str) -> Array:
        return whole(self.nodes[name].outputs[0], [held.get(name) for held in self.held])


def whole(
    value: Value, parts: Sequence[Array], lie: tuple[Placement, NdSbp] | None = None
) -> Array:
    """A value, of the parts of all ranks. lie: where and how; None: as the plan says."""
    placement, nd_sbp = lie or (value.placement, value.sbp or ())
    made = np.zeros(value.type.shape, value.type.dtype.np)
    for rank in placement.rank_ids:
        box = shard_box(made.shape, nd_sbp, placement, rank)
        if P in nd_sbp:  # of copies of a summand one counts
            at = placement.coordinate(rank)
            if not any(i for i, s in zip(at, nd_sbp, strict=True) if s is B):
                made[box.slices] += parts[rank]
        else:
            made[box.slices] = parts[rank]
    return made


def _join(graph: LogicalGraph) -> None:
    """Moves an op's operands to its ranks."""
    for node in graph:
        for i, value in enumerate(node.inputs):
            if value.placement != node.placement and node.op != "output":
                moved = graph.insert(node, "to_global", [value], [value.type], node.placement)
                graph.set_input(node, i, moved.outputs[0])
            elif value.placement != node.placement:
                node.placement = value.placement
