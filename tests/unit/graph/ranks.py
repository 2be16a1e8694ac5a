"""Graphs on several ranks of this process. The script of each rank is a thread, and eager calls of
the threads meet in memory; the plan then runs on all ranks in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from oneflow import nn
from oneflow.actors.in_process import InProcessCluster
from oneflow.boxing.boxes import shard_box
from oneflow.boxing.collectives.base import Collectives
from oneflow.boxing.collectives.in_process import InProcessGroup
from oneflow.boxing.link import ONE_HOST
from oneflow.core.draws import Draws, Randomness
from oneflow.core.dtype import dtype_of
from oneflow.core.graph import Node
from oneflow.core.graph_proto import node_digests
from oneflow.core.job_config import Cluster
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.core.tensor_type import TensorType
from oneflow.distributed import world as worlds
from oneflow.graph.choosing import trace_chosen
from oneflow.graph.memory_limit import costs_in
from oneflow.graph.names import states_by_name
from oneflow.graph.trace import Trace
from oneflow.scheduler.compiler.pipeline import compile_graph
from oneflow.tensor.tensor import Tensor, wrap_global

from .spread import whole

Array = Any


class World:
    """The world of ranks that are threads, as eager calls ask `oneflow.distributed.world`."""

    network = ONE_HOST
    places: tuple[str, ...] = ()  # all on one host

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._here = threading.local()
        self._lock = threading.Lock()
        self._groups: dict[tuple[int, ...], InProcessGroup] = {}

    def enter(self, rank: int) -> None:
        """This thread is `rank` from here on."""
        self._here.rank, self._here.ends = rank, {}

    @property
    def rank(self) -> int:
        return int(self._here.rank)

    @property
    def everyone(self) -> Collectives:
        return self.collectives(tuple(range(self.world_size)))

    def collectives(self, ranks: tuple[int, ...]) -> Collectives:
        ends: dict[tuple[int, ...], Collectives] = self._here.ends
        if ranks not in ends:
            with self._lock:
                group = self._groups.setdefault(ranks, InProcessGroup(ranks))
            ends[ranks] = group.collectives(self.rank)
        return ends[ranks]


@contextmanager
def world_of(world_size: int) -> Iterator[World]:
    """Within, threads that `enter` it are the ranks of this process's world."""
    before, made = worlds._world, World(world_size)
    worlds._world = made  # type: ignore[assignment]
    try:
        yield made
    finally:
        worlds._world = before


def part_of(array: Array, nd_sbp: NdSbp, placement: Placement, rank: int) -> Array:
    """The part of one rank; nothing outside of the placement. Of partial sums the first is all."""
    if rank not in placement.rank_ids:
        return np.empty((0,) * max(array.ndim, 1), array.dtype)
    box = shard_box(array.shape, nd_sbp, placement, rank)
    return np.array(array[box.slices] if box.is_first else np.zeros_like(array[box.slices]))


def put(array: Array, placement: Placement, nd_sbp: NdSbp) -> Tensor:
    """A global tensor, of which this thread's rank gets its part."""
    part = part_of(array, nd_sbp, placement, worlds.world().rank)
    return wrap_global(part, TensorType(array.shape, dtype_of(array.dtype)), placement, nd_sbp)


def traced_by_ranks(
    make: Callable[[], tuple[nn.Graph, Any]], size: int
) -> list[tuple[nn.Graph, Trace]]:
    """The graph that each rank makes, with its trace. make: see Ranks."""
    tracing = threading.Lock()
    with world_of(size) as world, ThreadPoolExecutor(size) as pool:

        def trace(rank: int) -> tuple[nn.Graph, Trace]:
            world.enter(rank)
            graph, example = make()
            states_by_name(graph._spec)  # which ranks lay out together
            with tracing:  # they share one default generator
                return graph, trace_chosen(graph._spec, graph.build, ((example,), {})).trace

        return list(pool.map(trace, range(size)))


class Ranks:
    """A graph, made and traced by each rank, compiled once and run on all of them.

    make: called on each rank: its graph and an example of its input.  seed: shuffles the ranks.
    """

    def __init__(
        self, make: Callable[[], tuple[nn.Graph, Any]], size: int, seed: int | None = None
    ) -> None:
        self.size, self.step = size, 0
        made = traced_by_ranks(make, size)
        self.graph, trace = made[0]
        digests = [node_digests(trace.graph) for _, trace in made]
        assert digests.count(digests[0]) == size  # or ranks would not agree
        self.counts = trace.draws.counts
        held = [
            {name: np.array(x._array) for name, x in trace.variables.items()} for _, trace in made
        ]
        given = {name: (x._placement, x._sbp) for name, x in trace.variables.items()}
        config = self.graph._spec.job_config()
        self.plan = compile_graph(trace.graph, config, Cluster(size))
        self.recomputed = costs_in(self.plan, config)
        self.nodes = {str(n.attrs["name"]): n for n in self.plan.graph.of_kind("variable")}
        for name, node in self.nodes.items():
            if name not in given:  # half floats of a parameter
                given[name] = given[str(node.attrs["copy_of"])]
                for own in held:
                    kind = node.outputs[0].type.dtype.np
                    own[name] = own[str(node.attrs["copy_of"])].astype(kind)
        self.held = self._laid_out(held, given)
        self.inputs = {str(n.attrs["name"]): n for n in self.plan.graph.of_kind("input")}
        self.cluster = InProcessCluster(self.plan, self.held, seed, config.binding)

    def _laid_out(self, held: list[dict[str, Array]], given: dict[str, Any]) -> list[Any]:
        """The variables as the plan wants them: a search may have chosen other layouts."""
        for name, node in self.nodes.items():
            value, lies = node.outputs[0], given[name]
            if lies[0] is not None and (value.placement, value.sbp) != lies:
                array = whole(value, [own[name] for own in held], lies)
                for rank, own in enumerate(held):
                    own[name] = part_of(array, value.sbp or (), value.placement, rank)
        return held

    def draw(self, seed: int, position: int) -> None:
        """Set where the default generator is before the next step."""
        ((_, each, once),) = self.counts
        self.cluster.draw(Randomness((Draws(seed, position, each, once),)))

    def __call__(self, x: Array) -> list[Array]:
        """The outputs of a step, whole."""
        feeds: dict[str, Any] = {"input.0": x}
        for optimizer in self.graph._spec.optimizers:
            optimizer.feed(self.step, feeds)
            optimizer.advance()
        self.step += 1
        results = self.cluster.step(
            [
                {name: self._fed(node, feeds[name], rank) for name, node in self.inputs.items()}
                for rank in range(self.size)
            ]
        )
        outputs = {int(n.attrs["index"]): n.inputs[0] for n in self.plan.graph.of_kind("output")}
        return [
            whole(value, [r.get(index) for r in results])
            for index, value in sorted(outputs.items())
        ]

    def _fed(self, node: Node, array: Array, rank: int) -> Array:
        """A rank's part of an input; numbers that are fed by one name may lie in several places."""
        sbp = node.outputs[0].sbp or ()
        return part_of(array, sbp, node.placement, rank) if array.ndim else array

    def variable(self, name: str) -> Array:
        return whole(self.nodes[name].outputs[0], [held.get(name) for held in self.held])
