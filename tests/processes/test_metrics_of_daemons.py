"""Numbers of a graph job of two ranks on the pages of their daemons, read as Prometheus would."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.scheduler.jobs.records import JobState
from tests.support.local_cluster import LocalTest
from tests.support.waiting import WAIT_S, wait_until

from .test_metrics_of_ranks import Page, fetch

BATCH, WIDTH, CLASSES = 32, 48, 5
SHAPES = [(CLASSES, WIDTH), (CLASSES,)]
EVERY = 40
FAULT = "ckpt.before_sync=error:ENOSPC@hit=2"  # the second checkpoint of each rank


class Fit(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        flow.manual_seed(3)
        self.model = nn.Linear(WIDTH, CLASSES)
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.05))

    def build(self, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


class Run:
    """One job. busy: pages of the daemons of ranks 0 and 1 while it trains; ended: after it was
    told to stop; record: its last one.
    """

    local: LocalTest

    def __init__(self, local: LocalTest) -> None:
        rng = np.random.default_rng(1)
        x = rng.standard_normal((4 * BATCH, WIDTH)).astype(np.float32)
        y = rng.integers(0, CLASSES, 4 * BATCH)
        data = flow.jobs.data.arrays(x=x, y=y).batch(BATCH).repeat()
        with local.connect() as cluster:
            job = cluster.submit(
                Fit(), data=data, steps=10_000_000, devices=2, name="fit", checkpoint_every=EVERY
            )
            wait_until(lambda: job.status().last_checkpoint_step >= 5 * EVERY)
            self.addresses = [a.daemon for a in job.status().assignments]
            self.job, self.pages = job.id, pages_of(local)
            wait_until(self.is_told)
            self.top = local.run("top", "--once").stdout
            job.cancel()
            job.wait(WAIT_S)
            self.losses = [p.values["loss"] for p in job.metrics(follow=False)]
            self.ended = [self.page(rank) for rank in (0, 1)]
            self.record = job.status()
            self.scheduler = Page(fetch(cluster.status().metrics_address))

    def is_told(self) -> bool:
        """Fetches the pages; has each rank told its daemon of its actors and their bytes?"""
        self.busy = [self.page(rank) for rank in (0, 1)]
        told = ("oneflow_collective_bytes_total", "oneflow_daemon_actors", "oneflow_registers")
        has_loss = self.busy[0].total("oneflow_train_loss") > 0
        return has_loss and all(page.total(name) > 0 for page in self.busy for name in told)

    def page(self, rank: int) -> Page:
        return Page(fetch(self.pages[self.addresses[rank]]))

    def value(self, rank: int, name: str, **labels: str) -> float:
        return self.ended[rank].value(name, **labels)


def pages_of(local: LocalTest) -> dict[str, str]:
    """Daemon -> address of its page."""
    targets = json.loads(local.run("cluster", "metrics-targets").stdout)
    found = {}
    for address in (a for target in targets for a in target["targets"]):
        for sample in Page(fetch(address)).samples:
            if sample[0] == "oneflow_daemon_info":
                labels = dict(sample[1])
                found[f"{labels['node']}/{labels['device']}"] = address
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    local = LocalTest(tmp_path_factory.mktemp("cluster"))
    local.env |= {"ONEFLOW_DAEMON_TRAIN_LOSS": "true"}
    local.env |= {"ONEFLOW_TESTING": "1", "ONEFLOW_FAILPOINTS": FAULT}
    done = local.run("cluster", "up", "--daemons", "2", "--allow-scripts")
    assert done.returncode == 0, done.stderr
    try:
        found = Run(local)
        found.local = local
        yield found
    finally:
        local.run("cluster", "down")


def test_steps_are_those_that_were_made(run: Run) -> None:
    assert run.record.state is JobState.CANCELLED
    steps = run.record.last_step
    for rank in (0, 1):
        assert run.value(rank, "oneflow_train_steps_total", job=run.job) == steps
        assert run.value(rank, "oneflow_train_samples_total", job=run.job) == steps * BATCH
        assert run.value(rank, "oneflow_train_step_duration_seconds_count") == steps
        who = {"job": run.job, "rank": str(rank)}
        assert run.ended[rank].value("oneflow_train_last_step", **who) == steps
        assert run.value(rank, "oneflow_actor_acts_total", kind="segment") >= steps


def test_loss_is_shown_where_it_was_asked_for(run: Run) -> None:
    shown = run.busy[0].value("oneflow_train_loss", job=run.job)
    assert shown in run.losses
    assert run.busy[1].total("oneflow_train_loss") == 0  # rank 0 reports it


def test_actors_and_registers_are_those_of_this_moment(run: Run) -> None:
    for page, after in zip(run.busy, run.ended, strict=True):
        assert page.total("oneflow_daemon_actors") > 3
        slots = {k: v for (n, k), v in page.samples.items() if n == "oneflow_registers"}
        assert {dict(k)["state"] for k in slots} == {"free", "filled", "in_use"}
        assert sum(slots.values()) > 3
        assert page.value("oneflow_device_memory_bytes", kind="reserved") > 0
        assert page.value("oneflow_device_memory_bytes", kind="limit") > 0
        assert after.total("oneflow_daemon_actors") == after.total("oneflow_registers") == 0
        assert after.value("oneflow_device_memory_bytes", kind="reserved") == 0
        assert after.value("oneflow_device_memory_peak_bytes") > 0
        alone = after.value("oneflow_host_memory_bytes", kind="rss")
        assert page.value("oneflow_host_memory_bytes", kind="rss") > alone > 0


def test_top_shows_daemons_jobs_and_who_waits_for_what(run: Run) -> None:
    for wanted in ("cpu:0", "cpu:1", run.job, "running", "waits now"):
        assert wanted in run.top.lower(), wanted


def test_waits_have_causes(run: Run) -> None:
    for page in run.ended:
        name = "oneflow_actor_wait_seconds_total"
        waits = {k: v for (n, k), v in page.samples.items() if n == name}
        assert {dict(k)["cause"] for k in waits} == {"no_input", "no_free_register"}
        assert sum(v for k, v in waits.items() if ("cause", "no_input") in k) > 0
        assert all(
            v <= page.value("oneflow_train_step_duration_seconds_sum") + 1 for v in waits.values()
        )


def test_messages_and_their_bytes_agree(run: Run) -> None:
    """Counts a message in shared memory as a number of 8 bytes; contents are read in place."""
    sent = [run.value(r, "oneflow_messages_sent_total", transport="shm") for r in (0, 1)]
    received = [run.value(r, "oneflow_messages_received_total", transport="shm") for r in (0, 1)]
    for there, here in zip(sent, received[::-1], strict=True):
        assert there > run.record.last_step
        assert 0 <= there - here <= 8  # the last ones are taken at the begin of the next step
    for rank in (0, 1):
        for direction, count in (("sent", sent[rank]), ("received", received[rank])):
            labels = {"transport": "shm", "direction": direction}
            assert run.value(rank, "oneflow_message_bytes_total", **labels) == 8 * count
        assert run.value(rank, "oneflow_message_latency_seconds_count", transport="shm") > 0
        assert run.value(rank, "oneflow_messages_sent_total", transport="local") > 0


def test_gradients_move_as_many_bytes_as_they_must(run: Run) -> None:
    """T (p-1) for each rank and step, one scalar (loss) or two besides, padded to cache lines."""
    nbytes = 4 * sum(int(np.prod(shape)) for shape in SHAPES)
    for page in run.ended:
        moved = sum(
            page.samples.get(("oneflow_collective_bytes_total", (("op", op),)), 0)
            for op in ("all_reduce", "reduce_scatter", "all_gather")
        )
        extra = moved / run.record.last_step - nbytes
        assert 0 <= extra < 64 * (len(SHAPES) + 3)
        assert page.total("oneflow_collective_duration_seconds_count") >= run.record.last_step


def test_phases_of_checkpoints_and_one_that_failed(run: Run) -> None:
    state_nbytes = 4 * sum(int(np.prod(shape)) for shape in SHAPES)
    written = 0.0
    name = "oneflow_checkpoint_save_duration_seconds_count"
    saves = run.value(0, name, phase="gather")
    assert saves >= 4
    for rank in (0, 1):
        assert run.value(rank, name, phase="gather") == saves
        assert run.value(rank, name, phase="write") == saves - 1
        assert run.value(rank, "oneflow_checkpoint_failures_total", reason="DISK_FULL") == 1
        assert run.value(rank, "oneflow_checkpoint_failures_total", reason="IO") == 0
        written += run.value(rank, "oneflow_checkpoint_bytes_total", direction="write")
    assert run.value(0, name, phase="commit") == saves - 1
    assert run.value(1, name, phase="commit") == 0
    assert written == pytest.approx(state_nbytes * saves, rel=0.1)  # the failed one was written
    assert run.value(0, "oneflow_checkpoint_last_step", job=run.job) > 0


def test_pages_keep_the_budget_and_the_scheduler_its_own(run: Run, tmp_path: Path) -> None:
    for page in (*run.busy, *run.ended):
        assert len(page.samples) < 1500
        assert not [f.name for f in page.families if f.name.startswith("oneflow_scheduler_")]
    assert len(run.scheduler.samples) < 3000
    finished = {"state": "CANCELLED", "reason": "CANCELLED"}
    assert run.scheduler.value("oneflow_scheduler_jobs_finished_total", **finished) == 1


def test_ranks_of_a_script_have_pages_of_their_own_if_asked(run: Run) -> None:
    text = "flow.ones(2).to_global(flow.placement('cpu', [0, 1]), flow.sbp.broadcast)"
    script = run.local.script("pages.py", f"import oneflow as flow\n{text}\ntime.sleep(600)")
    asked = ["--devices", "2", "--env", "ONEFLOW_METRICS_ADDR=127.0.0.1:0"]
    done = run.local.run("job", "submit", *asked, "--", sys.executable, script)
    assert done.returncode == 0, done.stderr

    def ranks() -> dict[str, str]:
        targets = json.loads(run.local.run("cluster", "metrics-targets").stdout)
        return {
            t["labels"]["rank"]: t["targets"][0] for t in targets if "rank" in t.get("labels", {})
        }

    wait_until(lambda: sorted(ranks()) == ["0", "1"])
    for address in ranks().values():
        assert Page(fetch(address)).total("oneflow_build_info") == 1
    assert run.local.run("job", "cancel", done.stdout.strip()).returncode == 0


SCRIPT = """
path = os.environ["ONEFLOW_COUNTS_FILE"]  # which is gone as soon as the rank writes it

