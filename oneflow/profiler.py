"""`flow.profiler`: the times of ops that run inside a block, measured on the host.

Each op of eager code is one event, besides the blocks that a script names. A backward pass whose
gradients are replayed as one function (oneflow/autograd/replay.py) is no op: name a block around
it. On GPUs the times are those of starting kernels.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from oneflow.core.device import Device
from oneflow.core.dispatch import Mode, current_mode, swap_mode
from oneflow.core.no_effect import without_effect
from oneflow.core.op import Op
from oneflow.core.operand import Attrs
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp, SbpLike
from oneflow.core.whole_files import write_whole
from oneflow.surfaces import accept_paths
from oneflow.tensor.grad_mode import run_inside
from oneflow.tensor.tensor import Tensor

__all__ = [
    "Event",
    "Events",
    "ProfilerAction",
    "ProfilerActivity",
    "emit_nvtx",
    "kineto_available",
    "profile",
    "profiler_start",
    "profiler_stop",
    "range_pop",
    "range_push",
    "record_function",
    "supported_activities",
    "tensorboard_trace_handler",
]

P = ParamSpec("P")
R = TypeVar("R")
Shapes = tuple[tuple[int, ...], ...]


class ProfilerActivity(Enum):
    """Devices that can be watched."""

    CPU = "cpu"
    CUDA = "cuda"


class ProfilerAction(Enum):
    """States of a profiler with a schedule."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


@dataclass
class Event:
    """An op or a named block, or several of them together.

    cpu_time_total: in us, of all `count` times.  start: of the first, in us.
    """

    name: str
    count: int
    cpu_time_total: float
    start: float
    input_shapes: Shapes | None = None
    attributes: str | None = None
    is_op: bool = True

    @property
    def cpu_time(self) -> float:
        """The mean, in us."""
        return self.cpu_time_total / self.count

    cuda_time = cuda_time_total = 0.0  # kernels on GPUs are not timed

    @property
    def key(self) -> str:
        return self.name


class Events(list[Event]):
    """Events in the order in which they began."""

    def key_averages(
        self, group_by_input_shape: bool = False, group_by_attributes: bool = False
    ) -> Events:
        """One event for each name, shapes and attributes if they are asked for."""
        found: dict[Any, Event] = {}
        for e in self:
            shapes = e.input_shapes if group_by_input_shape else None
            attributes = e.attributes if group_by_attributes else None
            key = (e.name, e.is_op, shapes, attributes)
            if key not in found:
                found[key] = Event(e.name, 0, 0.0, e.start, shapes, attributes, e.is_op)
            found[key].count += e.count
            found[key].cpu_time_total += e.cpu_time_total
        return Events(found.values())

    def total_average(self) -> Event:
        """All ops together."""
        ops = [e for e in self if e.is_op]
        count, whole = sum(e.count for e in ops), sum(e.cpu_time_total for e in ops)
        return Event("Total", max(count, 1), whole, 0.0)

    def table(self, sort_by: str | None = None, row_limit: int = 100) -> str:
        """The events as text, those with the largest `sort_by` first."""
        rows: Iterable[Event] = self
        if sort_by is not None:
            rows = sorted(self, key=lambda e: -float(getattr(e, sort_by)))
        lines = [f"{'name':<40} {'count':>8} {'cpu total us':>14} {'cpu mean us':>12}  shapes"]
        for e in list(rows)[:row_limit]:
            shapes = "" if e.input_shapes is None else str(list(map(list, e.input_shapes)))
            numbers = f"{e.count:>8} {e.cpu_time_total:>14.1f} {e.cpu_time:>12.1f}"
            lines.append(f"{e.name[:40]:<40} {numbers}  {shapes}".rstrip())
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write the events as a file that Chrome and Perfetto show."""
        rows = [
            {"ph": "X", "name": e.name, "ts": e.start, "dur": e.cpu_time_total, "pid": 0, "tid": 0}
            for e in self
        ]
        write_whole(Path(path), json.dumps({"traceEvents": rows}).encode())


class _Timing(Mode):
    """Times ops, which another mode runs."""

    def __init__(self, inner: Mode, events: Events, shapes: bool, attributes: bool) -> None:
        self.inner, self.events = inner, events
        self.shapes, self.attributes = shapes, attributes
        for name in ("draws", "call_module", "has_memory", "widen"):
            if hasattr(inner, name):
                setattr(self, name, getattr(inner, name))

    def run(self, op: type[Op], inputs: tuple[Any, ...], attrs: Attrs) -> Any:
        start = time.perf_counter_ns()
        out = self.inner.run(op, inputs, attrs)
        self._note(op.name, start, inputs, attrs)
        return out

    def _note(self, name: str, start: int, inputs: tuple[Any, ...], attrs: Attrs) -> None:
        took = time.perf_counter_ns() - start
        shapes = tuple(tuple(x.meta.shape) for x in inputs) if self.shapes else None
        given = str(dict(attrs)) if self.attributes else None
        self.events.append(Event(name, 1, took / 1000, start / 1000, shapes, given))

    def create(
        self,
        op: type[Op],
        attrs: Attrs,
        device: Device | None,
        placement: Placement | None,
        nd_sbp: NdSbp | None,
    ) -> Any:
        start = time.perf_counter_ns()
        out = self.inner.create(op, attrs, device, placement, nd_sbp)
        self._note(op.name, start, (), attrs)
        return out

    def lay_out(
        self,
        x: Tensor,
        placement: Placement | None,
        sbp: SbpLike | None,
        *,
        grad_sbp: SbpLike | None = None,
        check_meta: bool | None = None,
        copy: bool = False,
    ) -> Tensor:
        start = time.perf_counter_ns()
        out: Tensor = self.inner.lay_out(
            x, placement, sbp, grad_sbp=grad_sbp, check_meta=check_meta, copy=copy
        )
        self._note("to_global", start, (x,), {})
        return out

    def to_device(self, x: Tensor, device: Device, non_blocking: bool = False) -> Tensor:
        out: Tensor = self.inner.to_device(x, device, non_blocking)
        return out

    def layout(self, x: Tensor, *, is_fixed: bool) -> NdSbp:
        return self.inner.layout(x, is_fixed=is_fixed)

    def write(self, x: Tensor, new: Tensor) -> None:
        self.inner.write(x, new)

    def store(self, x: Tensor, new: Tensor) -> None:
        self.inner.store(x, new)

    def afresh(self) -> Mode:
        return _Timing(self.inner.afresh(), self.events, self.shapes, self.attributes)


_open: list[Events] = []
"""The events of the profilers that are running, the innermost last."""
_ranges: list[record_function] = []


class profile:
    """A block whose ops are timed.

    record_shapes, record_attrs: note the inputs' shapes, and the attributes of ops.
    on_trace_ready: called with the profiler at the end.  The other parameters are accepted and
    change nothing.
    """

    def __init__(
        self,
        activities: Iterable[ProfilerActivity] | None = None,
        record_shapes: bool = False,
        record_attrs: bool = False,
        record_bandwidth_for_cuda: bool = False,
        *,
        enabled: bool = True,
        schedule: object = None,
        on_trace_ready: Callable[[profile], object] | None = None,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        use_cuda: bool = False,
    ) -> None:
        self.enabled, self.on_trace_ready = bool(enabled), on_trace_ready
        self.record_shapes, self.record_attrs = record_shapes, record_attrs
        self._events = Events()
        self._before: Mode | None = None

    def __enter__(self) -> profile:
        if self.enabled:
            _open.append(self._events)
            timing = _Timing(current_mode(), self._events, self.record_shapes, self.record_attrs)
            self._before = swap_mode(timing)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.enabled:
            swap_mode(self._before)
            _open.remove(self._events)
            self._events.sort(key=lambda e: e.start)
            if self.on_trace_ready is not None:
                self.on_trace_ready(self)

    def start(self) -> None:
        """Begin the block."""
        self.__enter__()

    def stop(self) -> None:
        """End the block."""
        self.__exit__(None, None, None)

    def step(self) -> None:
        """Return at once: all steps are recorded."""

    def events(self) -> Events:
        """The events so far."""
        return self._events

    def key_averages(
        self, group_by_input_shape: bool = False, group_by_attributes: bool = False
    ) -> Events:
        """One event for each kind."""
        return self._events.key_averages(group_by_input_shape, group_by_attributes)

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write the events as a file that Chrome and Perfetto show."""
        self._events.export_chrome_trace(path)


