"""The process that a daemon's workers are forked from: `python -m oneflow.jobs.fork_server --fd N`.

It imports once what every rank of a graph job needs (worker.py says what), and makes a copy of
itself for each job in milliseconds. It runs no threads of its own, opens no connection and touches
no device: nothing that a fork would break is there.

The daemon asks over a socket (oneflow/services/forking.py), the descriptors of the worker with it,
and is answered with its pid. A worker becomes the daemon's own child: a process between the two
ends as soon as the daemon knows the worker, and the daemon adopts what that one leaves
(PR_SET_CHILD_SUBREAPER). The worker goes on only then, so that none outlives a daemon that never
heard of it.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import gc
import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress

from oneflow.jobs import worker
from oneflow.kernels.threads import find_blas
from oneflow.services import pulse
from oneflow.services.forking import ANSWER, READY, Ends

IDLE_S = 1.0
NAME = b"oneflow-worker"
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Serves until the daemon is gone. Each forked worker goes on from here as one."""
    parser = argparse.ArgumentParser(prog="python -m oneflow.jobs.fork_server")
    parser.add_argument("--fd", type=int, required=True, help="of the socket to the daemon")
    control = socket.socket(fileno=parser.parse_args().fd)
    control.set_inheritable(False)
    for signum in (signal.SIGINT, signal.SIGTERM):  # the daemon's business; its end is ours too
        signal.signal(signum, signal.SIG_IGN)
    ends = _serve(control, os.getppid())
    if ends is None:
        return
    control.close()
    os._exit(_run(["--fd", str(_become(ends))]))


def _serve(control: socket.socket, daemon: int) -> Ends | None:
    """Return in each worker its ends; in this process None, when the daemon has gone."""
    worker.load_modules(worker.WARM)
    find_blas()
    _settle()
    control.send(READY)
    later = list(worker.WARM_LATER)
    while True:
        readable, _, _ = select.select([control], [], [], IDLE_S if later else None)
        if not readable:
            worker.load_modules((later.pop(0),))
            _settle()
            continue
        ends = Ends.receive(control)
        if ends is None:
            return None
        if _fork(control, ends, daemon):
            return ends
        ends.close()


def _settle() -> None:
    """Leaves what was imported out of the collector's sight: it would touch, and so copy, all of it
    in each worker."""
    gc.collect()
    gc.freeze()


def _fork(control: socket.socket, ends: Ends, daemon: int) -> bool:
    """Whether this is the worker."""
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
        os.read(ends.known, 1)  # its end: the daemon knows the worker, or has gone
        os._exit(0)
    _libc.prctl(_PR_SET_NAME, NAME, 0, 0, 0)
    # A pidfd tells of the end only when children have their new parent; a pipe is closed before.
    select.select([between], [], [])
    os.close(between)
    os.setsid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != daemon:
        os._exit(worker.ORPHANED)
    return True


def _become(ends: Ends) -> int:
    """Take the worker's streams and signals; return its socket."""
    os.close(ends.known)
    sys.stdout.flush()
    sys.stderr.flush()
    for descriptor, target in ((ends.stdout, 1), (ends.stderr, 2)):
        os.dup2(descriptor, target)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ[pulse.VARIABLE] = str(ends.pulse)
    return ends.sock


def _run(argv: list[str]) -> int:
    """Run the worker to its end; return its exit code.

    The interpreter is not taken apart: that would touch, and so copy, all that was imported.
    """
    code: object = None
    try:
        worker.main(argv)
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        try:
            sys.excepthook(type(error), error, error.__traceback__)
            code = 1
        except SystemExit as ended:
            code = ended.code
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads any more
            stream.flush()
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    main()
