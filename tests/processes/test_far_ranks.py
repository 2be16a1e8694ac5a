"""Ranks on different hosts, as far as one machine can have them: their data goes over TCP.

Either ranks are told that they are on different hosts, or each runs in a network namespace of its
own, which needs root.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oneflow.scheduler.ports import free_port
from tests.support.jobs import QUICK, without_pauses
from tests.support.launching import PROCESSES, ROOT
from tests.support.waiting import WAIT_S

DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"
PROGRAM = Path(__file__).with_name("failing_program.py")


def env_of(rank: int, address: str, port: int, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ONEFLOW_", "MASTER_"))}
    world = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    where = {"MASTER_ADDR": address, "MASTER_PORT": str(port), "ONEFLOW_JOB_TOKEN": "t" * 64}
    nets = {"ONEFLOW_RDZV_TIMEOUT_SECONDS": "120", "ONEFLOW_TIMEOUT_SECONDS": "120"}
    return kept | world | where | nets | more


def run_both(commands: list[list[str]], envs: list[dict[str, str]]) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of both ranks."""
    ranks = [
        subprocess.Popen(
            command,
            env=env,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command, env in zip(commands, envs, strict=True)
    ]
    try:
        outputs = [rank.communicate(timeout=WAIT_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    ended = zip(ranks, outputs, strict=True)
    return [(rank.returncode, out, without_pauses(err)) for rank, (out, err) in ended]


def far(*script: str, **more: str) -> list[tuple[int, str, str]]:
    """A script on two ranks that believe to be on different hosts."""
    port = free_port()
    envs = [env_of(r, "127.0.0.1", port, ONEFLOW_HOST_IDENTITY=f"host{r}", **more) for r in (0, 1)]
    return run_both([[sys.executable, *script]] * 2, envs)


def losses_alone(report: Path) -> list[float]:
    """One epoch of digits on one rank."""
    command = [sys.executable, str(DIGITS), "--epochs", "1", "--json", str(report)]
    names = ("MASTER_", "RANK", "WORLD_", "LOCAL_RANK")
    env = {k: v for k, v in os.environ.items() if not k.startswith(names)}
    subprocess.run(command, env=env, check=True, capture_output=True, timeout=WAIT_S)
    return losses(report)


def losses(report: Path) -> list[float]:
    found: dict[str, Any] = json.loads(report.read_text())
    return list(found["losses"])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return losses_alone(tmp_path_factory.mktemp("alone") / "report.json")


@pytest.mark.parametrize("layout", ["dp", "pp", pytest.param("tp", marks=pytest.mark.slow)])
def test_far_ranks_train_alike(layout: str, alone: list[float], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    ended = far(str(DIGITS), "--epochs", "1", "--parallel", layout, "--json", str(report))
    assert [(code, err) for code, _, err in ended] == [(0, ""), (0, "")]
    np.testing.assert_allclose(losses(report), alone, rtol=1e-5)


@pytest.mark.parametrize("scenes", ["split", pytest.param("", marks=pytest.mark.slow)])
def test_graphs_of_far_ranks_compute_what_eager_code_does(scenes: str, tmp_path: Path) -> None:
    ended = far("-m", f"{PROCESSES}.graph_program", str(tmp_path), *scenes.split())
    found = [(code, out.strip().splitlines()[-1:]) for code, out, _ in ended]
    assert found == [(0, ["rank 0 done"]), (0, ["rank 1 done"])]


def test_far_ranks_train_alike_over_tls(alone: list[float], tmp_path: Path) -> None:
    """Control plane, eager collectives and plans."""
    report = tmp_path / "report.json"
    command = (str(DIGITS), "--epochs", "1", "--parallel", "dp", "--json", str(report))
    ended = far(*command, ONEFLOW_JOB_TLS="1")
    assert [(code, err) for code, _, err in ended] == [(0, ""), (0, "")]
    np.testing.assert_allclose(losses(report), alone, rtol=1e-5)


def test_rows_of_embeddings_travel_between_hosts(tmp_path: Path) -> None:
    scene = "rows_may_travel_in_fewer_bytes"
    ended = far("-m", "tests.processes.one_embedding_program", str(tmp_path), scene)
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert all(f"{scene} done" in out for _, out, _ in ended)


def test_a_rank_in_the_clear_does_not_join_ranks_with_tls() -> None:
    port = free_port()
    words = {"ONEFLOW_HOST_IDENTITY": "host", "ONEFLOW_RDZV_TIMEOUT_SECONDS": "4"}
    envs = [env_of(r, "127.0.0.1", port, ONEFLOW_JOB_TLS=str(1 - r), **words) for r in (0, 1)]
    script = "import oneflow as flow; flow.comm.barrier()"
    ended = run_both([[sys.executable, "-c", script]] * 2, envs)
    assert [code for code, _, _ in ended] == [84, 84]


@pytest.mark.parametrize(
    ("scene", "codes"),
    [
        (("raise_later", "1"), (85, 1)),
        (("kill", "1"), (85, -9)),
        pytest.param(("exit_", "0", "0"), (0, 85), marks=pytest.mark.slow),
        pytest.param(("kill", "0"), (-9, 85), marks=pytest.mark.slow),
    ],
)
def test_a_lost_far_rank_is_named_not_its_connection(
    scene: tuple[str, ...], codes: tuple[int, int], tmp_path: Path
) -> None:
    name, *args = scene
    ended = far(str(PROGRAM), name, str(tmp_path), *args)
    assert (ended[0][0], ended[1][0]) == codes, ended
    survivor = codes.index(85)
    last = ended[survivor][2].splitlines()[-1]
    assert last.startswith(f"oneflow: PeerLostError: rank {1 - survivor} "), ended


# ---- network namespaces --------------------------------------------------------------------------


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Two hosts on one cable: 10.213.0.1 and 10.213.0.2."""
    if shutil.which("ip") is None:
        pytest.skip("needs the program ip")
    mark = uuid.uuid4().hex[:6]
    names = [f"of{mark}{i}" for i in (0, 1)]
    try:
        ip("netns", "add", names[0])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not permitted: {error.stderr.strip()}")
    try:
        ip("netns", "add", names[1])
        ends = ("netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        ip("link", "add", "cable", *ends)
        for i, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.213.0.{i + 1}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def inside(names: list[str], *script: str) -> list[list[str]]:
    return [["ip", "netns", "exec", name, sys.executable, *script] for name in names]


def test_two_hosts_train_over_tcp(
    namespaces: list[str], alone: list[float], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    options = ("--epochs", "1", "--parallel", "dp", "--json", str(report))
    envs = [env_of(rank, "10.213.0.1", 29500) for rank in (0, 1)]
    ended = run_both(inside(namespaces, str(DIGITS), *options), envs)
    assert [(code, err) for code, _, err in ended] == [(0, ""), (0, "")]
    np.testing.assert_allclose(losses(report), alone, rtol=1e-5)


def test_a_host_behind_a_cut_cable_is_lost_to_both(namespaces: list[str], tmp_path: Path) -> None:
    cut = [{"CUT": f"{name} cable"} | QUICK for name in namespaces]
    envs = [env_of(r, "10.213.0.1", 29500, **cut[r]) for r in (0, 1)]
    ended = run_both(inside(namespaces, str(PROGRAM), "cut_cable", str(tmp_path)), envs)
    assert [code for code, _, _ in ended] == [85, 85], ended
    for rank in (0, 1):
        last = ended[rank][2].splitlines()[-1]
        assert last.startswith("oneflow: PeerLostError: ") and f"rank {1 - rank} (host" in last
