"""Named places where a test makes something go wrong, and nothing else ever does.

`failpoint("ckpt.before_rename")` is a look-up in a dict that is empty, unless the process was
started with ONEFLOW_TESTING=1 and ONEFLOW_FAILPOINTS names the place:

    ONEFLOW_FAILPOINTS="ckpt.before_rename=kill@hit=3;journal.write=error:ENOSPC;worker.step=sleep:2"

| action       | done by the process there                                                       |
|--------------|---------------------------------------------------------------------------------|
| kill         | gets SIGKILL                                                                    |
| stop:8       | gets SIGSTOP, and SIGCONT after 8 s                                             |
| error:ENOSPC | raises OSError with that number                                                 |
| sleep:2      | sleeps 2 s                                                                      |
| gil:2        | keeps the interpreter to itself for 2 s: no other thread of it runs             |
| hold:FOLDER  | if FOLDER has a file of the place's name: renames it to <name>.<pid>, and waits |
|              | until that is gone; so a test can act at the place and the process is known.    |
|              | A file that has an action in it: does that                                      |

`@hit=3`: at the third passage only, else at each one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from oneflow.core.errors import ConfigError

TESTING, VARIABLE = "ONEFLOW_TESTING", "ONEFLOW_FAILPOINTS"
MAX_HOLD_S = 30.0
HOLD_LOOK_S = 0.002
MAX_SLEEP_S = 3600.0

FAILPOINTS: dict[str, str] = {
    "scheduler.queued": "a job's submission is durable, nobody has been told",
    "scheduler.plan": "a plan is about to be handed out to a rank's daemon",
    "scheduler.drain": "a drain was asked for and has not begun",
    "journal.write": "changes are in a transaction of the scheduler's store that is not committed",
    "daemon.start": "a rank is about to be launched",
    "daemon.read_log": "a piece of a log is about to be read for who follows it",
    "daemon.stop": "a rank is about to be told to end",
    "daemon.shutdown": "a rank has ended and what it left is about to be cleared away",
    "worker.rendezvous": "a rank is about to join the others",
    "worker.allocate": "a rank knows its plan and is about to get memory for it",
    "worker.first_step": "all is bound, no step is done",
    "worker.step": "before each step",
    "worker.step_done": "a step is done and nobody has been told",
    "transfer.half": "half of the copies of a transfer between ranks are done",
    "collective.entered": "this rank has said that it is in a collective, and waits for the others",
    "ckpt.write": "a rank's shard is about to be written",
    "ckpt.before_sync": "a rank's shard is written and not yet closed",
    "ckpt.before_manifest": "all shards are there, the manifest is not",
    "ckpt.before_rename": "a checkpoint is whole, beside its place",
    "ckpt.before_last": "a checkpoint is in its place, last_checkpoint names the one before",
    "ckpt.after_last": "a checkpoint is complete, the scheduler does not know it",
    "rows.write": "rows of OneEmbedding are in their file, their ids are not",
    "rows.snapshot": "all that a snapshot of OneEmbedding lists is on the disk, its name is not",
    "worker.outputs": "all steps are done, the outputs are not written",
}
"""Every place there is."""


@dataclass
class Armed:
    """The fault that is armed at one place. hit: number of the passage; 0: each."""

    name: str
    action: str
    argument: str = ""
    hit: int = 0
    passages: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def pass_by(self) -> None:
        """Called at the place."""
        with self.lock:
            self.passages += 1
            if self.hit and self.passages != self.hit:
                return
        _DO[self.action](self)


_armed: dict[str, Armed] = {}


def failpoint(name: str) -> None:
    """A place where a test may interfere."""
    found = _armed.get(name)
    if found is not None:
        found.pass_by()


def is_armed(name: str) -> bool:
    """Is a place armed? For code that would have to be built differently to have the
    place at all.
    """
    return name in _armed


def arm(env: Mapping[str, str]) -> None:
    """Called once by each program's start. Raises ConfigError for unknown words."""
    _armed.clear()
    if env.get(TESTING) == "1":
        _armed.update({found.name: found for found in parse(env.get(VARIABLE, ""))})


def parse(text: str) -> list[Armed]:
    """Parse `name=action;...`. Raises ConfigError that names the entry."""
    found = [_entry(entry.strip()) for entry in text.split(";") if entry.strip()]
    names = [armed.name for armed in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{VARIABLE}: {name} is named twice")
    return found


def _entry(entry: str) -> Armed:
    name, equals, rest = entry.partition("=")
    if not equals:
        raise ConfigError(f"{VARIABLE}: {entry!r} is not name=action")
    if name not in FAILPOINTS:
        raise ConfigError(f"{VARIABLE}: there is no failpoint {name!r}: {', '.join(FAILPOINTS)}")
    what, at, when = rest.partition("@")
    action, _, argument = what.partition(":")
    if action not in _CHECKS:
        raise ConfigError(f"{VARIABLE}: {action!r} of {name} is none of {', '.join(_CHECKS)}")
    if not _CHECKS[action](argument):
        raise ConfigError(f"{VARIABLE}: {what!r} of {name}: {argument!r} does not fit {action}")
    return Armed(name, action, argument, _hit(name, when) if at else 0)


def _hit(name: str, text: str) -> int:
    word, _, number = text.partition("=")
    if (
        word != "hit"
        or not (number.isascii() and number.isdecimal())
        or len(number) > 10
        or not 0 < int(number) < 2**31
    ):
        raise ConfigError(f"{VARIABLE}: @{text} of {name} is not @hit=N with N from 1")
    return int(number)


def _is_seconds(text: str) -> bool:
    try:
        return 0 < float(text) <= MAX_SLEEP_S
    except ValueError:
        return False


# ---- what happens --------------------------------------------------------------------------------


def _kill(armed: Armed) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(armed: Armed) -> None:
    """Another process wakes this one: it cannot do that itself."""
    program = "import os, sys, time; time.sleep(float(sys.argv[1])); os.kill(int(sys.argv[2]), 18)"
    argv = [sys.executable, "-c", program, armed.argument, str(os.getpid())]
    subprocess.Popen(argv, start_new_session=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def _error(armed: Armed) -> None:
    number = getattr(errno, armed.argument)
    raise OSError(number, f"{os.strerror(number)} (failpoint {armed.name})")


def _sleep(armed: Armed) -> None:
    time.sleep(float(armed.argument))


def _gil(armed: Armed) -> None:
    ctypes.PyDLL(None).usleep(int(float(armed.argument) * 1e6))  # unlike CDLL it keeps the lock


def _hold(armed: Armed) -> None:
    mine = os.path.join(armed.argument, f"{armed.name}.{os.getpid()}")
    try:
        os.rename(os.path.join(armed.argument, armed.name), mine)  # one process only gets it
    except FileNotFoundError:
        return
    with suppress(FileNotFoundError):  # let go already
        if told := Path(mine).read_text():
            parse(f"{armed.name}={told}")[0].pass_by()
            return
    end = time.monotonic() + MAX_HOLD_S
    while os.path.exists(mine) and time.monotonic() < end:
        time.sleep(HOLD_LOOK_S)


_DO = {"kill": _kill, "stop": _stop, "error": _error, "sleep": _sleep, "gil": _gil, "hold": _hold}
_CHECKS: dict[str, Callable[[str], bool]] = {
    "kill": lambda text: not text,
    "stop": _is_seconds,
    "error": lambda text: text.startswith("E") and isinstance(getattr(errno, text, None), int),
    "sleep": _is_seconds,
    "gil": _is_seconds,
    "hold": lambda text: Path(text).is_absolute(),
}
