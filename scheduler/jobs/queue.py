"""The choice of the jobs that run next, and of their devices. Pure: the same jobs and devices give
the same answer.

* In the order in which the jobs are given: see shares.py.
* A job starts on all its devices at once or not at all, on one node if it fits on one.
* An elastic job starts on as many devices as it may have and are free.
* A job that names nodes or labels gets devices of such nodes only.
* A job that its queue has no room for (quotas.py) lets others pass, but those of its queue.
* A job that would fit if all present devices that it may use were free keeps its place: no later
  job gets any of these. One that is too large for the whole cluster holds up nobody.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol, TypeVar

from oneflow.scheduler.jobs.ledger import Ledger
from oneflow.scheduler.jobs.preemption import Rival, Room, find_victims
from oneflow.scheduler.jobs.quotas import Quotas
from oneflow.scheduler.jobs.records import (
    Assignment,
    DaemonRecord,
    DaemonState,
    JobRecord,
    JobSpec,
)


class Device(Protocol):
    """A device of a node, as the scheduler knows it or as it is told to clients."""

    @property
    def node(self) -> str: ...

    @property
    def labels(self) -> Iterable[str]: ...


D = TypeVar("D", bound=Device)
Where = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
Wanted = tuple[int, int, Where]  # devices, nodes
Places = dict[str, list[DaemonRecord]]  # node -> its devices, by index
JOBS_NAMED = 3


@dataclass(frozen=True)
class Choice:
    """The jobs that may start now, and why the others may not: job id -> assignments, -> words.

    stops: jobs that are to be stopped, each for another one.
    """

    starts: dict[str, tuple[Assignment, ...]]
    pending: dict[str, str]
    stops: dict[str, str] = field(default_factory=dict)


def choose(
    waiting: Iterable[JobRecord],
    daemons: Iterable[DaemonRecord],
    unreachable: frozenset[str],
    quotas: Quotas | None = None,
    rivals: Sequence[Rival] = (),
) -> Choice:
    """Choose which waiting jobs start now, and on which devices.

    waiting: in the order of the queue. unreachable: daemons without a connection. quotas: the room
    in the queues; None: no queue has a limit. rivals: jobs that may be stopped for others, and
    those that end soon.
    """
    quotas = quotas or Quotas({}, Ledger())
    known = sorted(daemons, key=attrgetter("node", "device_type", "device_index", "id"))
    pools: dict[str, _Pool] = {}
    choice, lowest = Choice({}, {}), _lowest(rivals)
    for job in waiting:
        kind = job.spec.device_type
        if kind not in pools:
            pools[kind] = _Pool([d for d in known if d.device_type == kind], unreachable)
        pool, room = pools[kind], quotas.room(job)
        chosen = pool.take(job, room) if room >= job.spec.devices else []
        if chosen:
            choice.starts[job.id] = assign(chosen)
            quotas.take(job, len(chosen))
        elif job.priority > lowest and _make_room(job, pool, quotas, rivals, choice):
            continue
        elif room < job.spec.devices:
            choice.pending[job.id] = f"{_need(job.spec)}: {quotas.why_not(job)}"
            if quotas.is_first(job) and pool.fits(job.spec):
                quotas.keep_place(job)
        else:
            choice.pending[job.id] = pool.why_not(job)
            if job.id in pool.keeps:
                quotas.take(job, job.spec.devices)
    return choice


def _make_room(
    job: JobRecord, pool: _Pool, quotas: Quotas, rivals: Sequence[Rival], choice: Choice
) -> bool:
    """Whether the job can begin once rivals have ended that are being stopped, or are to be."""
    if pool.is_kept_from(job) or not quotas.is_first(job):
        return False
    rooms = pool.rooms(job, [rival for rival in rivals if rival.job.id not in choice.stops])
    free, spec = pool.usable(job), job.spec

    def suffices(some: Sequence[Room]) -> bool:
        ended = [(room.rival.job, room.rival.num_devices) for room in some]
        devices = [*free, *(device for room in some for device in room.devices)]
        return quotas.would_fit(job, ended) and bool(place(spec.devices, spec.nodes, devices))

    victims = find_victims(job, rooms, suffices)
    if victims is None:
        return False
    choice.stops.update({victim.job.id: job.id for victim in victims})
    ending = [*victims, *(room.rival for room in rooms if room.rival.is_stopping)]
    choice.pending[job.id] = f"{_need(spec)}: {_being_stopped([r.job.id for r in ending])}"
    if quotas.room(job) < spec.devices:
        quotas.keep_place(job)
    else:
        quotas.take(job, spec.devices)
    pool.keep_place(job)
    return True


def _lowest(rivals: Sequence[Rival]) -> float:
    """Return the priority above which it is worth while to look at the rivals."""
    if any(rival.is_stopping for rival in rivals):
        return -math.inf
    return min((rival.job.priority for rival in rivals), default=math.inf)


def _being_stopped(jobs: Sequence[str]) -> str:
    if len(jobs) == 1:
        return f"job {jobs[0]} is being stopped"
    more = f" and {len(jobs) - JOBS_NAMED} more" if len(jobs) > JOBS_NAMED else ""
    return f"jobs {', '.join(jobs[:JOBS_NAMED])}{more} are being stopped"


class _Pool:
    """The devices of one type during one choice. Asked of thousands of jobs, so it remembers."""

    def __init__(self, devices: Sequence[DaemonRecord], unreachable: frozenset[str]) -> None:
        self._devices = devices
        self._taken = {daemon.id: daemon.job for daemon in devices if daemon.job}
        present = (DaemonState.UP, DaemonState.SUSPECT)
        self._present = [daemon for daemon in devices if daemon.state in present]
        self._up = up = [
            d for d in devices if d.state is DaemonState.UP and d.id not in unreachable
        ]
        self._running: dict[str, list[DaemonRecord]] = {}  # job -> those of `up` that it holds
        self._free = [daemon for daemon in up if daemon.id not in self._taken]
        self._head = ""  # the job that is to be next on all of them
        self._heads: dict[str, str] = {}  # the jobs that are to be next on some: device -> job
        self.keeps: set[str] = set()  # these jobs
        self._refused: set[Wanted] = set()  # not to be had
        self._fits: dict[Wanted, bool] = {}
        self._words: dict[Where, str] = {}

    def take(self, job: JobRecord, most: int) -> list[DaemonRecord]:
        """The devices it gets, which are taken from now on; [] if it has to wait. most: that it may
        have.
        """
        spec, wanted = job.spec, _wanted(job.spec)
        if self._head or wanted in self._refused:
            return []
        chosen = largest(spec, [d for d in self._free if d.id not in self._heads], most)
        if not chosen:
            if self.fits(spec):
                self.keep_place(job)
            self._refused.add(wanted)
            return []
        self._taken |= {daemon.id: job.id for daemon in chosen}
        self._free = [daemon for daemon in self._free if daemon.id not in self._taken]
        self._words = {}
        return chosen

    def fits(self, spec: JobSpec) -> bool:
        """Whether the job could run if all present devices that it may use were free."""
        wanted = _wanted(spec)
        if wanted not in self._fits:
            chosen = place(spec.devices, spec.nodes, allowed(spec, self._present))
            self._fits[wanted] = bool(chosen)
        return self._fits[wanted]

    def is_kept_from(self, job: JobRecord) -> bool:
        """Whether another job is to be next on all devices."""
        return self._head not in ("", job.id)

    def usable(
        self, job: JobRecord, devices: Sequence[DaemonRecord] | None = None
    ) -> Sequence[DaemonRecord]:
        """Return the devices, by default the free ones, that the job may have and that are kept for
        no other.
        """
        found = self._free if devices is None else devices
        return allowed(job.spec, [d for d in found if self._heads.get(d.id, job.id) == job.id])

    def rooms(self, job: JobRecord, rivals: Iterable[Rival]) -> list[Room]:
        """Return the devices of each rival that the job could have."""
        if not self._running:
            for daemon in self._up:
                self._running.setdefault(self._taken.get(daemon.id, ""), []).append(daemon)
        found = (
            Room(rival, self.usable(job, self._running.get(rival.job.id, ()))) for rival in rivals
        )
        return [room for room in found if room.devices]

    def keep_place(self, job: JobRecord) -> None:
        """Let no later job have a device that this one may use."""
        self.keeps.add(job.id)
        if not job.spec.where:
            self._head = job.id
        for daemon in allowed(job.spec, self._present):
            self._heads.setdefault(daemon.id, job.id)
        self._words = {}

    def why_not(self, job: JobRecord) -> str:
        """Say in the user's words which devices the job needs, and the work of those instead."""
        spec, need = job.spec, _need(job.spec)
        devices = allowed(spec, self._devices)
        if not devices:
            return f"{need}: the cluster has none"
        if spec.devices > len(devices):
            return f"{need}: the cluster has only {len(devices)}; it waits until more join"
        where = _where(spec)
        if where not in self._words:
            self._words[where] = self._describe(devices)
        head = self._head or next((self._heads[d.id] for d in devices if d.id in self._heads), "")
        if head and head != job.id:
            return (
                f"{need}: {self._words[where]}; after job {head}, which is before it in the queue"
            )
        return f"{need}: {self._words[where]}"

    def _describe(self, devices: Sequence[DaemonRecord]) -> str:
        ids = {daemon.id for daemon in devices}
        free = {daemon.id for daemon in self._free} & ids
        idle = [d for d in devices if d.id not in self._taken and d.id not in free]
        states = Counter("unreachable" if d.state is DaemonState.UP else str(d.state) for d in idle)
        parts = [f"{len(free)} free", *(f"{states[state]} {state}" for state in sorted(states))]
        taken = (job for daemon, job in self._taken.items() if daemon in ids)
        busy = sorted(Counter(taken).items())
        parts += [f"{count} busy with job {job}" for job, count in busy[:JOBS_NAMED]]
        if len(busy) > JOBS_NAMED:
            others = sum(count for _, count in busy[JOBS_NAMED:])
            parts.append(f"{others} busy with {len(busy) - JOBS_NAMED} other jobs")
        return ", ".join(parts)


