"""A repository of two versions of a graph, `oneflow serve`, and Triton's client in its own
environment: `python -m tests.clients.triton_server FOLDER` prints one line of JSON.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import oneflow as flow
from oneflow import nn

NEEDS = "tritonclient[http,grpc]"
HERE = Path(__file__).parent


class Rows(nn.Graph):
    def build(self, x: Any) -> Any:
        return {"twice": x * 2}


def make_repository(root: Path) -> None:
    graph = Rows()
    graph(flow.ones(4, 3))
    for number in ("1", "2"):
        (root / "rows" / number).mkdir(parents=True)
        flow.save(graph, root / "rows" / number)


def wait_ready(http: str) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://{http}/v2/health/ready").read()
            return
        except urllib.error.URLError:
            time.sleep(0.2)
    raise SystemExit(f"{http} is not ready")


def client_python(folder: Path) -> Path:
    """Return the interpreter of a new environment with the client."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", NEEDS], check=True)
    return python


def main(work: Path) -> dict[str, Any]:
    make_repository(work / "repository")
    python = client_python(work / "client")
    command = [sys.executable, "-m", "oneflow", "serve", str(work / "repository")]
    command += ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        http, rpc = re.findall(r"(?:http|grpc)://([^ \n]+)", line)
        wait_ready(http)
        calls = [str(python), "-I", str(HERE / "triton_calls.py"), http, rpc]
        done = subprocess.run(calls, check=True, capture_output=True, text=True, timeout=300)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    finally:
        server.send_signal(signal.SIGTERM)
        ended = server.wait(60)
    return found | {"ended": ended}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))), flush=True)
