"""Traces of the ranks of a graph job: begun, ended, and fetched from their nodes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from oneflow.cluster.connection import Connection
from oneflow.cluster.values import OutputFile
from oneflow.core.errors import ClusterRequestError, StillActiveError
from oneflow.protos import cluster_pb2 as pb

if TYPE_CHECKING:
    from oneflow.scheduler.jobs.records import JobRecord

ASK_S = 30.0
LOOK_S = 0.1
OVER = ("none", "done", "failed")


@dataclass(frozen=True)
class RankTrace:
    """A trace as one rank has it. trace: its name.

    state: none, asked (it begins when the ranks meet next), recording, writing, done, failed.
    file: of the rank's outputs, when it is done.  steps, acts: in it so far; dropped: acts that are
    not.  nbytes: of its JSON.  is_truncated: it was full before the trace was over.
    """

    rank: int
    host: str
    trace: str
    state: str
    file: str
    steps: int
    acts: int
    dropped: int
    nbytes: int
    is_truncated: bool
    error: str


class Traces:
    """The traces of one job."""

    def __init__(self, connection: Connection, job_id: str) -> None:
        self._connection, self._job_id = connection, job_id

    def ask(
        self,
        what: str,
        ranks: Iterable[int] = (),
        trace: str = "",
        steps: int = 0,
        seconds: float = 0.0,
    ) -> list[RankTrace]:
        """Send an order: start, stop or look."""
        order = pb.TraceOrder(what=what, ranks=ranks, trace=trace, steps=steps, seconds=seconds)
        request = pb.TraceRequest(job_id=self._job_id, order=order)
        found = self._connection.call("Jobs", "Trace", request, timeout_s=ASK_S)
        return [_state(message) for message in found.ranks]

    def start(self, steps: int, seconds: float, ranks: Sequence[int]) -> list[RankTrace]:
        """Raises ClusterRequestError if one of them cannot; then none of them does."""
        if steps < 0 or seconds < 0 or (steps and seconds):
            raise ClusterRequestError(
                "a trace takes so many steps, or seconds, and not less than 0"
            )
        name = f"t{secrets.token_hex(4)}"  # a start that is asked twice is done once
        found = self.ask("start", ranks, trace=name, steps=steps, seconds=seconds)
        wrong = next((t for t in found if t.error), None)
        if wrong is not None:
            where = f"rank {wrong.rank} on {wrong.host}"
            raise ClusterRequestError(f"job {self._job_id} is not traced: {where}: {wrong.error}")
        return found

    def wait(self, timeout_s: float) -> list[RankTrace]:
        """Until no rank records or writes. Raises StillActiveError."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.ask("look")
            late = next((t for t in found if t.state not in OVER and not t.error), None)
            if late is None:
                return found
            if time.monotonic() > deadline:
                raise StillActiveError(
                    f"rank {late.rank} of job {self._job_id} is still {late.state} after "
                    f"{timeout_s:g} s: a trace ends between steps; `oneflow debug dump` shows its "
                    "last acts"
                )
            time.sleep(LOOK_S)

    def save(
        self,
        record: JobRecord,
        names_on: Callable[[int], list[str]],
        folder: Path,
        ranks: Sequence[int],
    ) -> list[Path]:
        """names_on: outputs on the node of a rank."""
        folder.mkdir(parents=True, exist_ok=True)
        there_are: dict[str, set[str]] = {}
        saved = []
        for place in record.assignments:
            if ranks and place.rank not in ranks:
                continue
            if place.node not in there_are:
                there_are[place.node] = set(names_on(place.rank))
            name = f"trace-rank{place.rank}.json.gz"
            if name in there_are[place.node]:
                file = OutputFile(self._connection, self._job_id, name, folder, place.rank)
                saved.append(file.save())
        if not saved:
            raise ClusterRequestError(
                f"job {self._job_id} has no trace: `oneflow trace start {self._job_id}` while it "
                "runs makes one"
            )
        return saved


def _state(message: pb.TraceState) -> RankTrace:
    same = [field.name for field in fields(RankTrace) if field.name != "is_truncated"]
    told = {name: getattr(message, name) for name in same}
    return RankTrace(**told, is_truncated=message.truncated)
