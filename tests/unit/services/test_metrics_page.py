"""docs/METRICS.md names every metric that exists, and no other; names, types and labels are those
that dashboards and operators were promised.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import oneflow.services.metrics_daemon as metrics_daemon
from oneflow.core.actor_kinds import ActorKind
from oneflow.core.metrics import MAX_JOBS, Metrics
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.metrics import ClusterMetrics
from oneflow.scheduler.cluster.metrics import make_registry as make_scheduler_registry
from oneflow.scheduler.jobs.events import DaemonJoined
from oneflow.scheduler.jobs.records import REASONS
from oneflow.scheduler.jobs.table import Table
from oneflow.services.metrics_page import MAX_SERIES, make_registry
from tests.unit.core.test_metrics import busy

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "METRICS.md").read_text()
ROW = re.compile(
    r"^\| `(oneflow_\w+)` \| ([CGH]) \|([^|]*)\|[^|]*\| ([RDS](?: [RDS])*) \|", re.MULTILINE
)
TYPES = {"C": "counter", "G": "gauge", "H": "histogram"}
MAX_SCHEDULER_SERIES = 3000

Shown = dict[str, tuple[str, set[str]]]

VALUES = {
    ("oneflow_actor_wait_seconds_total", "cause"): {"no_input", "no_free_register"},
    ("oneflow_daemon_heartbeats_total", "result"): {"ok", "late", "failed"},
    ("oneflow_device_memory_bytes", "kind"): {"used", "reserved", "free", "limit"},
    ("oneflow_host_memory_bytes", "kind"): {"rss", "pinned", "shared"},
    ("oneflow_device_errors_total", "kind"): {"ecc", "xid", "launch"},
    ("oneflow_train_nonfinite_total", "where"): {"loss", "grad", "param"},
    ("oneflow_checkpoint_save_duration_seconds", "phase"): {"gather", "write", "commit"},
    ("oneflow_log_bytes_total", "stream"): {"stdout", "stderr"},
    ("oneflow_scheduler_daemons", "state"): {"up", "draining", "suspect", "lost"},
    ("oneflow_scheduler_slots", "state"): {"free", "used", "reserved", "unhealthy"},
    ("oneflow_scheduler_auth_failures_total", "reason"): {"missing", "bad", "expired", "role"},
    ("oneflow_scheduler_messages_rejected_total", "reason"): {
        "oversize",
        "malformed",
        "stale_epoch",
        "duplicate",
        "unknown",
    },
    ("oneflow_scheduler_end_hooks_total", "result"): {"ok", "failed", "late", "dropped"},
    ("oneflow_scheduler_recoveries_total", "result"): {"reattached", "requeued", "failed"},
}


# ---- pages with something of everything ----------------------------------------------------------


def read(registry: Any) -> list[Any]:
    """The families of a scrape, as a real parser finds them."""
    return list(text_string_to_metric_families(generate_latest(registry).decode()))


def rank_page(metrics: Metrics | None = None) -> list[Any]:
    return read(make_registry(metrics or busy()))


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Metrics:
    """The page of a daemon that has seen everything."""
    counters = metrics_daemon.DaemonCounters()
    counters.node, counters.device, counters.device_type = "n1", "cpu:0", "cpu"
    counters.certificate = lambda: 2e9
    for reason in sorted(REASONS):
        counters.worker_exited(reason)
    for reason in metrics_daemon.REJECTIONS:
        counters.message_rejected(reason)
    monkeypatch.setattr(metrics_daemon, "DAEMON", counters)
    metrics = busy()
    metrics.set_device_memory("used", 10)
    metrics.collectors.append(metrics_daemon.collect)
    return metrics


def daemon_page(daemon: Metrics) -> list[Any]:
    return read(make_registry(daemon, "daemon"))


def scheduler_page(folder: Path) -> list[Any]:
    metrics, table = ClusterMetrics(folder / "db"), Table([], 0)
    table.step(
        DaemonJoined(pb.Hello(daemon="n1/cpu:0", node="n1", device_type="cpu", incarnation=7)), 1.0
    )
    metrics.refresh(table, 2.0)
    metrics.submitted["cpu"] += 1
    metrics.rejected_jobs["spec"] += 1
    metrics.finished["FAILED", "HANG"] += 1
    metrics.failure_detected("process", 0.5)
    metrics.rpc_done("Submit", "OK", 0.01)
    metrics.certificates["scheduler"] = 2e9
    return read(make_scheduler_registry(metrics))


def shown(families: list[Any]) -> Shown:
    """Name as written in queries -> type and labels."""
    result: Shown = {}
    for family in families:
        name = family.name + ("_total" if family.type == "counter" else "")
        result[name] = family.type, {k for s in family.samples for k in s.labels} - {"le"}
    return result


def documented(where: str) -> Shown:
    rows = ROW.findall(PAGE)
    assert len(rows) == len({name for name, *_ in rows}) > 60
    return {
        name: (TYPES[kind], {word for word in labels.strip().split(", ") if word})
        for name, kind, labels, pages in rows
        if where in pages.split()
    }


# ---- what was promised ---------------------------------------------------------------------------


def test_labels_have_the_values_that_were_promised(daemon: Metrics, tmp_path: Path) -> None:
    found: dict[tuple[str, str], set[str]] = {}
    for family in daemon_page(daemon) + scheduler_page(tmp_path):
        name = family.name + ("_total" if family.type == "counter" else "")
        for sample in family.samples:
            for label, value in sample.labels.items():
                found.setdefault((name, label), set()).add(value)
    assert {key: found[key] for key in VALUES} == VALUES


# ---- what is documented --------------------------------------------------------------------------


def test_the_page_names_every_metric_and_no_other(daemon: Metrics, tmp_path: Path) -> None:
    of_jobs_of_clusters = {"oneflow_train_loss"} | {
        name for name in documented("D") if name.startswith("oneflow_checkpoint_last")
    }
    rank = {k: v for k, v in shown(rank_page()).items() if k not in of_jobs_of_clusters}
    assert documented("R") == rank
    assert documented("D") == shown(daemon_page(daemon))
    assert documented("S") == shown(scheduler_page(tmp_path))


def test_queries_use_metrics_that_exist() -> None:
    queries = "\n".join(re.findall(r"```promql\n(.*?)```", PAGE, re.DOTALL))
    used = set(re.findall(r"oneflow_\w+", queries))
    known = {**documented("R"), **documented("D"), **documented("S")}
    series = {
        f"{name}{suffix}"
        for name, (kind, _) in known.items()
        for suffix in (("_bucket", "_count", "_sum") if kind == "histogram" else ("",))
    }
    assert used and used <= series


def test_every_family_says_what_it_is(daemon: Metrics, tmp_path: Path) -> None:
    for family in daemon_page(daemon) + scheduler_page(tmp_path) + rank_page():
        assert re.fullmatch(r"oneflow_[a-z_]+", family.name), family.name
        assert family.documentation.endswith("."), family.name


# ---- budgets -------------------------------------------------------------------------------------


def worst(metrics: Metrics) -> Metrics:
    """All kinds of everything, and 200 jobs that go on and have every series of a job."""
    for kind in ActorKind:
        name = kind.name.lower()
        metrics.acts[name] += 1
        metrics.collective(name, 1, 0.1)
        for state in ("waiting_input", "waiting_output", "running", "idle"):
            metrics.actor_states[name, state] = 1
    for kind in ("compute", "transfer", "io"):
        for state in ("free", "filled", "in_use"):
            metrics.registers[kind, state] = 1
    for transport in ("local", "shm", "tcp"):
        metrics.message_sent(transport, 0)
    for op in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "transfer"):
        metrics.collective(op, 1, 0.1)
    for number in range(MAX_JOBS):
        job = f"job{number}"
        metrics.progressed(job, 5, rank=number, loss=1.0)
        metrics.checkpointed(job, 5)
        metrics.nonfinite(job, "loss")
    return metrics


def num_series(families: list[Any]) -> int:
    return sum(len(family.samples) for family in families)


def test_a_daemon_keeps_its_budget_with_200_jobs(daemon: Metrics) -> None:
    families = daemon_page(worst(daemon))
    assert num_series(families) <= MAX_SERIES == 1500
    steps = next(f for f in families if f.name == "oneflow_train_steps")
    assert len(steps.samples) >= 70  # those that came last
    assert {s.labels["job"] for s in steps.samples} <= set(daemon.train)
    assert f"job{MAX_JOBS - 1}" in {s.labels["job"] for s in steps.samples}


def test_200_jobs_that_have_ended_are_all_shown(daemon: Metrics) -> None:
    for number in range(MAX_JOBS):
        daemon.progressed(f"job{number}", 5)
        daemon.job_ended(f"job{number}")
    families = daemon_page(daemon)
    steps = next(f for f in families if f.name == "oneflow_train_steps")
    assert len(steps.samples) == MAX_JOBS
    assert num_series(families) <= MAX_SERIES


def test_a_job_that_goes_on_outlives_those_that_ended(daemon: Metrics) -> None:
    daemon.progressed("going", 5)
    for number in range(3 * MAX_JOBS):
        daemon.progressed(f"job{number}", 5)
        daemon.job_ended(f"job{number}")
    steps = next(f for f in daemon_page(daemon) if f.name == "oneflow_train_steps")
    assert len(daemon.train) == MAX_JOBS
    assert "going" in {s.labels["job"] for s in steps.samples}


def test_the_scheduler_keeps_its_budget(tmp_path: Path) -> None:
    assert num_series(scheduler_page(tmp_path)) <= MAX_SCHEDULER_SERIES
