"""Every alert rings for its fault, and none while all is well: three hours of a scheduler and a
daemon, scraped each minute, whose real counters count the events.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import oneflow.services.metrics_daemon as metrics_daemon
from oneflow.core.metrics import Metrics
from oneflow.scheduler.cluster.metrics import ClusterMetrics
from oneflow.scheduler.cluster.metrics import make_registry as make_scheduler_registry
from oneflow.scheduler.jobs.records import JobRecord, JobSpec, JobState
from oneflow.services.metrics_page import make_registry as make_daemon_registry

from .promql import Evaluator, Samples

RULES = Path(__file__).resolve().parents[3] / "deploy" / "prometheus" / "rules.yml"
BEGIN, END_S, FAULT_S, EVERY_S = 1e9, 3 * 3600.0, 2 * 3600.0, 60.0
LATER_S = (FAULT_S + 900, END_S)  # when it is looked: a quarter of an hour and an hour after


def rules() -> dict[str, str]:
    loaded = yaml.safe_load(RULES.read_text())
    return {r["alert"]: r["expr"] for group in loaded["groups"] for r in group["rules"]}


class Cluster:
    """A scheduler and a daemon that trains a job. faults: the faults, if any."""

    def __init__(self, folder: Path, faults: frozenset[str], counters: Any) -> None:
        self.scheduler, self.daemon = ClusterMetrics(folder / "db"), Metrics()
        self.counters, self.faults = counters, faults
        self.daemon.collectors.append(metrics_daemon.collect)
        counters.workers["running"] = 1
        self.is_scheduler_up = True
        self.daemon.wait_seconds["segment", "no_free_register"] += 0.0
        self.scheduler.certificates["scheduler"] = BEGIN + 90 * 86400.0

    def minute(self, at_s: float) -> None:
        """Acts a minute, all of it well or with the faults."""
        is_bad = at_s >= FAULT_S
        wrong = self.faults if is_bad else frozenset[str]()
        d, s = self.daemon, self.scheduler
        if "no step" not in wrong:
            d.job("j1").steps += 60
            d.progressed("j1", int(at_s), 0)
        if at_s % 600 == 0 and "checkpoint" not in wrong:
            d.checkpointed("j1", int(at_s))
        d.wait_seconds["segment", "no_free_register"] += 50.0 if "back pressure" in wrong else 1.0
        for _ in range(60):
            s.loop_lag[()].observe(0.5 if "loop" in wrong else 0.001)
        slots = {("cpu", "free"): 1, ("cpu", "used"): 1}
        waits_s = at_s if "queue" in wrong else 10.0
        s.slots.update(slots)
        s.oldest["cpu"] = waits_s
        s.lost["left"] += 1  # in order
        if is_bad:
            self._go_wrong(wrong)

    def _go_wrong(self, wrong: frozenset[str]) -> None:
        d, s = self.daemon, self.scheduler
        if "daemon" in wrong:
            s.lost["silent"] += 1
        if "scheduler" in wrong:
            self.is_scheduler_up = False
        if "auth" in wrong:
            for _ in range(120):
                s.auth_failed("bad")
        if "certificate" in wrong:
            s.certificates["scheduler"] = BEGIN + END_S + 13 * 86400.0
        if "restarts" in wrong:
            running = JobRecord("j1", JobSpec(), state=JobState.RUNNING, attempt=1)
            s.changed(running, replace(running, state=JobState.RESTARTING, reason="OOM_HOST"))
        if "logs" in wrong:
            self.counters.log_lines_dropped["stdout"] += 5
        if "disk" in wrong:
            d.checkpoint_failures["DISK_FULL"] += 1
        if "nan" in wrong:
            d.nonfinite("j1", "loss")
        if "xid" in wrong:
            d.device_errors["xid"] += 1


FAULTS = {
    "OneflowDaemonLost": "daemon",
    "OneflowSchedulerNotScraped": "scheduler",
    "OneflowLoopLag": "loop",
    "OneflowAuthFailures": "auth",
    "OneflowCertificateExpires": "certificate",
    "OneflowQueueStuck": "queue",
    "OneflowNoStep": "no step",
    "OneflowBackPressure": "back pressure",
    "OneflowCheckpointOld": "checkpoint",
    "OneflowManyRestarts": "restarts",
    "OneflowLogLinesDropped": "logs",
    "OneflowCheckpointFailed": "disk",
    "OneflowNonFinite": "nan",
    "OneflowDeviceErrors": "xid",
}


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Evaluator]]:
    clock = [BEGIN]
    counters = metrics_daemon.DaemonCounters()
    counters.node, counters.device, counters.device_type = "n1", "cpu:0", "cpu"
    monkeypatch.setattr(metrics_daemon, "DAEMON", counters)
    monkeypatch.setattr(time, "time", lambda: clock[0])

    def play(faults: frozenset[str]) -> Evaluator:
        samples = Samples(set(re.findall(r"\boneflow_\w+", " ".join(rules().values()))))
        cluster = Cluster(tmp_path, faults, counters)
        pages = (
            make_scheduler_registry(cluster.scheduler),
            make_daemon_registry(cluster.daemon, "daemon"),
        )
        at_s = 0.0
        while at_s <= END_S:
            clock[0] = BEGIN + at_s
            cluster.minute(at_s)
            if cluster.is_scheduler_up:
                samples.scrape(pages[0], "s", clock[0])
            samples.scrape(pages[1], "d", clock[0])
            at_s += EVERY_S
        return Evaluator(samples)

    yield play


def test_every_rule_has_its_fault() -> None:
    assert set(FAULTS) == set(rules())


def test_all_is_quiet_while_all_is_well(play: Callable[..., Evaluator]) -> None:
    found = play(frozenset())
    for alert, expression in rules().items():
        for at_s in (1800.0, *LATER_S):
            assert found.value(expression, BEGIN + at_s) == {}, f"{alert} at {at_s:g} s"


def test_each_fault_rings_its_alert(play: Callable[..., Evaluator]) -> None:
    found = play(frozenset(FAULTS.values()) - {"scheduler"})
    for alert, expression in rules().items():
        if alert == "OneflowSchedulerNotScraped":
            continue
        for at_s in (END_S,) if alert == "OneflowCheckpointOld" else LATER_S:
            assert found.value(expression, BEGIN + at_s), f"{alert} is silent at {at_s:g} s"
        if alert not in ("OneflowManyRestarts",):
            assert found.value(expression, BEGIN + FAULT_S - EVERY_S) == {}, alert


def test_a_scheduler_that_is_not_scraped_rings(play: Callable[..., Evaluator]) -> None:
    found = play(frozenset(("scheduler",)))
    expression = rules()["OneflowSchedulerNotScraped"]
    assert found.value(expression, BEGIN + FAULT_S - EVERY_S) == {}
    for at_s in LATER_S:
        assert found.value(expression, BEGIN + at_s)


def test_what_rings_is_named(play: Callable[..., Evaluator]) -> None:
    """Sorts by the labels that its text shows."""
    found = play(frozenset(FAULTS.values()) - {"scheduler"})
    loaded = yaml.safe_load(RULES.read_text())
    for rule in (r for group in loaded["groups"] for r in group["rules"]):
        wanted = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        for labels in found.value(rule["expr"], BEGIN + END_S):
            assert wanted <= {name for name, _ in labels}, rule["alert"]


def test_a_job_that_diverged_before_its_first_scrape_rings(
    play: Callable[..., Evaluator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its series begins above zero; the alert ends, as others do, when the number is old."""
    real = Cluster.minute

    def minute(self: Cluster, at_s: float) -> None:
        real(self, at_s)
        if at_s == FAULT_S:
            self.daemon.nonfinite("born", "loss")

    monkeypatch.setattr(Cluster, "minute", minute)
    found, expression = play(frozenset()), rules()["OneflowNonFinite"]
    assert found.value(expression, BEGIN + FAULT_S - EVERY_S) == {}
    (labels,) = found.value(expression, BEGIN + FAULT_S + EVERY_S)
    assert dict(labels)["job"] == "born"
    assert found.value(expression, BEGIN + END_S) == {}
