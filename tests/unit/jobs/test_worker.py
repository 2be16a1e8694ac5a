"""Reactions of a worker to its daemon's words, and to errors."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import oneflow as flow
from oneflow.core.config import Config, set_config
from oneflow.core.errors import (
    CheckpointError,
    ConfigError,
    GraphError,
    InternalError,
    NonFiniteError,
)
from oneflow.core.metrics import METRICS
from oneflow.jobs.attempt import options_of
from oneflow.jobs.reporting import note_device_error
from oneflow.jobs.worker import _is_declared, as_ours, configure
from oneflow.protos import cluster_pb2 as pb

from .job_samples import export


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (GraphError("x"), 1, "USER_ERROR"),
        (flow.jobs.JobFileError("x"), 65, "USER_ERROR"),
        (MemoryError("x"), 137, "OOM_HOST"),
        (OSError(errno.ENOSPC, "x"), 86, "DISK_FULL"),
        (OSError(errno.EIO, "x"), 70, "INTERNAL"),
        (KeyError("x"), 70, "INTERNAL"),
    ],
)
def test_errors_mean_codes_and_reasons(error: Exception, code: int, reason: str) -> None:
    found = as_ours(error)
    assert (found.exit_code, found.reason) == (code, reason)


def test_only_mistakes_of_ours_show_where_they_were_found() -> None:
    declared = (flow.jobs.JobFileError("x"), CheckpointError("x"), NonFiniteError("x"))
    assert all(_is_declared(error) for error in declared)
    odd = (InternalError("x"), GraphError("x"), as_ours(KeyError("x")), KeyError("x"))
    assert not any(_is_declared(error) for error in odd)


class CUDARuntimeError(RuntimeError):
    """An error named as CuPy's own."""


@pytest.mark.parametrize(
    ("error", "count"),
    [
        (CUDARuntimeError("cudaErrorLaunchFailure: unspecified launch failure"), 1),
        (CUDARuntimeError("cudaErrorMemoryAllocation: OutOfMemory"), 0),
        (RuntimeError("something else"), 0),
    ],
)
def test_what_a_gpu_fails_at_is_counted(error: Exception, count: int) -> None:
    METRICS.reset()
    note_device_error(error)
    assert METRICS.device_errors == {"ecc": 0, "xid": 0, "launch": count}


def begin(folder: Path, **spec: Any) -> pb.Begin:
    prepare = pb.Prepare(
        id=pb.AttemptId(job_id="j1", attempt=2, rank=1),
        spec=pb.JobSpec(kind=1, **spec),
        world_size=4,
        job_key="secret",
        local_rank=1,
        resume_from=spec.get("resume_from", ""),
    )
    return pb.Begin(
        prepare=prepare, master_addr="10.0.0.1", master_port=99, job_dir=str(folder / "jobs" / "j1")
    )


def test_the_rank_is_configured_as_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = begin(tmp_path)
    monkeypatch.setitem(os.environ, "ONEFLOW_TIMEOUT_SECONDS", "100")
    message.env["ONEFLOW_TIMEOUT_SECONDS"] = "77"
    try:
        config = configure(message)
    finally:
        set_config(None)
    found = (config.rank, config.world_size, config.local_rank, config.attempt, config.job_id)
    assert found == (1, 4, 1, 2, "j1")
    assert config.master_address == "10.0.0.1:99" and config.job_token == "secret"
    assert config.timeout_s == 77 and config.launched


def test_folders_that_jobs_may_read_come_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    text = os.pathsep.join([str(tmp_path / "link"), "/srv/data"])
    found = Config.from_env({"ONEFLOW_DATA_ROOTS": text}).data_roots
    assert found == (tmp_path / "real", Path("/srv/data"))
    with pytest.raises(ConfigError, match="ONEFLOW_DATA_ROOTS: 'x' is not an absolute"):
        Config.from_env({"ONEFLOW_DATA_ROOTS": "x"})


def test_what_was_asked_for_goes_before_what_the_file_says(tmp_path: Path) -> None:
    with flow.jobs.load(export(tmp_path / "a.job")) as file:
        found = options_of(file, begin(tmp_path), ())
        assert (found.steps, found.every) == (6, 2)
        assert found.checkpoint_dir == tmp_path / "jobs" / "j1" / "checkpoints"
        found = options_of(file, begin(tmp_path, steps=3, checkpoint_every=5), ())
        assert (found.steps, found.every) == (3, 5)


def test_checkpoints_lie_where_jobs_may_write(tmp_path: Path) -> None:
    with flow.jobs.load(export(tmp_path / "a.job")) as file:
        other = str(tmp_path / "jobs" / "j0" / "checkpoints" / "step-3")
        assert options_of(file, begin(tmp_path, resume_from=other), ()).resume_from == other
        others = str(tmp_path / "jobs" / "j0")  # what another job has saved may not be replaced
        for spec in (
            {"resume_from": "/etc"},
            {"checkpoint_dir": str(tmp_path / "shared")},
            {"checkpoint_dir": others},
        ):
            with pytest.raises(CheckpointError, match="ONEFLOW_DATA_ROOTS"):
                options_of(file, begin(tmp_path, **spec), ())
        found = options_of(file, begin(tmp_path, checkpoint_dir=str(tmp_path)), (tmp_path,))
        assert found.checkpoint_dir == tmp_path / "j1"


def test_the_fork_server_can_rehearse_without_threads(tmp_path: Path) -> None:
    """Runs in a process of its own, as a fork server does: no thread would come along, nor a file,
    nor steps that no job has made."""
    code = (
        "import os; from importlib import import_module; from oneflow.jobs import fork_server\n"
        "from oneflow.core.metrics import METRICS\n"
        "from oneflow.core.metrics_samples import Exporter\n"
        "before = os.listdir('/proc/self/fd')\n"
        "import_module(fork_server.REHEARSAL).rehearse()\n"
        "print(len(os.listdir('/proc/self/task')))\n"
        "print(os.listdir('/proc/self/fd') == before)\n"
        "print(sum(told.value for told in Exporter(METRICS).news() if told.name == 'acts'))"
    )
    asked = {"ONEFLOW_TRACE": str(tmp_path), "ONEFLOW_DUMP": str(tmp_path)}
    env = os.environ | asked | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\nTrue\n0.0\n"), done.stderr
    assert not list(tmp_path.iterdir())
