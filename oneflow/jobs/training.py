"""The steps of a training job on one rank: feeds, records, meets the others, saves, stops.

Ranks meet every fraction of a second, at a step that rank 0 chose at the meeting before. There they
learn whether one of them was told to stop and how far a checkpoint is; so all of them stop after
the same step, and a step costs nothing for it.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from oneflow.core.draws import Randomness
from oneflow.core.errors import NonFiniteError
from oneflow.core.job_config import Cluster
from oneflow.core.log import get_logger
from oneflow.core.metrics import METRICS
from oneflow.distributed.world import world
from oneflow.jobs.description import randomness_of
from oneflow.jobs.diagnosis import first_nonfinite
from oneflow.jobs.feeding import Feeder
from oneflow.jobs.meeting import exchange
from oneflow.jobs.outputs import VARIABLES, MetricsFile, write_arrays, write_rows
from oneflow.jobs.reporting import Reporter
from oneflow.jobs.restoring import restore
from oneflow.jobs.running import Bound, Variable, traced_graph, whole
from oneflow.jobs.saving import Saver, remove_left_overs
from oneflow.jobs.sources import Access
from oneflow.jobs.stopping import Stop, StoppedError
from oneflow.jobs.tables import Snapshots
from oneflow.jobs.tracing import Tracing
from oneflow.kernels.array import Array
from oneflow.scheduler.compiler.pipeline import run_passes
from oneflow.services.failpoints import failpoint
from oneflow.tensor.devices import to_host

log = get_logger(__name__)

MEET_S = 0.2
"""About so often ranks meet."""
MEET_BUSY_S = 0.02
"""So often while a checkpoint is being written."""
WAIT_S = 0.005
MAX_APART = 1 << 16
FLUSH_S = 1.0


@dataclass(frozen=True)
class Options:
    """The options of a training job.

    steps: of the whole job. every: steps between checkpoints, 0: none but when stopped. keep: the
    number of them. resume_from: a checkpoint or "". may_fall_back: see `restore`. name: no other
    job's. save_key: no other attempt's. access: to the data.
    """

    steps: int
    every: int
    keep: int
    resume_from: str
    may_fall_back: bool
    job_dir: Path
    checkpoint_dir: Path
    name: str
    save_key: str
    access: Access


class Training:
    """One run of a job file from a step to its end."""

    def __init__(
        self, bound: Bound, options: Options, reporter: Reporter, stop: Stop, tracing: Tracing
    ) -> None:
        self._bound, self._options = bound, options
        self._reporter, self._stop, self._tracing = reporter, stop, tracing
        self._here = world()
        self._d = bound.file.description
        self._rows = Snapshots(bound.tables, options.name)
        folder, tell, warn = options.checkpoint_dir, reporter.checkpoint, reporter.warn
        self._saver = Saver(folder, options.keep, options.save_key, tell, warn, self._rows)
        self._feeder = Feeder(bound, options.access, options.steps)
        self._ports = [p for p in self._d.outputs if p.name in self._d.record]
        self._results: dict[int, Any] = {}
        self._step = 0
        self._next_meeting = 0
        self._step_s = 0.0
        self._flushed_at = 0.0
        self._metrics: MetricsFile | None = None
        self._before: dict[str, Variable] = {}
        self._cursor_before = self._feeder.cursor

    def run(self) -> None:
        """Raises StoppedError after a checkpoint if it was told to stop."""
        self._start()
        failpoint("worker.first_step")
        self._stop.begin_steps()
        try:
            while self._step < self._options.steps:
                self._one_step()
                if self._is_due():
                    self._begin_save()
                if self._step >= self._next_meeting and self._meet():
                    self._end_early()
            if self._options.every:
                self._save_now()
            self._wait_for_save()
            if self._metrics is not None:
                self._metrics.check()
        finally:
            if self._metrics is not None:
                self._metrics.close()
        self._write_outputs()

    def _start(self) -> None:
        options = self._options
        if self._here.rank == 0:
            remove_left_overs(options.checkpoint_dir)
        if options.resume_from:
            found = restore(
                options.resume_from,
                self._bound.variables,
                self._bound.tables,
                may_fall_back=options.may_fall_back,
            )
            self._step = self._saver.last_step = found.step
            self._feeder.resume(found.cursor)
            self._reporter.progress(self._step, {})  # it may be the last one already
            log.info("going on from %s, step %d", found.path, found.step)
        self._bound.job.step = self._d.first_step + self._step
        self._bound.job.draw(self._randomness(self._step))
        self._next_meeting = self._step + 1
        if self._here.rank == 0:
            self._metrics = MetricsFile(options.job_dir, self._step)

    # ---- a step ----------------------------------------------------------------------------------

    def _one_step(self) -> None:
        failpoint("worker.step")
        start = perf_counter()
        self._remember()
        feeds = self._feeder.feeds(self._step)
        self._results = self._bound.job.run(feeds)
        self._step += 1
        failpoint("worker.step_done")
        values = self._values()
        self._check(values)
        seconds = perf_counter() - start
        self._step_s = seconds if not self._step_s else 0.8 * self._step_s + 0.2 * seconds
        rows = self._d.data.batch if self._d.data else 0
        METRICS.step(self._d.name, seconds, rows, self._step - 1)
        self._note(values)
        if self._step == self._options.steps:  # who goes on from a checkpoint of it has no results
            self._write_last()

    def _values(self) -> dict[str, float]:
        """The recorded numbers: an output's mean, over micro-batches if there are any."""
        found = {}
        for port in self._ports:
            array = self._results.get(port.index)
            if array is not None and math.prod(port.shape) <= max(1, self._num_pieces):
                found[port.name] = float(np.mean(to_host(array), dtype=np.float64))
        return found

    def _randomness(self, steps: int) -> Randomness:
        """The generators after so many steps of this job."""
        return randomness_of(self._d).after(steps, self._num_pieces)

    @property
    def _num_pieces(self) -> int:
        return int(self._bound.job.bound.plan.graph.num_pieces)

    def _note(self, values: dict[str, float]) -> None:
        if self._saver.failures:
            values["checkpoint_failures"] = float(self._saver.failures)
        self._reporter.progress(self._step, values if self._here.rank == 0 else {})
        if self._metrics is None:
            return
        self._metrics.add(self._step, values)
        now = time.monotonic()
        if now - self._flushed_at > FLUSH_S:
            self._metrics.flush()
            self._flushed_at = now

    def _remember(self) -> None:
        """The variables as they are before a step, to find out later where it went wrong."""
        if self._d.stop_on_nonfinite and not self._bound.tables:
            self._before = {
                name: dataclasses.replace(v, array=None if v.array is None else v.array.copy())
                for name, v in self._bound.variables.items()
            }
            self._cursor_before = self._feeder.cursor

    def _check(self, values: dict[str, float]) -> None:
        """The recorded numbers are equal on all ranks, so all of them come to the same end."""
        odd = {name: value for name, value in values.items() if not math.isfinite(value)}
        if odd and self._here.rank == 0:  # the numbers are equal on all ranks
            METRICS.nonfinite(self._d.name, "loss")
        if not odd or not self._d.stop_on_nonfinite:
            return
        name, value = next(iter(odd.items()))
        problem = f"step {self._step}: {name} is {value}"
        if self._bound.tables:
            raise NonFiniteError(
                f"{problem}; it was not looked where it comes from: rows of embeddings are "
                "not any more what they were before the step"
            )
        arrays = {name: whole(v) for name, v in self._before.items()}
        text = ""
        if self._here.rank == 0:
            file = self._bound.file
            kept = {n: file.variables.read(n) for n in file.variables.entries if n not in arrays}
            feeds = self._feeder.whole_feeds(self._cursor_before, self._step - 1)
            drawn = self._randomness(self._step - 1)
            names = {f"input.{p.index}": p.name for p in self._d.inputs}
            graph, cluster = traced_graph(file), Cluster(self._here.world_size)
            run_passes(graph, self._d.config, cluster, until="dedupe")
            text = first_nonfinite(graph, feeds, {**kept, **arrays}, drawn, names)
            if text.startswith("variable "):
                METRICS.nonfinite(self._d.name, "param")
        text = exchange({"text": text})[0]["text"] or "of an op that gives finite numbers now"
        raise NonFiniteError(f"{problem}; it comes from {text}")

    # ---- meetings --------------------------------------------------------------------------------

    def _meet(self) -> bool:
        """Whether all ranks stop now."""
        said = {"stop": self._stop.requested, "save": self._saver.said(), "next": self._pause()}
        heard = exchange(said | self._tracing.said())
        self._saver.hear([h["save"] for h in heard])
        self._tracing.hear(heard, exchange)
        self._next_meeting = self._step + int(heard[0]["next"])
        asked = next((h["stop"] for h in heard if h["stop"]), "")
        self._stop.requested = self._stop.requested or asked
        return bool(asked)

    def _pause(self) -> int:
        """Steps until the next meeting."""
        wanted = MEET_BUSY_S if self._saver.is_busy else MEET_S
        return max(1, min(MAX_APART, int(wanted / max(self._step_s, 1e-6))))

    # ---- checkpoints -----------------------------------------------------------------------------

    def _moment_ns(self) -> int:
        """The time as rank 0 knows it, by which parts of snapshots are told to belong together."""
        if not self._bound.tables:
            return 0
        return int(exchange({"moment_ns": time.time_ns()})[0]["moment_ns"])

    def _is_due(self) -> bool:
        every = self._options.every
        return bool(every) and self._step % every == 0 and not self._saver.is_busy

    def _begin_save(self) -> None:
        if self._metrics is not None:  # whoever goes on from here finds the curve up to here
            self._metrics.flush()
        state = self._feeder.cursor, self._bound.variables
        self._saver.begin(self._step, *state, self._moment_ns())
        self._next_meeting = self._step + 1

    def _save_now(self) -> None:
        """Wait for the checkpoint being written, then for one of this step, unless it is there."""
        self._wait_for_save()
        if self._saver.last_step != self._step:
            self._begin_save()
            self._wait_for_save()

    def _wait_for_save(self) -> None:
        while self._saver.is_busy:
            self._meet()
            time.sleep(WAIT_S)

    # ---- ends ------------------------------------------------------------------------------------

    def _end_early(self) -> None:
        """End after a checkpoint of this very step."""
        self._save_now()
        written = self._saver.last_step == self._step
        state = "a checkpoint" if written else f"no checkpoint ({self._saver.last_failure})"
        error = StoppedError(
            f"stopped by {self._stop.requested} after step {self._step}, with {state}"
        )
        error.is_agreed = True
        raise error

    def _write_outputs(self) -> None:
        """The final variables, whole; rank 0 writes."""
        failpoint("worker.outputs")
        if self._bound.tables:
            saved = self._rows.save_end(self._moment_ns())
            if self._here.rank == 0:
                write_rows(self._options.job_dir, saved)
        arrays = self._final_variables()
        if self._here.rank != 0:
            for _ in arrays:
                pass  # each brings this rank's part to rank 0
            return
        entries = self._bound.file.variables.entries
        kinds = {name: (e.dtype, e.shape) for name, e in sorted(entries.items())}
        write_arrays(self._options.job_dir, VARIABLES, kinds, arrays)

    def _write_last(self) -> None:
        """The last values of recorded outputs; rank 0 writes."""
        if self._here.rank != 0:
            return
        for port in self._ports:
            array = self._results.get(port.index)
            if array is not None:
                host = to_host(array)
                kind = {port.name: (host.dtype, tuple(host.shape))}
                write_arrays(self._options.job_dir, port.name, kind, iter([(port.name, host)]))

    def _final_variables(self) -> Iterator[tuple[str, Array]]:
        """Yield the variables in order; those that the plan does not need are as they were in the
        file.
        """
        for name in sorted(self._bound.file.variables.entries):
            found = self._bound.variables.get(name)
            yield name, self._bound.file.variables.read(name) if found is None else whole(found)
