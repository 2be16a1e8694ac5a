"""`torch.utils.benchmark`: times of statements, and a table of them."""

from __future__ import annotations

import math
import statistics
import timeit
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from time import perf_counter
from typing import Any

from oneflow.compat.torch.settings import get_num_threads
from oneflow.core.errors import ArgumentError, OneFlowError
from oneflow.functional.switches import set_num_threads

__all__ = ["Compare", "Language", "Measurement", "TaskSpec", "Timer", "select_unit", "timer"]

WORDS = {"ns": "nanoseconds", "us": "microseconds", "ms": "milliseconds", "s": "seconds"}
MOST_RUNS = 1_000_000_000
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
timer = perf_counter


class Language(Enum):
    """Languages of statements; there is one here."""

    PYTHON, CPP = 0, 1


def select_unit(t: float) -> tuple[str, float]:
    """Return the unit in which seconds `t` are a number of at least 1, and its seconds."""
    for name, seconds in reversed(UNITS.items()):
        if t >= seconds:
            return name, seconds
    return "ns", 1e-9


@dataclass(frozen=True)
class TaskSpec:
    """A statement with all that names it."""

    stmt: str
    setup: str
    global_setup: str = ""
    label: str | None = None
    sub_label: str | None = None
    description: str | None = None
    env: str | None = None
    num_threads: int = 1

    @property
    def title(self) -> str:
        """The label, or the statement, with the second label."""
        first = self.label or self.stmt
        return first if self.sub_label is None else f"{first}: {self.sub_label}"


@dataclass
class Measurement:
    """Times of a statement.

    number_per_run: of the statement in one measurement.  raw_times: seconds of each measurement.
    """

    number_per_run: int
    raw_times: list[float]
    task_spec: TaskSpec
    metadata: dict[str, Any] | None = None

    @property
    def times(self) -> list[float]:
        """Seconds of one statement, in each measurement."""
        return [t / self.number_per_run for t in self.raw_times]

    @property
    def mean(self) -> float:
        """The mean of `times`."""
        return statistics.fmean(self.times)

    @property
    def median(self) -> float:
        """The median of `times`."""
        return statistics.median(self.times)

    @property
    def _quarters(self) -> tuple[float, float]:
        """The times below which a quarter, and three quarters, of all are."""
        times = sorted(self.times)

        def at(share: float) -> float:
            place = share * (len(times) - 1)
            below = math.floor(place)
            above = min(below + 1, len(times) - 1)
            return times[below] + (place - below) * (times[above] - times[below])

        return at(0.25), at(0.75)

    @property
    def iqr(self) -> float:
        """The difference between three quarters and one quarter of `times`."""
        low, high = self._quarters
        return high - low

    @property
    def significant_figures(self) -> int:
        """Digits of the median that its 99 % interval leaves, from 1 to 5."""
        error = self.iqr / 1.349 / math.sqrt(len(self.raw_times)) * 2.7
        if not error:
            return 5
        return max(1, min(5, math.floor(math.log10(self.median / error)) + 1))

    @property
    def has_warnings(self) -> bool:
        """Whether there are few measurements, or they differ by more than a tenth."""
        return not self.meets_confidence()

    def meets_confidence(self, threshold: float = 0.1) -> bool:
        """Return whether there are at least 5 measurements, which differ by less than that part."""
        return len(self.raw_times) >= 5 and self.iqr / self.median < threshold

    @property
    def title(self) -> str:
        """The labels of the statement."""
        return self.task_spec.title

    @property
    def env(self) -> str:
        """The environment that it was told."""
        return self.task_spec.env or "Unspecified env"

    @property
    def as_row_name(self) -> str:
        """The second label, or the statement."""
        return self.task_spec.sub_label or self.task_spec.stmt or "[Unknown]"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "task_spec":
            raise AttributeError(name)
        return getattr(self.task_spec, name)

    @staticmethod
    def merge(measurements: Iterable[Measurement]) -> list[Measurement]:
        """Return one measurement for each statement, of those of it that have the same length."""
        groups: dict[tuple[TaskSpec, int], list[float]] = {}
        for m in measurements:
            groups.setdefault((m.task_spec, m.number_per_run), []).extend(m.raw_times)
        return [Measurement(number, times, spec) for (spec, number), times in groups.items()]

    def __repr__(self) -> str:
        unit, seconds = select_unit(self.median)
        low, high = self._quarters
        spec = self.task_spec
        lines = [f"{type(self).__name__} of {self.title}"]
        lines += [spec.description] if spec.description else []
        if len(self.raw_times) > 1:
            lines.append(f"  Median: {self.median / seconds:.2f} {unit}")
            spread = f"({low / seconds:.2f} to {high / seconds:.2f})"
            lines.append(f"  IQR:    {self.iqr / seconds:.2f} {unit} {spread}")
        else:
            lines.append(f"  {self.median / seconds:.2f} {unit}")
        threads = f"{spec.num_threads} thread{'s' if spec.num_threads > 1 else ''}"
        lines.append(
            f"  {len(self.raw_times)} measurement{'s' if len(self.raw_times) > 1 else ''}, "
            f"{self.number_per_run} runs per measurement, {threads}"
        )
        if len(self.raw_times) > 1 and not self.meets_confidence():
            lines.append(
                f"  WARNING: the interquartile range is {self.iqr / self.median:.1%} of the median"
            )
        return "\n".join(lines)


