"""`flow.jobs.load` and `flow.jobs.verify`: job files, checked before anything is used.

A job file may come from anyone: nothing in it is code, nothing is believed before it was compared
with the bytes beside it, and no size is allocated that the file does not hold.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from oneflow.core.control_channel import MAX_GRAPH_NBYTES
from oneflow.core.errors import CheckpointError
from oneflow.core.graph import LogicalGraph
from oneflow.core.job_config import NO_OVERRIDES, Overrides
from oneflow.io.container import Container
from oneflow.io.files import AnyPath, read_bytes
from oneflow.jobs.archive import Part, digest_of
from oneflow.jobs.description import Description, JobFileError
from oneflow.jobs.graph_entry import check_draws, check_ports, decode_graph, named
from oneflow.jobs.order import Batches
from oneflow.jobs.peek import (
    DATA,
    GRAPH,
    JOB,
    SCHEDULE,
    VARIABLES,
    as_job_errors,
    describe,
    open_job,
)
from oneflow.jobs.sources import Access, open_data
from oneflow.jobs.tables import tables_of
from oneflow.kernels.array import Array

MAX_SCHEDULE_NBYTES = 1 << 30
MAX_HEADER_NBYTES = 16 << 20
MAX_ARRAYS = 200_000
MANY_STEPS = 2**62  # as many as anybody wants


class JobFile:
    """An open job file that was checked. graph_bytes: of the logical graph, as traced.

    variables: the container of their values, of which parts can be read.  rates: learning rates by
    input name, one for all steps or one for each.

    tables: the descriptions of its embeddings.

    check_data: whether the data's digest is compared; check_digests: whether any is.  overrides:
    settings that take the place of those in the file.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        check_data: bool = True,
        check_digests: bool = True,
        overrides: Overrides = NO_OVERRIDES,
    ) -> None:
        self.path = Path(os.path.abspath(os.fspath(path)))
        self._overrides = overrides
        self._skips_data, self._skips_all = not check_data, not check_digests
        self._file = open_job(path)
        try:
            with as_job_errors(str(self.path)):
                self._read()
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        self._entries, described = describe(self._file)
        config = self._overrides.of(described.config)
        self.description = msgspec.structs.replace(described, config=config)
        self._check_entries()
        if self._entries[GRAPH].nbytes > MAX_GRAPH_NBYTES:
            raise JobFileError(f"{GRAPH} has more than {MAX_GRAPH_NBYTES} bytes")
        self.graph_bytes = read_bytes(self.part(GRAPH), 0, self._entries[GRAPH].nbytes)
        self._decoded: LogicalGraph | None = decode_graph(self.graph_bytes)
        graph = self._decoded
        self.tables = list(tables_of(graph).values())
        self.rates = self._schedule()
        self.variables = self._container(VARIABLES)
        self._check_variables(graph)
        check_ports(graph, self.description, self.rates)
        check_draws(graph, self.description)
        self._check_data()

    def _check_entries(self) -> None:
        """The entries are those that `job.json` names, and their bytes those that were written."""
        listed, found = self.description.entries, set(self._entries) - {JOB}
        if strange := sorted(set(listed) - {GRAPH, VARIABLES, SCHEDULE, DATA}):
            raise JobFileError(f"{JOB}: entries: a job file has no entry {strange[0][:80]!r}")
        if set(listed) != found:
            odd = sorted(set(listed) ^ found)[0]
            raise JobFileError(f"{JOB}: entries: {odd[:80]!r} is listed or in the file, not both")
        for name, info in listed.items():
            entry = self._entries[name]
            if info.nbytes != entry.nbytes:
                raise JobFileError(
                    f"{JOB}: entries: {name} has {entry.nbytes} bytes, not the {info.nbytes} "
                    "that were written"
                )
            skipped = self._skips_all or (self._skips_data and name == DATA)
            if not skipped and digest_of(self.part(name), entry.crc) != info.digest:
                raise JobFileError(f"{name} is damaged: its digest is not the one in {JOB}")

    def _schedule(self) -> dict[str, Array]:
        if self._entries[SCHEDULE].nbytes > MAX_SCHEDULE_NBYTES:
            raise JobFileError(f"{SCHEDULE} has more than {MAX_SCHEDULE_NBYTES} bytes")
        found = self._container(SCHEDULE)
        for name, entry in found.entries.items():
            count = entry.shape[0] if len(entry.shape) == 1 else 0
            if entry.dtype != np.float64 or count not in (1, self.description.steps):
                raise JobFileError(
                    f"{SCHEDULE}: {name[:80]!r} is {entry.dtype}{list(entry.shape)}, not a float64 "
                    f"for all steps or for each of {self.description.steps}"
                )
        return {name: found.read(name) for name in found.entries}

    def _container(self, name: str) -> Container:
        part = self.part(name)
        size = int.from_bytes(read_bytes(part, 0, 8), "little") if part.nbytes >= 8 else 0
        if size > MAX_HEADER_NBYTES:
            raise JobFileError(f"{name}: a header of {size} bytes, more than {MAX_HEADER_NBYTES}")
        try:
            found = Container(part)
        except CheckpointError as error:
            raise JobFileError(f"{name}: {error}") from error
        if len(found.entries) > MAX_ARRAYS:
            raise JobFileError(f"{name}: {len(found.entries)} arrays, more than {MAX_ARRAYS}")
        return found

    def _check_variables(self, graph: LogicalGraph) -> None:
        nodes = named(graph, "variable")
        odd = sorted(set(nodes) ^ set(self.variables.entries))
        if odd:
            raise JobFileError(f"{VARIABLES}: {odd[0][:80]!r} is only there, or only in {GRAPH}")
        for name, node in nodes.items():
            entry, type_ = self.variables.entries[name], node.outputs[0].type
            if (entry.dtype, entry.shape) != (type_.dtype.np, type_.shape):
                raise JobFileError(
                    f"{VARIABLES}: {name[:80]!r} is {entry.dtype}{list(entry.shape)}, the graph "
                    f"says {type_}"
                )

    def _check_data(self) -> None:
        data = self.description.data
        if (DATA in self._entries) != (data is not None and data.kind == "arrays"):
            raise JobFileError(f"{JOB}: data: kind does not fit the entries of the file")
        if data is None:
            return
        given = {c.name: (c.dtype, (data.batch, *c.shape)) for c in data.columns}
        wanted = {p.name: (p.dtype, p.shape) for p in self.description.inputs}
        if given != wanted:
            raise JobFileError(
                f"{JOB}: data: the columns give {_listed(given)}, the inputs are {_listed(wanted)}"
            )
        if data.kind == "arrays":
            odd = sorted(set(self._container(DATA).entries) ^ set(given))
            if odd:
                raise JobFileError(f"{DATA}: {odd[0][:80]!r} is only there, or only in {JOB}")
            open_data(data, Access(), self.inside)

    # ---- reading ---------------------------------------------------------------------------------

    def part(self, name: str) -> Part:
        """An entry's bytes."""
        return Part(self._file, self._entries[name])

    def inside(self) -> tuple[Path, int, Part]:
        """Return where the arrays of the data lie in this file."""
        return self.path, self._entries[DATA].offset, self.part(DATA)

    @property
    def batches(self) -> Batches | None:
        """The rows of each batch; None: it has no data."""
        data = self.description.data
        return Batches.of(data) if data is not None else None

    @property
    def most_steps(self) -> int:
        """Number of steps that its learning rates and its data are enough for."""
        found = [len(table) for table in self.rates.values() if len(table) > 1]
        count = self.batches.count if self.batches is not None else None
        return min([*found, MANY_STEPS if count is None else count])

    def check_steps(self, steps: int) -> None:
        """Raises JobFileError if it has not so many learning rates or batches."""
        for name, table in self.rates.items():
            if 1 < len(table) < steps:
                raise JobFileError(
                    f"{steps} steps were asked for, but the file has learning rates {name} for "
                    f"{len(table)}; export it with steps={steps}"
                )
        if steps > self.most_steps:
            raise JobFileError(
                f"{steps} steps were asked for, but the data of the file has {self.most_steps} "
                "batches"
            )

    def check_kind(self, wanted: str) -> None:
        """Raises JobFileError if it was exported for another kind of job."""
        found = self.description.kind
        if found != wanted:
            raise JobFileError(
                f"{self.path} was exported for {'training' if found == 'graph' else 'inference'}, "
                f"the job is of kind {wanted}"
            )

    def graph(self) -> LogicalGraph:
        """The logical graph, a new one at each call: compiling edits it."""
        decoded, self._decoded = self._decoded, None  # that which was checked is as good once
        return decoded if decoded is not None else decode_graph(self.graph_bytes)

    def open_data(self, access: Access) -> dict[str, Array]:
        """The data's columns, mapped into memory. Raises JobFileError."""
        if self.description.data is None:
            return {}
        return open_data(self.description.data, access, self.inside)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> JobFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load(path: AnyPath) -> JobFile:
    """Opens a job file. Raises JobFileError, naming entry and field, for every defect."""
    return JobFile(path)


def verify(path: AnyPath) -> Description:
    """Check all of a job file. Returns its description. Raises JobFileError."""
    with JobFile(path) as file:
        return file.description


def _listed(ports: dict[str, Any]) -> str:
    listed = [f"{n[:80]} {d}{list(s)}" for n, (d, s) in sorted(ports.items())]
    return ", ".join(listed[:8]) or "nothing"
