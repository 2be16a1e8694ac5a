"""The processes that judge and compile job files for the scheduler, bounded in time and memory.

A graph is made by strangers: one that is huge, or made to be slow, must cost neither the
scheduler's loop nor its memory. A process is started for the first file and stays warm for the next
one, until none has come for a while. While one compiles, a second one judges submissions.
Each dies with the scheduler.

A file that passes a limit is to blame (65, as for other bad data): with the same limits it would do
so again. A process that ends in another way was killed, or has a defect (70). The kernel, when
it wants memory, kills such processes first: their work is tried once more.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from oneflow.core.errors import ConfigError, OneFlowError, ProtocolError
from oneflow.core.frames import Frames
from oneflow.core.job_config import NO_OVERRIDES, Overrides
from oneflow.core.log import get_logger
from oneflow.core.metrics import ALL_PASSES, METRICS
from oneflow.core.reasons import one_line
from oneflow.protos import compiler_pb2 as pb
from oneflow.scheduler.compiler.passes import PASSES

START_S = 60.0  # until its imports are done, on a machine that has much else to do
END_S = 5.0
MAX_ANSWER_NBYTES = 2 << 20  # pieces of plans have 1 MiB
MAX_NAME_CHARS = 64
MAX_MESSAGE_CHARS = 16_384
MIN_NBYTES = 256 << 20  # its imports alone take a quarter of that
MEMORY_CODE = 71  # its exit code when there was no memory left for it
OWN_PREFIXES = (
    "ONEFLOW_AUTH_",
    "ONEFLOW_FAILPOINTS",
    "ONEFLOW_METRICS_ADDR",
    "NOTIFY_",
    "WATCHDOG_",
)
FILE_REASONS = frozenset(("USER_ERROR", "CHECKPOINT_INVALID", "UNSATISFIABLE", "INTERNAL"))
"""Reasons to refuse a file: others would send a daemon away, or begin the job anew."""
FEW_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

FOLDER = "/"  # where it runs: `python -m` would import from the scheduler's own folder

T = TypeVar("T")

log = get_logger(__name__)


@dataclass(frozen=True)
class CompilerLimits:
    """Limits of the processes that judge and compile graphs.

    nbytes: memory of each process, 0: no limit. compile_s: time for a graph; a third of it to judge
    it, while its submitter waits. idle_s: without a file it ends after so long. plan_nbytes: of a
    plan, which the scheduler holds.
    """

    nbytes: int = 2 << 30
    compile_s: float = 60.0
    idle_s: float = 60.0
    plan_nbytes: int = 256 << 20

    def check(self) -> None:
        """Raises ConfigError for limits that cannot work."""
        if self.nbytes and self.nbytes < MIN_NBYTES:
            raise ConfigError(
                f"compile_nbytes={self.nbytes}: the compiler itself needs {MIN_NBYTES >> 20} MiB; "
                "0 is no limit"
            )
        if min(self.compile_s, self.idle_s) <= 0:
            raise ConfigError("the compiler's times must be more than 0 seconds")

    @property
    def check_s(self) -> float:
        return self.compile_s / 3


class FileRefusedError(OneFlowError):
    """A job file is wrong; the message is that of the process that read the file.

    kind: the name of the error's type there.
    """

    def __init__(self, kind: str, reason: str, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.kind, self.reason, self.exit_code = kind, reason, exit_code


class CompileLimitError(OneFlowError):
    """A job file needs more time or memory to be compiled than this cluster gives."""

    exit_code = 65


class CompilerLostError(OneFlowError):
    """The process ended in the middle, and no limit was the reason.

    was_killed: by somebody else, most likely the kernel for its memory.
    """

    exit_code = 70
    reason = "INTERNAL"

    def __init__(self, message: str, was_killed: bool = False) -> None:
        super().__init__(message)
        self.was_killed = was_killed


class CompilerDefectError(RuntimeError):
    """The compiler raised an error that it never should; the message has its stack."""


class Compilers:
    """Methods block, and may be called from any thread that stays: a process dies with the one that
    has started it. argv: of the process, whose program calls `main` of compiler_process.py.
    """

    def __init__(self, argv: Sequence[str], limits: CompilerLimits, env: Mapping[str, str]) -> None:
        self._argv, self.limits = tuple(argv), limits
        self._env = FEW_THREADS | _own_env(env)
        self._lock = threading.Lock()
        self._all: set[_Process] = set()
        self._idle: list[_Process] = []
        self._is_closed = False

    def compile_plan(
        self,
        path: Path,
        devices: int,
        device_type: str,
        hosts: tuple[str, ...],
        progress: Callable[[str, int, int], None],
        overrides: Overrides = NO_OVERRIDES,
        /,
    ) -> bytes:
        """The plan's bytes. hosts: of each rank. progress: called with the name of a pass that is
        done, passes done, passes in all. Raises FileRefusedError, CompileLimitError,
        CompilerLostError.
        """
        ask = pb.CompileAsk(
            job_file=str(path.absolute()),
            devices=devices,
            device_type=device_type,
            hosts=hosts,
            **vars(overrides),
        )
        return self._insist(lambda: self._plan(ask, progress))

    def _plan(self, ask: pb.CompileAsk, progress: Callable[[str, int, int], None]) -> bytes:
        plan = bytearray()
        with closing(self._answers(ask, self.limits.compile_s)) as answers:
            for answer in answers:
                plan += answer.plan
                if len(plan) > self.limits.plan_nbytes:
                    most = self.limits.plan_nbytes >> 20
                    raise CompileLimitError(f"its plan is larger than {most} MiB")
                if answer.HasField("progress"):
                    done = answer.progress
                    progress(one_line(done.name)[:MAX_NAME_CHARS], done.done, done.total)
        return bytes(plan)

    def check_fit(
        self, path: Path, kind: str, devices: int, device_type: str, steps: int, /
    ) -> int:
        """Return the most steps for which the file can be run as asked, any fewer do, too; 0: not
        known. steps: asked for, or 0. Raises as compile_plan.
        """
        ask = pb.CompileAsk(
            only_check=True,
            job_file=str(path.absolute()),
            kind=kind,
            devices=devices,
            device_type=device_type,
            steps=steps,
        )
        return self._insist(lambda: self._most_steps(ask))

    def _most_steps(self, ask: pb.CompileAsk) -> int:
        return max(int(a.done.most_steps) for a in self._answers(ask, self.limits.check_s))

    def pids(self) -> list[int]:
        """List the processes that live now."""
        with self._lock:
            return [found.popen.pid for found in self._all if found.popen.poll() is None]

    def look(self) -> None:
        """Lets those end for which there was no file for a while. Call it now and then."""
        with self._lock:
            before = time.monotonic() - self.limits.idle_s
            over = [p for p in self._idle if p.idle_since < before or p.popen.poll() is not None]
            self._idle = [p for p in self._idle if p not in over]
            for process in over:
                process.let_go()
            self._all = {p for p in self._all if p.popen.poll() is None}

    def close(self) -> None:
        """End all, with their work; those that wait for one get CompilerLostError."""
        with self._lock:
            self._is_closed, found = True, list(self._all)
        for process in found:
            process.end()

    # -- one question ------------------------------------------------------------------------------

    def _insist(self, work: Callable[[], T]) -> T:
        """Once more if the process was killed: that is seldom the file's fault."""
        try:
            return work()
        except CompilerLostError as error:
            if not error.was_killed or self._is_closed:
                raise
            log.warning("%s; it is tried once more", error)
            return work()

    def _answers(
        self, ask: pb.CompileAsk, limit_s: float
    ) -> Generator[pb.CompileAnswer, None, None]:
        """Yield answers until it is done. Raises the error in `failed`, or that of a process that
        ends.
        """
        process, is_answered = self._take(), False
        try:
            process.ask(ask)
            deadline = time.monotonic() + limit_s
            while not is_answered:
                answer = process.answer(deadline)
                if answer is None:
                    raise self._ended(process, limit_s)
                is_answered = answer.WhichOneof("kind") in ("failed", "done")
                if answer.HasField("failed"):
                    raise _error_of(answer.failed)
                _count(answer.done.seconds, limit_s)
                yield answer
        finally:
            if is_answered:
                self._keep_warm(process)
            else:
                self._drop(process)

    def _take(self) -> _Process:
        """One that waits, if it has not ended; else a new one, once it is ready."""
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.popen.poll() is None:
                    return process
                process.let_go()
                self._all.discard(process)
        process = self._start()
        if process.answer(time.monotonic() + START_S) is None:
            process.end(0.0 if process.is_late else END_S)
            self._drop(process)
            raise process.lost("the compiler cannot be started")
        log.info("a compiler is warm after %.2f s", time.monotonic() - process.started_at)
        return process

    def _start(self) -> _Process:
        with self._lock:  # so that `close` finds it
            if self._is_closed:
                raise CompilerLostError("the scheduler stops")
            try:
                process = _Process(self._argv, self.limits.nbytes, self._env)
            except OSError as error:
                raise CompilerLostError(f"the compiler cannot be started: {error}") from None
            self._all.add(process)
        return process

    def _keep_warm(self, process: _Process) -> None:
        process.idle_since = time.monotonic()
        with self._lock:
            self._idle.append(process)

    def _drop(self, process: _Process) -> None:
        process.end()
        with self._lock:
            self._all.discard(process)

    def _ended(self, process: _Process, limit_s: float) -> OneFlowError:
        """Say why a process gave no answer."""
        if process.is_late:
            return CompileLimitError(
                f"it takes longer than the {limit_s:g} s that this cluster gives to a job file "
                "(scheduler.compile_time)"
            )
        process.end(END_S)  # it has closed its socket: its code says why
        if process.popen.returncode == MEMORY_CODE:
            most = f"the {self.limits.nbytes >> 20} MiB" if self.limits.nbytes else "all"
            return CompileLimitError(
                f"it takes more than {most} of the memory that this cluster's compiler may use "
                "(scheduler.compile_nbytes)"
            )
        return process.lost("the compiler did not come to its end")


