"""The scheduler as a process: its answers to clients and daemons over gRPC and HTTP."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oneflow as flow
from oneflow.core.errors import ConfigError
from oneflow.protos import cluster_pb2 as pb
from tests.support.cluster import SchedulerProcess
from tests.support.processes import listening
from tests.support.simulated.daemon_peer import Client, FakeDaemon, gather, request, run
from tests.support.waiting import CALL_S, until, wait_until

SCRIPT, GRAPH, INFERENCE = 0, 1, 2


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[SchedulerProcess]:
    found = SchedulerProcess(tmp_path, allow_scripts=True, compiler="toy", tick_s=0.1).start()
    yield found
    found.kill()


# ---- jobs ----------------------------------------------------------------------------------------


def test_a_job_is_run_watched_and_its_numbers_and_logs_are_delivered(
    scheduler: SchedulerProcess,
) -> None:
    async def scene() -> None:
        daemon = await FakeDaemon(scheduler).attach()
        async with Client(scheduler) as client:
            job = await client.submit(name="first")
            seen: list[str] = []
            watching = asyncio.ensure_future(watch(client, job.id, seen))
            id_ = (await daemon.told("start")).id
            await until(lambda: "RUNNING" in seen)
            daemon.logs[job.id, 1, 0, "stdout"] = b"hello from rank 0\n"
            for step in (1, 2, 3):
                await daemon.progress(id_, step, total_steps=3, metrics={"loss": 1 / step})
            await daemon.exit(id_, 0, "NONE")
            await daemon.told("noted")
            daemon.closed_logs.add(f"{job.id}.1")
            await watching
            assert seen[-1] == "SUCCEEDED"
            points = [p async for p in client.call("Jobs.Metrics", follow(job.id))]
            assert [(p.index, p.step, p.values["loss"]) for p in points] == [
                (0, 1, 1.0),
                (1, 2, 0.5),
                (2, 3, 1 / 3),
            ]
            pieces = client.call("Jobs.Logs", pb.LogsRequest(job_id=job.id, stream="stdout"))
            assert b"".join([p.data async for p in pieces]) == b"hello from rank 0\n"
            tail = pb.LogsRequest(job_id=job.id, follow=True, offsets={"1/0/stdout": 6})
            pieces = client.call("Jobs.Logs", tail)
            assert b"".join([p.data async for p in pieces]) == b"from rank 0\n"
        await daemon.detach()

    run(scene())


async def watch(client: Client, job_id: str, seen: list[str]) -> None:
    """Add each state that is told to `seen`."""
    async for record in client.call("Jobs.Watch", request(job_id)):
        seen.append(record.state)


async def ending(stream: Any) -> tuple[str, str]:
    """Code and details with which a stream ends that was open."""
    import grpc

    with pytest.raises(grpc.RpcError) as ended:
        async for _ in stream:
            pass
    return ended.value.code().name, ended.value.details()


def follow(job_id: str) -> pb.MetricsRequest:
    return pb.MetricsRequest(job_id=job_id, follow=True)


def test_logs_are_followed_over_a_restart_of_the_job_without_a_gap(
    scheduler: SchedulerProcess,
) -> None:
    async def scene() -> None:
        daemon = await FakeDaemon(scheduler).attach()
        async with Client(scheduler) as client:
            job = await client.submit(max_restarts=1)
            call = client.call("Jobs.Logs", pb.LogsRequest(job_id=job.id, follow=True))
            reader = asyncio.ensure_future(gather(call))
            seen = 0
            for attempt in (1, 2):
                id_ = (await daemon.told("start", seen)).id
                assert id_.attempt == attempt
                seen = len(daemon.heard)
                daemon.logs[job.id, attempt, 0, "stdout"] = f"attempt {attempt}".encode()
                daemon.closed_logs.add(f"{job.id}.{attempt}")
                await daemon.exit(id_, 3, "USER_ERROR", "it failed")
            assert await reader == b"attempt 1attempt 2"
            record = await client.get(job.id)
            assert (record.state, record.exit_code, record.cause) == ("FAILED", 3, "it failed")
            assert (record.attempt, record.restarts_spent, record.pid) == (2, 1, 4711)
        await daemon.detach()

    run(scene())


def test_the_same_id_is_one_job(scheduler: SchedulerProcess) -> None:
    async def scene() -> None:
        async with Client(scheduler) as client:
            first = await client.submit("mine", name="a")
            again = await client.submit("mine", name="a")
            assert (first.id, again.submitted_at) == ("mine", first.submitted_at)
            other = pb.SubmitRequest(job_id="mine", spec=pb.JobSpec(argv=["false"], devices=1))
            code, said = await client.refusal("Jobs.Submit", other)
            assert code == "ALREADY_EXISTS"
            assert "another id" in said
            assert "the cluster has none" in (await client.get("mine")).pending

    run(scene())


def test_lists_are_filtered_and_paged_here(scheduler: SchedulerProcess) -> None:
    async def scene() -> None:
        async with Client(scheduler) as client:
            for number in range(7):
                await client.submit(f"j{number}", name="odd" if number % 2 else "even")
            await client.call("Jobs.Cancel", request("j3"))
            found, cursor = [], ""
            for _ in range(2):
                page = pb.ListRequest(filters={"name": "even"}, limit=3, cursor=cursor)
                reply = await client.call("Jobs.List", page)
                found += [job.id for job in reply.jobs]
                cursor = reply.cursor
            assert (found, cursor) == (["j6", "j4", "j2", "j0"], "")
            by_state = pb.ListRequest(filters={"state": "cancelled,failed"})
            reply = await client.call("Jobs.List", by_state)
            assert [job.id for job in reply.jobs] == ["j3"]
            for bad in ({"color": "red"}, {"state": "NICE"}):
                code, _ = await client.refusal("Jobs.List", pb.ListRequest(filters=bad))
                assert code == "INVALID_ARGUMENT"
            code, _ = await client.refusal("Jobs.List", pb.ListRequest(cursor="%%%"))
            assert code == "INVALID_ARGUMENT"

    run(scene())


def test_jobs_are_cancelled_restarted_and_removed(scheduler: SchedulerProcess) -> None:
    async def scene() -> None:
        daemon = await FakeDaemon(scheduler).attach()
        async with Client(scheduler) as client:
            job = await client.submit()
            await daemon.told("start")
            code, said = await client.refusal("Jobs.Remove", request(job.id))
            assert (code, "cancel it first" in said) == ("FAILED_PRECONDITION", True)
            record = await client.call("Jobs.Cancel", request(job.id))
            assert record.state == "CANCELLING"
            stop = await daemon.told("stop")
            await daemon.exit(stop.id, 143, "PREEMPTED")
            record = await client.until(job.id, "CANCELLED")
            assert (record.exit_code, record.cause) == (143, "cancelled by admin")
            seen = len(daemon.heard)
            await client.call("Jobs.Restart", request(job.id))
            start = await daemon.told("start", seen)
            assert start.id.attempt == 2
            await daemon.exit(start.id, 0, "NONE")
            await client.until(job.id, "SUCCEEDED")
            await client.call("Jobs.Remove", request(job.id))
            assert await daemon.told("forget") == job.id
            code, _ = await client.refusal("Jobs.Get", request(job.id))
            assert code == "NOT_FOUND"
        await daemon.detach()

    run(scene())
    verbs = [entry["event"] for entry in scheduler.audit]
    assert [v for v in verbs if v not in ("auth_failure", "start", "token_create")] == [
        "submit",
        "remove",
        "cancel",
        "restart",
        "remove",
    ]


def test_script_jobs_must_be_allowed(tmp_path: Path) -> None:
    scheduler = SchedulerProcess(tmp_path).start()

    async def scene() -> None:
        async with Client(scheduler) as client:
            spec = pb.SubmitRequest(spec=pb.JobSpec(argv=["true"], devices=1))
            code, said = await client.refusal("Jobs.Submit", spec)
            assert (code, "--allow-scripts" in said) == ("PERMISSION_DENIED", True)

    run(scene())
    assert scheduler.stop() == 0


# ---- surviving -----------------------------------------------------------------------------------


def test_a_killed_scheduler_finds_its_jobs_again(scheduler: SchedulerProcess) -> None:
    async def before() -> tuple[FakeDaemon, str, pb.AttemptId]:
        daemon = await FakeDaemon(scheduler).attach()
        async with Client(scheduler) as client:
            running, queued = await client.submit("running"), await client.submit("queued")
            id_ = (await daemon.told("start")).id
            metrics = {"loss": 0.5}
            await daemon.progress(id_, 5, checkpoint="/c/5", checkpoint_step=5, metrics=metrics)
            while not (await client.get(running.id)).last_checkpoint:
                await asyncio.sleep(0.02)
            assert (await client.get(queued.id)).state == "QUEUED"
        await daemon.detach()
        return daemon, running.id, id_

    async def after(daemon: FakeDaemon, running: str, id_: pb.AttemptId) -> None:
        old_epoch = daemon.epoch
        at_work = pb.RunningAttempt(id=id_, phase="running", pid=1, last_step=6)
        await daemon.attach((at_work,))
        assert daemon.epoch > old_epoch
        async with Client(scheduler) as client:
            record = await client.get(running)
            assert (record.state, record.attempt, record.last_checkpoint) == ("RUNNING", 1, "/c/5")
            stale = pb.Exited(id=id_, exit_code=1, reason="USER_ERROR")
            await daemon.say(epoch=old_epoch, exited=stale)
            await daemon.progress(id_, 7)
            await daemon.exit(id_, 0, "NONE")
            assert (await client.until(running, "SUCCEEDED", "FAILED")).state == "SUCCEEDED"
            start = await daemon.wait(lambda m: m.start.id.job_id == "queued")
            assert start.start.id.attempt == 1
        await daemon.detach()

    daemon, running, id_ = run(before())
    address = scheduler.known["address"]
    scheduler.kill()
    scheduler.start()
    assert scheduler.known["address"] == address
    run(after(daemon, running, id_))
    for line in (
        'oneflow_scheduler_recoveries_total{result="reattached"} 1.0',
        'oneflow_scheduler_messages_rejected_total{reason="stale_epoch"} 1.0',
    ):  # gauges and the like are put together once a tick
        wait_until(lambda line=line: line in scrape(scheduler, "/metrics").splitlines(), line)


def test_one_scheduler_a_state_directory_and_a_port(scheduler: SchedulerProcess) -> None:
    pid = str(scheduler.known["pid"])
    code, said = SchedulerProcess(scheduler.folder).run_to_end()
    assert (code, f"process {pid}" in said) == (78, True)
    elsewhere = SchedulerProcess(
        scheduler.folder / "other", listen=scheduler.known["address"], metrics_addr=""
    )
    code, said = elsewhere.run_to_end()
    assert (code, f"pid {pid}" in said) == (78, True)
    scheduler.kill()
    scheduler.start()  # the lock of the dead one is no obstacle


def test_sigterm_ends_streams_at_once_and_exits_0(scheduler: SchedulerProcess) -> None:
    async def scene() -> tuple[str, str]:
        daemon = await FakeDaemon(scheduler).attach()
        async with Client(scheduler) as client:
            job = await client.submit()
            await daemon.told("start")
            call = client.call("Jobs.Watch", request(job.id))
            await anext(aiter(call))
            assert scheduler.process is not None
            scheduler.process.terminate()
            result = await ending(call)
        await daemon.detach()
        return result

    assert run(scene()) == ("UNAVAILABLE", "the scheduler stops")
    assert scheduler.wait() == 0
    assert list((scheduler.folder / "runtime").iterdir()) == []


def test_a_cluster_is_drained_and_shut_down(scheduler: SchedulerProcess) -> None:
    async def scene() -> None:
        first = await FakeDaemon(scheduler).attach()
        second = await FakeDaemon(scheduler, "n2/cpu:0").attach()
        async with Client(scheduler) as client:
            job = await client.submit(devices=2)
            ids = [(await daemon.told("start")).id for daemon in (first, second)]
            code, said = await client.refusal("Cluster.Drain", pb.DrainRequest(node="n3"))
            assert (code, "'n3'" in said) == ("NOT_FOUND", True)
            drain = pb.DrainRequest(node="n2", grace_s=60)
            status = await client.call("Cluster.Drain", drain)
            assert {d.node: d.state for d in status.daemons} == {"n1": "up", "n2": "draining"}
            assert await second.told("drain")
            seen = len(second.heard)
            status = await client.call("Cluster.Undrain", pb.DrainRequest(node="n2"))
            assert {d.state for d in status.daemons} == {"up"}
            assert await second.told("drain", seen) is False
            assert (scheduler.audit[-1]["event"], scheduler.audit[-1]["node"]) == ("undrain", "n2")
            restarts = asyncio.ensure_future(client.until(job.id, "RESTARTING"))
            await client.call("Cluster.Shutdown", pb.DrainRequest(grace_s=0))
            for daemon, id_ in zip((first, second), ids, strict=True):
                assert "drained" in (await daemon.told("stop")).why
                await daemon.exit(id_, 143, "PREEMPTED")
            assert (await restarts).reason == "PREEMPTED"
        await asyncio.gather(first.detach(), second.detach())

    run(scene())
    assert scheduler.wait() == 0


def test_drains_and_their_undoing_outlive_the_scheduler(scheduler: SchedulerProcess) -> None:
    async def before() -> list[FakeDaemon]:
        daemons = [await FakeDaemon(scheduler, f"{node}/cpu:0").attach() for node in ("n1", "n2")]
        async with Client(scheduler) as client:
            await client.call("Cluster.Drain", pb.DrainRequest(grace_s=60))
            for daemon in daemons:
                assert await daemon.told("drain")
                await daemon.detach()
            await client.call("Cluster.Undrain", pb.DrainRequest(node="n1"))
        return daemons

    async def after(daemons: list[FakeDaemon]) -> None:
        seen = len(daemons[1].heard)
        for daemon in daemons:
            await daemon.attach()
        assert await daemons[1].told("drain", seen)
        async with Client(scheduler) as client:
            status = await client.call("Cluster.Status", pb.Empty())
            assert {d.node: d.state for d in status.daemons} == {"n1": "up", "n2": "draining"}
        for daemon in daemons:
            await daemon.detach()

    daemons = run(before())
    scheduler.kill()
    scheduler.start()
    run(after(daemons))


def test_systemd_is_told(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(path))
        line.settimeout(CALL_S)
        # It is told at once, and hardly again: the queue is short, and what finds it full is lost.
        env = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "600000000"}
        scheduler = SchedulerProcess(tmp_path, env=env).start()
        assert {line.recv(100), line.recv(100)} == {b"READY=1", b"WATCHDOG=1"}
        assert scheduler.stop() == 0
        while line.recv(100) != b"STOPPING=1":
            pass


# ---- who may -------------------------------------------------------------------------------------


def test_tokens_decide_who_may_do_what(scheduler: SchedulerProcess) -> None:
    import grpc

    async def scene() -> None:
        async with Client(scheduler) as admin:
            job = await admin.submit(env={"API_KEY": "s3cret"})
            async with Client(scheduler, shows=True) as shower:
                code, details = await shower.refusal("Jobs.Get", request(job.id))
                assert (code, "never shows it" in details) == ("UNAUTHENTICATED", True)
            with pytest.raises(grpc.RpcError, match="not one of") as refused:
                await Client(scheduler, "oft_" + "x" * 40).open()
            assert refused.value.code().name == "UNAUTHENTICATED"
            made = pb.TokenRequest(name="eve", role="view")
            secret = (await admin.call("Cluster.CreateToken", made)).secret
            async with Client(scheduler, secret) as eve:
                assert (await eve.get(job.id)).spec.env["API_KEY"] == "***"
                code, _ = await eve.refusal("Jobs.Cancel", request(job.id))
                assert code == "PERMISSION_DENIED"
                code, _ = await eve.refusal("Cluster.ListTokens")
                assert code == "PERMISSION_DENIED"
                call = eve.call("Jobs.Watch", request(job.id))
                await anext(aiter(call))
                await admin.call("Cluster.RevokeToken", made)
                assert (await ending(call))[0] == "UNAUTHENTICATED"
                assert (await eve.refusal("Jobs.Get", request(job.id)))[0] == "UNAUTHENTICATED"
            names = [t.name for t in (await admin.call("Cluster.ListTokens")).tokens]
            assert names == ["admin", "daemons"]
            last = pb.TokenRequest(name="admin")
            code, _ = await admin.refusal("Cluster.RevokeToken", last)
            assert code == "FAILED_PRECONDITION"

    run(scene())
    text = (scheduler.folder / "state" / "audit.log").read_text()
    assert "oft_" not in text
    failures = [e["reason"] for e in scheduler.audit if e["event"] == "auth_failure"]
    assert failures == ["missing", "bad", "role", "role", "expired"]


def test_a_rotated_token_is_valid_beside_the_old_one(scheduler: SchedulerProcess) -> None:
    async def scene() -> None:
        async with Client(scheduler) as admin:
            rotated = await admin.call("Cluster.RotateToken", pb.TokenRequest(name="admin"))
            async with Client(scheduler, rotated.secret) as again:
                await again.call("Cluster.Status")
            await admin.call("Cluster.Status")
            await admin.call(
                "Cluster.CreateToken", pb.TokenRequest(name="eve", role="view", lifetime_s=7200)
            )
            for told, length in (({}, 7200), ({"lifetime_s": 60}, 60), ({"lifetime_s": 0}, None)):
                eve = await admin.call("Cluster.RotateToken", pb.TokenRequest(name="eve", **told))
                ends = pytest.approx(eve.created_at + length) if length else 0
                assert (eve.role, eve.expires_at) == ("view", ends)

    run(scene())


def test_users_change_their_own_jobs_only(scheduler: SchedulerProcess) -> None:
    async def scene() -> None:
        async with Client(scheduler) as admin:
            secrets = {}
            for name in ("ann", "bob"):
                made = pb.TokenRequest(name=name, role="submit")
                secrets[name] = (await admin.call("Cluster.CreateToken", made)).secret
        async with (
            Client(scheduler, secrets["ann"]) as ann,
            Client(scheduler, secrets["bob"]) as bob,
        ):
            job = await ann.submit()
            code, said = await bob.refusal("Jobs.Cancel", request(job.id))
            assert (code, "belongs to 'ann'" in said) == ("PERMISSION_DENIED", True)
            await ann.call("Jobs.Cancel", request(job.id))

    run(scene())


def test_a_token_may_ask_so_often_and_open_so_many_streams(tmp_path: Path) -> None:
    limits = {"requests_per_s": 1e-4, "burst": 5, "streams": 2}
    scheduler = SchedulerProcess(tmp_path, allow_scripts=True, limits=limits).start()

    async def scene() -> None:
        async with Client(scheduler) as client:
            job = await client.submit()
            calls = [client.call("Jobs.Watch", request(job.id)) for _ in range(2)]
            for call in calls:
                await anext(aiter(call))
            code, said = await client.refusal("Jobs.Watch", request(job.id))
            assert (code, "2 streams" in said) == ("RESOURCE_EXHAUSTED", True)
            await client.get(job.id)
            code, said = await client.refusal("Jobs.Get", request(job.id))
            assert (code, "try again in" in said) == ("RESOURCE_EXHAUSTED", True)

    run(scene())
    assert scheduler.stop() == 0


def test_messages_are_bounded(scheduler: SchedulerProcess) -> None:
    async def scene() -> None:
        async with Client(scheduler) as client:
            for nbytes in (2 << 20, 5 << 20):
                options = {"nbytes": str(nbytes)}
                spec = pb.JobSpec(argv=["x" * nbytes], devices=1, env=options)
                try:
                    code, _ = await client.refusal("Jobs.Submit", pb.SubmitRequest(spec=spec))
                except ValueError:
                    continue
                assert code == "RESOURCE_EXHAUSTED"
            await client.call("Cluster.Status")

    run(scene())


def test_bytes_that_are_no_message_are_refused_and_counted(scheduler: SchedulerProcess) -> None:
    async def scene() -> None:
        import grpc

        async with Client(scheduler) as client:
            rubbish = b"\x0a\xff\xff\xff\xff\x0fx"
            for method in ("Jobs/Get", "Cluster/Status"):
                raw = client.channel.unary_unary(f"/oneflow.{method}")
                for metadata, code in (
                    (client.metadata, "INVALID_ARGUMENT"),
                    ((), "UNAUTHENTICATED"),
                ):
                    with pytest.raises(grpc.RpcError) as refused:
                        await raw(rubbish, metadata=metadata)
                    assert refused.value.code().name == code
        async with Client(scheduler, scheduler.token("daemon.token")) as client:
            stream = client.channel.stream_stream("/oneflow.Daemons/Attach")
            call = stream(iter([rubbish]), metadata=client.metadata)
            with pytest.raises(grpc.RpcError) as refused:
                await anext(aiter(call))
            assert refused.value.code().name == "INVALID_ARGUMENT"

    run(scene())
    page = scrape(scheduler, "/metrics").splitlines()
    assert 'oneflow_scheduler_messages_rejected_total{reason="malformed"} 3.0' in page


def test_it_refuses_to_listen_beyond_loopback_without_tls(tmp_path: Path) -> None:
    code, said = SchedulerProcess(tmp_path, listen="0.0.0.0:0").run_to_end()
    assert (code, "init-tls" in said) == (78, True)


def test_tls_asks_everyone_for_a_certificate(tmp_path: Path) -> None:
    from grpc import aio

    from oneflow.scheduler.cluster.certificates import init_tls
    from oneflow.scheduler.cluster.tls import channel_credentials

    certificates, strange = tmp_path / "tls", tmp_path / "strange"
    init_tls(certificates)
    init_tls(strange)
    scheduler = SchedulerProcess(tmp_path, tls=str(certificates), listen="0.0.0.0:0").start()
    assert stat.S_IMODE((certificates / "scheduler.key").stat().st_mode) == 0o600

    async def ask(folder: Path | None) -> str:
        import grpc

        address = scheduler.known["address"]
        channel = aio.insecure_channel(address)
        if folder is not None:
            channel = aio.secure_channel(address, channel_credentials(folder, "client"))
        client = Client(scheduler, channel=channel)
        try:
            await client.open()
            return str((await client.call("Cluster.Status", timeout=CALL_S)).version)
        except grpc.RpcError as error:
            return str(error.code().name)
        finally:
            await channel.close()

    async def scene() -> list[str]:
        answers = [await ask(folder) for folder in (None, strange, certificates)]
        for name in ("ca", "scheduler", "client"):
            for kind in ("crt", "key"):  # renewed by another authority, while it runs
                (strange / f"{name}.{kind}").rename(certificates / f"{name}.{kind}")
        return [*answers, await ask(certificates)]

    with pytest.raises(ConfigError, match=r"wants TLS: .* ONEFLOW_CLIENT_TLS_DIR"):
        flow.cluster.connect(scheduler.known["address"], scheduler.token())
    answers = run(scene())
    assert answers[:2] == ["UNAVAILABLE", "UNAVAILABLE"]
    assert answers[2] == answers[3] != "UNAVAILABLE"
    assert scheduler.stop() == 0


# ---- files and pages -----------------------------------------------------------------------------


def test_secrets_are_for_their_owner_only(scheduler: SchedulerProcess) -> None:
    state, runtime = scheduler.folder / "state", scheduler.folder / "runtime"
    private = (state / "token", state / "daemon.token", state / "cluster.db", state / "audit.log")
    for path in (*private, runtime / "cluster.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "blobs").stat().st_mode) == 0o700
    limits = Path(f"/proc/{scheduler.known['pid']}/limits").read_text()
    assert re.search(r"Max core file size +0 ", limits)  # a dump would have tokens in it


def test_it_listens_where_it_says_and_nowhere_else(scheduler: SchedulerProcess) -> None:
    known = scheduler.known
    assert listening([known["pid"]]) == {known["address"], known["metrics_address"]}
    assert all(a.startswith("127.0.0.1:") for a in (known["address"], known["metrics_address"]))


def scrape(scheduler: SchedulerProcess, path: str, **headers: str) -> str:
    url = f"http://{scheduler.known['metrics_address']}{path}"
    with urllib.request.urlopen(
        urllib.request.Request(url, headers=headers), timeout=CALL_S
    ) as reply:
        return str(reply.read().decode())


def test_pages_answer_those_who_ask_by_our_name(scheduler: SchedulerProcess) -> None:
    assert scrape(scheduler, "/healthz") == "ok\n"
    assert scrape(scheduler, "/readyz") == "ready\n"
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        with pytest.raises(urllib.error.HTTPError) as refused:
            scrape(scheduler, "/metrics", **headers)
        refused.value.close()
        assert refused.value.code == 403


def test_health_is_told_without_a_token(scheduler: SchedulerProcess) -> None:
    async def scene() -> None:
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        async with Client(scheduler) as client:
            health: Any = health_pb2_grpc.HealthStub(client.channel)
            for name in ("", "oneflow.Scheduler"):
                reply = await health.Check(health_pb2.HealthCheckRequest(service=name))
                assert reply.status == health_pb2.HealthCheckResponse.SERVING

    run(scene())


def test_the_audit_log_is_put_away_and_loses_no_line_when_the_scheduler_dies(
    tmp_path: Path,
) -> None:
    scheduler = SchedulerProcess(tmp_path, allow_scripts=True, audit_nbytes=1500, audit_files=50)

    async def submit() -> list[str]:
        async with Client(scheduler) as client:
            return [(await client.submit()).id for _ in range(15)]

    jobs: list[str] = []
    for _ in range(2):
        scheduler.start()
        jobs += run(submit())
        scheduler.kill()
    files = sorted((tmp_path / "state").glob("audit.log.*"), key=lambda p: int(p.suffix[1:]))
    lines = [line for file in files for line in file.read_text().splitlines()]
    entries = [*map(json.loads, lines), *scheduler.audit]
    assert len(files) > 2
    assert [entry["job"] for entry in entries if entry["event"] == "submit"] == jobs
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
