"""The operator's command that is run whenever a job has ended, with the job's record.

Rules that the code cannot show:
* Only the operator chooses the command: nothing that a job's owner gives becomes a word, a variable
or
  a folder of the command; the record comes on standard input, as data.
* At most once for each end: commands that a dying scheduler has not run are not run by the next
one.
* It never holds the scheduler up: few run at once, each for a bounded time, and more ends than can
  wait are dropped, which is counted and logged, as is every failure.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from oneflow.core.errors import ConfigError
from oneflow.core.log import get_logger
from oneflow.core.metrics_families import Counts
from oneflow.scheduler.cluster.driver import Listener
from oneflow.scheduler.cluster.views import HIDDEN, masked_words
from oneflow.scheduler.jobs.records import JobRecord

MAX_AT_ONCE = 4
MAX_WAITING = 1000
LIMIT_S = 30.0
MAX_SAID_CHARS = 500
RESULTS = ("ok", "failed", "late", "dropped")

log = get_logger(__name__)


def parse_command(text: str) -> tuple[str, ...]:
    """The words of a command, split as a shell would; none runs it. Raises ConfigError."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"--on-end {text!r} is no command: {error}") from None


class EndHook(Listener):
    """Runs `argv` for each job that ends. count: a sample a result (RESULTS)."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], count: Counts, limit_s: float = LIMIT_S
    ) -> None:
        self._argv, self._count, self._limit_s = tuple(argv), count, limit_s
        # Its token may be in a variable, and a mailer has no use for it.
        self._env = {k: v for k, v in env.items() if not k.startswith("ONEFLOW_AUTH_")}
        self._pool = ThreadPoolExecutor(MAX_AT_ONCE, "oneflow-on-end")
        self._lock = threading.Lock()
        self._num_waiting = 0
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_closed = False

    def changed(self, before: JobRecord | None, now: JobRecord | None) -> None:
        has_ended = now is not None and now.state.is_final
        if now is None or not has_ended or (before is not None and before.state.is_final):
            return
        with self._lock:
            if self._num_waiting >= MAX_WAITING:
                self._count["dropped"] += 1
                log.error("job %s: --on-end is not run, %d wait for it", now.id, MAX_WAITING)
                return
            self._num_waiting += 1
        self._pool.submit(self._run, now.id, json.dumps(shown(now)).encode())

    def _run(self, job_id: str, record: bytes) -> None:
        try:
            result, said = self._result(record)
        except Exception as error:  # else nobody would hear of it
            result, said = "failed", f"cannot be run: {error}"
        finally:
            with self._lock:
                self._num_waiting -= 1
        with self._lock:
            self._count[result] += 1
        if result != "ok":
            log.error("job %s: --on-end %s %s", job_id, self._argv[0], said)

    def _result(self, record: bytes) -> tuple[str, str]:
        with tempfile.TemporaryFile() as errors:
            with self._lock:
                if self._is_closed:
                    return "dropped", "is not run: the scheduler stops"
                process = subprocess.Popen(
                    self._argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env=self._env,
                    cwd="/",
                    start_new_session=True,
                )
                self._running.add(process)
            try:
                process.communicate(record, timeout=self._limit_s)
            except subprocess.TimeoutExpired:
                _kill(process)
                return "late", f"was ended after {self._limit_s:g} s"
            finally:
                with self._lock:
                    self._running.discard(process)
            if process.returncode == 0:
                return "ok", ""
            errors.seek(max(errors.seek(0, os.SEEK_END) - MAX_SAID_CHARS, 0))
            said = errors.read().decode(errors="replace").strip()
            return "failed", f"ended with {process.returncode}: {said or 'it said nothing'}"

    def close(self) -> None:
        """End the commands that run; drop those that wait."""
        with self._lock:
            self._is_closed = True
            running = list(self._running)
        for process in running:
            _kill(process)
        self._pool.shutdown()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def shown(record: JobRecord) -> dict[str, Any]:
    """A record for the command, as users of the cluster other than its owner may see it: mail
    goes further than its secrets may.
    """
    found = asdict(record)
    del found["job_key"]
    found["state"], found["spec"]["kind"] = str(record.state), str(record.spec.kind)
    found["metrics"] = {k: v if math.isfinite(v) else None for k, v in record.metrics.items()}
    found["spec"]["env"] = dict.fromkeys(record.spec.env, HIDDEN)
    found["spec"]["argv"] = masked_words(record.spec.argv)
    return found
