"""Observes the graph or plan after each pass: timing, progress, text dumps, checks; here only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oneflow.core.config import current_config
from oneflow.core.errors import ConfigError
from oneflow.core.graph import LogicalGraph
from oneflow.core.metrics import METRICS
from oneflow.core.stage_log import note
from oneflow.scheduler.compiler.verify import verify

if TYPE_CHECKING:
    from oneflow.core.plan import Plan

Progress = Callable[[str, int, int], None]
"""Called as progress(name of the pass that ended, passes done, passes in all)."""


@dataclass(frozen=True)
class PassTime:
    """The cost of one pass.

    name: of the pass. seconds: it took. num_nodes: of the graph afterwards.
    """

    name: str
    seconds: float
    num_nodes: int


@dataclass
class Observer:
    """The actions that follow each pass: timing, dumps, checks.

    dump_dir: folder for one text file per pass, or None.  dump_after: only after this pass ("" or
    "ALL": every one).  check: verify the graph after it.  progress: see Progress.  times: one entry
    per pass that ran.  prefix: of the names of dumped files.
    """

    dump_dir: Path | None = None
    dump_after: str = ""
    check: bool = False
    progress: Progress | None = None
    times: list[PassTime] = field(default_factory=list)
    prefix: str = ""
    _started: float = 0.0

    @classmethod
    def from_config(cls) -> Observer:
        """Make the observer that the process's environment asks for (ONEFLOW_DUMP,
        ONEFLOW_DEBUG_PASS, ONEFLOW_DEBUG).
        """
        config = current_config()
        observer = cls(
            dump_dir=Path(config.dump_dir) if config.dump_dir else None,
            dump_after=config.debug_pass,
            check=config.debug,
            prefix=f"rank{config.rank}." if config.rank else "",  # its own, local graphs
        )
        if config.progress_bar and config.rank == 0:
            observer.progress = Bar()
        return observer

    def start(self) -> None:
        """Marks the begin of a pass."""
        self._started = time.perf_counter()

    def observe(self, name: str, made: LogicalGraph | Plan, done: int, total: int) -> None:
        """Observe the graph or plan after pass `name`, the `done`-th of `total`."""
        graph = made if isinstance(made, LogicalGraph) else made.graph
        self._count(name, graph.name, len(graph))
        self._dump(name, graph.name, made, done)
        if self.check:
            verify(made, after=name)
        if self.progress is not None:
            self.progress(name, done, total)

    def _count(self, name: str, graph_name: str, num_nodes: int) -> None:
        seconds = time.perf_counter() - self._started
        note(graph_name, name, seconds)
        self.times.append(PassTime(name, seconds, num_nodes))
        METRICS.scheduler.passes[name].observe(seconds)

    def _dump(self, name: str, graph_name: str, what: LogicalGraph | Plan, number: int) -> None:
        """Write the graph or plan to a file. Its text is made only if somebody wants it: that takes
        longer than the passes.
        """
        if self.dump_dir is None or self.dump_after not in ("", "ALL", name):
            return
        try:
            self.dump_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"ONEFLOW_DUMP names the folder for the graph after each pass, but {self.dump_dir} "
                f"cannot be one: {error.strerror}"
            ) from None
        path = self.dump_dir / f"{self.prefix}{graph_name}.{number:02d}_{name}.txt"
        path.write_text(f"{what}\n", encoding="utf-8")

    def report(self) -> str:
        """A line per pass: milliseconds, nodes, microseconds a node."""
        return "\n".join(
            f"{t.name:16} {t.seconds * 1e3:9.1f} ms {t.num_nodes:8d} nodes "
            f"{t.seconds * 1e6 / max(1, t.num_nodes):7.1f} us/node"
            for t in self.times
        )


class Bar:
    """The progress of a compile on standard error.

    A bar on a terminal; elsewhere, where a bar would fill a file with control characters, a line
    an interval and one at the end.
    """

    def __init__(self, interval_s: float = 2.0, now: Callable[[], float] = time.monotonic) -> None:
        self._bar: Any = None
        self._interval_s = interval_s
        self._now = now
        self._started = self._said = now()

    def __call__(self, name: str, done: int, total: int) -> None:
        if sys.stderr.isatty():
            self._move(name, done, total)
        elif done == total:
            seconds = self._now() - self._started
            print(f"compiling: {done}/{total} passes, {seconds:.1f} s", file=sys.stderr, flush=True)
        elif self._now() - self._said >= self._interval_s:
            self._said = self._now()
            print(f"compiling: {done}/{total} passes, {name}", file=sys.stderr, flush=True)

    def _move(self, name: str, done: int, total: int) -> None:
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc="compiling", unit="pass", file=sys.stderr)
        self._bar.set_postfix_str(name)
        self._bar.update(done - self._bar.n)
        if done == total:
            self._bar.close()
