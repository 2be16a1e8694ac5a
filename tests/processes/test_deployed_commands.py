"""The commands of deploy/: started as processes, with folders and ports of the test in the place of
those of a pod.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from oneflow.scheduler.ports import free_port
from tests.support.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
POD = {"ONEFLOW_DEVICE": "cpu:0", "POD_NAME": "oneflow-daemon-0", "POD_IP": "127.0.0.1"}


def container_of(workload: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the pod's spec, its container)."""
    text = (DEPLOY / "kubernetes" / "base" / f"{workload}.yaml").read_text()
    (found,) = [r for r in yaml.safe_load_all(text) if r["kind"] in ("Deployment", "StatefulSet")]
    pod = found["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


class Pod:
    """One container's processes. scheduler: host:port of the cluster's."""

    def __init__(self, workload: str, folder: Path, tls: Path, scheduler: str, token: str) -> None:
        self.pod, self.container = container_of(workload)
        self.folder = folder
        ports = {port: free_port() for port in ("9401", "9402")}
        ports["9400"] = scheduler.rpartition(":")[2]
        self.metrics_port = ports["9401"]
        self.changes = {
            "oneflow-scheduler:9400": scheduler,
            "/var/lib/oneflow": str(folder / "state"),
            "/etc/oneflow/tls": str(folder / "tls"),
            **{f":{old}": f":{new}" for old, new in ports.items()},
            **{f"$({name})": value for name, value in POD.items()},
        }
        self._copy_certificates(tls)
        for name in ("state", "run", "home"):
            (folder / name).mkdir()
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder / "home"),
            "XDG_RUNTIME_DIR": str(folder / "run"),
            **({"ONEFLOW_AUTH_TOKEN": token} if token else {}),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def _copy_certificates(self, tls: Path) -> None:
        """Those that the volume of the secret lists."""
        (self.folder / "tls").mkdir(parents=True)
        (volume,) = [v for v in self.pod["volumes"] if v["name"] == "tls"]
        for item in volume["secret"]["items"]:
            shutil.copy(tls / item["key"], self.folder / "tls" / item["path"])

    def here(self, words: list[str]) -> list[str]:
        for old, new in self.changes.items():
            words = [word.replace(old, new) for word in words]
        return words

    def start(self) -> None:
        argv = [sys.executable, "-m", "oneflow", *self.here(self.container["args"])]
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(argv, env=self.env, stdout=log, stderr=log)

    def probe(self) -> int:
        """Exit code of the readiness probe."""
        name, *words = self.here(self.container["readinessProbe"]["exec"]["command"])
        assert name == "oneflow"
        return run([sys.executable, "-m", name, *words], self.env).returncode

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + WAIT_S
        while self.probe() != 0:
            assert self.process is not None
            said = (self.folder / "log").read_text()
            assert self.process.poll() is None, said
            assert time.monotonic() < deadline, said

    def ask(self, path: str) -> int:
        """Status of a page, asked for by the pod's address, as a kubelet does."""
        headers = {"Host": f"10.1.2.3:{self.metrics_port}"}
        url = f"http://127.0.0.1:{self.metrics_port}{path}"
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return int(answer.status)

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(WAIT_S)


def run(argv: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env=dict(env), capture_output=True, text=True, timeout=WAIT_S)


def oneflow(*words: str, **env: str) -> str:
    done = run([sys.executable, "-m", "oneflow", *words], {**os.environ, **env})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pod, Pod]]:
    """A scheduler and a daemon that has joined it, as the manifests start them."""
    folder = tmp_path_factory.mktemp("pods")
    tls = folder / "tls"
    oneflow("cluster", "init-tls", "--dir", str(tls), "--host", "oneflow-scheduler")
    address = f"127.0.0.1:{free_port()}"
    started: list[Pod] = []
    try:
        started.append(Pod("scheduler", folder / "scheduler", tls, address, ""))
        started[0].start()
        started[0].wait_until_ready()
        token = (folder / "scheduler/state/scheduler/daemon.token").read_text().strip()
        started.append(Pod("daemon", folder / "daemon", tls, address, token))
        started[1].start()
        started[1].wait_until_ready()
        yield started[0], started[1]
    finally:
        for pod in reversed(started):
            if pod.process is not None and pod.process.poll() is None:
                pod.process.kill()
                pod.process.wait()


def test_pods_become_ready_and_answer_their_probes(pods: tuple[Pod, Pod]) -> None:
    for pod in pods:
        for probe in ("livenessProbe", "startupProbe"):
            assert pod.ask(pod.container[probe]["httpGet"]["path"]) == 200
        assert pod.ask("/readyz") == 200
        assert pod.ask("/metrics") == 200


def test_the_daemon_is_a_node_called_like_its_pod(pods: tuple[Pod, Pod]) -> None:
    scheduler, _ = pods
    env = {
        "ONEFLOW_SCHEDULER_ADDRESS": scheduler.changes["oneflow-scheduler:9400"],
        "ONEFLOW_CLIENT_TLS_DIR": str(scheduler.folder / "tls"),
        "ONEFLOW_AUTH_TOKEN_FILE": str(scheduler.folder / "state/scheduler/token"),
    }
    listed = oneflow("cluster", "nodes", "-o", "json", **env)
    assert POD["POD_NAME"] in listed
    assert POD["ONEFLOW_DEVICE"] in listed


def test_the_image_asks_for_the_health_of_what_runs(pods: tuple[Pod, Pod]) -> None:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    (found,) = re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", text, re.M)
    name, *words = json.loads(found)
    assert name == "python"
    for pod in pods:
        assert list((pod.folder / "run" / "oneflow").glob("metrics-*.json"))
        check = [word.replace("/run/oneflow", str(pod.folder / "run")) for word in words]
        done = run([sys.executable, *check], pod.env)
        assert done.returncode == 0, done.stderr


def test_sigterm_ends_both_in_order(pods: tuple[Pod, Pod]) -> None:
    """The last one here: afterwards there is nothing left."""
    scheduler, daemon = pods
    assert daemon.stop() == 0, (daemon.folder / "log").read_text()
    assert scheduler.stop() == 0, (scheduler.folder / "log").read_text()
    assert "Traceback" not in (scheduler.folder / "log").read_text()
    assert scheduler.pod["terminationGracePeriodSeconds"] >= 30
