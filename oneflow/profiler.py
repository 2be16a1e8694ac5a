"""`flow.profiler`: the times of ops that run inside a block, measured on the host.

Each op of eager code is one event with its module, the user's line, its bytes and its arithmetic,
besides the blocks that a script names. So is each kernel of gradients that are replayed as one
function. On GPUs the times are those of starting kernels. `print(profile)` sums them up by op, by
module and by line, as that of a graph does (oneflow/graph/profiling.py).
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from oneflow.core.dispatch import Mode, current_mode, swap_mode
from oneflow.core.machine_peak import measured_peak
from oneflow.core.no_effect import without_effect
from oneflow.core.whole_files import write_whole
from oneflow.distributed.world import world
from oneflow.kernels.work import Work, work_of
from oneflow.nn.memory_timing import Memory, MemoryTiming
from oneflow.nn.timing import Call, Recording, Timing
from oneflow.services.kernel_sums import SHOWN, KernelSums
from oneflow.surfaces import accept_paths
from oneflow.tensor.grad_mode import run_inside

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
    "schedule",
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

    cpu_time_total, self_cpu_time_total: in us, of all `count` times, with the ops inside of it and
    without them.  start: of the first, in us.  module, line: of the first, too.  nbytes, flops: of
    all times; see the page on the runtime.
    cpu_memory_usage, self_cpu_memory_usage: bytes allocated less bytes freed, with the ops inside
    of it and without them, under `profile_memory=True`.
    """

    name: str
    count: int
    cpu_time_total: float
    start: float
    input_shapes: Shapes | None = None
    attributes: str | None = None
    is_op: bool = True
    self_cpu_time_total: float = 0.0
    module: str = ""
    line: str = ""
    nbytes: int = 0
    flops: int = 0
    input_dtypes: tuple[str, ...] = ()
    cpu_memory_usage: int = 0
    self_cpu_memory_usage: int = 0

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
                found[key].module, found[key].line = e.module, e.line
            found[key].count += e.count
            found[key].cpu_time_total += e.cpu_time_total
            found[key].self_cpu_time_total += e.self_cpu_time_total
            found[key].nbytes += e.nbytes
            found[key].flops += e.flops
            found[key].cpu_memory_usage += e.cpu_memory_usage
            found[key].self_cpu_memory_usage += e.self_cpu_memory_usage
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
        has_memory = any(e.self_cpu_memory_usage for e in self)
        memory = f" {'cpu mem':>12} {'self cpu mem':>12}" if has_memory else ""
        numbers = f"{'count':>8} {'cpu total us':>14} {'cpu mean us':>12}{memory}"
        lines = [f"{'name':<40} {numbers}  shapes"]
        for e in list(rows)[:row_limit]:
            shapes = "" if e.input_shapes is None else str(list(map(list, e.input_shapes)))
            numbers = f"{e.count:>8} {e.cpu_time_total:>14.1f} {e.cpu_time:>12.1f}"
            if has_memory:
                sizes = e.cpu_memory_usage, e.self_cpu_memory_usage
                numbers += "".join(f" {_size(nbytes):>12}" for nbytes in sizes)
            lines.append(f"{e.name[:40]:<40} {numbers}  {shapes}".rstrip())
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write the events in the form of PyTorch's traces, which TensorBoard, Chrome and Perfetto
        show; with gzip if the name ends in .gz.
        """
        data = json.dumps(_chrome(self)).encode()
        path = Path(path)
        write_whole(path, gzip.compress(data, 1) if path.suffix == ".gz" else data)


def _size(nbytes: int) -> str:
    """A number of bytes as PyTorch shows it."""
    for unit, name in ((1 << 30, "Gb"), (1 << 20, "Mb"), (1 << 10, "Kb")):
        if abs(nbytes) >= unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes} b"


def _chrome(events: Events) -> dict[str, Any]:
    """The trace of one process. Blocks are annotations of the user, as steps are."""
    here = world()
    where = {"pid": os.getpid(), "tid": os.getpid()}
    names = {"process_name": "python", "thread_name": f"rank {here.rank}"}
    rows: list[dict[str, Any]] = [
        {"ph": "M", "name": kind, "ts": 0, **where, "args": {"name": name}}
        for kind, name in names.items()
    ]
    for number, e in enumerate(events):
        args: dict[str, Any] = {"External id": number}
        if e.is_op:
            args |= {"Call stack": e.line, "module": e.module, "bytes": e.nbytes, "flops": e.flops}
            if e.input_shapes is not None:
                args |= {"Input Dims": e.input_shapes, "Input type": e.input_dtypes}
        kind = "cpu_op" if e.is_op else "user_annotation"
        row = {"ph": "X", "cat": kind, "name": e.name, **where, "ts": e.start}
        rows.append({**row, "dur": e.cpu_time_total, "args": args})
    head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [], "displayTimeUnit": "ms"}
    if here.world_size > 1:
        head["distributedInfo"] = {"rank": here.rank, "world_size": here.world_size}
    return {**head, "traceEvents": rows}


_open: list[Recording] = []
"""The recordings of the profilers that are running, the innermost last."""
_ranges: list[record_function] = []


def schedule(
    *,
    wait: int,
    warmup: int,
    active: int,
    repeat: int = 0,
    skip_first: int = 0,
    skip_first_wait: int = 0,
) -> Callable[[int], ProfilerAction]:
    """Return a `schedule` of a profiler: its action in each step.

    It skips `skip_first` steps; then again and again waits `wait` steps, times `warmup` steps that
    it forgets, and records `active` steps, at the end of which `on_trace_ready` is called. repeat:
    times; 0: without end.  skip_first_wait: other than 0, does not wait the first time.
    """
    sizes = {"wait": wait, "warmup": warmup, "repeat": repeat, "skip_first": skip_first}
    for name, size in sizes.items():
        if size < 0:
            raise ValueError(f"profiler.schedule: {name} must be at least 0, got {size!r}")
    if active < 1:
        raise ValueError(f"profiler.schedule: active must be at least 1, got {active!r}")
    cycle = wait + warmup + active

    def action(step: int) -> ProfilerAction:
        if step < 0:
            raise ValueError(f"profiler.schedule: there is no step {step}")
        step -= skip_first
        if step < 0:
            return ProfilerAction.NONE
        if skip_first_wait:
            step += wait
        if repeat and step // cycle >= repeat:
            return ProfilerAction.NONE
        at = step % cycle
        if at < wait:
            return ProfilerAction.NONE
        if at < wait + warmup:
            return ProfilerAction.WARMUP
        is_last = at == cycle - 1
        return ProfilerAction.RECORD_AND_SAVE if is_last else ProfilerAction.RECORD

    return action


_RECORDING = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


class profile:
    """A block whose ops are timed.

    record_shapes, record_attrs: note the inputs' shapes, and the attributes of ops.
    schedule: the action in each step, of which `step` tells the end; see `profiler.schedule`.
    Without one all is recorded.
    on_trace_ready: called with the profiler at the end of each window that was recorded.
    profile_memory: count the bytes that ops allocate and free (oneflow/nn/memory_timing.py).
    Modules, lines, bytes and operations are always noted. The other parameters are accepted and
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
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[profile], object] | None = None,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        use_cuda: bool = False,
    ) -> None:
        self.enabled, self.on_trace_ready = bool(enabled), on_trace_ready
        self.record_shapes, self.record_attrs = record_shapes, record_attrs
        self.step_num = 0
        self._schedule = schedule
        self._action = ProfilerAction.NONE
        self._recording = Recording()
        self._timing: Timing | None = None
        self._memory: Memory | None = None
        self._profile_memory = profile_memory
        self._before: Mode | None = None
        self._step_start = 0

    def __enter__(self) -> profile:
        if self.enabled:
            self._turn_to(self._planned())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.enabled:
            self._end_window(self._action in _RECORDING)

    def start(self) -> None:
        """Begin the block."""
        self.__enter__()

    def stop(self) -> None:
        """End the block."""
        self.__exit__(None, None, None)

    def step(self) -> None:
        """Tell that a step of the program has ended."""
        if not self.enabled:
            return
        self._note_step()
        self.step_num += 1
        self._turn_to(self._planned())

    def _planned(self) -> ProfilerAction:
        if self._schedule is None:
            return ProfilerAction.RECORD
        return self._schedule(self.step_num)

    def _turn_to(self, action: ProfilerAction) -> None:
        """Begin a step in which `action` is done."""
        before, self._action = self._action, action
        if before is ProfilerAction.RECORD_AND_SAVE or action is ProfilerAction.NONE:
            self._end_window(before in _RECORDING)
            before = ProfilerAction.NONE
        if before is ProfilerAction.WARMUP and action in _RECORDING:
            self._end_window(False)
            before = ProfilerAction.NONE
        if before is ProfilerAction.NONE and action is not ProfilerAction.NONE:
            self._recording = Recording()
            self._timing = self._new_timing()
            self._before = swap_mode(self._timing)
            _open.append(self._recording)
        self._step_start = time.perf_counter_ns()

    def _new_timing(self) -> Timing:
        if not self._profile_memory:
            return Timing(current_mode(), self._recording)
        self._memory = Memory()
        return MemoryTiming(current_mode(), self._recording, self._memory)

    def _end_window(self, is_ready: bool) -> None:
        """Stop timing. is_ready: the recording is wanted."""
        if self._timing is not None:
            if self._memory is not None:
                self._memory.close()
            swap_mode(self._before)
            _open.remove(self._recording)
            self._timing = None
        if is_ready and self.on_trace_ready is not None:
            self.on_trace_ready(self)

    def _note_step(self) -> None:
        if self._timing is not None:
            took = time.perf_counter_ns() - self._step_start
            name = f"ProfilerStep#{self.step_num}"
            self._recording.blocks.append(_block(name, self._step_start, took))

    def events(self) -> Events:
        """The events so far of the window that is recorded, or was last."""
        found = [self._event(call, True) for call in self._recording.calls()]
        if self._memory is not None:
            for number, (own, whole) in self._memory.by_call.items():
                found[number].self_cpu_memory_usage = own
                found[number].cpu_memory_usage = whole
            found += [_freed(at, nbytes) for at, nbytes in self._memory.outside]
        found += [self._event(call, False) for call in self._recording.blocks]
        return Events(sorted(found, key=lambda e: (e.start, -e.cpu_time_total)))

    def _event(self, call: Call, is_op: bool) -> Event:
        nbytes, flops = _work(call)
        return Event(
            call.name,
            1,
            call.took / 1000,
            call.start / 1000,
            tuple(t.shape for t in call.types) if is_op and self.record_shapes else None,
            str(dict(call.attrs)) if is_op and self.record_attrs else None,
            is_op,
            call.own / 1000,
            call.module,
            call.line,
            nbytes,
            flops,
            tuple(t.dtype.name for t in call.types),
        )

    def key_averages(
        self, group_by_input_shape: bool = False, group_by_attributes: bool = False
    ) -> Events:
        """One event for each kind."""
        return self.events().key_averages(group_by_input_shape, group_by_attributes)

    def sums(self) -> KernelSums:
        """Calls, time, bytes and operations of the ops by op, by module and by line."""
        sums = KernelSums()
        for call in self._recording.calls():
            nbytes, flops = _work(call)
            facts = {"op": call.name, "module": call.module, "line": call.line}
            sums.add(call.name, call.own * 1e-9, {**facts, "bytes": nbytes, "flops": flops})
        return sums

    def table(self, by: str = "op", most: int | None = None) -> str:
        """The ops by "op", "module" or "line", per step if `step` was called. most: rows; None:
        all.
        """
        return self.sums().table(by, len(self._steps()), measured_peak(), most)

    def _steps(self) -> list[Call]:
        return [b for b in self._recording.blocks if b.name.startswith("ProfilerStep#")]

    def __str__(self) -> str:
        return "\n\n".join(self.table(by, SHOWN) for by in ("op", "module", "line"))

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write the events as a file that TensorBoard, Chrome and Perfetto show."""
        self.events().export_chrome_trace(path)


def _freed(at: int, nbytes: int) -> Event:
    """The event of bytes that were freed between calls, under PyTorch's name for it."""
    event = Event("[memory]", 1, 0.0, at / 1000, is_op=False)
    event.cpu_memory_usage = event.self_cpu_memory_usage = nbytes
    return event


def _block(name: str, start: int, took: int) -> Call:
    return Call(name, start, took, took, None, (), (), {}, "", "")


def _work(call: Call) -> Work:
    """The work of a call; views move nothing."""
    if call.op is None:
        return Work(0, 0)
    work = work_of(call.op, call.types, call.out_types, call.op.defaults | call.attrs)
    return Work(0, work.flops) if call.op.is_view else work


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
            took = time.perf_counter_ns() - start
            _open[-1].blocks.append(_block(self.name, start, took))

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
    """Return an `on_trace_ready` that writes a trace file of each window into a folder, where
    TensorBoard's profiler finds it.
    """

    def write(found: profile) -> None:
        folder = Path(dir_name)
        folder.mkdir(parents=True, exist_ok=True)
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        name = f"{worker}.{time.time_ns()}.pt.trace.json{'.gz' if use_gzip else ''}"
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
