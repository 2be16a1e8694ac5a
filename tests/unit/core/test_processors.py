"""The processors that affinity and control groups leave to a process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oneflow.core import processors
from oneflow.core.processors import cpu_quota, share_of_processors, usable_processors

UNIFIED = "0::/jobs/one"
SEPARATE = "3:memory:/jobs/one\n2:cpu,cpuacct:/jobs/one\n"


def quota(folder: Path, groups: str, files: dict[str, str]) -> float | None:
    process = folder / "cgroup"
    process.write_text(groups)
    for name, text in files.items():
        path = folder / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return cpu_quota(process, folder / "root")


@pytest.mark.parametrize(
    ("groups", "files", "wanted"),
    [
        (UNIFIED, {}, None),
        (UNIFIED, {"jobs/one/cpu.max": "max 100000\n"}, None),
        (UNIFIED, {"jobs/one/cpu.max": "150000 100000\n"}, 1.5),
        (UNIFIED, {"jobs/one/cpu.max": "max 100000\n", "jobs/cpu.max": "400000 100000\n"}, 4.0),
        (UNIFIED, {"jobs/one/cpu.max": "300000 50000", "cpu.max": "200000 100000"}, 2.0),
        # In a container the path is of the host, and the group itself is the root.
        ("0::/../elsewhere", {"cpu.max": "200000 100000\n"}, 2.0),
        (SEPARATE, {"cpu/jobs/one/cpu.cfs_quota_us": "-1", "cpu/jobs/one/cpu.cfs_period_us": "1"},
         None),
        (SEPARATE, {"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.5),
        (SEPARATE, {"cpu,cpuacct/jobs/cpu.cfs_quota_us": "50000",
                    "cpu,cpuacct/jobs/cpu.cfs_period_us": "100000"}, 0.5),
        ("", {"cpu.max": "100000 100000"}, None),
    ],
)  # fmt: skip
def test_quota_of_the_tightest_group(
    groups: str, files: dict[str, str], wanted: float | None, tmp_path: Path
) -> None:
    assert quota(tmp_path, groups, files) == wanted


@pytest.mark.parametrize(
    ("affinity", "limit", "wanted"),
    [(8, None, 8), (8, 2.0, 2), (8, 2.9, 2), (8, 0.3, 1), (2, 16.0, 2)],
)
def test_processors_are_the_fewest_of_affinity_and_quota(
    affinity: int, limit: float | None, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)))
    monkeypatch.setattr(processors, "cpu_quota", lambda: limit)
    assert usable_processors() == wanted


@pytest.mark.parametrize(("processes", "wanted"), [(1, 9), (2, 4), (4, 2), (16, 1)])
def test_processes_share_processors(
    processes: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processors, "usable_processors", lambda: 9)
    assert share_of_processors(processes) == wanted


def test_no_file_of_groups_is_no_limit(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "none", tmp_path) is None