def _need(spec: JobSpec) -> str:
    need = f"needs {spec.size} {spec.device_type} device{'' if spec.most == 1 else 's'}"
    if spec.nodes:
        need += f" on {spec.nodes} node{'' if spec.nodes == 1 else 's'}"
    return need + spec.where


def _where(spec: JobSpec) -> Where:
    return spec.only_nodes, spec.exclude_nodes, spec.require_labels


def _wanted(spec: JobSpec) -> Wanted:
    return spec.devices, spec.nodes, _where(spec)


def allowed(spec: JobSpec, devices: Sequence[D]) -> Sequence[D]:
    """Return those of the devices whose nodes the job may use."""
    if not spec.where:
        return devices
    return [device for device in devices if _allows(spec, device)]


def _allows(spec: JobSpec, device: Device) -> bool:
    is_named = not spec.only_nodes or device.node in spec.only_nodes
    is_excluded = device.node in spec.exclude_nodes
    return is_named and not is_excluded and set(spec.require_labels) <= set(device.labels)


def largest(
    spec: JobSpec, free: Sequence[DaemonRecord], most: int | None = None
) -> list[DaemonRecord]:
    """The devices of each rank of the largest size that the job may have; [] if there is none.

    most: the limit of its queue; None: none.
    """
    free = allowed(spec, free)
    most = spec.most if most is None else min(spec.most, most)
    for devices in range(min(most, len(free)), spec.devices - 1, -1):
        if chosen := place(devices, spec.nodes, free):
            return chosen
    return []


