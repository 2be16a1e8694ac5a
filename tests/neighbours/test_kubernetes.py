"""deploy/kubernetes as its README says, by kubectl, against a simulated API server (kmock).

The simulator keeps objects and their history; it has no admission, no controllers and no kubelet,
so the acts of a pod are shown elsewhere (tests/processes/test_deployed_commands.py), and that
built-in objects fit their schema in tests/unit/deploy.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"

pytestmark = [
    pytest.mark.neighbour,
    pytest.mark.skipif(
        shutil.which("kubectl") is None or importlib.util.find_spec("kmock") is None,
        reason="needs kubectl, and kmock of the package index",
    ),
]


class Cluster:
    """A simulated API server, and kubectl that asks it. kinds: of operators that are installed."""

    def __init__(self, folder: Path, *kinds: str) -> None:
        self.folder = folder
        argv = [sys.executable, str(Path(__file__).with_name("kubernetes_server.py")), *kinds]
        pipe = subprocess.PIPE
        self._server = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)
        assert self._server.stdout is not None
        url = self._server.stdout.readline().strip()
        self.config = folder / "kubeconfig"
        for words in (f"set-cluster c --server={url}", "set-context c --cluster=c"):
            assert self.kubectl("config", *words.split()).returncode == 0
        assert self.kubectl("config", "use-context", "c").returncode == 0

    def stop(self) -> None:
        self._server.communicate(timeout=60)

    def kubectl(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = ["kubectl", f"--kubeconfig={self.config}", f"--cache-dir={self.folder}/cache"]
        return subprocess.run(
            [*argv, *words], cwd=self.folder, capture_output=True, text=True, timeout=120
        )

    def apply(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Apply; without validation, as the simulator tells no schema."""
        return self.kubectl("apply", "--validate=false", *words)

    def create(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Create; by way of JSON, as the simulator reads no protobuf."""
        made = self.kubectl(*words, "--dry-run=client", "-o", "json")
        assert made.returncode == 0, made.stderr
        path = self.folder / "made.json"
        path.write_text(made.stdout)
        return self.kubectl("create", "--validate=false", "-f", str(path))

    def get(self, *words: str) -> dict[str, Any]:
        done = self.kubectl("get", *words, "-o", "json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    found: list[Cluster] = []

    def start(*kinds: str) -> Cluster:
        folder = tmp_path / f"{len(found)}"
        folder.mkdir()
        found.append(Cluster(folder, *kinds))
        return found[-1]

    yield start
    for cluster in found:
        cluster.stop()


def readme() -> str:
    """The commands of the README but for those that a running scheduler would have to answer."""
    block = (FOLDER / "README.md").read_text().split("```")[1]
    return block.replace("deploy/kubernetes", str(FOLDER))


def test_the_commands_of_the_readme(start: Callable[..., Cluster]) -> None:
    cluster = start()
    lines = [line.partition("  #")[0].strip() for line in readme().strip().splitlines()]
    (cluster.folder / "daemon.token").write_text("a daemon's token")
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ran = 0
    for line in lines:
        words = line.split()
        if "exec" in words:
            continue
        if words[0] == "kubectl":
            done = cluster.create(*words[1:]) if "create" in words else cluster.apply(*words[2:])
        else:
            if words[0] == "oneflow":
                words = [sys.executable, "-m", *words]
            done = subprocess.run(
                words, cwd=cluster.folder, env=env, capture_output=True, text=True, timeout=120
            )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        ran += 1
    assert ran == len(lines) - 1
    secret = cluster.get("-n", "oneflow", "secret", "oneflow-tls")
    mounted = set()
    for kind, name in (("deployment", "oneflow-scheduler"), ("statefulset", "oneflow-daemon")):
        pod = cluster.get("-n", "oneflow", kind, name)["spec"]["template"]["spec"]
        (volume,) = [v for v in pod["volumes"] if v["name"] == "tls"]
        assert volume["secret"]["secretName"] == "oneflow-tls"
        mounted |= {item["key"] for item in volume["secret"]["items"]}
    assert mounted == set(secret["data"])  # none is missing, and ca.key is not among them
    token = cluster.get("-n", "oneflow", "secret", "oneflow-daemon-token")["data"]["token"]
    assert base64.b64decode(token) == b"a daemon's token"


@pytest.mark.parametrize(("name", "count"), [("base", 10), ("gpu", 10)])
def test_all_objects_arrive_and_again_changes_none(
    start: Callable[..., Cluster], name: str, count: int
) -> None:
    cluster = start()
    first = cluster.apply("-k", str(FOLDER / name))
    assert first.returncode == 0, first.stderr
    assert first.stdout.count(" created") == count
    again = cluster.apply("-k", str(FOLDER / name))
    assert again.returncode == 0, again.stderr
    told = dict(line.split() for line in again.stdout.splitlines())
    # Kubectl sends a budget's selector whole each time, and says so.
    assert told.pop("poddisruptionbudget.policy/oneflow-daemon") in ("configured", "unchanged")
    assert set(told.values()) == {"unchanged"} and len(told) == count - 1, again.stdout
    scaled = cluster.kubectl(
        "-n", "oneflow", "patch", "statefulset", "oneflow-daemon", "--type=merge",
        "-p", '{"spec": {"replicas": 8}}',
    )  # fmt: skip
    assert scaled.returncode == 0, scaled.stderr
    spec = cluster.get("-n", "oneflow", "statefulset", "oneflow-daemon")["spec"]
    assert spec["replicas"] == 8
    gone = cluster.kubectl("delete", "--wait=false", "-k", str(FOLDER / name))
    assert gone.returncode == 0, gone.stderr
    assert gone.stdout.count(" deleted") == count


def test_monitoring_needs_its_operator(start: Callable[..., Cluster]) -> None:
    without = start().apply("-k", str(FOLDER / "monitored"))
    assert without.returncode != 0
    assert 'no matches for kind "PodMonitor"' in without.stderr
    done = start("PodMonitor").apply("-k", str(FOLDER / "monitored"))
    assert done.returncode == 0, done.stderr
    assert "podmonitor.monitoring.coreos.com/oneflow created" in done.stdout


def test_a_jobset_is_taken_by_its_operators_kind(start: Callable[..., Cluster]) -> None:
    cluster = start("JobSet")
    done = cluster.apply("-n", "oneflow", "-f", str(FOLDER / "jobset" / "launched.yaml"))
    assert done.returncode == 0, done.stderr
    assert cluster.get("-n", "oneflow", "jobset", "digits")["kind"] == "JobSet"
