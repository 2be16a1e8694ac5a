"""Waits for words of shared pages: a rank spins for a while, then sleeps on a futex."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable

from oneflow.boxing.transport.pages import SharedPage
from oneflow.boxing.transport.rendezvous import SLICE_S

_SYS_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1


def _futex_number() -> int:
    return _SYS_FUTEX.get(os.uname().machine, 202)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_NUMBER = ctypes.c_long(_futex_number())
_WAIT, _WAKE, _ALL = ctypes.c_int(_FUTEX_WAIT), ctypes.c_int(_FUTEX_WAKE), ctypes.c_int(2**31 - 1)
_LOW = 0 if sys.byteorder == "little" else 4
_fence_lock = threading.Lock()
QUIET_SPIN_S = 8e-6  # then others may have the core between two looks: the peer may wait for it


def futex_wait(page: SharedPage, index: int, expected: int, timeout_s: float) -> None:
    """Sleeps while the low half of word `index` is `expected`; until a wake, signal or `timeout_s`.

    The kernel compares and sleeps in one step, so a wake after a change is never missed. Look at
    the word again after the return: it does not say why it came back. Lets other Python threads run
    meanwhile.
    """
    seconds = int(timeout_s)
    limit = _Timespec(seconds, int((timeout_s - seconds) * 1e9))
    address = ctypes.c_void_p(page.address + 8 * index + _LOW)
    value = ctypes.c_uint32(expected & 0xFFFFFFFF)
    _syscall(_NUMBER, address, _WAIT, value, ctypes.byref(limit), None, 0)


def futex_wake(page: SharedPage, index: int) -> None:
    """Wakes all that sleep on word `index`."""
    _syscall(_NUMBER, ctypes.c_void_p(page.address + 8 * index + _LOW), _WAKE, _ALL, None, None, 0)


def full_fence() -> None:
    """No later load is done before earlier stores are visible to all.

    x86 keeps all other orders by itself; taking a lock is an atomic exchange, which keeps this one
    too.
    """
    _fence_lock.acquire()
    _fence_lock.release()


def publish_progress(page: SharedPage, index: int, value: int, sleepers: memoryview[int]) -> None:
    """Set word `index` and wake the ranks that sleep on it. Only the owner of the word may call it.

    sleepers: words of which each waiter sets its own (see `wait_progress`).
    """
    page.words[index] = value
    full_fence()
    if any(sleepers):
        futex_wake(page, index)


def wait_progress(
    page: SharedPage,
    index: int,
    target: int,
    sleeper: int,
    check: Callable[[], None],
    spin_s: float,
) -> None:
    """Returns when word `index` is at least `target`: spins for `spin_s`, then sleeps.

    sleeper: index of the caller's own word, set while it sleeps.  check: called every 50 ms; raises
    to give up.
    """
    words = page.words
    if words[index] >= target:
        return
    now = time.perf_counter()
    limit, patience = now + spin_s, now + QUIET_SPIN_S
    while now < limit:
        if words[index] >= target:
            return
        if now > patience:
            os.sched_yield()
            if words[index] >= target:
                return
        now = time.perf_counter()
    words[sleeper] = 1
    try:
        while True:
            full_fence()
            seen = words[index]
            if seen >= target:
                return
            futex_wait(page, index, seen, SLICE_S)
            check()
    finally:
        words[sleeper] = 0
