"""The choice of running jobs that are stopped for one of higher priority. Pure.

* Only preemptible jobs of lower priority are stopped, and only if the job could begin then.
* First the lowest priorities that suffice; of their jobs the fewest, then those of lower priority,
  then those that began last.
* Jobs that are being stopped, for any reason, count as free: nobody is stopped where waiting for
  that is enough.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from oneflow.scheduler.jobs.records import DaemonRecord, JobRecord

MAX_PRUNED = 100  # of more victims one too many matters little


@dataclass(frozen=True)
class Rival:
    """A job whose attempt goes on. began_at: on the monotonic clock. is_stopping: and ends soon;
    else it may be stopped.
    """

    job: JobRecord
    num_devices: int
    began_at: float
    is_stopping: bool


@dataclass(frozen=True)
class Room:
    """Devices that a job could have once a rival has ended."""

    rival: Rival
    devices: Sequence[DaemonRecord]


def find_victims(
    job: JobRecord, rooms: Iterable[Room], suffices: Callable[[Sequence[Room]], bool]
) -> list[Rival] | None:
    """Choose the jobs to stop, so that this one can begin.

    rooms: of rivals; of several that began together those that come first are younger. suffices:
    whether the job could begin if these rivals had ended.

    Returns:
        The victims; [] if the jobs that are being stopped already are enough; None if stopping is
        of no use.
    """
    rooms = list(rooms)
    coming = [room for room in rooms if room.rival.is_stopping]
    if coming and suffices(coming):
        return []
    lesser = [
        room
        for room in rooms
        if not room.rival.is_stopping and room.rival.job.priority < job.priority
    ]
    if not lesser or not suffices([*coming, *lesser]):
        return None
    levels = sorted({room.rival.job.priority for room in lesser})

    def upto(level: int) -> list[Room]:
        return [room for room in lesser if room.rival.job.priority <= level]

    found = bisect_left(levels, True, key=lambda level: suffices([*coming, *upto(level)]))
    chosen = _fewest(job, upto(levels[found]), lambda some: suffices([*coming, *some]))
    return [room.rival for room in chosen]


def _fewest(
    job: JobRecord, rooms: Sequence[Room], suffices: Callable[[Sequence[Room]], bool]
) -> list[Room]:
    """Return few of the rooms that suffice: the largest, as far as the job can use them."""
    need = job.spec.devices
    order = sorted(
        rooms,
        key=lambda room: (
            -min(len(room.devices), need),
            room.rival.job.priority,
            -room.rival.began_at,
        ),
    )
    counts = range(1, len(order) + 1)
    chosen = order[: 1 + bisect_left(counts, True, key=lambda count: suffices(order[:count]))]
    if len(chosen) <= MAX_PRUNED:
        for room in sorted(chosen, key=lambda r: (-r.rival.job.priority, r.rival.began_at)):
            rest = [other for other in chosen if other is not room]
            if rest and suffices(rest):
                chosen = rest
    return chosen
