"""The last steps of a graph job as rows of acts and waits, from a trace of its first ranks.

A trace is asked for as `oneflow trace start` does, and its files come from the ranks' nodes. They
are a job's, so what is in them is checked, cut and read in a thread.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oneflow.core.errors import ProtocolError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.changes import Changes
from oneflow.scheduler.cluster.outputs import Outputs
from oneflow.scheduler.cluster.ranks import Ranks
from oneflow.scheduler.cluster.refusals import RefusedError
from oneflow.services.traces import MAX_US, TraceReader, shifts_us

if TYPE_CHECKING:
    from oneflow.scheduler.cluster.state import State
    from oneflow.scheduler.jobs.records import JobRecord

MAX_STEPS = 20  # of a trace
MAX_RANKS = 16  # of a job, the first of them
MAX_BARS = 2000  # acts and waits together, of the last steps
MAX_FILE_NBYTES, MAX_NBYTES = 4 << 20, 48 << 20  # of a rank's trace as it is sent, and as JSON
MAX_NAME_CHARS = 120
MAX_KEPT = 4  # timelines


class Timelines:
    """Timelines of jobs, by the names of their traces."""

    def __init__(self, state: State) -> None:
        self._driver, self._changes = state.driver, Changes(state)
        self._ranks, self._outputs = Ranks(state.driver, state.lines), Outputs(state)
        self._folder = state.settings.state_dir
        self._kept: dict[str, dict[str, Any]] = {}

    async def start(self, job_id: str, steps: int) -> None:
        """Trace the next steps of a job. Raises RefusedError, DeniedError or NotFoundError."""
        self._changes.owner("trace", job_id)
        name, steps = f"t{secrets.token_hex(4)}", min(max(steps, 1), MAX_STEPS)
        order = pb.TraceOrder(what="start", trace=name, steps=steps)
        states = await self._ask(self._driver.job(job_id), order)
        wrong = next((state for state in states if state.error), None)
        if wrong is not None:
            raise RefusedError(f"rank {wrong.rank} on {wrong.host}: {wrong.error}")

    async def of(self, record: JobRecord) -> dict[str, Any]:
        """Return the timeline of a job's last trace, or {"state": ...} while there is none."""
        states = await self._ask(record, pb.TraceOrder(what="look"))
        found = next((state for state in states if state.state not in ("", "done")), states[0])
        if found.state != "done":
            return {"state": found.state or "unknown", "error": found.error}
        key = f"{record.id}/{record.life}/{record.attempt}/{found.trace}"
        if key not in self._kept:
            self._kept[key] = await self._fetch(record, [state.rank for state in states])
            while len(self._kept) > MAX_KEPT:
                del self._kept[next(iter(self._kept))]
        return {"state": "done", "trace": found.trace} | self._kept[key]

    async def _ask(self, record: JobRecord, order: pb.TraceOrder) -> list[pb.TraceState]:
        order.ranks.extend(place.rank for place in record.assignments[:MAX_RANKS])
        reply = await self._ranks.trace(pb.TraceRequest(job_id=record.id, order=order))
        return list(reply.ranks)

    async def _fetch(self, record: JobRecord, ranks: Sequence[int]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="timeline-", dir=self._folder) as folder:
            paths = []
            for rank in ranks:
                name = f"trace-rank{rank}.json.gz"
                paths.append(Path(folder) / name)
                with open(paths[-1], "wb") as file:
                    async for data in self._outputs.read(record.id, name, rank):
                        if file.tell() + len(data) > MAX_FILE_NBYTES:
                            raise RefusedError(
                                f"the trace of rank {rank} is too large to be drawn: `oneflow "
                                f"trace stop {record.id} --to FOLDER` fetches it for a viewer"
                            )
                        file.write(data)
            return await asyncio.to_thread(timeline, paths)


@dataclass(frozen=True)
class _Act:
    """One act, or a rest before one: waits_for is what the file says of it, arrows the names of the
    items that the act then reads.
    """

    row: tuple[int, str]
    begin: float
    length: float
    step: int
    piece: int
    waits_for: str = ""
    arrows: tuple[str, ...] = ()


