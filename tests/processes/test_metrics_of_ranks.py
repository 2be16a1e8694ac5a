"""Metrics of ranks at work, read as Prometheus would read them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from oneflow.scheduler.ports import free_port
from tests.support.waiting import CALL_S, WAIT_S, wait_until

PROGRAM = Path(__file__).with_name("metrics_program.py")
WORLD = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK")
EPOCHS, STEPS_AN_EPOCH, BATCH = 8, 14, 96
SHAPES = [(128, 64), (128,), (128, 128), (128,), (128, 128), (128,), (10, 128), (10,)]

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Page:
    """One scrape of one rank."""

    def __init__(self, text: str) -> None:
        self.families: list[Metric] = list(text_string_to_metric_families(text))
        self.samples: Samples = {
            (s.name, tuple(sorted(s.labels.items()))): s.value
            for family in self.families
            for s in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self.samples[name, tuple(sorted(labels.items()))]

    def total(self, name: str) -> float:
        return sum(v for (n, _), v in self.samples.items() if n == name)


def fetch(address: str, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=CALL_S) as answer:
        text: str = answer.read().decode()
        return text


class Run:
    """Pages of both ranks: `early` after an epoch, `late` after all."""

    early: list[Page]
    late: list[Page]
    ready: list[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("metrics")
    env = {k: v for k, v in os.environ.items() if k not in WORLD}
    env |= {"ONEFLOW_METRICS_ADDR": "127.0.0.1:0", "XDG_RUNTIME_DIR": str(folder)}
    command = [sys.executable, "-m", "oneflow.distributed.launch", "--nproc_per_node", "2"]
    command += ["--master_port", str(free_port())]
    command += ["--redirect_stdout_and_stderr", "--logdir", str(folder / "log")]
    command += [str(PROGRAM), str(folder), "--parallel", "dp", "--epochs", str(EPOCHS)]
    with subprocess.Popen(command, env=env) as process:
        try:
            yield watch(folder, process)
        finally:
            for name in ("first", "last"):
                (folder / f"{name}.go").touch()
            process.wait(timeout=WAIT_S)
    assert process.returncode == 0
    assert not list((folder / "oneflow").glob("metrics-*.json"))  # pages closed, files gone


def watch(folder: Path, process: subprocess.Popen[bytes]) -> Run:
    def pages() -> list[str]:
        entries = [json.loads(f.read_text()) for f in (folder / "oneflow").glob("metrics-*.json")]
        return [e["address"] for e in sorted(entries, key=lambda e: e["rank"])]

    def have_reached(name: str) -> bool:
        assert process.poll() is None, f"the job ended with {process.returncode}"
        return all((folder / f"{name}.{rank}").exists() for rank in (0, 1))

    wait_until(lambda: have_reached("first"))
    found, addresses = Run(), pages()
    found.early = [Page(fetch(a)) for a in addresses]
    found.ready = [fetch(a, path) for a in addresses for path in ("/healthz", "/readyz")]
    (folder / "first.go").touch()
    wait_until(lambda: have_reached("last"))
    found.late = [Page(fetch(a)) for a in addresses]
    return found


def test_every_rank_answers_and_is_ready(run: Run) -> None:
    assert run.ready == ["ok\n", "ready\n"] * 2


def test_steps_are_counted_alike_on_all_ranks(run: Run) -> None:
    for page in run.early:
        assert page.value("oneflow_train_steps_total", job="Train_0") == STEPS_AN_EPOCH
    steps = EPOCHS * STEPS_AN_EPOCH
    for rank, page in enumerate(run.late):
        job = {"job": "Train_0"}
        assert page.value("oneflow_train_steps_total", **job) == steps
        assert page.value("oneflow_train_samples_total", **job) == steps * BATCH
        assert page.value("oneflow_train_last_step", **job, rank=str(rank)) == steps - 1
        at = page.value("oneflow_train_last_step_timestamp_seconds", **job, rank=str(rank))
        assert abs(time.time() - at) < WAIT_S
        assert page.value("oneflow_train_step_duration_seconds_count") == steps
        assert page.value("oneflow_train_step_duration_seconds_sum") > 0


def test_acts_grow_and_take_time(run: Run) -> None:
    for early, late in zip(run.early, run.late, strict=True):
        assert early.total("oneflow_actor_acts_total") > 0
        assert early.total("oneflow_actor_acts_total") < late.total("oneflow_actor_acts_total")
        segments = late.value("oneflow_actor_acts_total", kind="segment")
        assert segments >= EPOCHS * STEPS_AN_EPOCH
        assert late.value("oneflow_actor_act_duration_seconds_count", kind="segment") == segments
        assert late.value("oneflow_actor_act_duration_seconds_sum", kind="segment") > 0


def test_gradients_move_as_many_bytes_as_they_must(run: Run) -> None:
    """T (p-1) for each rank and step with two ranks, be it in one phase or in two; two scalars
    (loss, number of labels) besides, and each tensor may be padded to a cache line."""
    nbytes = 4 * (sum(_numel(s) for s in SHAPES) + 2)
    for page in run.late:
        moved = sum(
            page.samples.get(("oneflow_collective_bytes_total", (("op", op),)), 0)
            for op in ("all_reduce", "reduce_scatter", "all_gather")
        )
        extra = moved / (EPOCHS * STEPS_AN_EPOCH) - nbytes
        assert 0 <= extra < 64 * (len(SHAPES) + 2)


def test_waits_are_shares_of_time(run: Run) -> None:
    for early, late in zip(run.early, run.late, strict=True):
        idle = late.value("oneflow_actor_wait_seconds_total", kind="flat_reduce", cause="no_input")
        assert 0 <= idle <= late.value("oneflow_train_step_duration_seconds_sum")
        waits = "oneflow_actor_wait_seconds_total"
        assert early.total(waits) <= late.total(waits)
        # Actors that only wait for others of their own rank are not to blame.
        assert late.value(waits, kind="output", cause="no_input") == 0


def test_messages_and_registers_balance(run: Run) -> None:
    """But for the last messages of a step, which are taken at the begin of the next."""
    sent = [p.value("oneflow_messages_sent_total", transport="shm") for p in run.late]
    received = [p.value("oneflow_messages_received_total", transport="shm") for p in run.late]
    for there, here in zip(sent, received[::-1], strict=True):
        assert there > EPOCHS * STEPS_AN_EPOCH and 0 <= there - here <= 8
    for page in run.late:
        assert page.value("oneflow_messages_sent_total", transport="local") > 0
        slots = {k: v for (n, k), v in page.samples.items() if n == "oneflow_registers"}
        assert not any(v for k, v in slots.items() if ("state", "in_use") in k)
        assert sum(v for k, v in slots.items() if ("state", "filled") in k) <= 8
        assert sum(v for k, v in slots.items() if ("state", "free") in k) > 8
        reserved = page.value("oneflow_device_memory_bytes", kind="reserved")
        assert 0 <= page.value("oneflow_device_memory_bytes", kind="used") < reserved
        assert page.value("oneflow_device_memory_peak_bytes") == reserved


def test_the_scheduler_shows_on_the_rank_that_hosts_it(run: Run) -> None:
    host, other = run.late
    name = "oneflow_scheduler_compile_duration_seconds"
    for one in ("all", "dedupe", "infer_sbp", "insert_boxing", "order", "share_registers"):
        assert host.value(f"{name}_count", **{"pass": one}) == 2  # Train and Predict
    assert host.value(f"{name}_sum", **{"pass": "all"}) > 0
    assert host.value("oneflow_scheduler_heartbeats_total") > 0
    assert other.total(f"{name}_count") == 0


def test_names_labels_and_series_keep_the_rules(run: Run) -> None:
    for page in run.late:
        assert len(page.samples) < 1500
        for family in page.families:
            assert re.fullmatch(r"oneflow_[a-z_]+", family.name), family.name
            assert family.documentation.endswith(".")
            for sample in family.samples:
                assert (family.type == "counter") == sample.name.endswith("_total")
                assert all(re.fullmatch(r"[\w.+-]*", v) for v in sample.labels.values()), sample
                assert not {"pid", "actor", "host"} & set(sample.labels)


def _numel(shape: tuple[int, ...]) -> int:
    return shape[0] * (shape[1] if len(shape) > 1 else 1)
