"""The way from a job file to a plan bound on this rank: placed, compiled or taken from the cache,
filled with this rank's part of the variables.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oneflow.actors.job import Job
from oneflow.boxing.boxes import shard_box
from oneflow.core.dtype import float16, float32
from oneflow.core.errors import ProtocolError
from oneflow.core.graph import LogicalGraph, Node
from oneflow.core.job_config import BindOptions, Cluster, JobConfig
from oneflow.core.op import Box
from oneflow.core.placement import Placement
from oneflow.core.plan import Plan, plan_digest
from oneflow.core.precision import exceeds_float16
from oneflow.core.sbp import NdSbp
from oneflow.core.tensor_type import TensorType
from oneflow.core.whole_files import write_whole
from oneflow.distributed.world import world
from oneflow.graph.binding import compile_together, open_plan
from oneflow.graph.names import CAPTURED
from oneflow.io.all_or_none import AllOrNone
from oneflow.io.boxes import read_box
from oneflow.jobs.description import randomness_of
from oneflow.jobs.jobfile import JobFile
from oneflow.jobs.placing import free_variables, gather_outputs, replace_placement
from oneflow.jobs.tables import NO_TABLES, Tables
from oneflow.kernels.array import Array
from oneflow.services.failpoints import failpoint
from oneflow.tensor.devices import to_device, to_host
from oneflow.tensor.eager_global import brought, empty_shard

if TYPE_CHECKING:
    from oneflow.actors.job import Job

PLAN_FILE = "plan.pb"
LISTEN_S, LISTEN_PAUSE_S = 2.0, 0.005


@dataclass(frozen=True)
class Variable:
    """A variable of the plan. array: this rank's part, None if it has none."""

    type: TensorType
    placement: Placement
    sbp: NdSbp
    array: Any


@dataclass
class Bound:
    """A job file bound on this rank. inputs: the arrays to feed by input name, with this rank's
    box of each, where it has one.  tables: the rows of its embeddings."""

    file: JobFile
    job: Job
    variables: dict[str, Variable]
    inputs: dict[str, tuple[TensorType, Box]]
    tables: Tables = NO_TABLES

    def close(self) -> None:
        self.job.close()
        self.tables.close()
        self.file.close()


def placed_graph(file: JobFile, devices: int, device_type: str) -> LogicalGraph:
    """The file's graph as it is compiled for so many devices. Raises PlacementError."""
    graph = traced_graph(file)
    replace_placement(graph, devices, device_type)
    d = file.description
    wanted = set(d.record) if d.kind == "graph" else {p.name for p in d.outputs}
    indices = {p.index for p in d.outputs if p.name in wanted}
    gather_outputs(graph, indices, devices, device_type)
    if d.config.auto_parallel is not None:
        free_variables(graph)
    return graph


def traced_graph(file: JobFile) -> LogicalGraph:
    """The file's graph as a trace with the file's configuration would give it: in float16 captured
    tensors with numbers that float16 does not have are marked.
    """
    graph = file.graph()
    for node in graph.of_kind("variable") if file.description.config.amp == float16.name else ():
        name, dtype = str(node.attrs["name"]), node.outputs[0].type.dtype
        is_candidate = name.startswith(CAPTURED) and dtype is float32
        if is_candidate and exceeds_float16(file.variables.read(name)):
            node.attrs = {**node.attrs, "wide": True}
    return graph


def job_config(file: JobFile, num_pieces: int) -> JobConfig:
    """The ways to compile and bind the file's graph."""
    d = file.description
    return replace(d.config, name=d.name, num_pieces=num_pieces)


def spans_ranks(file: JobFile) -> bool:
    """Whether the graph was traced with placements of several ranks. An inference job of another
    graph is loaded by each rank for itself."""
    return len({r for n in file.graph() for r in n.placement.rank_ids}) > 1


def bind_job(file: JobFile, device_type: str, plan_file: str, keep_in: Path | None) -> Bound:
    """All ranks of the world call it, after `join_ranks`.

    plan_file: of a plan that was compiled before, "" to compile.  keep_in: folder where rank 0
    keeps a plan that was compiled here.
    """
    here = world()
    devices = here.world_size
    graph = placed_graph(file, devices, device_type)
    boxes = {str(n.attrs["name"]): n for n in graph.of_kind("input")}
    data = _given_plan(plan_file, graph, devices) if plan_file else _compiled(file, graph)
    plan, digest = Plan.from_bytes(data), plan_digest(data)
    pact = AllOrNone(f"job {file.description.name}", "start of a job")
    others = pact.meet(digest)
    if any(d != digest for d in others):
        raise ProtocolError(f"the ranks were given different plans: {others}")
    if keep_in is not None and here.rank == 0 and not plan_file:
        _keep(keep_in / PLAN_FILE, data)
    failpoint("worker.allocate")
    variables = _variables(file, plan, here.rank)
    tables = Tables.of(plan.graph, here.rank)
    options = job_config(file, graph.num_pieces).binding
    job = _open(plan, digest, file.description.name, variables, options)
    inputs = {
        name: (node.outputs[0].type, _box_of(_in_plan(plan, name, node), here.rank))
        for name, node in boxes.items()
        if here.rank in _in_plan(plan, name, node).placement
    }
    job.draw(randomness_of(file.description))
    return Bound(file, job, variables, inputs, tables)


