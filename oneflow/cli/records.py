"""Jobs and daemons as rows, details and plain data."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from oneflow.cli.output import fields, table
from oneflow.scheduler.jobs.causes import log_path, logs_folder
from oneflow.scheduler.jobs.records import JobRecord, JobState
from oneflow.services.quantities import show_duration, show_time

if TYPE_CHECKING:
    from oneflow.protos import cluster_pb2 as pb

MAX_CAUSE_CHARS = 60
MAX_RANKS = 16  # shown one by one
USE_TITLES = ("load", "memory GiB", "disk free GiB", "in/out MB/s")


def record_as_dict(record: JobRecord) -> dict[str, Any]:
    """Return a record for JSON; never the secret of its ranks."""
    found = asdict(record)
    del found["job_key"]
    found["state"] = str(record.state)
    found["spec"]["kind"] = str(record.spec.kind)
    return found


def job_table(records: Iterable[JobRecord], is_wide: bool) -> str:
    titles = ["id", "name", "state", "devices", "step", "age", "ran", "exit", "why"]
    if is_wide:
        titles += ["left", "kind", "owner", "attempt", "restarts", "nodes", "ckpt", "priority"]
        titles.append("queue")
    return table(titles, [_row(record, is_wide) for record in records])


def ran_s(record: JobRecord, now: float) -> float:
    """Seconds in which its ranks ran, of all attempts; not those in which it waited between them,
    nor the time by which a clock was set forward.
    """
    if record.state not in (JobState.RUNNING, JobState.CANCELLING) or not record.attempt_started_at:
        return record.ran_s
    return record.ran_s + max(now - record.attempt_started_at, 0.0)


def _row(record: JobRecord, is_wide: bool) -> list[Any]:
    now = time.time()
    ran = show_duration(ran_s(record, now)) if record.started_at else ""
    row = [
        record.id,
        record.spec.name,
        record.state,
        f"{record.spec.size} {record.spec.device_type}",
        _steps(record),
        show_duration(now - record.submitted_at),
        ran,
        record.exit_code if record.state.is_final else "",
        _cut(_why(record)),
    ]
    if is_wide:
        nodes = sorted({a.node for a in record.assignments})
        row += [show_duration(record.eta_s) if record.eta_s else ""]
        row += [record.spec.kind, record.owner, record.attempt, record.restarts_spent]
        row += [",".join(nodes), record.last_checkpoint_step or "", record.priority]
        row.append(record.queue)
    return row


def _steps(record: JobRecord) -> str:
    if record.total_steps:
        return f"{record.last_step}/{record.total_steps}"
    return str(record.last_step) if record.last_step else ""


def _why(record: JobRecord) -> str:
    """Say why a job does not run, why it ended, or of which trouble it warns."""
    if record.pending and not record.state.is_final:
        return record.pending
    if record.reason == "NONE":
        return record.warning
    return f"{record.reason}: {record.cause}" if record.cause else record.reason


def _cut(text: str) -> str:
    """Cut a text to the length of a column, after a whole word."""
    if len(text) <= MAX_CAUSE_CHARS:
        return text
    whole = text[: MAX_CAUSE_CHARS - 1].rpartition(" ")[0] or text[: MAX_CAUSE_CHARS - 2]
    return whole.rstrip(" ,;:") + " …"


def job_details(record: JobRecord, is_wide: bool = False) -> str:
    spec = record.spec
    pairs: dict[str, Any] = {"id": record.id, "name": spec.name, "kind": spec.kind}
    pairs |= {"state": record.state, "reason": record.reason, "cause": record.cause}
    pairs |= {"pending": record.pending, "owner": record.owner, "queue": record.queue}
    pairs |= {"devices": f"{spec.size} {spec.device_type}", "attempt": record.attempt}
    pairs |= {"after": spec.after, "where": spec.where.strip()}
    pairs |= {"restarts": _restarts(record)}
    pairs |= {"time limit": show_duration(spec.time_limit_s) if spec.time_limit_s else ""}
    pairs |= {"step": _progress(record), "checkpoint": _checkpoint(record)}
    pairs |= {"warning": record.warning}
    if record.state.is_final:
        pairs |= {"exit code": record.exit_code}
        if record.first_failed_rank >= 0:
            who = f"{record.first_failed_rank} on {record.host}, process {record.pid}"
            pairs |= {"first failed rank": who, "its log": log_path(record)}
    for name in ("submitted_at", "started_at", "first_step_at", "finished_at"):
        pairs[name.replace("_at", "")] = _clock(getattr(record, name))
    pairs |= {"metrics": " ".join(f"{k}={v:.6g}" for k, v in record.metrics.items())}
    pairs |= {"program": " ".join(spec.argv), "graph": spec.graph}
    asked = {"auto-parallel": spec.auto_parallel, "zero": spec.zero, "amp": spec.amp}
    pairs |= {name: "yes" if value is True else value or "" for name, value in asked.items()}
    if is_wide:
        pairs |= {f"env {name}": value for name, value in spec.env.items()}
        pairs |= {"working dir": spec.archive, "requirements": spec.requirements}
        pairs["priority"] = record.priority
    for a in record.assignments[: None if is_wide else MAX_RANKS]:
        folder = logs_folder(record, a) if is_wide else ""
        pairs[f"rank {a.rank}"] = f"{a.node} {a.device} {folder}".rstrip()
    left = len(record.assignments) - MAX_RANKS
    if left > 0 and not is_wide:
        pairs["more ranks"] = f"{left}; -o wide shows all"
    return fields({name: value for name, value in pairs.items() if value not in ("", None)})


def array_details(array_id: str, records: Sequence[JobRecord], is_wide: bool) -> str:
    """Show an array as a whole, and a row for each of its members."""
    spec = records[0].spec
    pairs = {"array": array_id, "name": spec.name, "owner": records[0].owner}
    pairs |= {"jobs": _counts(Counter(str(record.state) for record in records))}
    pairs |= {"at once": str(spec.array_limit or "all")}
    found = fields({name: value for name, value in pairs.items() if value})
    return f"{found}\n\n{job_table(records, is_wide)}"


def _restarts(record: JobRecord) -> str:
    said = f"{record.restarts_spent} of {record.spec.max_restarts}"
    if record.spec.restart_on:
        said += f", after {', '.join(record.spec.restart_on)} only"
    return said


def _progress(record: JobRecord) -> str:
    eta = f", about {show_duration(record.eta_s)} left" if record.eta_s else ""
    return _steps(record) + eta


def _checkpoint(record: JobRecord) -> str:
    if not record.last_checkpoint:
        return ""
    return f"{record.last_checkpoint} (step {record.last_checkpoint_step})"


def _clock(at: float) -> str:
    return show_time(at) if at else ""


def waits_table(waits: Iterable[tuple[str, Any]]) -> str:
    """Tabulate the waits of actors. waits: job id and RankWaits."""
    rows = []
    for job_id, w in waits:
        shares = [f"{100 * share:.0f}% {name}" for name, share in w.shares.items()]
        rows.append((job_id, w.rank, ", ".join(shares), w.waiting))
    return table(("job", "rank", "idle for", "waits now"), rows)


# ---- the cluster ---------------------------------------------------------------------------------


def daemon_as_dict(daemon: pb.DaemonStatus) -> dict[str, Any]:
    names = ("id", "node", "device", "state", "epoch", "version", "pid", "job", "address")
    found = {n: getattr(daemon, n) for n in names} | {"heartbeat_age_s": daemon.heartbeat_age_s}
    use = {f.name: getattr(daemon.use, f.name) for f in daemon.use.DESCRIPTOR.fields}
    return found | {"labels": list(daemon.labels), "use": use if daemon.HasField("use") else None}


def status_as_dict(status: pb.ClusterStatus) -> dict[str, Any]:
    names = ("version", "address", "metrics_address", "started_at", "allows_scripts", "pid")
    found: dict[str, Any] = {name: getattr(status, name) for name in (*names, "trouble")}
    found["page"] = page_url(status) if status.has_page else ""
    found["jobs"] = dict(status.jobs)
    found["daemons"] = [daemon_as_dict(daemon) for daemon in status.daemons]
    return found


def daemon_table(daemons: Iterable[Any], is_wide: bool) -> str:
    titles = ["node", "device", "state", "job", "heartbeat"]
    titles += ["epoch", "pid", "version", "address", "labels", *USE_TITLES] if is_wide else []
    rows = []
    for d in daemons:
        row: list[Any] = [d.node, d.device, d.state, d.job, f"{d.heartbeat_age_s:.1f}s"]
        if is_wide:
            row += [d.epoch, d.pid, d.version, d.address, ",".join(d.labels), *_use(d)]
        rows.append(row)
    return table(titles, rows)


def _use(daemon: pb.DaemonStatus) -> list[str]:
    """Return the cells of USE_TITLES; "" for unknown numbers."""
    use = daemon.use
    if not daemon.HasField("use"):
        return [""] * len(USE_TITLES)
    used, total, free = (
        f"{nbytes / (1 << 30):.1f}"
        for nbytes in (
            use.memory_nbytes - use.memory_free_nbytes,
            use.memory_nbytes,
            use.disk_free_nbytes,
        )
    )
    return [
        f"{use.load:.1f}/{use.processors}" if use.processors else "",
        f"{used}/{total}" if use.memory_nbytes else "",
        free if use.disk_nbytes else "",
        f"{use.received_nbytes_per_s / 1e6:.1f}/{use.sent_nbytes_per_s / 1e6:.1f}",
    ]


def status_lines(status: pb.ClusterStatus, is_wide: bool = False) -> str:
    """is_wide: with every daemon."""
    found = _status_fields(status)
    return f"{found}\n\n{daemon_table(status.daemons, True)}" if is_wide else found


def page_url(status: pb.ClusterStatus) -> str:
    """Return the address of the web page; it asks for a token, which is not part of it."""
    return f"http://{status.metrics_address}/"


def _status_fields(status: pb.ClusterStatus) -> str:
    states: dict[str, int] = {}
    for daemon in status.daemons:
        states[daemon.state] = states.get(daemon.state, 0) + 1
    trouble = f"{status.trouble}; new jobs are refused, and what ends is shown once it is written"
    pairs = {
        **({"trouble": trouble} if status.trouble else {}),
        "address": status.address,
        "metrics": f"http://{status.metrics_address}/metrics" if status.metrics_address else "off",
        **({"page": page_url(status)} if status.has_page else {}),
        "version": status.version,
        "up for": show_duration(time.time() - status.started_at),
        "scripts": "allowed" if status.allows_scripts else "not allowed",
        "daemons": _counts(states) or "none",
        "jobs": _counts(dict(status.jobs)) or "none",
    }
    return fields(pairs)


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(found.items()) if number)