class Timer:
    """Times a statement of Python.

    stmt, setup, global_setup: code; `setup` runs before each measurement.  timer: gives seconds.
    globals: names of the code.  label, sub_label, description, env: see `Compare`.  num_threads:
    that kernels may use.  Raises OneFlowError for another language.

    Example::

        Timer("x @ x", globals={"x": torch.ones(64, 64)}).blocked_autorange().median
    """

    def __init__(
        self,
        stmt: str = "pass",
        setup: str = "pass",
        global_setup: str = "",
        timer: Callable[[], float] = perf_counter,
        globals: dict[str, Any] | None = None,
        label: str | None = None,
        sub_label: str | None = None,
        description: str | None = None,
        env: str | None = None,
        num_threads: int = 1,
        language: Language | str = Language.PYTHON,
    ) -> None:
        if not isinstance(stmt, str):
            raise ArgumentError(f"Timer: stmt is a text, got {type(stmt).__name__}")
        if language not in (Language.PYTHON, "py", "python", "Python"):
            raise OneFlowError(f"Timer: statements are Python, not {language}")
        names = dict(globals or {})
        exec(global_setup, names)  # the user's own code, as timeit runs the rest
        self._timer = timeit.Timer(stmt, setup, timer=timer, globals=names)
        self._task_spec = TaskSpec(
            stmt, setup, global_setup, label, sub_label, description, env, num_threads
        )

    def _seconds(self, number: int) -> float:
        return max(self._timer.timeit(number), 1e-9)

    def _made(self, number: int, times: Sequence[float]) -> Measurement:
        return Measurement(number, list(times), self._task_spec)

    def _with_threads(self, run: Callable[[], Measurement]) -> Measurement:
        before = get_num_threads()
        set_num_threads(self._task_spec.num_threads)
        try:
            return run()
        finally:
            set_num_threads(before)

    def timeit(self, number: int = 1_000_000) -> Measurement:
        """Run the statement `number` times, as one measurement, after a hundredth to warm up."""

        def run() -> Measurement:
            self._seconds(max(number // 100, 1))
            return self._made(number, [self._seconds(number)])

        return self._with_threads(run)

    def _block(self, min_run_time: float) -> int:
        """The runs of a measurement: a thousandth of the time, or as long as overhead asks."""
        number = 1
        overhead = min(self._overhead() for _ in range(5))
        while number < MOST_RUNS:
            taken = self._seconds(number)
            if overhead / taken <= 1e-4 and taken >= min_run_time / 1000:
                break
            if taken > min_run_time:
                break
            number *= 10
        return number

    def _overhead(self) -> float:
        start = perf_counter()
        return perf_counter() - start

    def blocked_autorange(
        self,
        callback: Callable[[int, float], object] | None = None,
        min_run_time: float = 0.2,
    ) -> Measurement:
        """Measure for `min_run_time` seconds, in measurements that are long beside the clock.
        callback: is told (runs, seconds) of each.
        """

        def run() -> Measurement:
            number, times = self._block(min_run_time), list[float]()
            while sum(times) < min_run_time or len(times) < 1:
                times.append(self._seconds(number))
                if callback is not None:
                    callback(number, times[-1])
            return self._made(number, times)

        return self._with_threads(run)

    def adaptive_autorange(
        self,
        threshold: float = 0.1,
        *,
        min_run_time: float = 0.01,
        max_run_time: float = 10.0,
        callback: Callable[[int, float], object] | None = None,
    ) -> Measurement:
        """Measure until three quarters of the times are within `threshold` of the median, or for
        `max_run_time` seconds.
        """

        def run() -> Measurement:
            number, times = self._block(0.05), list[float]()
            while sum(times) < max_run_time:
                times.append(self._seconds(number))
                if callback is not None:
                    callback(number, times[-1])
                found = self._made(number, times)
                if sum(times) > min_run_time and found.meets_confidence(threshold):
                    break
            return self._made(number, times)

        return self._with_threads(run)


class Compare:
    """A table of measurements: a row for each second label, a column for each description."""

    def __init__(self, results: Sequence[Measurement]) -> None:
        self._results = list(results)
        self._trims, self._unit = False, ""

    def extend_results(self, results: Sequence[Measurement]) -> None:
        """Add measurements."""
        self._results += results

    def trim_significant_figures(self) -> None:
        """Show no more digits than the spread leaves."""
        self._trims = True

    def colorize(self, rowwise: bool = False) -> None:
        """Change nothing: the table has no colors."""

    def highlight_warnings(self) -> None:
        """Change nothing: the table has no colors."""

    def __str__(self) -> str:
        groups: dict[str, list[Measurement]] = {}
        for m in Measurement.merge(self._results):
            groups.setdefault(m.task_spec.label or m.task_spec.stmt, []).append(m)
        return "\n".join(self._table(label, found) for label, found in groups.items())

    def print(self) -> None:
        """Print the table."""
        print(self)

    def _table(self, label: str, found: list[Measurement]) -> str:
        unit, seconds = select_unit(min(m.median for m in found))
        columns = list(dict.fromkeys(m.task_spec.description or "" for m in found))
        cells: dict[tuple[int, str], dict[str, str]] = {}
        for m in found:
            row = cells.setdefault((m.task_spec.num_threads, m.as_row_name), {})
            row[m.task_spec.description or ""] = self._cell(m, seconds)
        names = max(len(name) for _, name in cells) + 6
        widths = {
            c: max(map(len, [c, *(row.get(c, "") for row in cells.values())])) for c in columns
        }

        def line(name: str, row: dict[str, str]) -> str:
            shown = [f"  |  {row.get(c, ''):>{widths[c]}}" for c in columns]
            return "".join([name.ljust(names), *shown])

        lines, threads = [line("", {c: c for c in columns})], 0
        for (count, name), row in cells.items():
            if count != threads:
                threads = count
                lines.append(f"{count} threads: ".ljust(len(lines[0]), "-"))
            lines.append(line(f"      {name}", row))
        title = f" {label} ".center(len(lines[0]) - 2, "-")
        return "\n".join([f"[{title}]", *lines, "", f"Times are in {WORDS[unit]} ({unit}).", ""])

    def _cell(self, m: Measurement, seconds: float) -> str:
        value = m.median / seconds
        if not self._trims:
            return f"{value:.1f}"
        digits = m.significant_figures - 1 - math.floor(math.log10(value))
        return f"{round(value, digits):.{max(digits, 0)}f}"
