"""Collectives between hosts: each a network namespace, which needs root, or pretended."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oneflow.scheduler.ports import free_port
from tests.support.waiting import WAIT_S

PROGRAM = Path(__file__).with_name("far_program.py")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts() -> Iterator[Callable[[int], list[str]]]:
    """hosts(n): the names of n network namespaces on one switch: 10.215.0.1, 10.215.0.2, ..."""
    if shutil.which("ip") is None:
        pytest.skip("needs the program ip")
    mark = uuid.uuid4().hex[:6]
    names: list[str] = []

    def make(count: int) -> list[str]:
        try:
            ip("netns", "add", f"of{mark}s")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted: {error.stderr.strip()}")
        names.append(f"of{mark}s")
        try:
            ip("-n", names[0], "link", "add", "switch", "type", "bridge")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"a bridge cannot be made: {error.stderr.strip()}")
        ip("-n", names[0], "link", "set", "switch", "up")
        for i in range(count):
            add_host(i)
        return names[1:]

    def add_host(i: int) -> None:
        name, port = f"of{mark}{i}", f"port{i}"
        ip("netns", "add", name)
        names.append(name)
        far_end = ("peer", "name", "cable", "netns", name)
        ip("link", "add", port, "netns", names[0], "type", "veth", *far_end)
        ip("-n", names[0], "link", "set", port, "master", "switch", "up")
        ip("-n", name, "addr", "add", f"10.215.0.{i + 1}/24", "dev", "cable")
        ip("-n", name, "link", "set", "cable", "up")
        ip("-n", name, "link", "set", "lo", "up")

    try:
        yield make
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


Ended = list[tuple[int, dict[str, Any], str]]


def run(where: list[str], scene: str, folder: Path) -> Ended:
    """(exit code, report, stderr) of ranks in these namespaces."""
    prefixes = [["ip", "netns", "exec", name] for name in where]
    master = {"MASTER_ADDR": "10.215.0.1", "MASTER_PORT": "29500"}
    return run_ranks(prefixes, [master] * len(where), scene, folder)


def run_pretended(where: str, scene: str, folder: Path) -> Ended:
    """The same on this host; where: a letter for each rank, the host it takes itself to be on."""
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    envs = [master | {"ONEFLOW_HOST_IDENTITY": letter} for letter in where]
    return run_ranks([[]] * len(where), envs, scene, folder)


def run_ranks(
    prefixes: list[list[str]], envs: list[dict[str, str]], scene: str, folder: Path
) -> Ended:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ONEFLOW_", "MASTER_"))}
    shared = {
        "WORLD_SIZE": str(len(envs)),
        "LOCAL_RANK": "0",
        "ONEFLOW_JOB_TOKEN": "t" * 64,
        "ONEFLOW_RDZV_TIMEOUT_SECONDS": "120",
        "ONEFLOW_TIMEOUT_SECONDS": "120",
        "ONEFLOW_HEARTBEAT_SECONDS": "0.5",  # who is silent for 5 s is lost
        "OMP_NUM_THREADS": "1",
    }
    report = folder / "report"
    script = [sys.executable, str(PROGRAM), scene, str(report)]
    ranks = []
    for rank, (prefix, env) in enumerate(zip(prefixes, envs, strict=True)):
        whole = kept | shared | env | {"RANK": str(rank)}
        command = [*prefix, *script]
        ranks.append(subprocess.Popen(command, env=whole, stderr=subprocess.PIPE, text=True))
    try:
        errors = [rank.communicate(timeout=WAIT_S)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    found = [folder / f"report.{rank}" for rank in range(len(envs))]
    reports = [json.loads(f.read_text()) if f.exists() else {} for f in found]
    codes = [rank.returncode for rank in ranks]
    return list(zip(codes, reports, errors, strict=True))


@pytest.mark.parametrize(("where", "backend"), [("ab", "Tcp"), ("aab", "Spanning")])
def test_pretended_hosts(where: str, backend: str, tmp_path: Path) -> None:
    ended = run_pretended(where, "primitives+pairs", tmp_path)
    assert [code for code, _, _ in ended] == [0] * len(where), ended
    for _, report, _ in ended:
        assert len(report["pairs"]) == 16 and report["backend"] == f"{backend}Collectives"


@pytest.mark.parametrize(
    ("ranks", "backend"), [((0, 1), "TcpCollectives"), ((0, 1, 0), "SpanningCollectives")]
)
def test_every_primitive_and_pair_of_layouts(
    hosts: Any, ranks: tuple[int, ...], backend: str, tmp_path: Path
) -> None:
    names = hosts(2)
    ended = run([names[i] for i in ranks], "primitives+pairs", tmp_path)
    assert [code for code, _, _ in ended] == [0] * len(ranks), ended
    for _, report, _ in ended:
        assert len(report["pairs"]) == 16 and report["backend"] == backend
        assert 0 < report["far"] <= report["received"]


@pytest.mark.parametrize(
    "ranks", [pytest.param((0, 1), marks=pytest.mark.slow), (0, 1, 2), (0, 0, 1)]
)
def test_a_rank_killed_in_a_collective_is_named(
    hosts: Any, ranks: tuple[int, ...], tmp_path: Path
) -> None:
    names = hosts(max(ranks) + 1)
    ended = run([names[i] for i in ranks], "killed", tmp_path)
    last = len(ranks) - 1
    assert ended[last][0] == -9
    for _, report, stderr in ended[:last]:
        assert f"rank {last} " in report["error"], (report, stderr)
        assert report["after_s"] < 60.0, "1 to 2 s, and no time-out: that is 120 s"
