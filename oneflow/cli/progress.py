"""Progress of a graph job that is waited for: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from oneflow.cli.output import say
from oneflow.cluster.job import Job
from oneflow.core.errors import OneFlowError
from oneflow.scheduler.jobs.records import JobRecord
from oneflow.services.quantities import show_duration

LINE_S = 30.0
BAR_S = 0.5
MAX_SHOWN = 6  # numbers of a step


class Progress:
    """Looks at a job from a thread of its own, in a `with`. every_s: None: as is usual."""

    def __init__(self, job: Job, every_s: float | None = None) -> None:
        self._job = job
        self._is_terminal = sys.stderr.isatty()
        self._every_s = every_s or (BAR_S if self._is_terminal else LINE_S)
        self._bar: Any = None
        self._said = ""
        self._is_over, self._showing = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(self._every_s)  # it may be asking a scheduler that is away
        if self._bar is not None:
            self._bar.close()

    def aside(self) -> AbstractContextManager[Any]:
        """While something else is written."""
        if self._bar is None:
            return nullcontext()
        found: AbstractContextManager[Any] = self._bar.external_write_mode()
        return found

    def show(self, record: JobRecord) -> None:
        """Nothing before the first step, and nothing twice."""
        with self._showing:
            if self._is_terminal:
                self._show_bar(record)
            elif record.last_step and (text := progress_line(record)) != self._said:
                self._said = text
                say(text)

    def _show_bar(self, record: JobRecord) -> None:
        if self._bar is None:
            from tqdm import tqdm

            total, begun = record.total_steps or None, record.last_step
            shown: dict[str, Any] = {"desc": record.id, "unit": "step", "file": sys.stderr}
            self._bar = tqdm(total=total, initial=begun, **shown, **_screen())
        self._bar.total = record.total_steps or None
        self._bar.n = record.last_step
        self._bar.set_postfix_str(" ".join(shown_values(record.metrics)), refresh=True)

    def _run(self) -> None:
        while not self._is_over.wait(self._every_s):
            try:
                record = self._job.status()
            except OneFlowError:  # whoever waits for the job is told the same
                return
            if not self._is_over.is_set():
                self.show(record)


def _screen() -> dict[str, int]:
    """Return a width for terminals that do not know how large they are."""
    try:
        is_known = bool(os.get_terminal_size(sys.stderr.fileno()).columns)
    except OSError:
        is_known = False
    return {} if is_known else {"ncols": 80, "nrows": 24}


def progress_line(record: JobRecord) -> str:
    """step=120/500 loss=0.0312 eta=3m10s"""
    total = f"/{record.total_steps}" if record.total_steps else ""
    words = [f"step={record.last_step}{total}", *shown_values(record.metrics)]
    if record.eta_s and not record.state.is_final:
        words.append(f"eta={show_duration(record.eta_s)}")
    return " ".join(words)


def shown_values(values: Mapping[str, float]) -> list[str]:
    """`name=value` of a few numbers, the loss first."""
    names = sorted(values, key=lambda name: (name != "loss", name))
    return [f"{name}={values[name]:.6g}" for name in names[:MAX_SHOWN]]
