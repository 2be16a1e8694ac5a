"""The way from a graph to a job that runs its steps, and the lines that are printed on that way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from oneflow.actors.epilogues import products_line
from oneflow.actors.fusing import table as fusion_table
from oneflow.core.collector import collector_paused
from oneflow.core.config import current_config
from oneflow.core.device import META
from oneflow.core.errors import GraphError
from oneflow.core.graph import LogicalGraph, Value
from oneflow.core.stage_log import recording
from oneflow.distributed.world import world
from oneflow.graph.arguments import Arguments, check_inputs
from oneflow.graph.binding import compile_and_bind
from oneflow.graph.choosing import trace_chosen
from oneflow.graph.compile_log import write
from oneflow.graph.debugging import prints
from oneflow.graph.describe import describe, describe_module, input_names, passes_done
from oneflow.graph.draws import GraphRandomness
from oneflow.graph.layout_assignment import take_layouts
from oneflow.graph.low_precision_weights import HalfCopies, copies_in
from oneflow.graph.memory_limit import costs_in, report_of
from oneflow.graph.memory_report import Recomputed
from oneflow.graph.plans import Modes
from oneflow.graph.recomputed_tensors import recomputed_lines
from oneflow.graph.sources import Sources
from oneflow.graph.trace import Trace
from oneflow.graph.tracing import Build
from oneflow.graph.tree import map_tensors, tensors_of
from oneflow.kernels.array import Array
from oneflow.scheduler.compiler.rewrite.dedupe import erase_dead
from oneflow.tensor.tensor import Tensor, wrap, wrap_global

if TYPE_CHECKING:
    from oneflow.actors.cuda_graph import Recordings
    from oneflow.actors.job import Job
    from oneflow.core.plan import Plan
    from oneflow.functional.random_state import Generator
    from oneflow.graph.spec import GraphSpec
    from oneflow.nn.module import Module


@dataclass
class Compiled:
    """A graph that is bound to this rank.

    trace: None if the plan was loaded.
    variables: the tensors that it reads and overwrites, by name.  arguments: of the first call.
    outputs: the result of build. output_values: of the plan, by the number of the output.
    modes: of the modules, which the plan is for.  randomness: None if the graph calls no generator.
    sources: input that the graph reads itself, if it does.
    recomputed: modules that the backward pass computes again.  halves: copies of parameters in half
    precision, if there are any.
    """

    job: Job
    trace: Trace | None
    variables: dict[str, Tensor]
    arguments: Arguments
    input_names: list[str]
    outputs: Any
    output_values: dict[int, Value]
    modes: Modes
    randomness: GraphRandomness | None
    sources: Sources | None = None
    recomputed: tuple[Recomputed, ...] = ()
    halves: HalfCopies | None = None

    def assemble(self, results: dict[int, Array]) -> Any:
        """The outputs of a step in the structure that `build` returned."""
        traced = iter(enumerate(tensors_of(self.outputs)))

        def result(_: Tensor) -> Tensor:
            index, x = next(traced)
            return output_tensor(x, self.output_values[index], results.get(index))

        return map_tensors(self.outputs, result)


@dataclass
class Built:
    """A graph that was traced for (args, kwargs), not compiled.

    outputs: the result of build. modes: those of the modules while it was traced.
    """

    given: tuple[tuple[Any, ...], dict[str, Any]]
    trace: Trace
    outputs: Any
    modes: Modes


def trace_graph(
    spec: GraphSpec, build: Build, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Built:
    """Traces."""
    check_inputs(spec.name, (args, kwargs))
    spec.debugging.say(0, "tracing")
    start = perf_counter()
    given = args, kwargs
    with collector_paused():
        trace, outputs = trace_chosen(spec, build, given)
        if world().world_size > 1:
            # A local tensor of which only shape and dtype were asked lies on each rank's own
            # device: a node that differs between the ranks, who have to agree.
            erase_dead(trace.graph)
    if not trace.graph.num_nodes:
        raise GraphError(
            f"graph {spec.name} has nothing to run: build() takes no tensor and reads none"
        )
    seconds = perf_counter() - start
    spec.compile_log.note("trace", seconds)
    spec.debugging.say(0, f"traced {len(trace.graph)} nodes in {seconds:.3f} s; compiling")
    modes = modes_of(spec, trace.called.values(), trace.variables.values())
    return Built(given, trace, outputs, modes)


def modes_of(spec: GraphSpec, called: Iterable[Module], tensors: Iterable[Tensor]) -> Modes:
    """The modes of the graph's modules, of others that its `build` calls, and of the tensors that
    it reads.
    """
    held = (module for top in spec.modules.values() for module in top.modules())
    modules = {id(module): module for module in (*held, *called)}
    return Modes(modules.values(), tensors)


def device_index(tensors: Iterable[Tensor]) -> int:
    """Return the index of the device that a graph of these tensors runs on: theirs, or without any
    there this rank's own.
    """
    own = current_config().local_rank
    return next((x._device.index for x in tensors if x._device.type not in ("cpu", META)), own)


def compile_built(spec: GraphSpec, built: Built) -> Compiled:
    """Compile a traced graph, and bind it."""
    start = perf_counter()
    text = str(built.trace.graph) if spec.debugging.v_level >= 2 else ""  # compiling edits it
    with recording(spec.name, spec.compile_log.record):
        compiled = _compile(spec, built.trace, built)
    spec.compile_log.time_first_run(compiled.job)
    compiled.modes.settle()
    spec.plans.keep(compiled)
    _say_compiled(spec, compiled.job, perf_counter() - start, text)
    for cost in compiled.recomputed:
        spec.debugging.say(
            0, f"{cost.module} is computed again: {cost.saved_nbytes} bytes are not kept"
        )
    _say_tensors(spec, compiled)
    _say_memory(spec, compiled)
    return compiled


def _compile(spec: GraphSpec, trace: Trace, built: Built) -> Compiled:
    spanned = ranks_that_draw_together(trace.graph)
    config = spec.job_config()
    index = device_index([*trace.variables.values(), *tensors_of(built.given)])
    variables, steps = trace.variables, spec.plans.steps_done

    def arrays(plan: Plan) -> dict[str, Array]:
        variables.update(copies_in(plan.graph, variables, spec.variables.halves))
        return take_layouts(plan, variables, spec.variables.whole)

    with collector_paused():
        job = compile_and_bind(trace.graph, config, arrays, index)
    job.step = steps
    held = set(map(id, variables.values()))
    return Compiled(
        job,
        trace,
        variables,
        Arguments(spec.name, built.given, trace.rows),
        input_names(spec.name, *built.given),
        built.outputs,
        job.bound.plan.graph.outputs,
        built.modes,
        randomness_of(spec, trace.draws.counts, spanned),
        Sources(trace.sources) if trace.sources else None,
        costs_in(job.bound.plan, config),
        HalfCopies.of([pair for pair in spec.variables.halves.values() if id(pair[1]) in held]),
    )


def ranks_that_draw_together(graph: LogicalGraph) -> list[int]:
    """All ranks of a graph that has random numbers on more than one; else none."""
    together = any(n.declared.is_random and n.placement.size > 1 for n in graph)
    return graph.rank_ids if together else []


def randomness_of(
    spec: GraphSpec, counts: Sequence[tuple[Generator, int, int]], ranks: list[int]
) -> GraphRandomness | None:
    """None: the graph calls no generator."""
    return GraphRandomness(spec.name, counts, spec.config.num_pieces, ranks) if counts else None


def output_tensor(x: Tensor, value: Value, array: Array | None) -> Tensor:
    if x._placement is None:
        assert array is not None
        return wrap(array)
    if array is None:  # this rank is outside the output's placement
        array = np.empty((0,) * max(value.type.ndim, 1), value.type.dtype.np)
    assert value.sbp is not None
    return wrap_global(array, value.type, value.placement, value.sbp)


# ---- printing ------------------------------------------------------------------------------------


def _say_compiled(spec: GraphSpec, job: Job, seconds: float, text: str) -> None:
    bound = job.bound
    plan = bound.plan
    spec.debugging.say(
        0,
        f"compiled in {seconds:.3f} s: {len(plan.actors)} actors, {len(plan.registers)} "
        "registers; registers and scratch memory "
        f"of this rank {bound.arena_nbytes} bytes (least possible: {bound.arena_bound})",
    )
    if spec.debugging.v_level >= 1:
        spec.debugging.say(1, "\n  ".join(("passes:", *passes_done(plan))))
        spec.debugging.say(1, describe(spec, with_ops=False))
    spec.debugging.say(2, text)
    if spec.debugging.v_level >= 2:
        segments = list(bound.memory.segments.values())
        facts = [fact for segment in segments for fact in segment.facts]
        others = sum((segment.unformed for segment in segments), Counter[str]())
        spec.debugging.say(2, fusion_table(facts, others))
        if plan.device_type == "cuda":
            spec.debugging.say(2, products_line())
    if spec.debugging.v_level >= 3:
        spec.debugging.say(3, str(plan))
    for path, (module, level, ranks) in spec.debugging.modules.items():
        if prints(ranks):
            spec.debugging.print(describe_module(spec, path, module, with_ops=level >= 2))


def _say_tensors(spec: GraphSpec, compiled: Compiled) -> None:
    """The tensors that checkpointing does not keep, and those that it keeps, from level 1 on."""
    if compiled.recomputed and (spec.debugging.is_heard(1) or current_config().debug):
        for line in recomputed_lines(compiled.job.bound.plan, spec.job_config()):
            spec.debugging.say(1, line)
            write(line)


def _say_memory(spec: GraphSpec, compiled: Compiled) -> None:
    """The memory analysis, from level 3 of debugging on, or on every rank if GLOG_v asks for it."""
    if current_config().tells_memory or spec.debugging.is_heard(3):
        report = report_of(spec, compiled)
        spec.debugging.print(f"{report}\n{report.table()}")
    if current_config().debug:
        write(str(report_of(spec, compiled)))


def say_recordings(spec: GraphSpec, recordings: Recordings) -> None:
    """Print, from level 2 on, the segments recorded as CUDA graphs since the last time, and the
    others.
    """
    for line in recordings.take_lines():
        spec.debugging.say(2, line)
