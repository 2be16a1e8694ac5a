"""Leftovers of dead daemons are found and removed; things of others stay."""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from oneflow.core.processes import is_alive, own_mark, own_name, parse_name, start_time
from oneflow.launcher.daemon import cgroups
from oneflow.launcher.daemon.cgroups import Group, Hierarchies, find_hierarchies, make_group
from oneflow.launcher.daemon.orphans import (
    MARK,
    SharedMemory,
    make_temp_dir,
    sweep_processes,
    sweep_temp_dirs,
)
from tests.support.waiting import CALL_S

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
DEAD = "oneflow-job-2147480000-1-x"


@pytest.fixture
def dead_process() -> tuple[int, int]:
    with subprocess.Popen(SLEEP) as process:
        found = process.pid, start_time(process.pid)
        process.kill()
    return found


def test_a_name_tells_whose_it_is() -> None:
    name = own_name("oneflow", "7")
    assert parse_name("oneflow", name) == (os.getpid(), start_time(os.getpid()))
    assert is_alive(os.getpid(), start_time(os.getpid()))
    assert parse_name("oneflow", "oneflow-x-1-y") is None
    assert parse_name("oneflow", "other") is None


def test_a_pid_that_came_again_is_not_the_one_it_was(dead_process: tuple[int, int]) -> None:
    assert not is_alive(*dead_process)
    assert not is_alive(os.getpid(), start_time(os.getpid()) + 1)


def test_folders_of_dead_daemons_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = make_temp_dir()
    dead = tmp_path / DEAD
    (dead / "inner").mkdir(parents=True)
    (tmp_path / "somebody-elses").mkdir()
    assert sweep_temp_dirs() == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([mine.name, "somebody-elses"])


def test_processes_of_dead_daemons_are_killed(dead_process: tuple[int, int]) -> None:
    marks = [own_mark(), "{}-{}".format(*dead_process), "not a mark"]
    processes = [subprocess.Popen(SLEEP, env={MARK: mark}) for mark in marks]
    try:
        assert sweep_processes() >= 1
        assert processes[1].wait(CALL_S) == -9
        assert [p.poll() for p in (processes[0], processes[2])] == [None, None]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_only_memory_that_a_rank_mapped_and_nobody_maps_is_removed(tmp_path: Path) -> None:
    for name in ("before", "unmapped"):
        (tmp_path / name).write_bytes(b"x" * 10)
    memory = SharedMemory(tmp_path)
    for name in ("ours", "held", "again"):
        (tmp_path / name).write_bytes(b"x" * 10)
    maps = {}
    for name in ("ours", "held", "again", "before"):
        with open(tmp_path / name, "rb") as file:
            maps[name] = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    memory.look(lambda: [os.getpid()])
    for name in ("ours", "again", "before"):
        maps[name].close()
    (tmp_path / "again").rename(tmp_path / "old")  # a new file of that name is not the rank's
    (tmp_path / "again").write_bytes(b"x")
    assert memory.remove() == ["ours"]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["before", "unmapped", "held", "again", "old"]
    )
    maps["held"].close()


def test_control_groups_of_dead_daemons_go(tmp_path: Path) -> None:
    found = find_hierarchies()
    if not found.folders:
        pytest.skip("needs the right to make control groups")
    base = found.folders[0]
    dead = base / "oneflow-2147480000-1-1"
    dead.mkdir()
    group = make_group(found, 991, 100, 0)
    assert group is not None
    try:
        cgroups.sweep(found)
        assert not dead.exists()
        assert (base / group.name).exists()
    finally:
        assert group.remove()


def test_without_control_groups_there_is_none() -> None:
    assert make_group(Hierarchies(), 1, 100, 0) is None
    assert cgroups.sweep(Hierarchies()) == 0


def test_a_group_finds_and_kills_what_is_in_it() -> None:
    found = find_hierarchies()
    if found.unified is None:
        pytest.skip("needs the right to make control groups of version 2")
    group = make_group(found, 992, 100, 0)
    assert group is not None
    process = subprocess.Popen(SLEEP, preexec_fn=group.enter)
    try:
        assert group.pids() == [process.pid]
        group.kill()
        assert process.wait(CALL_S) == -9
        assert group.pids() == []
    finally:
        process.kill()
        process.wait()
        assert group.remove()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"memory.peak": "268435456", "memory.max": "268435456"}, "used, 256 MiB are allowed$"),
        ({"memory.peak": "268435456", "memory.max": "max"}, "used, without a limit .* [0-9]+ MiB$"),
        (
            {
                "memory.max_usage_in_bytes": "268435456",
                "memory.limit_in_bytes": str((1 << 63) - 4096),
            },
            "at most 256 MiB were used, without a limit of its own; the host has [0-9]{1,9} MiB$",
        ),
        ({"memory.max": "268435456"}, "^$"),
    ],
)
def test_what_is_said_of_memory(files: dict[str, str], said: str, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    for name, text in files.items():
        (tmp_path / "one" / name).write_text(text + "\n")
    group = cgroups.Group(Hierarchies(unified=tmp_path), "one")
    assert re.search(said, group.memory_words())


@pytest.mark.parametrize(
    ("files", "asked", "written", "missing"),
    [
        (
            {"cpu.max": "max 100000", "memory.max": "max", "memory.swap.max": "max"},
            (1.5, 64 << 20),
            {"cpu.max": "150000 100000", "memory.max": str(64 << 20), "memory.swap.max": "0"},
            [],
        ),
        ({"memory.max": str(1 << 20)}, (0.0, 64 << 20), {"memory.max": str(1 << 20)}, []),
        ({"memory.max": "max"}, (2.0, 0), {"memory.max": "max"}, ["processors"]),
        ({"memory.limit_in_bytes": str(1 << 62)}, (0.0, 5), {"memory.limit_in_bytes": "5"}, []),
        ({}, (1.0, 5), {}, ["processors", "memory"]),
        ({}, (0.0, 0), {}, []),
    ],
)
def test_a_group_is_bounded_as_far_as_the_kernel_can(
    files: dict[str, str],
    asked: tuple[float, int],
    written: dict[str, str],
    missing: list[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "group").mkdir()
    for name, text in files.items():
        (tmp_path / "group" / name).write_text(text)
    assert Group(Hierarchies(unified=tmp_path), "group").bound(*asked) == missing
    assert {path.name: path.read_text() for path in (tmp_path / "group").iterdir()} == written