def timeline(paths: Sequence[Path]) -> dict[str, Any]:
    """Return rows, acts and waits of the last steps in the files, in microseconds since the first.

    Raises TraceFileError for a file that is no trace, ProtocolError for one that has no acts.
    """
    readers: list[TraceReader] = []
    acts: list[_Act] = []
    made: dict[str, tuple[float, tuple[int, str]]] = {}  # when, and in which row, by arrow
    try:
        for path in paths:
            readers.append(TraceReader(path, MAX_NBYTES // len(paths)))
        for reader, shift in zip(readers, shifts_us([r.header for r in readers])[0], strict=True):
            _read(reader, shift, acts, made)
    finally:
        for reader in readers:
            reader.close()
    shown = _last_steps(acts)
    if not shown:
        raise ProtocolError("there is no act in the trace")
    start = min(act.begin for act in shown)
    rows = sorted({act.row for act in shown}, key=_order_of(shown))
    numbers = {row: number for number, row in enumerate(rows)}
    found = [
        [numbers[a.row], round(a.begin - start, 1), round(a.length, 1), a.step, a.piece]
        + ([_cause(a, made)] if a.waits_for else [])
        for a in sorted(shown, key=lambda act: act.begin)
    ]
    return {
        "rows": [{"rank": rank, "actor": name} for rank, name in rows],
        "acts": [bar for bar in found if len(bar) == 5],
        "waits": [bar for bar in found if len(bar) == 6],
        "length": round(max(a.begin + a.length for a in shown) - start, 1),
        "left_out": len(acts) - len(shown),
    }


def _order_of(acts: Sequence[_Act]) -> Any:
    """Rank by rank, in the order in which rows begin."""
    first: dict[tuple[int, str], float] = {}
    for act in acts:
        first[act.row] = min(first.get(act.row, act.begin), act.begin)
    return lambda row: (row[0], first[row], row[1])


def _last_steps(acts: Sequence[_Act]) -> list[_Act]:
    """Return the last steps that MAX_BARS has room for; of a larger one its first acts."""
    by_step: dict[int, list[_Act]] = {}
    for act in acts:
        by_step.setdefault(act.step, []).append(act)
    found: list[_Act] = []
    for step in sorted(by_step, reverse=True):
        if found and len(found) + len(by_step[step]) > MAX_BARS:
            break
        found += by_step[step]
    return sorted(found, key=lambda act: act.begin)[:MAX_BARS]


def _cause(act: _Act, made: Mapping[str, tuple[float, tuple[int, str]]]) -> list[Any]:
    """Return the rank and the actor that made the last input, if it came during the wait; else -1
    and what else it may have been: no input was missing.
    """
    at, row = max((made[name] for name in act.arrows if name in made), default=(0.0, act.row))
    if act.arrows and at > act.begin:
        return list(row)
    is_between = act.waits_for == "the next call"
    return [-1, "the next step" if is_between else "a free slot or a processor"]


def _read(
    reader: TraceReader,
    shift: float,
    acts: list[_Act],
    made: dict[str, tuple[float, tuple[int, str]]],
) -> None:
    """Add the acts of a file, in which a wait and arrows stand before the act that they lead to."""
    rank, names = int(reader.header["rank"]), dict[int, str]()
    wait: _Act | None = None
    arrows: list[str] = []
    for event in _known(reader):
        tid, name, kind = event["tid"], event["name"], event["ph"]
        if kind == "M":
            names[tid] = str(event["args"].get("name", ""))[:MAX_NAME_CHARS]
            continue
        at, args = event["ts"] + shift, event["args"]
        row = rank, names.get(tid, "")
        if kind == "s":
            made[event["id"]] = at, row
        elif kind == "f":
            arrows.append(event["id"])
        elif event["cat"] == "wait":
            waiting = rank, str(args.get("act", ""))[:MAX_NAME_CHARS]
            wait, arrows = _Act(waiting, at, event["dur"], _whole(args, "step"), 0, name), []
        elif "piece" in args:  # neither a kernel nor another thread's work
            piece = _whole(args, "piece")
            acts.append(_Act(row, at, event["dur"], _whole(args, "step"), piece))
            if wait is not None:
                acts.append(replace(wait, piece=piece, arrows=tuple(arrows)))
            wait, arrows = None, []


def _known(reader: TraceReader) -> Iterator[dict[str, Any]]:
    """Yield the events that are drawn, each with fields of the kinds that they must have."""
    for event in reader.events():
        name, length = str(event.get("name", "")), event.get("dur")
        is_length = isinstance(length, (int, float)) and 0 <= length < MAX_US
        is_drawn = event["ph"] in ("X", "s", "f") or name == "thread_name"
        if not is_drawn or not isinstance(event.get("tid"), int):
            continue
        args = event.get("args")
        yield event | {
            "name": name[:MAX_NAME_CHARS],
            "cat": str(event.get("cat", "")),
            "id": str(event.get("id", ""))[:MAX_NAME_CHARS],
            "dur": length if is_length else 0.0,
            "args": args if isinstance(args, dict) else {},
        }


def _whole(args: Mapping[str, Any], name: str) -> int:
    value = args.get(name)
    return value if isinstance(value, int) and 0 <= value < 1 << 53 else 0