import oneflow as flow
from oneflow import nn

everywhere = flow.placement("cpu", [0, 1])

class Fit(nn.Graph):
    def __init__(self):
        super().__init__()
        self.model = nn.Linear(8, 4).to_global(everywhere, flow.sbp.broadcast)
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1))

    def build(self, x):
        loss = self.model(x).sum()
        loss.backward()
        return loss

fit, x = Fit(), flow.ones(16, 8).to_global(everywhere, flow.sbp.split(0))
for step in range(7):
    fit(x).to_local()
while not os.path.exists(STOP):
    time.sleep(0.05)
if rank == 0:
    os.rename(path, path + ".old")
    os.mkdir(path)  # in its place is now what cannot be read
    time.sleep(600)
"""


def test_ranks_of_a_script_tell_their_daemons(run: Run) -> None:
    stop = run.local.folder / "stop"
    script = run.local.script("counts.py", SCRIPT.replace("STOP", repr(str(stop))))
    asked = ["--devices", "2", "--", sys.executable, script]
    done = run.local.run("job", "submit", *asked)
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()

    def pages() -> list[Page]:
        return [Page(fetch(address)) for address in run.pages.values()]

    def steps() -> list[float]:
        key = "oneflow_train_steps_total", (("job", job),)
        return [page.samples.get(key, 0.0) for page in pages()]

    before = [page.total("oneflow_collective_bytes_total") for page in run.ended]
    wait_until(lambda: steps() == [7, 7])
    for page in pages():
        name, who = "oneflow_train_last_step", ("job", job)
        last = [v for (n, labels), v in page.samples.items() if n == name and who in labels]
        assert last == [7]
        assert page.value("oneflow_train_samples_total", job=job) == 7 * 2 * 16
        assert len(page.samples) < 1500
    record = json.loads(run.local.run("job", "get", job, "-o", "json").stdout)
    assert record["last_step"] == 7
    moved = [page.total("oneflow_collective_bytes_total") for page in pages()]
    assert sum(moved) > sum(before)
    refused = [malformed(page) for page in pages()]
    stop.touch()
    wait_until(lambda: sum(malformed(page) for page in pages()) == sum(refused) + 1)
    assert run.local.run("job", "cancel", job).returncode == 0
    assert steps() == [7, 7]


def malformed(page: Page) -> float:
    return page.value("oneflow_messages_rejected_total", reason="malformed")
