"""The environment of a rank, as every launcher of ours gives it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from oneflow.core.errors import InternalError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class RankPlace:
    """The place of one rank in an attempt, and the files that its output goes to.

    token: the secret of the job's ranks, if they have one.  threads: how
    many each of the ranks that share this machine should use unless the user says otherwise; None:
    it is alone.
    rdzv_timeout_s: None: as the environment or the configuration says.
    """

    master_addr: str
    master_port: int
    world_size: int
    rank: int
    local_rank: int
    attempt: int
    log_dir: Path
    error_file: Path
    exited_dir: Path
    token: str | None
    threads: int | None
    rdzv_timeout_s: float | None = None
    job_id: str | None = None


def rank_env(base: Mapping[str, str], place: RankPlace) -> dict[str, str]:
    """Return `base` with the rank's own variables. Threads set in `base` stay."""
    env = dict(base) | {
        "MASTER_ADDR": place.master_addr,
        "MASTER_PORT": str(place.master_port),
        "WORLD_SIZE": str(place.world_size),
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "GLOG_log_dir": str(place.log_dir),
        "ONEFLOW_ATTEMPT": str(place.attempt),
        "ONEFLOW_ERROR_FILE": str(place.error_file),
        "ONEFLOW_EXITED_DIR": str(place.exited_dir),
    }
    if place.rdzv_timeout_s is not None:
        env["ONEFLOW_RDZV_TIMEOUT_SECONDS"] = f"{place.rdzv_timeout_s:g}"
    if place.job_id:
        env["ONEFLOW_JOB_ID"] = place.job_id
    if place.token:
        env["ONEFLOW_JOB_TOKEN"] = place.token
    if place.threads is not None:
        threads = env.get("OMP_NUM_THREADS") or str(place.threads)
        env |= {name: env.get(name) or threads for name in THREAD_VARIABLES}
    return env


def bootstrap_path() -> Path:
    """Return the path of the program that runs a script and records its end: `worker.py [-m] script
    args`.

    By its path: `python -m` would import the package before an error could be recorded.
    """
    return _package_folder() / "distributed" / "worker.py"


def _package_folder() -> Path:
    """Return the folder of `oneflow` itself; this file may be reached through a link."""
    spec = importlib.util.find_spec("oneflow")
    if spec is None or not spec.submodule_search_locations:
        raise InternalError("the package oneflow has no folder")
    return Path(spec.submodule_search_locations[0])
