"""`flow.multiprocessing`: Python's own, and functions that start several processes and join them.

Tensors between processes travel as copies of their numbers.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import signal
import tempfile
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.shared_memory import ShareableList, SharedMemory
from pathlib import Path
from typing import Any

from oneflow.core.no_effect import without_effect

__all__ = [
    "ProcessContext",
    "ProcessExitedException",
    "ProcessRaisedException",
    "ShareableList",
    "SharedMemory",
    "SpawnContext",
    "get_all_sharing_strategies",
    "get_sharing_strategy",
    "set_sharing_strategy",
    "spawn",
    "start_processes",
    "unlink_all_shared_memory",
]


def __getattr__(name: str) -> Any:
    """Python's own names: Process, Queue, Pool, get_context ..."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(multiprocessing, name)


class ProcessException(Exception):
    """The failure of a process that `spawn` started. error_index: its number. pid: its id."""

    def __init__(self, msg: str, error_index: int, pid: int | None) -> None:
        super().__init__(msg)
        self.msg, self.error_index, self.pid = msg, error_index, pid


class ProcessRaisedException(ProcessException):
    """A process ended with an exception, whose traceback is the message."""


class ProcessExitedException(ProcessException):
    """A process ended otherwise than by returning. exit_code: its code. signal_name: or signal."""

    def __init__(
        self,
        msg: str,
        error_index: int,
        error_pid: int | None,
        exit_code: int,
        signal_name: str | None = None,
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code, self.signal_name = exit_code, signal_name


def _run(fn: Callable[..., object], number: int, args: tuple[object, ...], errors: str) -> None:
    """The main function of a process: an error is written to a file and ends it with 1."""
    try:
        fn(number, *args)
    except KeyboardInterrupt:
        return
    except Exception:
        Path(errors).write_text(traceback.format_exc())
        raise SystemExit(1) from None


class ProcessContext:
    """Processes that were started together. `processes`, `pids()`, `join()`."""

    def __init__(self, processes: Sequence[BaseProcess], error_files: Sequence[Path]) -> None:
        self.processes = list(processes)
        self._errors = error_files
        self._left = dict(enumerate(self.processes))

    def pids(self) -> list[int]:
        return [int(p.pid or 0) for p in self.processes]

    def join(self, timeout: float | None = None) -> bool:
        """Whether all have ended, after waiting for the next one that ends.

        Raises ProcessRaisedException or ProcessExitedException for the first that failed; the
        others are terminated.
        """
        ended = multiprocessing.connection.wait(
            [p.sentinel for p in self._left.values()], timeout=timeout
        )
        failed = None
        for number in [n for n, p in self._left.items() if p.sentinel in ended]:
            process = self._left.pop(number)
            process.join()
            if process.exitcode != 0 and failed is None:
                failed = number
        if failed is None:
            return not self._left
        for process in self._left.values():
            process.terminate()
        for process in self._left.values():
            process.join()
        raise self._failure(failed)

    def _failure(self, number: int) -> ProcessException:
        process, path = self.processes[number], self._errors[number]
        if path.exists():
            text = f"\n\n-- Process {number} terminated with the following error:\n"
            return ProcessRaisedException(text + path.read_text(), number, process.pid)
        code = process.exitcode or 0
        name = signal.Signals(-code).name if code < 0 else None
        how = f"terminated with signal {name}" if name else f"terminated with exit code {code}"
        return ProcessExitedException(
            f"process {number} {how}", number, process.pid, code, signal_name=name
        )


SpawnContext = ProcessContext


def start_processes(
    fn: Callable[..., object],
    args: tuple[object, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Start `nprocs` processes that call `fn(number, *args)`.

    join: wait for all, and raise as `ProcessContext.join` does; else return the ProcessContext.
    """
    context: Any = multiprocessing.get_context(start_method)  # its types differ by method
    folder = Path(tempfile.mkdtemp(prefix="oneflow-spawn-"))
    files = [folder / f"error{number}" for number in range(nprocs)]
    processes: list[BaseProcess] = []
    for number, file in enumerate(files):
        made = context.Process(target=_run, args=(fn, number, args, str(file)), daemon=daemon)
        made.start()
        processes.append(made)
    started = ProcessContext(processes, files)
    if not join:
        return started
    while not started.join():
        pass
    folder.rmdir()
    return None


def spawn(
    fn: Callable[..., object],
    args: tuple[object, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """`start_processes` with fresh interpreters."""
    return start_processes(fn, args, nprocs, join, daemon, start_method)


def get_all_sharing_strategies() -> set[str]:
    """The one way in which tensors reach another process: as copies, under upstream's name."""
    return {"file_descriptor"}


def get_sharing_strategy() -> str:
    """The only strategy."""
    return "file_descriptor"


def set_sharing_strategy(new_strategy: str) -> None:
    """Warn once about any other strategy than the only one."""
    if new_strategy != get_sharing_strategy():
        without_effect(
            f"multiprocessing.set_sharing_strategy({new_strategy!r})",
            "tensors reach another process as copies",
        )


def unlink_all_shared_memory() -> None:
    """Do nothing: no shared memory outlives its processes."""
