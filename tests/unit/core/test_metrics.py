"""Counters and the page that shows them."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from oneflow.core.config import Config
from oneflow.core.errors import ConfigError
from oneflow.core.metrics import (
    KEEP_ENDED_S,
    Metrics,
)
from oneflow.core.metrics_families import Histogram
from oneflow.services.metrics_http import start_endpoint
from oneflow.services.metrics_page import make_registry
from tests.support.waiting import CALL_S


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = generate_latest(make_registry(metrics)).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def busy() -> Metrics:
    metrics = Metrics()
    metrics.acts["compute"] += 5
    metrics.act_seconds["compute"].observe(0.01)
    metrics.message_latency_seconds["shm"].observe(3e-5)
    metrics.wait_seconds["compute", "no_input"] += 1.5
    metrics.wait_seconds["compute", "no_free_register"] += 0.5
    metrics.message_sent("shm", 100)
    metrics.messages_taken("shm", 1, 40)
    metrics.collective("all_reduce", 4096, 0.002)
    metrics.registers["compute", "free"] = 3
    metrics.set_device_memory("reserved", 700)
    metrics.set_device_memory("reserved", 300)
    metrics.actor_states["compute", "idle"] = 2
    metrics.mailbox_depth.note(3)
    metrics.checkpoint_nbytes["write"] += 5000
    metrics.scheduler.passes["dedupe"].observe(0.01)
    metrics.scheduler.rejected["auth"] += 1
    metrics.step("job", 0.25, samples=8)
    metrics.step("job", 0.25, samples=8)
    metrics.scheduler.passes["all"].observe(2.0)
    metrics.scheduler.lost["NODE_LOST"] += 1
    metrics.scheduler.rpc_done("Barrier", "OK", 0.002)
    metrics.checkpointed("job", 40)
    metrics.progressed("trained", 41, loss=0.5)
    return metrics


def test_counts_come_out_under_their_names() -> None:
    found = samples(busy())
    kind = ("kind", "compute")
    assert found["oneflow_actor_acts_total", (kind,)] == 5
    assert found["oneflow_actor_wait_seconds_total", (("cause", "no_input"), kind)] == 1.5
    assert found["oneflow_actor_wait_seconds_total", (("cause", "no_free_register"), kind)] == 0.5
    assert found["oneflow_daemon_actors", (kind, ("state", "idle"))] == 2
    assert found["oneflow_checkpoint_bytes_total", (("direction", "write"),)] == 5000
    assert found["oneflow_scheduler_compile_duration_seconds_count", (("pass", "dedupe"),)] == 1
    sent = (("direction", "sent"), ("transport", "shm"))
    assert found["oneflow_message_bytes_total", sent] == 100
    assert found["oneflow_collective_bytes_total", (("op", "all_reduce"),)] == 4096
    assert found["oneflow_collective_duration_seconds_count", (("op", "all_reduce"),)] == 1
    assert found["oneflow_registers", (kind, ("state", "free"))] == 3
    assert found["oneflow_device_memory_bytes", (("kind", "reserved"),)] == 300
    assert found["oneflow_device_memory_peak_bytes", ()] == 700
    assert found["oneflow_train_steps_total", (("job", "job"),)] == 2
    assert found["oneflow_train_samples_total", (("job", "job"),)] == 16
    assert found["oneflow_train_step_duration_seconds_sum", ()] == 0.5
    assert found["oneflow_scheduler_compile_duration_seconds_count", (("pass", "all"),)] == 1
    assert found["oneflow_scheduler_daemons_lost_total", (("reason", "NODE_LOST"),)] == 1
    call = (("code", "OK"), ("method", "Barrier"))
    assert found["oneflow_scheduler_rpc_requests_total", call] == 1


def test_names_follow_the_conventions() -> None:
    names = {name for name, _ in samples(busy())}
    assert all(name.startswith("oneflow_") for name in names)
    units = ("_seconds", "_bytes", "_total", "_info", "_bucket", "_count", "_sum", "_registers")
    plain = {
        "oneflow_checkpoint_last_step",
        "oneflow_train_last_step",
        "oneflow_train_loss",
        "oneflow_train_running",
        "oneflow_daemon_actors",
        "oneflow_mailbox_depth_max",
        "oneflow_embedding_queued_rows",
    }
    assert [n for n in names if not n.endswith(units) and n not in plain] == []


def test_a_label_holds_no_text_of_the_user() -> None:
    metrics = Metrics()
    metrics.step('Tr ain"}\n' + "x" * 999, 0.1, index=41)
    (label,) = metrics.train
    assert label == ("Tr_ain___" + "x" * 999)[:64]
    assert samples(metrics)["oneflow_train_last_step", (("job", label), ("rank", ""))] == 41


def test_the_depth_of_the_mailbox_is_of_the_time_since_the_last_scrape() -> None:
    metrics = busy()
    assert samples(metrics)["oneflow_mailbox_depth_max", ()] == 3
    assert samples(metrics)["oneflow_mailbox_depth_max", ()] == 0


def test_histogram_counts_each_value_in_the_first_bucket_that_holds_it() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 3.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("0.1", 2), ("1.0", 3), ("+Inf", 4)]
    assert histogram.total_s == pytest.approx(3.65)


def get(address: str, path: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=CALL_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_page_serves_and_its_file_goes_away(tmp_path: Path) -> None:
    metrics = busy()
    endpoint = start_endpoint(Config(metrics_addr="127.0.0.1:0", runtime_dir=tmp_path), metrics)
    assert endpoint is not None
    (file,) = tmp_path.glob("metrics-*.json")
    try:
        assert json.loads(file.read_text())["address"] == endpoint.address
        status, text = get(endpoint.address, "/metrics")
        assert status == 200 and 'oneflow_actor_acts_total{kind="compute"} 5.0' in text
        assert get(endpoint.address, "/healthz") == (200, "ok\n")
        assert get(endpoint.address, "/readyz")[0] == 200
        metrics.is_ready = lambda: False
        assert get(endpoint.address, "/readyz")[0] == 503
        assert get(endpoint.address, "/elsewhere")[0] == 404
        assert get(endpoint.address, "/metrics", Origin="http://evil.example")[0] == 403
        assert get(endpoint.address, "/metrics", Host="evil.example")[0] == 403
    finally:
        endpoint.stop()
    assert not file.exists()


def test_files_of_processes_that_are_no_more_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / f"metrics-{ended.pid}.json").write_text("{}")
    (tmp_path / "metrics-1.json").write_text("{}")  # of one that lives
    endpoint = start_endpoint(Config(metrics_addr="127.0.0.1:0", runtime_dir=tmp_path))
    assert endpoint is not None
    try:
        mine = tmp_path / f"metrics-{os.getpid()}.json"
        assert {path.name for path in tmp_path.iterdir()} == {"metrics-1.json", mine.name}
        assert mine.stat().st_mode & 0o777 == 0o600
    finally:
        endpoint.stop()


def test_page_is_off_unless_asked_for_and_a_taken_port_is_named(tmp_path: Path) -> None:
    assert start_endpoint(Config()) is None
    first = start_endpoint(Config(metrics_addr="127.0.0.1:0", runtime_dir=tmp_path))
    assert first is not None
    try:
        with pytest.raises(ConfigError, match="ONEFLOW_METRICS_ADDR"):
            start_endpoint(Config(metrics_addr=first.address, runtime_dir=tmp_path))
    finally:
        first.stop()


def test_a_loss_is_shown_only_if_it_is_given() -> None:
    metrics = Metrics()
    metrics.progressed("j1", 3, rank=1)
    assert "oneflow_train_loss" not in {name for name, _ in samples(metrics)}
    metrics.progressed("j1", 4, rank=1, loss=0.5)
    metrics.progressed("j1", 5, rank=1)
    found = samples(metrics)
    assert found["oneflow_train_loss", (("job", "j1"),)] == 0.5
    assert found["oneflow_train_last_step", (("job", "j1"), ("rank", "1"))] == 5


def test_series_of_a_job_outlive_it_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    for job in ("over", "again", "going"):
        metrics.progressed(job, 1)
    metrics.job_ended("over")
    metrics.job_ended("again")
    metrics.job_ended("never seen")
    metrics.progressed("again", 2)
    end = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: end + KEEP_ENDED_S - 1)
    assert set(jobs_shown(metrics)) == {"over", "again", "going"}
    monkeypatch.setattr(time, "monotonic", lambda: end + KEEP_ENDED_S + 1)
    assert set(jobs_shown(metrics)) == {"again", "going"}


def jobs_shown(metrics: Metrics) -> list[str]:
    return [dict(who)["job"] for name, who in samples(metrics) if name == "oneflow_train_last_step"]


def test_a_step_that_goes_on_from_elsewhere_is_none_that_was_made() -> None:
    metrics = Metrics()
    for step in (0, 1800, 1801, 0, 1802):
        metrics.progressed("j1", step)
    found = samples(metrics)
    assert found["oneflow_train_steps_total", (("job", "j1"),)] == 0
    assert found["oneflow_train_last_step", (("job", "j1"), ("rank", ""))] == 1802
