"""The other end of compiler.py: answers the scheduler's questions about job files, one by one.

It reads questions and writes nothing but answers: it has no token, no port and no file
of its own.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from oneflow.core.control_channel import chunks
from oneflow.core.core_dumps import forbid_core_dumps
from oneflow.core.errors import OneFlowError, ProtocolError
from oneflow.core.frames import Frames
from oneflow.core.job_config import Overrides
from oneflow.core.metrics import METRICS
from oneflow.protos import compiler_pb2 as pb
from oneflow.scheduler.cluster.compiler import MAX_MESSAGE_CHARS, MEMORY_CODE

PR_SET_PDEATHSIG = 1
OOM_SCORE = "/proc/self/oom_score_adj"
OOM_FIRST = "700"  # of the scheduler and this one, the kernel shall choose this one
OWN_MEMORY = "/proc/self/statm"
LOOK_S = 0.1
MIN_SLACK_NBYTES = 256 << 20


Send: TypeAlias = "Callable[[pb.CompileAnswer], None]"


@dataclass(frozen=True)
class Work:
    """The work that the process does for the scheduler; `Compilers` has methods of the same names.
    OneFlowError names the mistake in a file.
    """

    compile_plan: Callable[..., bytes]
    check_fit: Callable[..., int]


def main(load: Callable[[], Work]) -> None:
    """Runs `python ... <nbytes>`, of memory (0: no limit), until the scheduler hangs up.

    load: imports the modules that the work needs. Standard input is the socket.
    """
    _belong_to_the_scheduler()
    frames = Frames(socket.socket(fileno=os.dup(0)), pb.CompileAsk)
    work = load()
    _limit_memory(int(sys.argv[-1]))
    with suppress(OSError, ProtocolError):
        frames.send(pb.CompileAnswer(ready=True))
        while (ask := frames.receive()) is not None:
            _answer(work, ask, frames.send)
    os._exit(0)


def _belong_to_the_scheduler() -> None:
    """Does not outlive it, also when it is killed; signals that are meant for a whole group (of a
    terminal, a unit) are its business.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    forbid_core_dumps()
    with suppress(OSError):
        Path(OOM_SCORE).write_text(OOM_FIRST)


def _limit_memory(nbytes: int) -> None:
    """Check the memory in use again and again, which the kernel's limit alone would not do: shortly
    before it, memory is looked for so hard that nothing else is done. The kernel stops growth that
    is too quick to be seen.
    """
    if not nbytes:
        return
    threading.Thread(target=_watch_memory, args=(nbytes,), daemon=True).start()
    hard = nbytes + max(nbytes // 4, MIN_SLACK_NBYTES)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most == resource.RLIM_INFINITY or hard < most:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _watch_memory(nbytes: int) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    with open(OWN_MEMORY, "rb", buffering=0) as file:
        while int(file.read(100).split()[1]) * page <= nbytes:
            time.sleep(LOOK_S)
            file.seek(0)
    os._exit(MEMORY_CODE)


def _answer(work: Work, ask: pb.CompileAsk, send: Send) -> None:
    try:
        send(pb.CompileAnswer(done=_done(work, ask, send)))
    except MemoryError:
        os._exit(MEMORY_CODE)  # nothing of it can be trusted now
    except OneFlowError as error:
        if _is_of_memory(error):
            os._exit(MEMORY_CODE)
        reason, code = error.reason, error.exit_code
        failed = pb.CompileFailed(type=type(error).__name__, reason=reason, exit_code=code)
        failed.message = _text(str(error)[:MAX_MESSAGE_CHARS])
        send(pb.CompileAnswer(failed=failed))
    except Exception:
        stack = traceback.format_exc()[-MAX_MESSAGE_CHARS:]
        send(pb.CompileAnswer(failed=pb.CompileFailed(message=_text(stack), is_defect=True)))


def _done(work: Work, ask: pb.CompileAsk, send: Send) -> pb.CompileDone:
    path = Path(ask.job_file)
    if ask.only_check:
        most = work.check_fit(path, ask.kind, ask.devices, ask.device_type, ask.steps)
        return pb.CompileDone(most_steps=most)

    def progress(name: str, done: int, total: int) -> None:
        told = pb.CompileProgress(name=name, done=done, total=total)
        send(pb.CompileAnswer(progress=told))

    before = _seconds()
    overrides = Overrides(ask.auto_parallel, ask.zero, ask.amp)
    place = path, ask.devices, ask.device_type, tuple(ask.hosts)
    plan = work.compile_plan(*place, progress, overrides)
    for piece in chunks(plan):
        send(pb.CompileAnswer(plan=piece))
    now = _seconds()
    return pb.CompileDone(seconds={k: s - before.get(k, 0.0) for k, s in now.items()})


def _seconds() -> dict[str, float]:
    """Sum the seconds of all compiles of this process, by pass."""
    return {name: times.total_s for name, times in METRICS.scheduler.passes.items()}


def _is_of_memory(error: BaseException | None) -> bool:
    """Whether it was said of a file because there was no memory left to read it."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


def _text(text: str) -> str:
    """Return the text as a message can carry it: without halves of characters."""
    return text.encode(errors="replace").decode()