class record_function:
    """A named block or function, which is an event of the profiler around it."""

    def __init__(self, name: str, args: object = None) -> None:
        self.name = name
        self._starts: list[int] = []

    def __enter__(self) -> record_function:
        self._starts.append(time.perf_counter_ns())
        return self

    def __exit__(self, *_: object) -> None:
        start = self._starts.pop()
        if _open:
            took = (time.perf_counter_ns() - start) / 1000
            _open[-1].append(Event(self.name, 1, took, start / 1000, is_op=False))

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        return run_inside(lambda: record_function(self.name), function)


def range_push(range_name: str) -> None:
    """Begin a named block."""
    _ranges.append(record_function(range_name).__enter__())


def range_pop() -> None:
    """End the block that began last. Raises IndexError if there is none."""
    _ranges.pop().__exit__()


def profiler_start() -> None:
    """Warn once: no external profiler is told."""
    without_effect("profiler.profiler_start", "no external profiler is told; use profiler.profile")


def profiler_stop() -> None:
    """Warn once: no external profiler is told."""
    without_effect("profiler.profiler_stop", "no external profiler is told; use profiler.profile")


def kineto_available() -> bool:
    """False: events are measured here."""
    return False


def supported_activities() -> set[ProfilerActivity]:
    """Devices on which ops are timed."""
    return {ProfilerActivity.CPU}


def tensorboard_trace_handler(
    dir_name: str | Path, worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[profile], None]:
    """Return an `on_trace_ready` that writes a trace file into a folder."""

    def write(found: profile) -> None:
        folder = Path(dir_name)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{worker_name or 'worker'}.{time.time_ns()}.pt.trace.json"
        found.export_chrome_trace(folder / name)

    return write


class emit_nvtx:
    """A block that would mark ops for NVIDIA's profiler; they are not marked."""

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None:
        if enabled:
            without_effect("autograd.profiler.emit_nvtx", "ops are not marked for other profilers")

    def __enter__(self) -> emit_nvtx:
        return self

    def __exit__(self, *_: object) -> None:
        return None


accept_paths(__name__)
