"""Prometheus beside a cluster of this machine, with the files of deploy/prometheus as they are.

Ten jobs must leave every alert quiet; then five things fail, and each must ring its own alert and
no other: a job diverges, a job stands still, somebody guesses tokens, a daemon dies, the scheduler
dies. The tests build on each other and run in the order of the file.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oneflow as flow
from oneflow.core.errors import AuthError
from oneflow.scheduler.ports import free_port
from tests.support.local_cluster import LocalTest, submit
from tests.support.processes import alive
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "deploy" / "prometheus"
QUERY = re.compile(r"```promql\n(.*?)```", re.DOTALL)

pytestmark = [
    pytest.mark.neighbour,
    pytest.mark.skipif(
        shutil.which("prometheus") is None or shutil.which("promtool") is None,
        reason="needs prometheus, which Debian has",
    ),
]

STEPS = """
import oneflow as flow
from oneflow import nn
class Train(nn.Graph):
    def __init__(self):
        super().__init__()
        self.model = nn.Linear(4, 2)
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.01))
    def build(self, x):
        loss = self.model(x).sum()
        loss.backward()
        return loss
train = Train()
x = flow.ones(8, 4)
"""


class Site:
    """A cluster, and a Prometheus that watches it."""

    def __init__(self, folder: Path) -> None:
        self.local = LocalTest(folder / "cluster")
        self.folder = folder / "prometheus"
        self.url = f"http://127.0.0.1:{free_port()}"
        self.quiet_s = (0.0, 0.0)

    def start(self) -> None:
        config = self.local.folder / "config"
        config.mkdir()
        (config / "config.toml").write_text("[daemon]\ntrain_loss = true\n")
        self.up()
        shutil.copytree(FILES, self.folder)
        (self.folder / "targets").mkdir()
        self.find_targets()
        argv = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*argv, f"--web.listen-address={self.url.removeprefix('http://')}"],
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        wait_until(self._is_ready, what=(self.folder / "log").read_text)

    def up(self) -> None:
        done = self.local.run("cluster", "up", "--daemons", "2", "--allow-scripts")
        assert done.returncode == 0, done.stderr

    def find_targets(self) -> None:
        told = self.local.run("cluster", "metrics-targets").stdout
        (self.folder / "targets" / "oneflow.json").write_text(told)

    def stop(self) -> None:
        self.local.run("cluster", "down")
        self._process.terminate()
        self._process.wait(60)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def ask(self, path: str, **words: str) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(words)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.loads(answer.read())["data"]

    def values(self, query: str, since_s: float, until_s: float) -> list[float]:
        """Numbers of a query over a time, NaN left out."""
        words = {"start": f"{since_s}", "end": f"{until_s}", "step": "15"}
        found = self.ask("query_range", query=query, **words)["result"]
        numbers = (float(text) for series in found for _, text in series["values"])
        return [number for number in numbers if not math.isnan(number)]

    def alerts(self, state: str = "firing") -> set[str]:
        found = self.ask("alerts")["alerts"]
        return {one["labels"]["alertname"] for one in found if one["state"] == state}

    def rang(self, since_s: float) -> set[str]:
        """Alerts that fired at any moment since then."""
        words = {"start": f"{since_s}", "end": f"{time.time()}", "step": "15"}
        found = self.ask("query_range", query='ALERTS{alertstate="firing"}', **words)["result"]
        return {series["metric"]["alertname"] for series in found}

    def write_job(self, name: str, *options: str) -> str:
        program = ROOT / "examples" / "jobs" / "digits_job.py"
        path = self.local.folder / name
        argv = [sys.executable, str(program), str(path), *options]
        subprocess.run(argv, check=True, env=self.local.env, capture_output=True)
        return str(path)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(tmp_path_factory.mktemp("site"))
    found.start()
    try:
        yield found
    finally:
        found.stop()


@pytest.mark.parametrize(
    "words",
    ["check config prometheus.yml", "check rules rules.yml", "test rules rules_test.yml"],
)
def test_promtool(words: str) -> None:
    argv = ["promtool", *words.split()]
    done = subprocess.run(argv, cwd=FILES, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_target_is_up(site: Site) -> None:
    def healths() -> list[str]:
        return [target["health"] for target in site.ask("targets")["activeTargets"]]

    wait_until(lambda: healths() == ["up"] * 3, what=lambda: str(healths()))


def test_ten_jobs_leave_all_alerts_quiet(site: Site) -> None:
    """They are long enough that each scrape sees some, and a hand-over could ring."""
    began = time.time()
    path = site.write_job("digits.job", "--steps", "2000", "--checkpoint-every", "250")
    script = site.local.script(
        "steps.py", f"{STEPS}\nfor _ in range(2000): train(x); time.sleep(0.005)"
    )
    for number in range(10):
        if number % 3 == 2:
            done = submit(site.local, script, "--wait")
        else:
            done = site.local.run("job", "submit", path, "--devices", "2", "--wait")
        assert done.returncode == 0, done.stderr
    wait_until(lambda: time.time() > began + 180, timeout_s=300)
    site.quiet_s = (began, time.time())
    assert site.rang(began) == set()


def documented() -> list[str]:
    """Queries of docs/METRICS.md: one a line, but for a line that goes on."""
    blocks = QUERY.findall((ROOT / "docs" / "METRICS.md").read_text())
    return [line for block in blocks for line in block.replace("\n  ", " ").strip().splitlines()]


def test_every_documented_query_has_data(site: Site) -> None:
    assert len(documented()) > 10
    assert [q for q in documented() if not site.values(q, *site.quiet_s)] == []


def test_four_failures_ring_their_alerts_and_no_others(site: Site) -> None:
    began = time.time()
    wanted = {"OneflowNonFinite", "OneflowNoStep", "OneflowAuthFailures"}
    diverges = site.write_job("nan.job", "--steps", "400", "--lr", "1e38")
    assert site.local.run("job", "submit", diverges, "--devices", "2", "--wait").returncode == 0
    stands = f"{STEPS}\nfor _ in range(2000): train(x); time.sleep(0.01)\ntime.sleep(3600)"
    job = submit(site.local, site.local.script("stands.py", stands)).stdout.strip()
    guess_tokens(site, lambda: "OneflowAuthFailures" in site.alerts())
    wait_until(lambda: wanted <= site.rang(began), lambda: str(site.rang(began)), timeout_s=900)
    site.local.run("job", "cancel", job)
    (killed, *_) = alive("--scheduler", site.local.record.address)
    os.kill(killed, signal.SIGKILL)
    wanted.add("OneflowDaemonLost")
    wait_until(lambda: wanted <= site.rang(began), lambda: str(site.rang(began)), timeout_s=300)
    assert site.rang(began) == wanted


def guess_tokens(site: Site, is_enough: Any) -> None:
    """Call with a wrong token, three times a second."""
    local = site.local
    deadline = time.monotonic() + 600
    while not is_enough():
        assert time.monotonic() < deadline, site.alerts("pending")
        for _ in range(30):
            with pytest.raises(AuthError):
                flow.cluster.connect(local.record.address, "0" * 64)
            time.sleep(0.3)


def test_a_fifth_a_scheduler_that_is_gone_rings(site: Site) -> None:
    site.up()
    site.find_targets()
    os.kill(site.local.record.scheduler.pid, signal.SIGKILL)
    gone = "OneflowSchedulerNotScraped"
    wait_until(lambda: gone in site.alerts(), lambda: str(site.alerts()), timeout_s=420)
    site.up()
    site.find_targets()
    wait_until(lambda: gone not in site.alerts(), lambda: str(site.alerts()), timeout_s=420)


def panels() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "deploy" / "grafana").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                text = target["expr"].replace("$__rate_interval", "1m")
                yield panel["title"], re.sub(r"\$(job|instance)", ".*", text)


UNUSED = {"Embeddings: distinct ids by all ids"}
"""Panels that divide by zero while no job has embeddings."""


def test_every_panel_has_data(site: Site) -> None:
    """Take all since the first job: some panels are empty until something has failed."""
    began = site.quiet_s[0]
    empty = {title for title, query in panels() if not site.values(query, began, time.time())}
    assert empty == UNUSED
