"""Ray's side of the cluster benchmark: a local Ray, `ray job submit`, and Ray Serve."""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

START_S = 120.0
JOB_NEEDS = ("ray", "aiohttp", "aiohttp_cors", "opencensus", "pydantic")  # of ray[default]
SERVE_NEEDS = (*JOB_NEEDS, "fastapi", "starlette", "uvicorn")  # of ray[serve]


def lacks(needs: tuple[str, ...]) -> str:
    """The first package that is not installed, or ""."""
    return next((name for name in needs if importlib.util.find_spec(name) is None), "")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LocalRay:
    """A Ray head node of this machine with its dashboard, which takes jobs; a context."""

    def __init__(self) -> None:
        self._port, self._gcs_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        # Paths of sockets are short, and Ray makes them long.
        self._folder = tempfile.TemporaryDirectory(prefix="r", dir="/tmp")
        self._token = secrets.token_hex(32)
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self._token}
        self.own_env = own | {"RAY_USAGE_STATS_ENABLED": "0"}
        self.env = {**os.environ, **self.own_env, "RAY_ADDRESS": self.url}
        self.address = f"127.0.0.1:{self._gcs_port}"

    def __enter__(self) -> LocalRay:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
        command += ["--num-cpus", "4", "--node-ip-address", "127.0.0.1", "--include-dashboard=true"]
        command += ["--port", str(self._gcs_port), "--dashboard-host", "127.0.0.1"]
        command += ["--dashboard-port", str(self._port), "--temp-dir", self._folder.name]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, stdout=quiet, stderr=quiet, env=self.env, start_new_session=True
        )
        try:
            self._wait_ready()
            self._wait_for_agent()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._process.terminate()  # with --block it ends what it has started
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._folder.cleanup()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_S
        headers = {"Authorization": f"Bearer {self._token}"}
        asked = urllib.request.Request(f"{self.url}/api/version", headers=headers)
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(asked, timeout=5):
                    return
            except OSError:
                time.sleep(0.2)
        raise SystemExit("the local Ray did not start")

    def _wait_for_agent(self) -> None:
        """Jobs are refused until one answers, some seconds after the dashboard."""
        deadline = time.monotonic() + START_S
        while True:
            client = self.submit(["true"])
            _, said = client.communicate()
            if not client.returncode:
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"the local Ray takes no jobs: {said.decode()[-1000:]}")

    def submit(self, words: list[str]) -> subprocess.Popen[bytes]:
        """Starts `ray job submit` of a command."""
        command = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--no-wait"]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(
            [*command, "--", *words], stdout=quiet, stderr=subprocess.PIPE, env=self.env
        )


def serve_digits(local: LocalRay, setup: Path, port: int, batch: int, wait_s: float) -> Any:
    """A Serve application that answers rows of 64 float32 with 10; returns the function that ends
    it.

    Requests within `wait_s` share a forward pass of at most `batch` rows, as ours do.
    """
    os.environ.update(local.own_env)  # read at import
    import numpy as np
    import ray
    import torch
    from ray import serve

    ray.init(address=local.address, log_to_driver=False, logging_level="ERROR")
    serve.start(http_options={"host": "127.0.0.1", "port": port})

    @serve.deployment(num_replicas=1, max_ongoing_requests=256)
    class Digits:
        def __init__(self) -> None:
            torch.set_num_threads(1)
            found = np.load(setup)
            layers = torch.nn.Linear(64, 96), torch.nn.Tanh(), torch.nn.Linear(96, 10)
            self.model = torch.nn.Sequential(*layers)
            names = self.model.state_dict()
            self.model.load_state_dict({name: torch.from_numpy(found[name]) for name in names})

        @serve.batch(max_batch_size=batch, batch_wait_timeout_s=wait_s)
        async def score(self, rows: list[bytes]) -> list[bytes]:
            x = torch.from_numpy(np.stack([np.frombuffer(row, np.float32) for row in rows]))
            with torch.inference_mode():
                return [y.tobytes() for y in self.model(x).numpy()]

        async def __call__(self, request: Any) -> Any:
            from starlette.responses import Response

            return Response(await self.score(await request.body()))

    serve.run(Digits.bind(), name="digits", route_prefix="/")

    def end() -> None:
        serve.shutdown()
        ray.shutdown()

    return end