class _Process:
    """One process and our end of its socket, which is its standard input."""

    def __init__(self, argv: Sequence[str], nbytes: int, env: Mapping[str, str]) -> None:
        self.started_at = self.idle_since = time.monotonic()
        self.is_late = False
        self._sock, theirs = socket.socketpair()
        self._frames = Frames(self._sock, pb.CompileAnswer, MAX_ANSWER_NBYTES)
        with theirs:
            try:
                self.popen = subprocess.Popen(
                    [*argv, str(nbytes)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    env=dict(env),
                    cwd=FOLDER,
                )
            except BaseException:
                self._sock.close()
                raise

    def ask(self, message: pb.CompileAsk) -> None:
        """If it is gone, there will be no answer."""
        with suppress(OSError):
            self._sock.settimeout(END_S)
            self._frames.send(message)

    def answer(self, deadline: float) -> pb.CompileAnswer | None:
        """The next message; None if it has ended, or the time is over."""
        try:
            return self._frames.receive(deadline)
        except TimeoutError:
            self.is_late = True
        except (OSError, ProtocolError) as error:
            log.debug("a compiler's socket: %s", error)
        return None

    def let_go(self) -> None:
        """It ends by itself. Not for one that somebody waits for."""
        self._sock.close()

    def end(self, patience_s: float = 0.0) -> None:
        """Return when it is gone. Those that wait for an answer hear of it."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        try:
            with suppress(subprocess.TimeoutExpired):
                self.popen.wait(patience_s)
            if self.popen.poll() is None:
                self.popen.kill()
            self.popen.wait(END_S)
        except subprocess.TimeoutExpired:
            log.warning("process %d, a compiler, cannot be killed", self.popen.pid)
        self._sock.close()

    def lost(self, what: str) -> CompilerLostError:
        """Say how it ended. what: the meaning of that."""
        code = self.popen.returncode
        if self.is_late:
            how = f"it said nothing for {time.monotonic() - self.started_at:.0f} s"
        elif code is None or code >= 0:
            how = f"its process {self.popen.pid} exited with code {code}"
        else:
            how = f"its process {self.popen.pid} was killed by {_signal_name(-code)}"
        return CompilerLostError(f"{what}: {how}", code == -signal.SIGKILL and not self.is_late)


def _own_env(given: Mapping[str, str]) -> dict[str, str]:
    """Without the scheduler's secrets, and so that nothing is imported from where it runs."""
    env = {k: v for k, v in given.items() if not k.startswith(OWN_PREFIXES)}
    folders = env.pop("PYTHONPATH", "").split(os.pathsep)
    found = os.pathsep.join(os.path.abspath(folder) for folder in folders if folder)
    env |= {"PYTHONPATH": found} if found else {}
    env |= {"ONEFLOW_DUMP": os.path.abspath(env["ONEFLOW_DUMP"])} if env.get("ONEFLOW_DUMP") else {}
    return env | {"PYTHONSAFEPATH": "1"}


def _error_of(failed: pb.CompileFailed) -> Exception:
    """Turn the child's error message into an exception, checked: strangers' graphs are read there,
    and this goes into the store.
    """
    message = failed.message[:MAX_MESSAGE_CHARS]
    if failed.is_defect:
        return CompilerDefectError(message)
    kind = one_line(failed.type)[:MAX_NAME_CHARS] or "OneFlowError"
    reason = failed.reason if failed.reason in FILE_REASONS else CompilerLostError.reason
    code = failed.exit_code if 1 <= failed.exit_code <= 255 else CompilerLostError.exit_code
    return FileRefusedError(kind, reason, code, message)


def _count(seconds: Mapping[str, float], limit_s: float) -> None:
    """Count a compile on the scheduler's page as if the scheduler had done it itself; but no more
    than can be true.
    """
    for name, value in seconds.items():
        if not 0 <= value <= limit_s:  # NaN is neither
            continue
        if name == ALL_PASSES or name in PASSES:
            METRICS.scheduler.passes[name].observe(value)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
