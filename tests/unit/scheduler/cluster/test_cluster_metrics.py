"""The scheduler's metrics: the names that dashboards use, few series, quick to scrape."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.auth import ROLES
from oneflow.scheduler.cluster.metrics import ClusterMetrics, make_registry
from oneflow.scheduler.jobs.events import DaemonJoined, LineBeat, Submitted
from oneflow.scheduler.jobs.records import REASONS, JobRecord, JobSpec, JobState
from oneflow.scheduler.jobs.table import Table
from oneflow.services.http_server import is_host_allowed

NAMES = (
    "oneflow_build_info",
    "oneflow_scheduler_jobs",
    "oneflow_scheduler_jobs_submitted",
    "oneflow_scheduler_jobs_rejected",
    "oneflow_scheduler_jobs_finished",
    "oneflow_scheduler_job_restarts",
    "oneflow_scheduler_job_queue_wait_seconds",
    "oneflow_scheduler_job_start_seconds",
    "oneflow_scheduler_job_run_seconds",
    "oneflow_scheduler_queue_oldest_age_seconds",
    "oneflow_scheduler_daemons",
    "oneflow_scheduler_daemons_joined",
    "oneflow_scheduler_daemons_lost",
    "oneflow_scheduler_heartbeat_age_max_seconds",
    "oneflow_scheduler_failure_detection_seconds",
    "oneflow_scheduler_slots",
    "oneflow_scheduler_slots_desired",
    "oneflow_scheduler_rpc_requests",
    "oneflow_scheduler_rpc_duration_seconds",
    "oneflow_scheduler_auth_failures",
    "oneflow_scheduler_messages_rejected",
    "oneflow_scheduler_loop_lag_seconds",
    "oneflow_scheduler_compile_duration_seconds",
    "oneflow_scheduler_journal_write_seconds",
    "oneflow_scheduler_journal_bytes",
    "oneflow_scheduler_end_hooks",
    "oneflow_scheduler_recoveries",
    "oneflow_tls_certificate_expiry_timestamp_seconds",
)
MAX_SERIES = 3000


def joined(name: str) -> DaemonJoined:
    hello = pb.Hello(daemon=f"n1/{name}", node="n1", device_type="cpu", incarnation=7)
    hello.device_index = int(name[4:])
    return DaemonJoined(hello)


def scrape(metrics: ClusterMetrics) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Family -> labels -> value, as a real parser reads it."""
    text = generate_latest(make_registry(metrics)).decode()
    return {
        family.name: {
            (*sorted(s.labels.items()), ("", s.name.removeprefix(family.name))): s.value
            for s in family.samples
        }
        for family in text_string_to_metric_families(text)
    }


def test_all_names_are_there(tmp_path: Path) -> None:
    assert sorted(scrape(ClusterMetrics(tmp_path / "db"))) == sorted(NAMES)


def test_the_first_failure_that_is_noticed_is_an_increase(tmp_path: Path) -> None:
    found = scrape(ClusterMetrics(tmp_path / "db"))["oneflow_scheduler_failure_detection_seconds"]
    counts = {dict(labels)["kind"]: n for labels, n in found.items() if ("", "_count") in labels}
    assert counts == {"process": 0.0, "heartbeat": 0.0, "rank": 0.0}


def test_gauges_follow_the_table(tmp_path: Path) -> None:
    metrics, table = ClusterMetrics(tmp_path / "db"), Table([], 0)
    for number in range(3):
        table.step(joined(f"cpu:{number}"), 1.0)
    wall = time.time() - 5
    table.step(Submitted("a", JobSpec(argv=("x",), devices=2), "me", "k", wall), 1.0)
    table.step(Submitted("b", JobSpec(argv=("x",), devices=4), "me", "k", wall), 1.0)
    table.step(LineBeat((("n1/cpu:0", 1),)), 2.0)
    metrics.refresh(table, 4.0)
    assert (metrics.jobs["STARTING"], metrics.jobs["QUEUED"]) == (1, 1)
    assert metrics.slots["cpu", "reserved"] == 2
    assert metrics.slots["cpu", "free"] == 1
    assert metrics.desired == {"cpu": 6, "cuda": 0}
    assert metrics.heartbeat_age[()] == 3.0
    assert 4.0 < metrics.oldest["cpu"] < 60.0


def test_a_jobs_life_is_counted(tmp_path: Path) -> None:
    metrics = ClusterMetrics(tmp_path / "db")
    queued = JobRecord("a", JobSpec(), submitted_at=time.time())
    starting = replace(queued, state=JobState.STARTING, attempt=1)
    running = replace(starting, state=JobState.RUNNING, started_at=100.0)
    again = replace(running, state=JobState.RESTARTING, reason="OOM_HOST")
    over = replace(running, attempt=2, state=JobState.FAILED, reason="HANG", finished_at=160.0)
    lives = [None, queued, starting, running, replace(running, last_step=5), again, over, over]
    for before, now in pairwise(lives):
        metrics.changed(before, now)
    restarts = {reason: count for reason, count in metrics.restarts.items() if count}
    assert (metrics.submitted["cpu"], restarts) == (1, {"OOM_HOST": 1})
    assert metrics.finished == {("FAILED", "HANG"): 1}
    for kept in (metrics.queue_wait, metrics.starts, metrics.runs):
        assert sum(kept["cpu"].counts) == 1
    assert metrics.runs["cpu"].total_s == 60.0


def test_series_and_time_of_a_scrape_are_bounded(tmp_path: Path) -> None:
    metrics = ClusterMetrics(tmp_path / "db")
    for method in ROLES:
        for code in ("OK", "CANCELLED", "UNAUTHENTICATED", "INVALID_ARGUMENT", "NOT_FOUND"):
            metrics.rpc_done(method.rpartition("/")[2], code, 0.1)
    for state in JobState:
        for reason in REASONS:
            metrics.finished[state.value, reason] += 1
    assert sum(len(samples) for samples in scrape(metrics).values()) < MAX_SERIES


def test_only_addresses_and_our_own_names_are_hosts() -> None:
    names = frozenset(("localhost", "n1"))
    for good in ("127.0.0.1:80", "10.0.0.7", "[::1]:9090", "localhost:1", "N1:5"):
        assert is_host_allowed(good, names), good
    for bad in (None, "", "evil.example", "localhost.evil.example:80", "n2", "n1.evil:1"):
        assert not is_host_allowed(bad, names), bad
