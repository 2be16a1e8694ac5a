"""The times of one call, by the profiler of each library and by the clock."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, TypeGuard

from oneflow import cuda, profiler
from oneflow.core.config import FALSE_WORDS, TRUE_WORDS
from oneflow.core.errors import ConfigError
from oneflow.core.processors import usable_processors
from oneflow.functional.switches import set_num_threads
from oneflow.tensor.tensor import Tensor

MOST_THREADS = 32
TITLES = {"oneflow": "OneFlow", "pytorch": "PyTorch"}

Call = Callable[[], Any]


@dataclass(frozen=True)
class Times:
    """Microseconds of one call. threads: Number of CPUs -> time of kernels (None: the profiler
    names none), and end to end.  gpu: Time on a GPU, None without one; gbs: GB/s there.
    """

    threads: dict[int, tuple[float | None, float]]
    gpu: float | None = None
    gbs: float | None = None


@dataclass(frozen=True)
class Row:
    """One call of an op on one library."""

    op: str
    arguments: str
    library: str
    times: Times
    description: str = ""


def cpu_counts() -> list[int]:
    """Return the numbers of CPUs to measure: 1 and 32, or all if there are fewer."""
    return sorted({1, min(MOST_THREADS, usable_processors())})


def switch(name: str, default: bool) -> bool:
    """Return a variable of the environment that is on or off."""
    given = os.environ.get(name)
    if given is None:
        return default
    if given.lower() not in TRUE_WORDS | FALSE_WORDS:
        raise ConfigError(f"{name} is 0 or 1, got {given!r}")
    return given.lower() in TRUE_WORDS


def count(name: str, default: int, least: int) -> int:
    """Return a variable of the environment that is a whole number."""
    given = os.environ.get(name, str(default))
    if not given.isdecimal() or int(given) < least:
        raise ConfigError(f"{name} is a whole number from {least} on, got {given!r}")
    return int(given)


def call_counts() -> tuple[int, int]:
    """Return how often a call is made before it is measured, and in each measurement."""
    warmup = count("ONEFLOW_PROFILE_WARMUP_NUM", 10, 0)
    return warmup, count("ONEFLOW_PROFILE_RUN_NUM", 1000, 1)


def measure_call(
    library: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Times:
    """Return the times of a call of one library, on CPUs and, if there is one, on a GPU."""
    warmup, runs = call_counts()
    kernels, set_threads = {
        "oneflow": (_our_kernels, set_num_threads),
        "pytorch": (_their_kernels, _set_their_threads),
    }[library]
    found = {}
    for threads in cpu_counts():
        set_threads(threads)

        def call() -> Any:
            return function(*args, **kwargs)

        _repeat(call, warmup)
        whole = _shortest(call, runs)  # first, and without the profiler, which takes time itself
        found[threads] = (kernels(call, runs), whole)
    if not _has_gpu(library):
        return Times(found)
    gpu, nbytes = _on_gpu(library, function, args, kwargs, warmup, runs)
    return Times(found, gpu, nbytes / gpu / 1000)


def _repeat(call: Call, runs: int) -> float:
    """Call so often, and return the mean in microseconds."""
    start = perf_counter_ns()
    for _ in range(runs):
        call()
    return (perf_counter_ns() - start) / 1000 / max(runs, 1)


def _shortest(call: Call, runs: int) -> float:
    """Call so often, and return the shortest time in microseconds: other programs only add time."""
    times = []
    for _ in range(runs):
        start = perf_counter_ns()
        call()
        times.append(perf_counter_ns() - start)
    return min(times) / 1000


def _sum_of_kernels(events: Iterable[tuple[str, float]], runs: int) -> float | None:
    """The microseconds of a call's ops, given as name and time of every event, in order.

    Each op of the call counts with its shortest time; an event that is not one of each call, as
    the profiler's own are, does not count.
    """
    times: dict[str, list[float]] = {}
    for name, took in events:
        times.setdefault(name, []).append(took)
    found = [_each_shortest(all_of, runs) for all_of in times.values() if len(all_of) >= runs]
    return sum(found) if found else None


def _each_shortest(times: list[float], runs: int) -> float:
    """The shortest times of an op that each of the runs has as often, else the mean of a run."""
    each, rest = divmod(len(times), runs)
    return sum(times) / runs if rest else sum(min(times[i::each]) for i in range(each))


def _our_kernels(call: Call, runs: int) -> float | None:
    with profiler.profile() as found:
        _repeat(call, runs)
    _show(found.key_averages())
    events = [event for event in found.events() if event.is_op]
    return _sum_of_kernels(((e.name, e.self_cpu_time_total) for e in events), runs)


def _their_kernels(call: Call, runs: int) -> float | None:
    torch = sys.modules["torch"]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        _repeat(call, runs)
    _show(found.key_averages().table(row_limit=10))
    return _sum_of_kernels(((e.name, e.self_cpu_time_total) for e in found.events()), runs)


def is_verbose() -> bool:
    """Return whether the tables of profilers are printed."""
    return switch("ONEFLOW_PROFILE_VERBOSE", False)


def _show(table: object) -> None:
    """Print the table of a profiler, if ONEFLOW_PROFILE_VERBOSE asks for it."""
    if is_verbose():
        print(table, flush=True)


def _set_their_threads(count: int) -> None:
    sys.modules["torch"].set_num_threads(count)


def _has_gpu(library: str) -> bool:
    if library == "oneflow":
        return cuda.is_available()
    return bool(sys.modules["torch"].cuda.is_available())


def _on_gpu(
    library: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    warmup: int,
    runs: int,
) -> tuple[float, int]:
    """The time of a call between two synchronizations, and the bytes of its tensors."""
    wait = cuda.synchronize if library == "oneflow" else sys.modules["torch"].cuda.synchronize
    args, kwargs = _moved(args), _moved(kwargs)

    def call() -> Any:
        return function(*args, **kwargs)

    result = call()
    _repeat(call, warmup)
    wait()
    start = perf_counter_ns()
    _repeat(call, runs)
    wait()
    took = (perf_counter_ns() - start) / 1000 / runs
    return took, _nbytes((args, kwargs, result))


def _is_tensor(x: object) -> TypeGuard[Tensor]:
    torch = sys.modules.get("torch")
    return isinstance(x, Tensor) or (torch is not None and isinstance(x, torch.Tensor))


def _moved(tree: object) -> Any:
    """Arguments with their tensors on a GPU."""
    if _is_tensor(tree):
        return tree.to("cuda")
    if isinstance(tree, Mapping):
        return {key: _moved(x) for key, x in tree.items()}
    return type(tree)(map(_moved, tree)) if isinstance(tree, (list, tuple)) else tree


def _nbytes(tree: object) -> int:
    """Bytes of all tensors in nested values."""
    if _is_tensor(tree):
        return int(tree.numel() * tree.element_size())
    if isinstance(tree, Mapping):
        return sum(map(_nbytes, tree.values()))
    return sum(map(_nbytes, tree)) if isinstance(tree, (list, tuple)) else 0
