"""`oneflow serve` in a process of its own, asked over HTTP."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.processes import below, cmdline
from tests.support.waiting import WAIT_S, wait_until


@dataclass
class Serving:
    """A server that runs. url: of its API."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    url: str = ""

    @property
    def root(self) -> str:
        return self.url.removesuffix("/v1")

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics, by its name with labels."""
        with urllib.request.urlopen(f"{self.root}/metrics") as page:
            lines = [line for line in page.read().decode().splitlines() if line[0] != "#"]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}

    def is_empty(self) -> bool:
        """Whether no sequence and no block of a cache is in use."""
        found = self.metrics()
        names = ('sequences{state="running"}', 'sequences{state="waiting"}')
        used = [found[f"oneflow_serving_{name}"] for name in names]
        return not any((*used, found['oneflow_serving_cache_blocks{state="used"}']))

    def workers(self) -> list[int]:
        """Processes that compute, launchers aside."""
        found = []
        for pid in below(self.process.pid):
            words = cmdline(pid).split(b"\0")
            if b"oneflow.serving.language.worker" in words and not any(
                word.startswith(b"oneflow.distributed.launch") for word in words
            ):
                found.append(pid)
        return found

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)


@contextmanager
def serving(folder: Path, *flags: str) -> Iterator[Serving]:
    """A server that is ready, at a free port. It is ended if it did not end by itself."""
    command = [sys.executable, "-m", "oneflow", "serve", str(folder), "--port", "0", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        found = Serving(process)
        reader = threading.Thread(target=_read, args=(found,), daemon=True)
        reader.start()
        try:
            wait_until(lambda: found.url or process.poll() is not None, "the server is ready")
            assert found.url, found.lines
            yield found
        finally:
            workers = below(process.pid)
            if process.poll() is None:
                process.terminate()
            process.wait(WAIT_S)
            reader.join()
            assert not [pid for pid in workers if b"serving" in cmdline(pid)], "workers are left"


def _read(found: Serving) -> None:
    assert found.process.stderr is not None
    for line in found.process.stderr:
        found.lines.append(line)
        if address := re.search(r"https?://\S+/v1", line):
            found.url = address[0]
