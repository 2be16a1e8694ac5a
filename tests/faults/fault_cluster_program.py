"""One part of a cluster with times scaled down: `python fault_cluster_program.py scheduler|daemon
JSON`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from oneflow.core.config import Config
from oneflow.core.errors import OneFlowError
from oneflow.core.log import set_up
from oneflow.launcher.daemon.daemon import Times
from oneflow.launcher.daemon.run import main as run_daemon
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.scheduler.cluster.server import run_scheduler
from oneflow.scheduler.cluster.settings import Limits, SchedulerSettings
from oneflow.scheduler.jobs.settings import Settings

HEARTBEAT_S, SUSPECT_S, ACT_S, STUCK_S = 0.2, 0.8, 2.5, 4.0
GRACE_S = 2.0


def compile_plan(*arguments: Any) -> bytes:
    """The real one, imported when it is first needed."""
    from oneflow.jobs.running import compile_plan as real

    return real(*arguments)


def scheduler(folder: Path, listen: str) -> int:
    table = Settings(
        suspect_s=SUSPECT_S,
        act_s=ACT_S,
        prepare_s=30.0,
        grace_s=GRACE_S,
        unkillable_s=5.0,
        settle_s=0.5,
        retell_s=1.0,
        save_progress_s=0.2,
        max_queued_per_owner=10_000,
    )
    settings = SchedulerSettings(
        state_dir=folder / "scheduler",
        listen=listen,
        allow_scripts=True,
        heartbeat_s=HEARTBEAT_S,
        tick_s=0.1,
        stop_s=1.0,
        table=table,
        limits=Limits(requests_per_s=5000.0, burst=5000, streams=1024),
    )
    set_up(Config.from_env())
    return run_scheduler(settings, compile_plan)


def daemon(folder: Path, device: str, address: str) -> int:
    settings = DaemonSettings(
        device=device,
        scheduler=address,
        state_dir=folder / "node",
        node="rig",
        token_file=folder / "scheduler" / "daemon.token",
        heartbeat_s=HEARTBEAT_S,
        suspect_s=SUSPECT_S,
        act_s=ACT_S,
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
