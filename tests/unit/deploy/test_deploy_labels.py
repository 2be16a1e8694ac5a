"""The labels by which rules and dashboards select and group are those of the metrics they name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import oneflow.services.metrics_daemon as metrics_daemon
from oneflow.core.metrics import Metrics
from oneflow.scheduler.cluster.metrics import ClusterMetrics
from oneflow.scheduler.cluster.metrics import make_registry as make_scheduler_registry
from oneflow.services.metrics_page import make_registry as make_rank_registry

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
OF_A_SCRAPE = {"instance"}  # a label that Prometheus adds
SELECTOR = re.compile(r"\b(oneflow_[a-z0-9_]+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")

Values = dict[str, dict[str, set[str]]]
"""metric -> label -> the values that it was seen with."""


def of_a_rank() -> Metrics:
    """Counts of a daemon and its rank in which everything has happened once."""
    metrics = Metrics()
    metrics.collectors.append(metrics_daemon.collect)
    metrics.acts["segment"] += 1
    metrics.actor_times("segment").observe(1.0)
    metrics.messages_taken("local", 1, 1)
    metrics.message_latency_seconds["local"].observe(1.0)
    metrics.actor_states["segment", "running"] = 1
    metrics.collective("all_reduce", 1, 1.0)
    metrics.message_sent("local", 1)
    metrics.registers["compute", "free"] = 1
    metrics.set_device_memory("used", 1)
    metrics.step("job", 1.0)
    metrics.progressed("job", 1, loss=1.0)
    metrics.checkpointed("job", 1)
    metrics.checkpoint_nbytes["write"] += 1
    return metrics


def of_a_daemon() -> metrics_daemon.DaemonCounters:
    counters = metrics_daemon.DaemonCounters()
    counters.node, counters.device, counters.device_type = "n1", "cpu:0", "cpu"
    counters.worker_exited("NONE")
    counters.message_rejected("malformed")
    return counters


def of_a_scheduler(database: Path) -> ClusterMetrics:
    from oneflow.scheduler.jobs.table import Table

    metrics = ClusterMetrics(database)
    metrics.refresh(Table((), epoch=0), 0.0)
    metrics.submitted["cpu"] += 1
    metrics.rejected_jobs["refused"] += 1
    metrics.finished["FAILED", "USER_ERROR"] += 1
    metrics.restarts["NODE_LOST"] += 1
    metrics.lost.update(dict.fromkeys(("left", "silent", "died"), 1))
    metrics.failure_detected("process", 1.0)
    metrics.rpc_done("Jobs.Get", "OK", 1.0)
    metrics.certificates["scheduler"] = 1.0
    return metrics


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Values:
    monkeypatch.setattr(metrics_daemon, "DAEMON", of_a_daemon())
    found: Values = {}
    registries = (
        make_scheduler_registry(of_a_scheduler(tmp_path / "cluster.db")),
        make_rank_registry(of_a_rank(), "daemon"),
    )
    for registry in registries:
        for family in registry.collect():
            for sample in family.samples:
                labels = found.setdefault(sample.name, {})
                for label, value in sample.labels.items():
                    labels.setdefault(label, set()).add(value)
    return found


def expressions() -> Iterator[tuple[str, str]]:
    for path in sorted((DEPLOY / "grafana").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}", target["expr"]
    loaded = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    for rule in (rule for group in loaded["groups"] for rule in group["rules"]):
        yield f"rules.yml: {rule['alert']}", rule["expr"]


def words(text: str) -> set[str]:
    return {word.strip() for word in text.split(",") if word.strip()}


def test_matchers_name_labels_of_their_metric(known: Values) -> None:
    checked = 0
    for where, expression in expressions():
        for metric, matchers in SELECTOR.findall(expression):
            for label, value in MATCHER.findall(matchers):
                checked += 1
                assert label in known[metric].keys() | OF_A_SCRAPE, f"{where}: {metric}{{{label}}}"
                if label in ("state", "cause") or value == "scheduler":
                    assert value in known[metric][label], f"{where}: {label}={value}"
    assert checked > 20


def test_groups_are_made_by_labels_that_exist(known: Values) -> None:
    checked = 0
    for where, expression in expressions():
        metrics = {metric for metric, _ in SELECTOR.findall(expression)}
        labels = OF_A_SCRAPE.union(*(known[metric] for metric in metrics))
        for listed in GROUPING.findall(expression):
            checked += 1
            assert words(listed) <= labels, f"{where}: {words(listed) - labels}"
    assert checked > 30


def test_legends_show_labels_that_the_result_still_has(known: Values) -> None:
    for path in sorted((DEPLOY / "grafana").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                where = f"{path.name}: {panel['title']}"
                assert shown <= left_over(target["expr"], known), where


def left_over(expression: str, known: Values) -> set[str]:
    """Labels that the result of an expression may have."""
    metrics = [metric for metric, _ in SELECTOR.findall(expression)]
    by = re.findall(r"\bby\s*\(([^)]*)\)", expression)
    if "group_right" in expression:
        return set(known[metrics[-1]]) | OF_A_SCRAPE
    if by:
        return words(by[0]) - {"le"}
    return set(known[metrics[0]]) | OF_A_SCRAPE


def test_the_label_of_a_training_job_is_not_taken_for_that_of_the_scrape() -> None:
    loaded = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    manifests = yaml.safe_load_all((DEPLOY / "kubernetes/monitoring/podmonitor.yaml").read_text())
    endpoints: list[dict[str, Any]] = [
        endpoint
        for manifest in manifests
        if manifest["kind"] == "PodMonitor"
        for endpoint in manifest["spec"]["podMetricsEndpoints"]
    ]
    assert all(config["honor_labels"] is True for config in loaded["scrape_configs"])
    assert endpoints
    assert all(endpoint["honorLabels"] is True for endpoint in endpoints)


def test_alerts_count_from_zero_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`increase` does not see the first event of a series that begins with it."""
    fresh = metrics_daemon.DaemonCounters()
    fresh.node = "n1"
    monkeypatch.setattr(metrics_daemon, "DAEMON", fresh)
    rank = Metrics()
    rank.collectors.append(metrics_daemon.collect)
    scheduler = ClusterMetrics(tmp_path / "cluster.db")
    registries = make_scheduler_registry(scheduler), make_rank_registry(rank, "daemon")
    shown = {s.name for r in registries for family in r.collect() for s in family.samples}
    counted: set[str] = set()
    for where, expression in expressions():
        if where.startswith("rules.yml"):
            counted |= set(re.findall(r"increase\((oneflow_[a-z_]+)", expression))
    of_each_job = {"oneflow_train_steps_total", "oneflow_train_nonfinite_total"}
    rank.progressed("job", 0)
    of_a_job = {s.name for family in registries[1].collect() for s in family.samples}
    assert of_each_job <= of_a_job  # from its begin on
    assert len(counted) > 3
    assert counted - of_each_job <= shown


def test_everything_that_can_be_counted_was(known: Values) -> None:
    """Otherwise the tests above would know too few labels."""
    empty = [metric for metric in known if not known[metric] and metric.endswith("_bucket")]
    assert empty == []
    assert len(known) > 80
