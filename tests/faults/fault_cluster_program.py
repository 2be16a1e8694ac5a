"""One part of a cluster with times scaled down: `python fault_cluster_program.py scheduler|daemon
JSON`. `times` of JSON are those that differ from the usual of the rig.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from oneflow.core.config import Config
from oneflow.core.errors import OneFlowError
from oneflow.core.log import set_up
from oneflow.launcher.daemon.daemon import Times
from oneflow.launcher.daemon.logs import Limits
from oneflow.launcher.daemon.run import main as run_daemon
from oneflow.launcher.daemon.settings import DaemonSettings, JobLimits
from oneflow.scheduler.cluster.server import run_scheduler
from oneflow.scheduler.cluster.settings import Limits as RequestLimits
from oneflow.scheduler.cluster.settings import SchedulerSettings, TlsFiles
from oneflow.scheduler.cluster.tls import channel_credentials
from oneflow.scheduler.jobs.settings import Settings

HEARTBEAT_S, SUSPECT_S, ACT_S, STUCK_S = 0.2, 0.8, 2.5, 4.0
GRACE_S = 2.0
COMPILER = (sys.executable, "-m", "oneflow.jobs.compiling")


def break_fetch(seed: int) -> None:
    """The first call of Fetch and of the others every fourth fails: before its first chunk, after
    it, or when all is sent.
    """
    from oneflow.scheduler.cluster.daemons_service import DaemonsService
    from oneflow.scheduler.cluster.refusals import UnavailableError

    rng, real, calls = random.Random(seed), DaemonsService.Fetch, itertools.count()

    async def fetch(self: Any, request: Any, context: Any) -> AsyncIterator[Any]:
        fails = next(calls) == 0 or rng.random() < 0.25
        at = rng.choice((0, 1, 1 << 30)) if fails else -1
        number = 0
        async for chunk in real(self, request, context):
            if number == at:
                break
            number += 1
            yield chunk
        if fails:
            print(f"rig: a fetch fails after {number} chunks", flush=True)
            raise UnavailableError("the rig has lost it")

    DaemonsService.Fetch = fetch  # type: ignore[method-assign]


TIMES = {"heartbeat_s": HEARTBEAT_S, "suspect_s": SUSPECT_S, "act_s": ACT_S}


def scheduler(
    folder: Path,
    listen: str,
    tls: str = "",
    times: dict[str, float] = TIMES,
    state: str = "",
    fetch_fails: int | None = None,
) -> int:
    if fetch_fails is not None:
        break_fetch(fetch_fails)
    table = Settings(
        suspect_s=times["suspect_s"],
        act_s=times["act_s"],
        prepare_s=30.0,
        grace_s=GRACE_S,
        unkillable_s=5.0,
        settle_s=0.5,
        retell_s=1.0,
        save_progress_s=0.2,
        max_queued_per_owner=10_000,
    )
    settings = SchedulerSettings(
        state_dir=Path(state) if state else folder / "scheduler",
        listen=listen,
        tls=TlsFiles.in_folder(Path(tls)) if tls else None,
        allow_scripts=True,
        ui=True,
        heartbeat_s=times["heartbeat_s"],
        tick_s=0.1,
        stop_s=1.0,
        table=table,
        limits=RequestLimits(requests_per_s=5000.0, burst=5000, streams=1024),
    )
    set_up(Config.from_env())
    return run_scheduler(settings, COMPILER)


def daemon(
    folder: Path,
    device: str,
    address: str,
    tls: str = "",
    times: dict[str, float] = TIMES,
    node: str = "rig",
    state: str = "",
    metrics_addr: str = "",
    health_addr: str = "",
    memory_nbytes: int = 0,
    pids: int = 4096,
    open_files: int = 65_536,
    log_nbytes: int = 10 << 30,
) -> int:
    settings = DaemonSettings(
        device=device,
        scheduler=address,
        state_dir=Path(state) if state else folder / "node",
        node=node,
        token_file=folder / "scheduler" / "daemon.token",
        credentials=partial(channel_credentials, Path(tls), "daemon") if tls else None,
        metrics_addr=metrics_addr,
        health_addr=health_addr,
        limits=JobLimits(pids, open_files, memory_nbytes),
        logs=Limits(job_nbytes=log_nbytes),
        allow_scripts=True,
        **times,
        stuck_s=STUCK_S,
        times=Times(shutdown_grace_s=GRACE_S, leftover_grace_s=0.5, noted_s=2.0, rejoin_s=0.5),
    )
    return run_daemon(settings)


def main() -> int:
    kind, given = sys.argv[1], json.loads(sys.argv[2])
    folder = Path(given.pop("folder"))
    try:
        return scheduler(folder, **given) if kind == "scheduler" else daemon(folder, **given)
    except OneFlowError as error:
        print(f"oneflow: {error}", file=sys.stderr, flush=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
