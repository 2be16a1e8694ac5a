"""The web page: the tokens that see it, the acts it may do, and that a browser shows it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oneflow.protos import cluster_pb2 as pb
from tests.support.cluster import SchedulerProcess
from tests.support.simulated.daemon_peer import Client, FakeDaemon, run
from tests.support.waiting import CALL_S

from .browser import Browser

NODE_USE = pb.NodeUse(
    processors=8,
    load=1.5,
    memory_nbytes=16 << 30,
    memory_free_nbytes=12 << 30,
    disk_nbytes=100 << 30,
    disk_free_nbytes=25 << 30,
    received_nbytes_per_s=3 << 20,
    sent_nbytes_per_s=2048,
)
NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[SchedulerProcess]:
    found = SchedulerProcess(tmp_path, allow_scripts=True, ui=True, tick_s=0.1).start()
    yield found
    found.kill()


def ask(
    scheduler: SchedulerProcess, path: str, token: str = "", method: str = "GET", origin: str = ""
) -> Any:
    """Status, headers, body."""
    url = f"http://{scheduler.known['metrics_address']}{path}"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    headers |= {"Origin": origin} if origin else {}
    wanted = urllib.request.Request(url, headers=headers, method=method)
    try:
        with urllib.request.urlopen(wanted, timeout=CALL_S) as reply:
            return reply.status, dict(reply.headers), reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


async def train(scheduler: SchedulerProcess) -> FakeDaemon:
    """A job that has run a while, and one with a name that wants to be HTML. Returns the daemon of
    the first, which must be detached in the end.
    """
    daemon = await FakeDaemon(scheduler).attach()
    daemon.use = NODE_USE
    async with Client(scheduler) as client:
        await client.submit("digits", name="digits")
        id_ = (await daemon.told("start")).id
        daemon.logs["digits", 1, 0, "stdout"] = b"hello\n"
        daemon.files[""] = b"out.txt"
        for step in range(1, 51):
            metrics = {"loss": 2.3 / step, "accuracy": 1 - 1 / step}
            waits = pb.ActorCounts(kind="boxing", no_input_s=9.0 * step, no_free_register_s=0.0)
            more = {"actors": [waits], "waiting": "boxing.4: no_input, waits for r5 from rank 1"}
            await daemon.progress(id_, step, total_steps=100, metrics=metrics, **more)
        await client.submit("waiting", name=NASTY)
        follow = client.call("Jobs.Metrics", pb.MetricsRequest(job_id="digits", follow=True))
        async for point in follow:
            if point.step == 50:
                follow.cancel()
                break
    return daemon


@pytest.fixture
def trained(scheduler: SchedulerProcess) -> Iterator[SchedulerProcess]:
    daemon = run(train(scheduler))
    yield scheduler
    run(daemon.detach())


def test_the_page_needs_a_token(trained: SchedulerProcess) -> None:
    scheduler = trained
    status, headers, body = ask(scheduler, "/")
    policy = headers["Content-Security-Policy"]
    assert status == 200
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert b"http" not in body.replace(b"http-equiv", b"")  # nothing from elsewhere
    own = [f"/api/jobs/digits{more}" for more in ("", "/points", "/logs", "/failure", "/outputs")]
    for path in ("/api/jobs", "/api/cluster", "/api/nothing", *own):
        assert ask(scheduler, path)[0] == 401
        assert ask(scheduler, path, "oft_" + "x" * 40)[0] == 401
        assert ask(scheduler, path, scheduler.token("daemon.token"))[0] == 403
        assert ask(scheduler, path, scheduler.token(), "POST")[0] == 404
    refused = [line for line in scheduler.audit if line["event"] == "auth_failure"]
    assert len(refused) >= 10  # by where they came from, whatever their Host header said
    own = scheduler.known["metrics_address"]
    assert all(line["peer"].startswith("http:127.0.0.1:") for line in refused)
    assert not any(own in line["peer"] for line in refused)
    admin = scheduler.token()
    status, headers, body = ask(scheduler, "/api/jobs/digits", admin)
    job = json.loads(body)
    assert (job["state"], job["step"], job["ranks"][0]["phase"]) == ("RUNNING", 50, "running")
    assert job["ranks"][0]["waiting"].startswith("boxing.4: no_input")
    assert job["ranks"][0]["idle"] == {"boxing no_input": 1.0}
    assert "Access-Control-Allow-Origin" not in headers
    points = json.loads(ask(scheduler, "/api/jobs/digits/points?from=48", admin)[2])
    assert [(p["step"], points["next"]) for p in points["points"]] == [(49, 50), (50, 50)]
    assert ask(scheduler, "/api/jobs/nothing", admin)[0] == 404
    assert ask(scheduler, "/api/jobs/digits/logs?ranks=1", admin)[0] == 409
    assert ask(scheduler, "/api/jobs/digits/logs?ranks=x", admin)[0] == 400
    status, headers, body = ask(scheduler, "/api/jobs/digits/logs?stream=stdout", admin)
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body)["streams"][0]["text"] == "hello\n"
    assert json.loads(ask(scheduler, "/api/jobs/digits/outputs", admin)[2])["names"] == ["out.txt"]


async def tokens(scheduler: SchedulerProcess, **roles: str) -> dict[str, str]:
    """Secrets of new tokens, by name."""
    async with Client(scheduler) as client:
        return {
            name: (
                await client.call("Cluster.CreateToken", pb.TokenRequest(name=name, role=role))
            ).secret
            for name, role in roles.items()
        }


async def submit_as(scheduler: SchedulerProcess, secret: str, job_id: str) -> None:
    async with Client(scheduler, secret) as client:
        await client.submit(job_id)


def test_only_who_may_change_a_job_changes_it(scheduler: SchedulerProcess) -> None:
    secrets = run(tokens(scheduler, ada="submit", bob="submit", eve="view"))
    run(submit_as(scheduler, secrets["ada"], "j1"))

    def state() -> str:
        return str(json.loads(ask(scheduler, "/api/jobs/j1", scheduler.token())[2])["state"])

    cancel = "/api/jobs/j1/cancel"
    own = f"http://{scheduler.known['metrics_address']}"
    assert ask(scheduler, cancel, method="POST")[0] == 401
    assert ask(scheduler, cancel, secrets["eve"], "POST")[0] == 403
    status, _, body = ask(scheduler, cancel, secrets["bob"], "POST")
    assert status == 403 and "belongs to 'ada'" in json.loads(body)["error"]
    for origin in ("http://evil.example", "null"):
        assert ask(scheduler, cancel, secrets["ada"], "POST", origin)[0] == 403
    assert ask(scheduler, cancel, secrets["ada"])[0] == 404  # GET
    assert ask(scheduler, "/api/jobs/j1/remove", secrets["ada"], "POST")[0] == 404
    assert ask(scheduler, "/api/jobs/none/cancel", secrets["ada"], "POST")[0] == 404
    assert ask(scheduler, "/api/jobs/j1/restart", secrets["ada"], "POST")[0] == 409  # it waits
    assert state() == "QUEUED"
    assert ask(scheduler, cancel, secrets["ada"], "POST", own)[0] == 200
    assert state() == "CANCELLED"
    assert ask(scheduler, "/api/jobs/j1/restart", scheduler.token(), "POST", own)[0] == 200
    assert state() == "QUEUED"
    done = [(line["event"], line.get("who", line.get("token"))) for line in scheduler.audit]
    assert ("cancel", "ada") in done and ("restart", "admin") in done
    roles = [e for e in scheduler.audit if e["event"] == "auth_failure" and e["reason"] == "role"]
    assert len(roles) == 2  # of eve and bob
    trace = "/api/jobs/j1/trace?steps=2"
    for name in ("eve", "bob"):
        assert ask(scheduler, trace, secrets[name], "POST")[0] == 403
    status, _, body = ask(scheduler, trace, secrets["ada"], "POST", own)
    assert status == 409 and "script" in json.loads(body)["error"]
    noted = [line for line in scheduler.audit if line["event"] == "trace"]
    assert [(line.get("who", line.get("token")), line["job"]) for line in noted] == [("ada", "j1")]
    for path in ("/", "/ui/main.js", "/metrics", "/healthz"):
        assert ask(scheduler, path, secrets["ada"], "POST")[0] == 405


def test_there_is_no_page_unless_it_is_asked_for(tmp_path: Path) -> None:
    scheduler = SchedulerProcess(tmp_path).start()
    assert ask(scheduler, "/")[0] == 404
    assert ask(scheduler, "/api/jobs", scheduler.token())[0] == 404
    assert scheduler.stop() == 0


def test_a_browser_shows_jobs_curve_and_ranks(trained: SchedulerProcess, tmp_path: Path) -> None:
    scheduler = trained
    with Browser(tmp_path / "profile") as browser:
        browser.open(f"http://{scheduler.known['metrics_address']}/#digits")
        assert browser.run("getComputedStyle(document.getElementById('content')).display") == "none"
        browser.run(f"document.getElementById('token').value = {json.dumps(scheduler.token())}")
        browser.run("document.querySelector('#login button').click()")
        browser.until("document.querySelectorAll('#jobs tr').length === 2")
        browser.until("document.querySelector('#curve path')?.getAttribute('d').length > 100")
        browser.until("document.title === 'RUNNING 50 % digits - oneflow cluster'")
        text = browser.run("document.body.innerText")
        waits = ("100 % boxing no_input", "boxing.4: no_input, waits for r5 from rank 1")
        for wanted in ("digits", "RUNNING", "50 / 100", "cpu:0 digits", "running", NASTY, *waits):
            assert wanted in text, wanted
        browser.until("document.querySelectorAll('#nodes .use').length === 4")
        used = browser.run("[...document.querySelectorAll('#nodes .use')].map(u => u.innerText)")
        network = "network in 3 MiB/s, out 2 KiB/s"
        assert used == ["load 1.5 / 8", "memory 4 GiB / 16 GiB", "disk 25 GiB free", network]
        bars = browser.run("[...document.querySelectorAll('#nodes progress')].map(p => p.value)")
        assert bars[:3] == [1.5 / 8, 0.25, 0.75]
        assert browser.run("document.querySelectorAll('img').length") == 0
        assert browser.run("document.getElementById('metric').value") == "loss"
        assert (
            browser.run("document.querySelector('#reading').innerText") == "digits step 50: 0.046"
        )
        picture = browser.screenshot(tmp_path / "page.png")
        assert len(picture) > 10_000
        assert browser.problems() == []