def place(devices: int, num_nodes: int, free: Sequence[DaemonRecord]) -> list[DaemonRecord]:
    """The devices of each rank in order; [] if there are not enough of them. num_nodes: 0: any."""
    nodes: Places = defaultdict(list)
    for daemon in free:
        nodes[daemon.node].append(daemon)
    if num_nodes:
        return _on_nodes(nodes, num_nodes, devices)
    if single := _on_nodes(nodes, 1, devices):
        return single
    return _on_few_nodes(nodes, devices)


def _on_nodes(nodes: Places, num_nodes: int, devices: int) -> list[DaemonRecord]:
    """The same number on each, leaving large nodes whole; [] if that is impossible."""
    share, rest = divmod(devices, num_nodes)
    fitting = sorted(
        (node for node, found in nodes.items() if len(found) >= share),
        key=lambda node: (len(nodes[node]), node),
    )
    if rest or len(fitting) < num_nodes:
        return []
    return [daemon for node in sorted(fitting[:num_nodes]) for daemon in nodes[node][:share]]


def _on_few_nodes(nodes: Places, devices: int) -> list[DaemonRecord]:
    if sum(map(len, nodes.values())) < devices:
        return []
    chosen: list[DaemonRecord] = []
    for node in sorted(nodes, key=lambda node: (-len(nodes[node]), node)):
        chosen += nodes[node][: devices - len(chosen)]
    return chosen


def assign(daemons: Sequence[DaemonRecord]) -> tuple[Assignment, ...]:
    """Rank i runs on the i-th of them."""
    return tuple(
        Assignment(rank, daemon.id, daemon.node, daemon.device, daemon.folder)
        for rank, daemon in enumerate(daemons)
    )


def local_ranks(assignments: Iterable[Assignment]) -> list[int]:
    """Number each rank among the ranks of its node."""
    seen: Counter[str] = Counter()
    result = []
    for assignment in assignments:
        result.append(seen[assignment.node])
        seen[assignment.node] += 1
    return result
