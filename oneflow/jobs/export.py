"""`graph.export` and `flow.jobs.save`: writes a graph with all that its training needs to one file.

The graph is traced for it, with zeros of the batch's shape; nothing is run. If it has global
tensors all ranks call it, and rank 0 writes.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from oneflow.core.graph import LogicalGraph
from oneflow.core.graph_proto import graph_to_bytes
from oneflow.core.tensor_type import TensorType
from oneflow.distributed.world import world
from oneflow.graph.choosing import trace_chosen
from oneflow.graph.spec import GraphSpec, spec_of
from oneflow.graph.tree import flatten
from oneflow.io.all_or_none import AllOrNone
from oneflow.io.container import Kind, dtype_named
from oneflow.io.container import Writer as ContainerWriter
from oneflow.io.files import AnyPath
from oneflow.jobs.archive import Writer
from oneflow.jobs.data import Data
from oneflow.jobs.description import (
    Checkpoints,
    Description,
    GeneratorState,
    JobFileError,
    Port,
    check,
    encode,
)
from oneflow.jobs.jobfile import load
from oneflow.jobs.peek import DATA, GRAPH, JOB, SCHEDULE, VARIABLES
from oneflow.jobs.requests import joins_rows
from oneflow.jobs.row_flow import batch_of, row_outputs
from oneflow.jobs.tables import prepare_tables
from oneflow.kernels.array import Array
from oneflow.tensor.eager_global import brought, to_host
from oneflow.tensor.tensor import Tensor, wrap

if TYPE_CHECKING:
    from oneflow.graph.graph import Graph
    from oneflow.graph.trace import Trace


def save(
    graph: Graph,
    path: AnyPath,
    *,
    data: Data | None = None,
    inputs: Mapping[str, Tensor] | None = None,
    steps: int | None = None,
    outputs: Sequence[str] | None = None,
    record: Sequence[str] | None = None,
    checkpoint_every: int = 0,
    checkpoint_keep: int = 2,
    stop_on_nonfinite: bool = False,
    name: str | None = None,
) -> Description:
    """Trace the graph and write the job file. Returns its description.

    data: the arrays that are fed, by the names of `build`'s arguments (flow.jobs.data); without it
    the file is for an inference job, and `inputs` gives an example of each argument.
    inputs: examples with the wanted layouts, needed with data only if they are global.
    steps: optimizer steps; None: as many as the data has batches.
    outputs: names of the results of `build`, in order; None: its keys if it is a dict,
    else "loss" of one number and "output.0"... of others.
    record: which of them are reported at each step and kept at the end; None: the single numbers.
    checkpoint_every: steps between checkpoints; 0: only when the job is stopped.
    stop_on_nonfinite: a recorded number that is no number ends the job.

    Raises JobFileError for arguments that do not fit together, and the errors of tracing.
    """
    if data is not None and not isinstance(data, Data):
        raise JobFileError(
            f"data is a {type(data).__name__}; declare what feeds the arguments of build(): "
            "flow.jobs.data.arrays(x=..., y=...).batch(64)"
        )
    examples = _examples(graph, data, inputs)
    spec = spec_of(graph)
    trace, returned = trace_chosen(spec, graph.build, ((), examples))
    config = spec.job_config()
    try:
        prepare_tables(trace.graph, is_training=data is not None)
        ports = _outputs(graph, trace, returned, outputs)
        steps = _number_of_steps(graph, data, steps)
        rates, updates = _schedule(spec, steps)
        if record is None:
            numbers = (), (1,), (graph.config.num_pieces,)
            record = [p.name for p in ports if p.shape in numbers]
        description = Description(
            kind="graph" if data is not None else "inference",
            name=name or graph.name,
            steps=steps,
            first_step=spec.plans.steps_done,
            config=config,
            inputs=tuple(
                Port(name=n, index=i, dtype=x.meta.dtype.name, shape=x.meta.shape)
                for i, (n, x) in enumerate(examples.items())
            ),
            outputs=ports,
            record=tuple(record) if data is not None else (),
            updates=updates,
            generators=_generators(trace),
            data=data.spec if data is not None else None,
            checkpoints=Checkpoints(every=checkpoint_every, keep=checkpoint_keep),
            stop_on_nonfinite=stop_on_nonfinite,
            entries={},
        )
        check(description, "export")
        if data is None:
            _warn_of_joined(description, trace.graph)
        return _write(Path(os.fspath(path)), description, trace, rates, data)
    finally:
        trace.restore_gradients()


# ---- tracing -------------------------------------------------------------------------------------


def _examples(
    graph: Graph, data: Data | None, inputs: Mapping[str, Tensor] | None
) -> dict[str, Tensor]:
    """A tensor for each argument of `build`."""
    if data is None:
        if not inputs:
            raise JobFileError(
                f"export of {graph.name}: give data=... to train, or inputs={{name: tensor}} to "
                "make an inference job"
            )
        return dict(inputs)
    given = dict(inputs or {})
    found = {}
    for column in data.spec.columns:
        shape = (data.spec.batch, *column.shape)
        x = given.pop(column.name, None)
        if x is None:
            x = wrap(np.zeros(shape, dtype_named(column.dtype)))
        if (x.meta.shape, x.meta.dtype.np.name) != (shape, column.dtype):
            raise JobFileError(
                f"export of {graph.name}: input {column.name!r} is {x.meta}, but the data gives "
                f"{column.dtype}{list(shape)}"
            )
        found[column.name] = x
    if given:
        raise JobFileError(f"export of {graph.name}: no data for input {', '.join(given)}")
    return found


def _generators(trace: Trace) -> tuple[GeneratorState, ...]:
    """Return the generators as they are now, so the job draws the numbers that the graph would if
    it were called here.
    """
    return tuple(
        GeneratorState(seed=g.position[0], calls=g.position[1], each=each, once=once)
        for g, each, once in trace.draws.counts
    )


def _number_of_steps(graph: Graph, data: Data | None, steps: int | None) -> int:
    if data is None:
        return 0
    count = data.batches.count
    if steps is None:
        steps = count
    if steps is None:
        raise JobFileError(f"export of {graph.name}: the data has no end, so give steps=...")
    if steps < 1 or (count is not None and steps > count):
        raise JobFileError(
            f"export of {graph.name}: {steps} steps, but the data has {count} batches; "
            "data.repeat() starts again"
        )
    return int(steps)


def _schedule(spec: GraphSpec, steps: int) -> tuple[dict[str, Array], dict[str, int]]:
    """Learning rates of each group, and its momentum where a schedule sets that, one number if they
    never change; updates made before.
    """
    rates: dict[str, Array] = {}
    updates = {}
    for optimizer in spec.optimizers:
        updates[str(optimizer.number)] = int(optimizer.optim.state["step"])
        first = spec.plans.steps_done
        count = 1 if optimizer.lr_sch is None else max(steps, 1)
        tables = [optimizer.numbers_at(first + k) for k in range(count)]
        for name in tables[0]:
            table = [numbers[name] for numbers in tables]
            rates[name] = np.array(table[:1] if len(set(table)) == 1 else table)
    return rates, updates


def _outputs(
    graph: Graph, trace: Trace, returned: object, names: Sequence[str] | None
) -> tuple[Port, ...]:
    types = {index: value.type for index, value in trace.graph.outputs.items()}
    if names is None:
        names = _names(returned, types, flatten(returned))
    if len(names) != len(types):
        raise JobFileError(
            f"export of {graph.name}: {len(names)} names of outputs, but build() returns "
            f"{len(types)} tensors"
        )
    return tuple(
        Port(name=str(n), index=i, dtype=types[i].dtype.name, shape=types[i].shape)
        for n, i in zip(names, sorted(types), strict=True)
    )


def _names(
    returned: object, types: dict[int, TensorType], leaves: list[tuple[str, object]]
) -> list[str]:
    if isinstance(returned, dict):
        return [path[1:] for path, leaf in leaves if isinstance(leaf, Tensor)]
    if len(types) == 1:
        return ["loss" if types[0].numel == 1 else "output"]
    return [f"output.{i}" for i in range(len(types))]


def _warn_of_joined(d: Description, graph: LogicalGraph) -> None:
    """Warn of an inference job whose requests cannot have any number of rows."""
    batch = batch_of(d)
    apart = row_outputs(graph, batch) if batch else set()
    joined = [p.name for p in d.outputs if batch and p.index not in apart]
    if joined:
        warnings.warn(
            f"export of {d.name}: {joins_rows(joined)}, so each request runs alone and must have "
            f"exactly {batch} rows; without such outputs it may have any number",
            stacklevel=4,
        )


# ---- writing -------------------------------------------------------------------------------------


def _write(
    path: Path, description: Description, trace: Trace, rates: dict[str, Array], data: Data | None
) -> Description:
    """All ranks bring their parts of variables; rank 0 writes. Of a graph of local tensors the
    process that calls it writes, alone."""
    pact = AllOrNone(f"export to {path}", "export of a graph")
    if not any(node.placement.size > 1 for node in trace.graph) and all(
        x._placement is None for x in trace.variables.values()
    ):
        pact.world_size, pact.rank = 1, 0
    file = _File(path) if pact.rank == 0 else None
    try:
        variables = trace.variables
        kinds = {n: (x.meta.dtype.np, x.meta.shape) for n, x in variables.items()}
        if file is not None:
            pact.attempt(lambda: file.begin(trace.graph, rates, data))
            pact.attempt(lambda: file.open(VARIABLES, kinds))
        for name, x in variables.items():
            array = _whole(x)
            if file is not None:
                pact.attempt(partial(file.add, name, array))
        if file is not None:
            pact.attempt(lambda: file.finish(description))
        pact.meet()
    except BaseException:
        if file is not None:
            file.abort()
        raise
    return load(path).description if pact.rank == 0 else description


def _whole(x: Tensor) -> Array:
    """All of a variable; of a global one, on rank 0."""
    if x._placement is None or x._sbp is None or world().world_size == 1:
        return to_host(x._array)
    return brought(x._array, x.meta, x._sbp, x._placement)


class _File:
    """The job file as it grows."""

    def __init__(self, path: Path) -> None:
        self._archive = Writer(path)
        self._entry = ExitStack()  # the one that is being written

    def begin(self, graph: LogicalGraph, rates: dict[str, Array], data: Data | None) -> None:
        with self._archive.entry(GRAPH) as file:
            file.write(graph_to_bytes(graph))
        entries: dict[str, Mapping[str, Array]] = {SCHEDULE: rates}
        if data is not None and data.spec.kind == "arrays":
            entries[DATA] = data.arrays
        for name, arrays in entries.items():
            self.open(name, {n: (a.dtype, tuple(a.shape)) for n, a in arrays.items()})
            for key, array in arrays.items():
                self.add(key, array)

    def open(self, name: str, kinds: Mapping[str, Kind]) -> None:
        """Begins an entry of arrays, and ends the one before."""
        self._entry.close()
        nbytes = sum(math.prod(shape) * dtype.itemsize for dtype, shape in kinds.values())
        file = self._entry.enter_context(self._archive.entry(name, nbytes + (1 << 20)))
        self._arrays = ContainerWriter(file, kinds, {})

    def add(self, key: str, array: Array) -> None:
        self._arrays.add(key, array)

    def finish(self, description: Description) -> None:
        import msgspec

        self._entry.close()
        with self._archive.entry(JOB) as file:
            entries = self._archive.written
            file.write(encode(msgspec.structs.replace(description, entries=entries)))
        self._archive.commit()

    def abort(self) -> None:
        self._archive.abort()
