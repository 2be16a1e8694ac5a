"""Things that users bring to the scheduler and fetch from it: files, plans, outputs, traces."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from oneflow.protos import cluster_pb2 as pb
from tests.support.cluster import SchedulerProcess
from tests.support.processes import children, cmdline, is_alive
from tests.support.simulated.daemon_peer import (
    Client,
    FakeDaemon,
    chunks,
    gather,
    request,
    run,
    upload,
)
from tests.support.waiting import wait_until

SCRIPT, GRAPH, INFERENCE = 0, 1, 2


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[SchedulerProcess]:
    found = SchedulerProcess(tmp_path, allow_scripts=True, compiler="toy", tick_s=0.1).start()
    yield found
    found.kill()


def test_files_are_uploaded_compiled_fetched_and_removed_with_their_job(
    scheduler: SchedulerProcess,
) -> None:
    async def scene() -> None:
        daemon = await FakeDaemon(scheduler).attach()
        blobs = scheduler.folder / "state" / "blobs"
        async with Client(scheduler) as client:
            missing = pb.SubmitRequest(spec=pb.JobSpec(kind=GRAPH, graph="0" * 64, devices=1))
            code, said = await client.refusal("Jobs.Submit", missing)
            assert (code, "upload it first" in said) == ("FAILED_PRECONDITION", True)
            digest = await upload(client, b"a graph")
            assert await upload(client, b"a graph") == digest
            job = await client.submit(kind=GRAPH, graph=digest)
            prepare = await daemon.told("prepare")
            async with Client(scheduler, scheduler.token("daemon.token")) as fetcher:
                plan = fetcher.call("Daemons.Fetch", pb.BlobInfo(digest=prepare.plan))
                assert await gather(plan) == b"a graph for 1 cpu on "
            await daemon.exit((await daemon.told("start")).id, 0, "NONE")
            await client.until(job.id, "SUCCEEDED")
            assert {p.name for p in blobs.iterdir()} == {digest, prepare.plan}
            await client.call("Jobs.Remove", request(job.id))
            while any(blobs.iterdir()):
                await asyncio.sleep(0.02)
        await daemon.detach()

    run(scene())


def test_what_cannot_be_compiled_fails_with_the_compilers_words(
    scheduler: SchedulerProcess, tmp_path: Path
) -> None:
    turns = tmp_path / "turns"
    turns.mkdir()

    async def scene() -> None:
        daemon = await FakeDaemon(scheduler).attach()
        async with Client(scheduler) as client:
            job = await client.submit(kind=GRAPH, graph=await upload(client, b"bad: no such op"))
            record = await client.until(job.id, "FAILED")
            assert "bad: no such op" in record.cause
            text = f"slow until={turns}".encode()
            slow = await client.submit(kind=GRAPH, graph=await upload(client, text))
            records = aiter(client.call("Jobs.Watch", request(slow.id)))
            for number in range(3):
                wanted = f"compiling for 1 devices: pass {number + 1} of 3"
                while wanted not in (await anext(records)).pending:
                    pass
                if number < 2:
                    (turns / str(number)).touch()
            await client.call("Jobs.Cancel", request(slow.id))
            stop = await daemon.told("stop")
            await daemon.exit(stop.id, 143, "PREEMPTED")
            await client.until(slow.id, "CANCELLED")
            (turns / "2").touch()
            good = await client.submit(kind=GRAPH, graph=await upload(client, b"good"))
            assert (await daemon.told("prepare")).id.job_id == good.id
        await daemon.detach()

    run(scene())


def test_a_compile_holds_up_nobody_and_what_ends_it_is_said(tmp_path: Path) -> None:
    limits = {"compile_s": 600.0, "nbytes": 256 << 20}
    options = {"compiler": "toy", "compiler_limits": limits, "tick_s": 0.1}
    scheduler = SchedulerProcess(tmp_path, **options).start()

    async def compiling(client: Client, job_id: str) -> bool:
        return "compiling for 1 devices: pass" in (await client.get(job_id)).pending

    async def scene() -> None:
        daemon = await FakeDaemon(scheduler).attach()
        async with Client(scheduler) as client:
            large = await client.submit(kind=GRAPH, graph=await upload(client, b"large grow=1"))
            failed = await client.until(large.id, "FAILED")
            assert (failed.reason, failed.exit_code) == ("USER_ERROR", 65)
            assert "more than the 256 MiB of the memory" in failed.cause

            killed = await client.submit(kind=GRAPH, graph=await upload(client, b"x sleep=600"))
            while not await compiling(client, killed.id):
                await asyncio.sleep(0.02)
            assert scheduler.process is not None
            ending = asyncio.ensure_future(client.until(killed.id, "FAILED"))
            while not ending.done():  # once is not held against a file
                for pid in compilers_of(scheduler.process.pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                await asyncio.sleep(0.1)
            failed = await ending
            assert (failed.reason, failed.exit_code) == ("INTERNAL", 70)
            assert "was killed by SIGKILL" in failed.cause

            # In the scheduler's own process it would have kept everybody from the interpreter.
            slow = await client.submit(kind=GRAPH, graph=await upload(client, b"slow busy=600"))
            while not await compiling(client, slow.id):
                await asyncio.sleep(0.02)
            assert (await client.call("Cluster.Status")).daemons[0].state == "up"
            good = await upload(client, b"good")
            other = await client.submit(kind=GRAPH, graph=good)  # judged meanwhile
            assert (await client.get(other.id)).state == "QUEUED"
            code, said = await client.refusal(
                "Jobs.Submit",
                pb.SubmitRequest(spec=pb.JobSpec(kind=GRAPH, graph=good, devices=1, steps=101)),
            )
            assert (code, "the job file: no more than 100" in said) == ("INVALID_ARGUMENT", True)
            assert await compiling(client, slow.id)
            assert not [m for m in daemon.heard if m.HasField("prepare")]
        await daemon.detach()

    try:
        run(scene())
    finally:
        scheduler.kill()


def test_a_compile_that_takes_too_long_ends_and_the_next_job_begins(tmp_path: Path) -> None:
    options = {"compiler": "toy", "compiler_limits": {"compile_s": 3.0}, "tick_s": 0.1}
    scheduler = SchedulerProcess(tmp_path, **options).start()

    async def scene() -> None:
        daemon = await FakeDaemon(scheduler).attach()
        async with Client(scheduler) as client:
            slow = await client.submit(kind=GRAPH, graph=await upload(client, b"slow busy=60"))
            failed = await client.until(slow.id, "FAILED")
            assert (failed.reason, failed.exit_code) == ("USER_ERROR", 65)
            assert "takes longer than the 3 s that this cluster gives" in failed.cause
            other = await client.submit(kind=GRAPH, graph=await upload(client, b"good"))
            assert (await daemon.told("prepare")).id.job_id == other.id
        await daemon.detach()

    try:
        run(scene())
    finally:
        scheduler.kill()


def test_a_cached_plan_needs_no_compiler_and_none_outlives_the_scheduler(tmp_path: Path) -> None:
    scheduler = SchedulerProcess(tmp_path, compiler="toy", tick_s=0.1).start()
    assert scheduler.process is not None
    pid = scheduler.process.pid

    async def scene() -> list[int]:
        daemon = await FakeDaemon(scheduler).attach()
        async with Client(scheduler) as client:
            digest = await upload(client, b"good")
            for steps in (5, 7):  # the file was said to fit for 100
                seen = len(daemon.heard)
                job = await client.submit(kind=GRAPH, graph=digest, steps=steps)
                await daemon.exit((await daemon.told("start", seen)).id, 0, "NONE")
                await client.until(job.id, "SUCCEEDED")
                assert len(compilers_of(pid)) == (1 if steps == 5 else 0)
                for compiler in compilers_of(pid):
                    os.kill(compiler, signal.SIGKILL)
                while compilers_of(pid):
                    await asyncio.sleep(0.02)
            slow = await upload(client, b"slow sleep=60")
            await client.submit(kind=GRAPH, graph=slow)
            while not (left := compilers_of(pid)):
                await asyncio.sleep(0.02)
        await daemon.detach()
        return left

    try:
        left = run(scene())
    finally:
        scheduler.kill()
    wait_until(lambda: not any(is_alive(compiler) for compiler in left))


def compilers_of(pid: int) -> list[int]:
    """Children of a scheduler that live."""
    return [child for child in children(pid) if b"--compile" in cmdline(child)]


def test_a_checkpoint_folder_that_no_daemon_allows_is_refused(scheduler: SchedulerProcess) -> None:
    async def scene() -> None:
        daemon = FakeDaemon(scheduler)
        async with Client(scheduler) as client:
            spec = {"kind": GRAPH, "graph": await upload(client, b"good"), "devices": 1}
            early = await client.submit(checkpoint_dir="/nowhere", **spec)
            await daemon.attach(data_roots=pb.DataRoots(folders=["/data"]), folder="/state/jobs")
            wrong = pb.SubmitRequest(spec=pb.JobSpec(checkpoint_dir="/nowhere", **spec))
            code, said = await client.refusal("Jobs.Submit", wrong)
            assert (code, "(jobs may use /data)" in said) == ("INVALID_ARGUMENT", True)
            # That one came before anybody knew: its ranks judge.
            assert (await daemon.told("prepare")).id.job_id == early.id
            for folder in ("", "/data/shared"):
                assert (await client.submit(checkpoint_dir=folder, **spec)).state == "QUEUED"
        await daemon.detach()

    run(scene())


def test_uploads_that_lie_are_refused(scheduler: SchedulerProcess) -> None:
    async def scene() -> None:
        async with Client(scheduler) as client:
            for data in (
                chunks(b"other", digest="0" * 64),
                chunks(b"x", digest="../../etc/passwd"),
                chunks(b"x" * (3 << 20), size=3 << 20),
            ):
                code, _ = await client.refusal("Jobs.Upload", data)
                assert code == "INVALID_ARGUMENT"
            huge = pb.BlobChunk(digest="0" * 64, nbytes=1 << 50)
            code, _ = await client.refusal("Jobs.Upload", iter([huge]))
            assert code == "RESOURCE_EXHAUSTED"
        assert list((scheduler.folder / "state" / "blobs").iterdir()) == []

    run(scene())


def test_outputs_and_inference_are_relayed(scheduler: SchedulerProcess) -> None:
    async def scene() -> None:
        daemon = await FakeDaemon(scheduler).attach()
        daemon.files = {"y": os.urandom(50_000), "": b"y"}
        async with Client(scheduler) as client:
            digest = await upload(client, b"a model")
            job = await client.submit(kind=INFERENCE, graph=digest)
            await daemon.told("start")
            await client.until(job.id, "RUNNING")
            ask = pb.InferRequest(job_id=job.id, inputs=[pb.Tensor(name="x", data=b"abc")])
            reply = await client.call("Jobs.Infer", ask)
            assert reply.outputs[0].data == b"cba"
            wanted = pb.OutputRequest(job_id=job.id, name="y")
            assert await gather(client.call("Jobs.Outputs", wanted)) == daemon.files["y"]
            _, said = await client.refusal(
                "Jobs.Outputs", pb.OutputRequest(job_id=job.id, name="z")
            )
            assert "there is no output z" in said
        await daemon.detach()

    run(scene())


def test_ranks_of_two_nodes_are_traced_and_each_gives_its_own_file(
    scheduler: SchedulerProcess,
) -> None:
    async def scene() -> None:
        daemons = [await FakeDaemon(scheduler, f"n{n}/cpu:0").attach() for n in (1, 2)]
        async with Client(scheduler) as client:
            digest = await upload(client, b"a graph")
            job = await client.submit(kind=GRAPH, graph=digest, devices=2, steps=9)
            ranks = {(await daemon.told("start")).id.rank: daemon for daemon in daemons}
            await client.until(job.id, "RUNNING")
            order = pb.TraceOrder(what="start", trace="t1", steps=4)
            reply = await client.call("Jobs.Trace", pb.TraceRequest(job_id=job.id, order=order))
            assert [(t.rank, t.state, t.trace) for t in reply.ranks] == [
                (0, "asked", "t1"), (1, "asked", "t1"),
            ]  # fmt: skip
            for rank, daemon in ranks.items():
                told = (await daemon.told("inspect")).trace
                assert (told.steps, list(told.ranks)) == (4, [0, 1])
                daemon.files = {"trace": f"of rank {rank}".encode()}
            for rank in range(2):
                wanted = pb.OutputRequest(job_id=job.id, name="trace", rank=rank)
                found = await gather(client.call("Jobs.Outputs", wanted))
                assert found == f"of rank {rank}".encode()
            wanted = pb.OutputRequest(job_id=job.id, name="trace", rank=2)
            assert "no rank 2" in (await client.refusal("Jobs.Outputs", wanted))[1]
            made = await client.call(
                "Cluster.CreateToken", pb.TokenRequest(name="b", role="submit")
            )
        async with Client(scheduler, made.secret) as other:
            for what, code in (("stop", "PERMISSION_DENIED"), ("look", "OK")):
                ask = pb.TraceRequest(job_id=job.id, order=pb.TraceOrder(what=what))
                if code == "OK":
                    assert len((await other.call("Jobs.Trace", ask)).ranks) == 2
                else:
                    assert (await other.refusal("Jobs.Trace", ask))[0] == code
        for daemon in daemons:
            await daemon.detach()

    run(scene())
    traced = [(e["event"], e["token"]) for e in scheduler.audit if e["event"] == "trace"]
    assert traced == [("trace", "admin")]
