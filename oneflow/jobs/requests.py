"""Requests of an inference job: checked, put together to batches, cut apart again."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from oneflow.kernels.array import Array

if TYPE_CHECKING:
    from oneflow.protos import cluster_pb2 as pb

from oneflow.core.dtype import dtype_of
from oneflow.core.errors import OneFlowError
from oneflow.io.container import dtype_named
from oneflow.jobs.description import Description, Port
from oneflow.jobs.jobfile import JobFile
from oneflow.jobs.row_flow import batch_of, row_outputs


class RequestError(OneFlowError, ValueError):
    """A request that does not fit the graph; the job goes on."""


@dataclass
class Request:
    """A request to a graph that serves.

    number: the daemon's own for it. rows: of its inputs; 0 if the graph has no batch. found: parts
    of each output, as they come. left: rows that are not answered yet.
    """

    number: int
    inputs: dict[str, Array]
    rows: int
    found: dict[str, list[Array]] = field(default_factory=dict)
    left: int = 0


@dataclass(frozen=True)
class Share:
    """Rows [start, stop) of a request, at `at` of a batch."""

    request: Request
    start: int
    stop: int
    at: int


class Interface:
    """The inputs and outputs of a graph. batch: rows of all its inputs; 0 if requests may not share
    a batch, and each is a step of its own with inputs as in the example.

    row_outputs: indices of the outputs with a row for each row of the inputs, made of that alone.
    """

    def __init__(self, description: Description, row_outputs: Set[int]) -> None:
        self.inputs, self.outputs = description.inputs, description.outputs
        self.batch, self._why = batch_of(description), ""
        joined = [p.name for p in self.outputs if p.index not in row_outputs]
        if self.batch and joined:
            self.batch, self._why = 0, f" (exactly: {joins_rows(joined)})"

    @staticmethod
    def of(file: JobFile) -> Interface:
        d = file.description
        return Interface(d, row_outputs(file.graph(), batch_of(d)))

    def request(self, message: pb.Infer) -> Request:
        """A request from the wire. Raises RequestError that names the input."""
        given: dict[str, pb.Tensor] = {}
        for tensor in message.inputs:
            if tensor.name in given:
                raise RequestError(f"input {tensor.name[:80]!r} is given twice")
            given[tensor.name] = tensor
        known = {p.name for p in self.inputs}
        for name in given:
            if name not in known:
                raise RequestError(f"there is no input {name[:80]!r}; {self._wanted()}")
        arrays = {p.name: self._array(p, given.get(p.name)) for p in self.inputs}
        rows = {len(a) for a in arrays.values()} if self.batch else {0}
        if len(rows) != 1:
            raise RequestError("the inputs have different numbers of rows")
        count = rows.pop()
        return Request(message.request, arrays, count, left=count)

    def _wanted(self) -> str:
        return (
            "the inputs are "
            + ", ".join(
                f"{p.name}: {p.dtype}[{', '.join(map(str, self._shape(p)))}]" for p in self.inputs
            )
            + self._why
        )

    def _shape(self, port: Port) -> tuple[Any, ...]:
        return ("rows", *port.shape[1:]) if self.batch else port.shape

    def _array(self, port: Port, tensor: pb.Tensor | None) -> Array:
        if tensor is None:
            raise RequestError(f"input {port.name!r} is missing; {self._wanted()}")
        shape = tuple(tensor.shape)
        rest = shape[1:] == port.shape[1:] and len(shape) == len(port.shape)
        fits = rest if self.batch else shape == port.shape
        kind = _numpy(port)
        if tensor.dtype != kind.name or not fits:
            raise RequestError(
                f"input {port.name!r} is {tensor.dtype[:20]}{list(shape)[:16]}; {self._wanted()}"
            )
        if self.batch and not shape[0]:
            raise RequestError(
                f"input {port.name!r} has no rows: {kind.name}{list(shape)}; send one at least"
            )
        if len(tensor.data) != math.prod(shape) * kind.itemsize:
            raise RequestError(
                f"input {port.name!r}: {len(tensor.data)} bytes are no {kind.name}{list(shape)}"
            )
        array: Array = np.frombuffer(tensor.data, kind).reshape(shape)
        return array

    # ---- batches ---------------------------------------------------------------------------------

    def take(self, waiting: deque[tuple[Request, int]]) -> list[Share]:
        """Shares of the waiting requests that fit one batch. waiting: request and its first row
        that is not in a batch yet."""
        shares: list[Share] = []
        at = 0
        while waiting and (at < self.batch or not shares):
            request, start = waiting.popleft()
            if not self.batch:
                return [Share(request, 0, 0, 0)]
            stop = min(request.rows, start + self.batch - at)
            shares.append(Share(request, start, stop, at))
            at += stop - start
            if stop < request.rows:
                waiting.appendleft((request, stop))
        return shares

    def feeds(self, shares: list[Share]) -> dict[str, Array]:
        """Whole inputs by name; rows that nobody asked for are zeros."""
        if not self.batch:
            return dict(shares[0].request.inputs)
        feeds = {p.name: np.zeros(p.shape, _numpy(p)) for p in self.inputs}
        for share in shares:
            end = share.at + share.stop - share.start
            for name, array in share.request.inputs.items():
                feeds[name][share.at : end] = array[share.start : share.stop]
        return feeds

    def divide(self, shares: list[Share], results: dict[int, Array]) -> list[Request]:
        """Gives each request its part of the outputs. Returns those that are complete."""
        done = []
        for share in shares:
            count = share.stop - share.start
            for port in self.outputs:
                array = results[port.index]
                if self.batch:
                    array = array[share.at : share.at + count]
                share.request.found.setdefault(port.name, []).append(array)
            share.request.left -= count
            if share.request.left <= 0:
                done.append(share.request)
        return done

    def answer(self, request: Request) -> list[tuple[str, Array]]:
        """The outputs of a complete request by name."""
        found = []
        for port in self.outputs:
            parts = request.found[port.name]
            whole = np.concatenate(parts) if len(parts) > 1 else parts[0]
            found.append((port.name, whole))
        return found


def joins_rows(names: Sequence[str]) -> str:
    """Say why requests of a job may not share a batch."""
    listed = ", ".join(repr(n[:80]) for n in names[:8])
    return f"{listed} cannot be cut into rows that each come from one row of the inputs"


def _numpy(port: Port) -> np.dtype[Any]:
    kind: np.dtype[Any] = dtype_of(port.dtype).np
    return dtype_named(kind.name) or kind
