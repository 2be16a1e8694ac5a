"""The seven checks that hold after every fault (A1 to A7). A5 is the next job: it runs before the
others look.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from oneflow.scheduler.jobs.causes import cause_line
from oneflow.scheduler.jobs.records import FINAL_STATES, JobRecord
from oneflow.scheduler.jobs.settings import Settings
from oneflow.scheduler.jobs.store import SqliteStore
from oneflow.scheduler.jobs.table import Table
from tests.support.cluster import DEVICES, WORKER_NAME, Rig, Watcher
from tests.support.job_invariants import invariants
from tests.support.processes import Usage, children, cmdline, name_of, pids
from tests.support.waiting import SceneError

SETTLE_S = 120.0  # a net: what leaks never settles, and a busy machine is slow to start a worker
MORE, MORE_NBYTES = 1.05, 6 << 20
MORE_FDS, MORE_THREADS = 1, 6
WAITING_FDS = 5  # a daemon's ends of its next worker: two streams, pulse, socket, process
"""Allowance for growth over the time before the fault: a twentieth of the memory or 6 MiB (what
leaks shows in the soak), a connection that a client is just renewing, some threads: a pool grows by
as many as it needs at a time, on a busy machine more. Each of the scheduler's compilers has a
descriptor.
"""
SHM_NAMES = ("oneflow", "psm_", "wnsm_", "sem.", "torch_")
ALLOWED_TEMP = re.compile(r"run/oneflow(/(cluster\.json|metrics-\d+\.json|\.[^/]*))?")
LINE = re.compile(r'oneflow: job=\S+ attempt=\d+ state=\S+ reason=\S+ .*exit=\d+.* cause="[^"]+')

NOBODYS_FAULT = ("PREEMPTED", "RENDEZVOUS_TIMEOUT")
"""Reasons that no rank is to blame for."""
CODES_OF = {"NODE_LOST": 137, "PREEMPTED": 143, "HANG": 80, "PEER_LOST": 85}
DAEMON_NAMED = re.compile(r"daemon \w+/cpu:\d")

Before = dict[str, tuple[int, Usage]]


def always(
    rig: Rig, watcher: Watcher, job_id: str, before: Before, shm_before: set[str], slack: int = 0
) -> None:
    """All of them but A5. slack: bytes that each service may use more than usual."""
    now = rig.client().job(job_id).status()
    checks: list[tuple[str, Callable[[], None]]] = [
        ("A1", lambda: a1_no_process(rig)),
        ("A2", lambda: a2_nothing_left(rig, shm_before)),
        ("A3", lambda: a3_flat(rig, before, slack)),
        ("A4", lambda: a4_one_end(watcher, now)),
        ("A6", lambda: a6_named(watcher, now, "rig")),
        ("A7", lambda: a7_replays(rig)),
    ]
    for name, check in checks:
        try:
            check()
        except SceneError as error:
            files = f"; {open_files(rig)}" if name == "A3" else ""
            raise SceneError(f"{name}: {error} (record: {now.state}){files}") from None


def a5_next_job(rig: Rig, job_file: str, end_s: float) -> None:
    after = rig.client().submit(job_file, devices=2, steps=4).wait(end_s)
    if str(after.state) != "SUCCEEDED":
        raise SceneError(f"A5: the next job is {after.state} {after.reason}: {after.cause}")


def open_files(rig: Rig) -> str:
    """Describes its services, for a report of descriptors that are too many."""
    found = []
    for name in ("scheduler", *DEVICES):
        with suppress(OSError):
            folder = Path(f"/proc/{rig.pid(name)}/fd")
            files = sorted(os.readlink(path) for path in folder.iterdir())
            found.append(f"{name}: {' '.join(files)}")
    return "; ".join(found)


def a1_no_process(rig: Rig) -> None:
    """Only services, their guards, a fork server each with at most one worker that waits for a job,
    and the scheduler's compilers are left.
    """

    def odd() -> list[str]:
        services = {rig.pid(name) for name in ("scheduler", *DEVICES)}
        kids = {d: children(rig.pid(d)) for d in DEVICES}
        expected = services | {pid for found in kids.values() for pid in found}
        expected |= set(rig.compilers())
        found = [f"{p} {cmdline(p)[:80]!r}" for p in rig.marked() - expected]
        found += [f"{d} has {len(k)} children" for d, k in kids.items() if not 2 <= len(k) <= 3]
        servers = {d: len(rig.workers(d)) - _num_waiting(rig, d) for d in DEVICES}
        found += [f"{d} has {n} fork servers" for d, n in servers.items() if n != 1]
        found += [f"{d}: several workers wait" for d in DEVICES if _num_waiting(rig, d) > 1]
        return found

    _settles(odd, "processes")


def _num_waiting(rig: Rig, device: str) -> int:
    """Count the workers of a daemon on which no job runs."""
    return sum(name_of(pid) == WORKER_NAME for pid in rig.workers(device))


def a2_nothing_left(rig: Rig, shm_before: set[str]) -> None:
    """No shared memory, no temporary folder, no socket."""

    def odd() -> list[str]:
        found = [n for n in rig.temp_names() if not ALLOWED_TEMP.fullmatch(n)]
        return [n for n in found if n != "run/oneflow"] + sorted(rig_shm(rig) - shm_before)

    _settles(odd, "left behind")


def rig_shm(rig: Rig) -> set[str]:
    """Names in /dev/shm as ranks and Python give them, but for those that only strangers map:
    nobody maps the memory that a dead rank has left.
    """
    ours, mine = rig.marked(), set()
    for path in Path("/dev/shm").iterdir():
        if path.name.startswith(SHM_NAMES):
            mine.add(path.name)
    strangers: set[str] = set()
    for pid in set(pids()) - ours:
        with suppress(OSError):
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
            strangers |= {name for name in mine if f"/dev/shm/{name}" in maps}
    return mine - strangers


def a3_flat(rig: Rig, before: Before, slack: int = 0) -> None:
    """Descriptors, threads and memory of services that live on."""

    def odd() -> list[str]:
        found = []
        for name, (pid, now) in rig.usage().items():
            old_pid, old = before.get(name, (0, now))
            if pid != old_pid:
                continue
            usual = old.nbytes + slack
            most_nbytes = max(usual * MORE, usual + MORE_NBYTES)
            more_fds = MORE_FDS + (
                len(rig.compilers())
                if name == "scheduler"
                else WAITING_FDS * _num_waiting(rig, name)
            )
            for what, was, has, most in (
                ("descriptors", old.fds, now.fds, old.fds + more_fds),
                ("threads", old.threads, now.threads, old.threads + MORE_THREADS),
                ("bytes", old.nbytes, now.nbytes, most_nbytes),
            ):
                if has > most:
                    found.append(f"{name}: {was} -> {has} {what}")
        return found

    _settles(odd, "used more")


def a4_one_end(watcher: Watcher, now: JobRecord) -> None:
    """One final state, and it stays."""
    finals = {str(r.state) for _, r in watcher.seen if r.state in FINAL_STATES}
    if finals != {str(now.state)}:
        raise SceneError(f"final states {sorted(finals)}, now {now.state}")
    ends = {(r.exit_code, r.reason, r.attempt) for _, r in watcher.seen if r.state.is_final}
    if ends != {(now.exit_code, now.reason, now.attempt)}:
        raise SceneError(f"its end changed: {sorted(ends)}")


def a6_named(watcher: Watcher, now: JobRecord, host: str) -> None:
    """Says in one line the fault: with the job if it failed, and with each attempt that was
    followed by another.
    """
    for record in ended_attempts(watcher, now):
        line = cause_line(record)
        if "\n" in line or not LINE.match(line):
            raise SceneError(f"no good line: {line!r}")
        missing = _unnamed(record, host)
        if missing:
            raise SceneError(f"the line names no {', no '.join(missing)}: {line!r}")


def ended_attempts(watcher: Watcher, now: JobRecord) -> list[JobRecord]:
    """Records that say how an attempt ended: the next attempt begins with the cause of the end of
    the last.
    """
    found: dict[int, JobRecord] = {}
    for _, record in list(watcher.seen):
        before = found.get(record.attempt)
        if before is None and record.attempt > 1:
            found[record.attempt] = record
    return [*found.values(), *([now] if str(now.state) == "FAILED" else [])]


def _unnamed(record: JobRecord, host: str) -> list[str]:
    """Lists the missing ones of: reason, cause, code, rank, host, and the part of the rank
    that has failed.
    """
    reason, cause = record.reason, record.cause
    missing = []
    if reason == "NONE":
        missing.append("reason")
    if not cause or cause == f"exited with code {record.exit_code}":
        missing.append("cause")
    wanted = CODES_OF.get(reason, record.exit_code)
    if reason == "PREEMPTED" and "killed by SIGKILL" in cause:  # its grace was too short
        wanted = 137
    if record.exit_code != wanted or not record.exit_code:
        missing.append("code")
    if reason not in NOBODYS_FAULT and (record.first_failed_rank < 0 or record.host != host):
        missing.append("rank")
    is_of_process = reason in ("SIGNAL", "HANG", "PEER_LOST")
    if is_of_process and not record.pid:
        missing.append("pid")
    if reason == "NODE_LOST" and not (record.pid or DAEMON_NAMED.search(cause)):
        missing.append("daemon")
    return missing


def a7_replays(rig: Rig) -> None:
    """The store, opened anew, has the records that the scheduler shows."""

    def odd() -> list[str]:
        shown = {r.id: _essence(r) for r in rig.client().jobs()}
        kept = {r.id: _essence(r) for r in _replayed(rig)}
        return [
            f"{i}: {shown.get(i)} but {kept.get(i)}"
            for i in shown | kept
            if shown.get(i) != kept.get(i)
        ]

    _settles(odd, "journal")


def _replayed(rig: Rig) -> tuple[JobRecord, ...]:
    with tempfile.TemporaryDirectory() as name:
        for path in (rig.folder / "scheduler").glob("cluster.db*"):
            shutil.copy(path, name)
        store = SqliteStore(Path(name) / "cluster.db")
        try:
            loaded = store.load()
        finally:
            store.close()
    broken = invariants(Table(loaded.jobs, loaded.epoch, Settings()))
    if broken:
        raise SceneError(f"the replayed table is broken: {broken}")
    return loaded.jobs


def _essence(record: JobRecord) -> tuple[Any, ...]:
    return str(record.state), record.reason, record.exit_code, record.attempt, record.cause


def _settles(odd: Callable[[], list[str]], what: str) -> None:
    """Nothing is odd within a while."""
    end = time.monotonic() + SETTLE_S
    while found := odd():
        if time.monotonic() > end:
            raise SceneError(f"{what}: {found}")
        time.sleep(0.1)
