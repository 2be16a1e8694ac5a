"""The feeds of each step: this rank's rows of the batch, learning rates, numbers of updates."""

from __future__ import annotations

from typing import Any

import numpy as np

from oneflow.core.errors import GraphError
from oneflow.jobs.description import Description, JobFileError
from oneflow.jobs.order import Cursor
from oneflow.jobs.running import Bound
from oneflow.jobs.sources import Access
from oneflow.kernels.array import Array


class Feeder:
    """The feeder of one rank.

    steps: of the whole job. cursor: where the next batch begins, part of every checkpoint.
    """

    def __init__(self, bound: Bound, access: Access, steps: int) -> None:
        self._d: Description = bound.file.description
        self._rates = bound.file.rates
        self._inputs = bound.inputs
        self._columns = bound.file.open_data(access)
        self.cursor = Cursor()
        self._batches = bound.file.batches
        bound.file.check_steps(steps)

    def feeds(self, step: int) -> dict[str, Any]:
        """Return the feeds of step number `step` from 0; go on to the next batch."""
        found: dict[str, Any] = {}
        for port in self._d.inputs:
            name = f"input.{port.index}"
            if name in self._inputs:
                found[name] = self._rows(port.name, name)
        found |= self._scalars(step)
        if self._batches:
            self.cursor = self._batches.after(self.cursor)
        return found

    def whole_feeds(self, cursor: Cursor, step: int) -> dict[str, Any]:
        """Return the feeds of all ranks together, at any place; go nowhere."""
        found = self._scalars(step)
        for port in self._d.inputs:
            if self._batches is not None:
                rows = self._batches.rows(cursor, 0, self._batches.batch)
                found[f"input.{port.index}"] = self._columns[port.name][rows]
        return found

    def _scalars(self, step: int) -> dict[str, Any]:
        rates = {n: np.array(t[min(step, len(t) - 1)]) for n, t in self._rates.items()}
        counts = {
            f"step.{number}": np.array(count + step + 1, dtype=np.int64)
            for number, count in self._d.updates.items()
        }
        return {**rates, **counts}

    def _rows(self, column: str, name: str) -> Array:
        _, box = self._inputs[name]
        if self._batches is None:
            raise GraphError(f"input {column} has no data")
        numbers = self._batches.rows(self.cursor, box.starts[0], box.stops[0])
        own: Any = (slice(None), *box.slices[1:])
        rows: Array = self._columns[column][numbers][own]
        return rows

    def resume(self, cursor: Cursor) -> None:
        """Goes on at a cursor of a checkpoint. Raises JobFileError if the data has no such row."""
        data = self._d.data
        if data is not None and not 0 <= cursor.position < data.rows:
            raise JobFileError(f"the checkpoint goes on at row {cursor.position} of {data.rows}")
        self.cursor = cursor
