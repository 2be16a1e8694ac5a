"""The time and memory of compiling: `debug(0)` prints them, ONEFLOW_DEBUG_MODE=1 writes a file."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from oneflow.core.config import current_config
from oneflow.core.stage_log import CompileStage, measured

if TYPE_CHECKING:
    from oneflow.actors.job import Job
    from oneflow.graph.debugging import Debugging

FILE = "oneflow.INFO"


class CompileLog:
    """The stages of one graph so far. `str()` of it is a table."""

    def __init__(self, graph: str, debugging: Debugging) -> None:
        self._graph, self._debugging = graph, debugging
        self.stages: list[CompileStage] = []

    def record(self, stage: CompileStage) -> None:
        """Take note of a stage, and tell those who asked to be told."""
        self.stages.append(stage)
        line = stage.line(self._graph)
        if self._debugging.is_heard(0):
            print(line, flush=True)
        write(line)

    def note(self, name: str, seconds: float) -> None:
        """Take note of a stage that has just ended."""
        self.record(measured(name, seconds))

    def time_first_run(self, job: Job) -> None:
        """Note the time of the job's next run; those after it cost nothing more."""
        run: Callable[..., Any] = job.run

        def first(*args: object, **kwargs: object) -> object:
            del vars(job)["run"]
            start = perf_counter()
            results = run(*args, **kwargs)
            self.note("first_run", perf_counter() - start)
            return results

        vars(job)["run"] = first

    def __str__(self) -> str:
        lines = [f"{'stage':<24} {'seconds':>10} {'rss MB':>10} {'virtual MB':>12}"]
        for s in self.stages:
            memory = f"{s.rss_nbytes / 2**20:>10.1f} {s.vm_nbytes / 2**20:>12.1f}"
            lines.append(f"{s.name:<24} {s.seconds:>10.4f} {memory}")
        return "\n".join(lines)


def write(text: str) -> None:
    """Append lines to this rank's file, under ONEFLOW_DEBUG_MODE=1:
    `log/local_rank_<N>/<host>/oneflow.INFO`, or in the folder that GLOG_log_dir names, as the
    launcher does, instead of the first two.
    """
    config = current_config()
    if not config.debug:
        return
    own = f"log/local_rank_{config.local_rank}"
    logs = os.environ.get("GLOG_log_dir") or own  # noqa: SIM112 - glog's own spelling
    folder = Path(logs, socket.gethostname())
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / FILE, "a") as file:
        file.write(f"{text}\n")
