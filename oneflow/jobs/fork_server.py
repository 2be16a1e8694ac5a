"""The process that a daemon's workers are forked from: `python -m oneflow.jobs.fork_server --fd N`.

It imports once the modules that every rank of a graph job needs (worker.py lists them), and makes a
copy of itself for each job (oneflow/services/forking.py).
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from functools import partial
from importlib import import_module

from oneflow.jobs import worker
from oneflow.kernels.threads import find_blas
from oneflow.services import pulse
from oneflow.services.forking import serve

NAME = b"oneflow-worker"
REHEARSAL = "oneflow.jobs.warm_up"
_PR_SET_NAME = 15


def main() -> None:
    """Serves until the daemon is gone. Each forked worker goes on from here as one."""
    parser = argparse.ArgumentParser(prog="python -m oneflow.jobs.fork_server")
    parser.add_argument("--fd", type=int, required=True, help="of the socket to the daemon")
    control = socket.socket(fileno=parser.parse_args().fd)
    control.set_inheritable(False)
    for signum in (signal.SIGINT, signal.SIGTERM):  # the daemon's business; its end is ours too
        signal.signal(signum, signal.SIG_IGN)
    worker.load_modules(worker.WARM)
    find_blas()
    later = [partial(worker.load_modules, (name,)) for name in worker.WARM_LATER]
    ends = serve(control, [*later, lambda: import_module(REHEARSAL).rehearse()])
    if ends is not None:
        os._exit(_run(_become(*ends)))


def _become(stdout: int, stderr: int, own_pulse: int, sock: int) -> int:
    """Take the worker's name, streams and signals; return its socket."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, NAME, 0, 0, 0)
    sys.stdout.flush()
    sys.stderr.flush()
    for descriptor, target in ((stdout, 1), (stderr, 2)):
        os.dup2(descriptor, target)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ[pulse.VARIABLE] = str(own_pulse)
    return sock


def _run(descriptor: int) -> int:
    """Run the worker to its end; return its exit code.

    The interpreter is not taken apart: that would touch, and so copy, all that was imported.
    """
    code: object = None
    try:
        worker.main(descriptor)
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
