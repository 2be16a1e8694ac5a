"""Answers to "does it live?" and "may it take work?" in each state."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import grpc

from oneflow.protos import cluster_pb2 as pb
from tests.support.cluster import SchedulerProcess
from tests.support.simulated.daemon_peer import Client, FakeDaemon, run
from tests.support.waiting import CALL_S

FULL = {
    "ONEFLOW_TESTING": "1",
    "ONEFLOW_FAILPOINTS": "journal.write=error:ENOSPC@hit=3",
}

SLOW = {"ONEFLOW_TESTING": "1", "ONEFLOW_FAILPOINTS": "journal.write=sleep:0.5"}


def ask(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=CALL_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def states(address: str) -> tuple[int, int]:
    """Status codes of /healthz and /readyz."""
    return ask(address, "/healthz")[0], ask(address, "/readyz")[0]


def test_a_scheduler_whose_journal_is_broken_is_not_ready(tmp_path: Path) -> None:
    scheduler = SchedulerProcess(tmp_path, allow_scripts=True, env=FULL).start()
    address = scheduler.known["metrics_address"]

    async def submit() -> str:
        async with Client(scheduler) as client:
            try:
                return (await client.submit()).state
            except grpc.RpcError as error:
                return str(error.code())

    async def trouble() -> str:
        async with Client(scheduler) as client:
            return str((await client.call("Cluster.Status")).trouble)

    try:
        assert states(address) == (200, 200)
        said = [run(submit()) for _ in range(2)]
        assert "QUEUED" in said
        assert "StatusCode" in "".join(said), said
        assert states(address) == (200, 503)
        assert "No space left" in run(trouble())
        assert run(submit()) == "QUEUED"
        assert run(trouble()) == ""
        assert states(address) == (200, 200)
    finally:
        scheduler.kill()


def test_a_scheduler_that_shuts_down_is_not_ready(tmp_path: Path) -> None:
    scheduler = SchedulerProcess(tmp_path, allow_scripts=True, tick_s=0.1, env=SLOW).start()
    address = scheduler.known["metrics_address"]

    async def scene() -> None:
        daemon = await FakeDaemon(scheduler).attach()
        async with Client(scheduler) as client:
            await client.submit("j1")
            id_ = (await daemon.told("start")).id
            await daemon.progress(id_, 1)
            assert states(address) == (200, 200)
            await client.call("Cluster.Shutdown", pb.DrainRequest(grace_s=20.0))
            await daemon.told("stop")
            assert states(address) == (200, 503)
            await daemon.exit(id_, 143, "PREEMPTED")
            await daemon.told("noted")
        await daemon.detach()

    try:
        run(scene())
        assert scheduler.wait() == 0
    finally:
        if scheduler.process is not None and scheduler.process.poll() is None:
            scheduler.kill()
