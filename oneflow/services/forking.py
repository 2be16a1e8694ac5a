"""Forks processes, in milliseconds, from a server that has imported all that they need.

The server runs no threads of its own, opens no connection and touches no device: nothing that a
fork would break is there. Its asker, which started it, sends the descriptors of a new process over
a socket of sequenced packets and is answered with its pid. The process becomes the asker's own
child: one between it and the server ends as soon as the asker knows of it, and the asker adopts its
children (PR_SET_CHILD_SUBREAPER). It goes on only then, so that none outlives an asker that never
heard of it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence

READY = b"r"
SETTLED = b"s"  # all that new processes would need is ready
ANSWER = struct.Struct("<i")  # the pid, or the negative errno of a fork that failed
ORPHANED = 143
IDLE_S = 1.0
MAX_FDS = 8
_ASK = b"f"
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def ask(control: socket.socket, known: int, ends: Sequence[int]) -> None:
    """Asks for a process with these ends. known: ends when the asker knows of it, or is gone."""
    socket.send_fds(control, [_ASK], [known, *ends])


def serve(control: socket.socket, later: Iterable[Callable[[], object]] = ()) -> list[int] | None:
    """Return in each new process its ends; in this one None, when the asker has gone.

    later: further preparations for new processes, made in one go when nobody asks for a while.
    """
    asker, waiting, patience_s = os.getppid(), deque(later), IDLE_S
    _settle()
    control.send(READY)
    while True:
        readable, _, _ = select.select([control], [], [], patience_s if waiting else None)
        if not readable:
            waiting.popleft()()
            _settle()
            patience_s = 0.0
            if not waiting:
                control.send(SETTLED)
            continue
        patience_s = IDLE_S
        ends = _receive(control)
        if not ends:
            return None
        if _fork(control, ends[0], asker):
            control.close()
            os.close(ends[0])
            return ends[1:]
        for descriptor in ends:
            os.close(descriptor)


def _receive(control: socket.socket) -> list[int]:
    """Wait for the ends of the next process; none: the asker has gone."""
    try:
        _, ends, _, _ = socket.recv_fds(control, len(_ASK), MAX_FDS, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return []
    return ends


def _settle() -> None:
    """Leave the imported objects out of the collector's sight: it would touch, and so copy, all of
    them in each new process."""
    gc.collect()
    gc.freeze()


def _fork(control: socket.socket, known: int, asker: int) -> bool:
    """Whether this is the new process."""
    try:
        middle = os.fork()
    except OSError as error:
        control.send(ANSWER.pack(-(error.errno or 1)))
        return False
    if middle:
        os.waitpid(middle, 0)
        return False
    between = os.pidfd_open(os.getpid())
    try:
        pid = os.fork()
    except OSError as error:
        control.send(ANSWER.pack(-(error.errno or 1)))
        os._exit(1)
    if pid:
        control.send(ANSWER.pack(pid))
        os.read(known, 1)  # its end: the asker knows of the process, or has gone
        os._exit(0)
    # A pidfd tells of the end only when children have their new parent; a pipe is closed before.
    select.select([between], [], [])
    os.close(between)
    os.setsid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != asker:
        os._exit(ORPHANED)
    return True
