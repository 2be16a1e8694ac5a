"""One asyncio loop per process, in a thread of its own, shared by all that speaks gRPC.

gRPC's asyncio layer polls one completion queue per process and misbehaves with several loops, so
rank 0, which hosts the scheduler and is a client of it, must run both on the same loop.
"""

from __future__ import annotations

import concurrent.futures
import gc
import os
import sys
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from oneflow.core.errors import InternalError, OneFlowError

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_owner_pid = 0


def shared_loop() -> asyncio.AbstractEventLoop:
    """The process's control loop, started at the first call. A forked child gets its own."""
    # Late: a script of one process needs no loop, and asyncio brings ssl along.
    import asyncio

    global _loop, _owner_pid
    with _lock:
        if _loop is None or _owner_pid != os.getpid() or _loop.is_closed():
            _loop = asyncio.new_event_loop()
            _owner_pid = os.getpid()
            thread = threading.Thread(target=_loop.run_forever, name="oneflow-control", daemon=True)
            thread.start()
        return _loop


def submit(work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Starts `work` on the shared loop; callable from any other thread."""
    import asyncio

    return asyncio.run_coroutine_threadsafe(work, shared_loop())


def wait_for(work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """Runs `work` on the shared loop and waits for it from another thread.

    Ctrl-C in the waiting thread cancels the work. `timeout_s` is a safety net against a dead loop,
    not a protocol time-out: `work` has its own; when the net is hit, raises InternalError.
    """
    future = submit(work)
    try:
        return future.result(timeout_s)
    except concurrent.futures.TimeoutError:
        if future.done():
            raise
        future.cancel()
        raise InternalError(f"the control loop did not answer within {timeout_s:g} s") from None
    except OneFlowError as error:
        if not _is_of(future, error):  # a signal's handler raised it in this thread
            future.cancel()
            raise
        return result_of(future)
    except BaseException:
        future.cancel()
        raise


def _is_of(future: concurrent.futures.Future[Any], error: BaseException) -> bool:
    """Whether the work itself has raised it."""
    return future.done() and not future.cancelled() and future.exception() is error


def result_of(done: concurrent.futures.Future[T]) -> T:
    """Return the result of finished work or raise its error, without the loop's frames, which help
    nobody.
    """
    try:
        return done.result()
    except OneFlowError as error:
        raise error.with_traceback(None) from error.__cause__


def _in_child() -> None:
    """Leave inherited objects to the parent of a fork: when the collector finds objects of gRPC
    there, they wait without end for the thread that polled for them.
    """
    if "grpc" in sys.modules:
        gc.freeze()


os.register_at_fork(after_in_child=_in_child)
