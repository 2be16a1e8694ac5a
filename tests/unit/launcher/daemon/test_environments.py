"""Environments with the packages of a job's list: made by the real pip from a wheel of our own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path

import pytest

from oneflow.core.errors import JobSpecError
from oneflow.launcher.daemon.environments import COMPLETE, KEEP_S, Environment, Environments, sweep
from tests.support.requirements import wheel


def requirements(folder: Path, name: str, line: str) -> Path:
    path = folder / name
    path.write_text(f"--no-index\n--find-links {folder / 'wheels'}\n{line}\n")
    return path


def test_an_environment_is_made_once_and_sees_the_packages_of_the_daemon(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "ours", "1.5")
    listed = requirements(tmp_path, "a" * 64, "ours==1.5\nnumpy")
    kept = Environments(tmp_path / "environments", os.environ)

    async def both() -> list[str]:
        """Two daemons of a node ask at the same time."""
        found = await asyncio.gather(kept.get(listed), kept.get(listed))
        for environment in found:
            environment.close()
        return [environment.programs for environment in found]

    first, second = asyncio.run(both())
    assert first == second and not kept.pids
    text = "import ours, numpy, oneflow; print(ours.VERSION, ours.__file__, numpy.__file__)"
    done = subprocess.run(
        [f"{first}/python", "-c", text], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    version, own, other = done.stdout.split()
    assert (
        version == "1.5" and own.startswith(str(tmp_path)) and not other.startswith(str(tmp_path))
    )
    mark = Path(first).parent / COMPLETE
    made_at = mark.stat().st_ctime_ns
    listed.write_text("unreadable ][")  # by its name it is made already
    again = asyncio.run(kept.get(listed))
    assert again.programs == first and mark.stat().st_ctime_ns > made_at
    again.close()


def test_a_list_that_cannot_be_installed_says_why(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    kept = Environments(tmp_path / "environments", os.environ)
    with pytest.raises(JobSpecError, match=r"installed: .*No matching distribution found for ours"):
        asyncio.run(kept.get(requirements(tmp_path, "b" * 64, "ours")))
    wheel(tmp_path / "wheels", "ours", "2")
    asyncio.run(kept.get(tmp_path / ("b" * 64))).close()  # what was begun is no obstacle


def test_what_no_rank_has_used_for_long_goes(tmp_path: Path) -> None:
    for name in ("old", "used", "new"):
        (tmp_path / name / "lib").mkdir(parents=True)
        (tmp_path / name / COMPLETE).touch()
    held = Environment(tmp_path / "used")
    for name in ("old", "used"):
        long_ago = time.time() - KEEP_S - 60
        os.utime(tmp_path / name / COMPLETE, (long_ago, long_ago))
    sweep(tmp_path)
    held.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "used"]
