"""Shows the starter of this process that its interpreter runs: a byte into a pipe, several times a
second, from a thread of its own.

A heartbeat over a connection begins only when the ranks have met, and a script may have none. The
thread stands still with the process (SIGSTOP) and with the interpreter (a call that keeps the
lock). Standard library only: the bootstrap of scripts runs this file by its path.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import MutableMapping
from contextlib import suppress

VARIABLE = "ONEFLOW_PULSE_FD"
BEAT_S = 0.2
DUMP_SIGNAL = signal.SIGUSR2  # whoever sees us stand still asks for our stacks


def start(env: MutableMapping[str, str]) -> None:
    """Beats from now on, if `env` names a pipe; takes the name out, for our children are not us.

    A process that becomes another program, or is about to end, closes the pipe: nothing can be
    judged by it any more.
    """
    text = env.pop(VARIABLE, "")
    if not text.isdecimal():
        return
    fd = int(text)
    try:
        os.set_inheritable(fd, False)
        os.set_blocking(fd, False)
    except OSError:
        return  # a process between us and who made the pipe has closed it
    if sys.stderr is not None and signal.getsignal(DUMP_SIGNAL) is signal.SIG_DFL:
        faulthandler.register(DUMP_SIGNAL, all_threads=True)
    ended = threading.Event()
    thread = threading.Thread(target=_beat, args=(fd, ended), name="oneflow-pulse", daemon=True)
    thread.start()
    atexit.register(_end, fd, ended, thread)


def _beat(fd: int, ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            os.write(fd, b".")
        except BlockingIOError:  # nobody has read for hours
            pass
        except OSError:
            return
        ended.wait(BEAT_S)


def _end(fd: int, ended: threading.Event, thread: threading.Thread) -> None:
    ended.set()
    thread.join(2 * BEAT_S)
    with suppress(OSError):
        os.close(fd)
