"""Who runs next, and on which devices. Pure: the same jobs and devices give the same answer.

* Higher priority first, first come first within one.
* A job starts on all its devices at once or not at all, on one node if it fits on one.
* A job that would fit if all present devices were free keeps its place: no later job of the same
  device type overtakes it. One that is too large for the whole cluster holds up nobody.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from oneflow.scheduler.jobs.records import (
    Assignment,
    DaemonRecord,
    DaemonState,
    JobRecord,
    JobSpec,
)

Places = dict[str, list[DaemonRecord]]  # node -> its devices, by index
JOBS_NAMED = 3


@dataclass(frozen=True)
class Choice:
    """What may start now, and why the others may not: job id -> assignments, -> words."""

    starts: dict[str, tuple[Assignment, ...]]
    pending: dict[str, str]


def choose(
    waiting: Iterable[JobRecord], daemons: Iterable[DaemonRecord], unreachable: frozenset[str]
) -> Choice:
    """waiting: in the order of the queue. unreachable: daemons without a connection."""
    known = sorted(daemons, key=lambda d: (d.node, d.device_type, d.device_index, d.id))
    taken: dict[str, str] = {daemon.id: daemon.job for daemon in known if daemon.job}
    heads: dict[str, JobRecord] = {}  # device type -> the job that is to be next on it
    starts: dict[str, tuple[Assignment, ...]] = {}
    pending: dict[str, str] = {}
    for job in waiting:
        mine = [d for d in known if d.device_type == job.spec.device_type]
        head = heads.get(job.spec.device_type)
        free = [d for d in mine if _is_free(d, taken, unreachable)]
        chosen = [] if head else place(job.spec, free)
        if chosen:
            starts[job.id] = assign(chosen)
            taken |= {daemon.id: job.id for daemon in chosen}
            continue
        pending[job.id] = _why(job.spec, mine, taken, unreachable, head)
        if head is None and place(job.spec, [d for d in mine if _is_present(d)]):
            heads[job.spec.device_type] = job
    return Choice(starts, pending)


def queue_order(jobs: Iterable[JobRecord]) -> list[JobRecord]:
    """`jobs` (in the order they came) as they are to be started."""
    return sorted(jobs, key=lambda job: -job.spec.priority)


def place(spec: JobSpec, free: Sequence[DaemonRecord]) -> list[DaemonRecord]:
    """The devices of each rank in order; [] if there are not enough of them."""
    nodes: Places = defaultdict(list)
    for daemon in free:
        nodes[daemon.node].append(daemon)
    if spec.nodes:
        return _on_nodes(nodes, spec.nodes, spec.devices)
    if single := _on_nodes(nodes, 1, spec.devices):
        return single
    return _on_few_nodes(nodes, spec.devices)


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
        Assignment(rank, daemon.id, daemon.node, daemon.device)
        for rank, daemon in enumerate(daemons)
    )


def local_ranks(assignments: Iterable[Assignment]) -> list[int]:
    """Of each rank its number among the ranks of its node."""
    seen: Counter[str] = Counter()
    result = []
    for assignment in assignments:
        result.append(seen[assignment.node])
        seen[assignment.node] += 1
    return result


def _is_free(daemon: DaemonRecord, taken: dict[str, str], unreachable: frozenset[str]) -> bool:
    is_up = daemon.state is DaemonState.UP and daemon.id not in unreachable
    return is_up and daemon.id not in taken


def _is_present(daemon: DaemonRecord) -> bool:
    return daemon.state in (DaemonState.UP, DaemonState.SUSPECT)


def _why(
    spec: JobSpec,
    mine: Sequence[DaemonRecord],
    taken: dict[str, str],
    unreachable: frozenset[str],
    head: JobRecord | None,
) -> str:
    """In words of the user: what is needed, and what the devices of this type do instead."""
    plural = "" if spec.devices == 1 else "s"
    need = f"needs {spec.devices} {spec.device_type} device{plural}"
    if spec.nodes:
        need += f" on {spec.nodes} node{'' if spec.nodes == 1 else 's'}"
    if not mine:
        return f"{need}: the cluster has none"
    free = [daemon for daemon in mine if _is_free(daemon, taken, unreachable)]
    parts = [f"{len(free)} free"]
    idle = [daemon for daemon in mine if daemon.id not in taken and daemon not in free]
    states = Counter("unreachable" if d.state is DaemonState.UP else str(d.state) for d in idle)
    parts += [f"{states[state]} {state}" for state in sorted(states)]
    busy = Counter(job for daemon, job in taken.items() if any(d.id == daemon for d in mine))
    named = sorted(busy.items())
    parts += [f"{count} busy with job {job}" for job, count in named[:JOBS_NAMED]]
    if len(named) > JOBS_NAMED:
        others = sum(count for _, count in named[JOBS_NAMED:])
        parts.append(f"{others} busy with {len(named) - JOBS_NAMED} other jobs")
    why = f"{need}: {', '.join(parts)}"
    if head is not None:
        why += f"; after job {head.id}, which is before it in the queue"
    return why
