"""Folders in which jobs want to keep checkpoints: judged by the folders that daemons
have told.
"""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from oneflow.core.control_channel import PROTOCOL
from oneflow.core.errors import JobSpecError, ProtocolError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster import submissions
from oneflow.scheduler.cluster.lines import Line, LocalProcess
from oneflow.scheduler.cluster.submissions import check_checkpoint_dir
from oneflow.scheduler.jobs.messages import joined
from oneflow.scheduler.jobs.records import JobKind, JobSpec


def line(*roots: str, tells: bool = True, kind: str = "cpu", here: bool = False) -> Line:
    hello = pb.Hello(
        daemon=f"n1/{kind}:0", node="n1", device_type=kind, incarnation=1, folder="/state/jobs"
    )
    if tells:
        hello.data_roots.folders.extend(roots)
        hello.data_roots.SetInParent()
    process = LocalProcess.__new__(LocalProcess) if here else None
    return Line(hello, "", process)


def check(folder: str, *lines: Line, **spec: str) -> None:
    asked = JobSpec(kind=JobKind.GRAPH, graph="a" * 64, checkpoint_dir=folder, **spec)
    asyncio.run(check_checkpoint_dir(asked, lines))


@pytest.mark.parametrize("folder", ["", "/data", "/data/a/b", "/state/jobs/j1/checkpoints", "/all"])
def test_what_a_daemon_allows_is_taken(folder: str) -> None:
    check(folder, line("/other"), line("/data", "/all/"))


@pytest.mark.parametrize("folder", ["/database", "/", "/state"])
def test_what_no_daemon_allows_is_refused_with_what_they_do(folder: str) -> None:
    with pytest.raises(JobSpecError, match=r"jobs may use /data, /other\).*--data-root"):
        check(folder, line("/other"), line("/data"))
    with pytest.raises(JobSpecError, match="there are none"):
        check(folder, line())


def test_who_does_not_know_does_not_judge() -> None:
    check("/x")  # no daemon is there yet
    check("/x", line(), line(tells=False))
    check("/x", line(kind="cuda"))
    check("/x", line("/x", kind="cuda"), line("/x"))
    with pytest.raises(JobSpecError):
        check("/x", line("/x", kind="cuda"), line())


def test_links_of_this_host_are_followed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    root, wanted = str((tmp_path / "data").resolve()), str(tmp_path / "link" / "c")
    check(wanted, line(root, here=True))
    with pytest.raises(JobSpecError):
        check(wanted, line(root))


def test_a_folder_that_hangs_is_left_to_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    is_back, threads, real = threading.Event(), list[threading.Thread](), os.path.realpath

    def realpath(path: str) -> str:
        threads.append(threading.current_thread())
        is_back.wait(30 if path == "/away" else 0)
        return real(path)

    async def scene() -> None:
        def asked(folder: str) -> JobSpec:
            return JobSpec(kind=JobKind.GRAPH, graph="a" * 64, checkpoint_dir=folder)

        await check_checkpoint_dir(asked("/away"), [line("/data", here=True)])
        monkeypatch.setattr(submissions, "LINKS_S", 30.0)
        with pytest.raises(JobSpecError):  # another one need not wait for it
            await check_checkpoint_dir(asked("/elsewhere"), [line("/data", here=True)])
        is_back.set()

    monkeypatch.setattr(submissions, "LINKS_S", 0.2)
    monkeypatch.setattr(os.path, "realpath", realpath)
    asyncio.run(scene())
    assert all(thread.daemon for thread in threads)  # the scheduler's end does not wait for it


def test_what_a_daemon_tells_has_limits() -> None:
    for roots in (["/x"] * 200, ["/" + "x" * 2000], ["/x\x1b[2J"]):
        hello = pb.Hello(daemon="n1/cpu:0", node="n1", device_type="cpu", incarnation=1)
        hello.protocol = PROTOCOL
        hello.data_roots.folders.extend(roots)
        with pytest.raises(ProtocolError, match="of its folders"):
            joined(hello)