def join_ranks() -> None:
    """Return when rank 0 listens, or a moment has passed: a rank that joins too early learns late
    of it.
    """
    failpoint("worker.rendezvous")
    here = world()
    if here.rank == 0:
        return
    address = here.config.master_addr, here.config.master_port
    end = time.monotonic() + LISTEN_S
    while time.monotonic() < end:
        try:
            socket.create_connection(address, LISTEN_S).close()
            return
        except OSError:
            time.sleep(LISTEN_PAUSE_S)


def _compiled(file: JobFile, graph: LogicalGraph) -> bytes:
    from oneflow.scheduler.compiler.pipeline import compile_graph

    config = job_config(file, graph.num_pieces)
    if world().world_size == 1:
        return compile_graph(graph, config, Cluster(1)).to_bytes()
    return compile_together(graph, config)


def _given_plan(path: str, graph: LogicalGraph, devices: int) -> bytes:
    """A plan from the cache, which must be one of this graph for so many ranks."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ProtocolError(f"the given plan cannot be read: {error}") from None
    plan = Plan.from_bytes(data)
    if plan.world_size != devices or _interface(plan.graph) - _interface(graph):
        raise ProtocolError(
            f"plan {path} is not one of this job file for {devices} ranks; remove it to have one "
            "compiled"
        )
    return data


def _interface(graph: LogicalGraph) -> set[tuple[str, str, TensorType]]:
    """Return the sources of the graph: inputs and variables, without those that a pass has
    added."""
    nodes = [n for n in graph if n.op in ("input", "variable") and "copy_of" not in n.attrs]
    return {(n.op, str(n.attrs["name"]), n.outputs[0].type) for n in nodes}


def _keep(path: Path, data: bytes) -> None:
    """A plan that cannot be kept is compiled again; that is no reason to stop."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    except OSError:
        path.unlink(missing_ok=True)


def _open(
    plan: Plan,
    digest: str,
    name: str,
    variables: Mapping[str, Variable],
    options: BindOptions,
) -> Job:
    here = world()
    arrays = {n: v.array for n, v in variables.items() if v.array is not None}
    if here.world_size > 1:
        return open_plan(plan, digest, name, arrays, here.local_rank, options=options)
    return Job(plan, here.rank, arrays, device_index=here.local_rank, options=options)


def _in_plan(plan: Plan, name: str, node: Node) -> Node:
    """The input as the compiler left it: with its layout."""
    for found in plan.graph.of_kind("input"):
        if found.attrs["name"] == name and found.placement == node.placement:
            return found
    return node


def _box_of(node: Node, rank: int) -> Box:
    value = node.outputs[0]
    if value.sbp is None:  # nobody reads it, so the compiler took it away
        return Box((0,) * value.type.ndim, value.type.shape)
    return shard_box(value.type.shape, value.sbp, node.placement, rank)


# ---- variables -----------------------------------------------------------------------------------


def _variables(file: JobFile, plan: Plan, rank: int) -> dict[str, Variable]:
    """Each variable of the plan with this rank's part of its value in the file."""
    found = {}
    for node in plan.graph.of_kind("variable"):
        value, name = node.outputs[0], str(node.attrs["name"])
        if value.sbp is None:
            raise ProtocolError(f"variable {name} of the plan has no layout")
        array = _cut(file, name, node, rank) if rank in node.placement else None
        found[name] = Variable(value.type, node.placement, value.sbp, array)
    return found


def _cut(file: JobFile, name: str, node: Node, rank: int) -> Any:
    """Reads this rank's part and no other byte. Half floats are those of the parameter that they
    are a copy of.
    """
    entry = file.variables.entries[str(node.attrs.get("copy_of", name))]
    box = _box_of(node, rank)
    array: Array = np.empty(box.shape, entry.dtype)
    if any(s.is_partial for s in node.outputs[0].sbp or ()) and not box.is_first:
        array[...] = 0  # of partial sums the first rank has the value, the others zeros
    else:
        read_box(file.variables.source, entry.begin, entry.shape, box.slices, array)
    kind = node.outputs[0].type.dtype.np
    return to_device(array.astype(kind, copy=False), node.placement.type)


def whole(variable: Variable) -> Array:
    """All of a variable, on rank 0; every rank calls it."""
    shard = variable.array
    if shard is None:
        shard = empty_shard(variable.type, variable.placement)
    if world().world_size == 1 or (
        all(s.is_broadcast for s in variable.sbp) and 0 in variable.placement
    ):
        return to_host(shard)
    return brought(shard, variable.type, variable.sbp, variable.placement)
