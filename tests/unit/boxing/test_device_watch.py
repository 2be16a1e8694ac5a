"""GPU calls that never end, or that differ between ranks, end in errors that name them. With a
stand-in for CuPy and NCCL; ranks are threads.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from oneflow.boxing.collectives import device_watch, nccl
from oneflow.boxing.collectives.base import call_info
from oneflow.boxing.collectives.call_log import EVERY, MAX_KNOWN, CallLog
from oneflow.boxing.collectives.device_watch import DeviceWatch
from oneflow.boxing.collectives.in_process import InProcessGroup
from oneflow.boxing.collectives.nccl import NcclCollectives
from oneflow.core.errors import DesyncError, HangError, PeerLostError, TransportError
from tests.support.waiting import CALL_S

from . import stand_in_cupy
from .boxing_ranks import LocalStore, in_threads


@pytest.fixture(autouse=True)
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(device_watch, "LONG_WAIT_S", 0.1)
    monkeypatch.setattr(device_watch, "LEAVE_GRACE_S", 0.1)
    monkeypatch.setattr(device_watch, "ABORT_GRACE_S", 0.05)
    monkeypatch.setattr(nccl, "CLOSE_S", 0.2)
    with stand_in_cupy.installed() as module:
        yield module


class Store(LocalStore):
    """Gives up as the job's store does."""

    def get(self, key: str, timeout_s: float) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_s):
                raise TransportError(f"no {key} within {timeout_s} s")
            return self._values[key]


def array(size: int = 4) -> Any:
    import cupy

    return cupy.asarray(np.ones(size, np.float32))


def ranks(p: int, work: Callable[[Any], Any], **options: Any) -> list[Any]:
    """Runs `work` on each rank; lists its results or errors."""
    store, group = Store(), InProcessGroup(tuple(range(p)))

    def rank(i: int) -> Any:
        c = NcclCollectives("g", i, range(p), store, group.collectives(i), **options)
        try:
            return work(c)
        except Exception as error:
            return error
        finally:
            c.close()

    return in_threads(p, rank)


# ---- who calls what ------------------------------------------------------------------------------


def test_calls_that_all_know_need_no_round_trip() -> None:
    def work(c: Any) -> int:
        for _ in range(EVERY + 10):
            c.all_reduce(array())
        comparisons: int = c._log.comparisons
        return comparisons

    assert ranks(2, work) == [2, 2]  # of the first, and of the 64th after it


def test_a_new_call_that_differs_is_found_before_it_starts() -> None:
    def work(c: Any) -> None:
        c.all_reduce(array(4))
        c.all_reduce(array(5 + c.rank))

    for error in ranks(2, work):
        assert isinstance(error, DesyncError), error
        assert "their call 2 on GPUs" in str(error)
        assert "rank 0: all_reduce(sum) float32[5] at" in str(error)
        assert "rank 1: all_reduce(sum) float32[6] at" in str(error)
        assert "test_device_watch.py" in str(error)


def test_known_calls_in_another_order_are_found_when_a_new_one_comes() -> None:
    def work(c: Any) -> None:
        log = c._log
        a, b, new = (call_info(k, "float32", (4,), "") for k in ("a", "b", "c"))
        for number, info in enumerate((a, b, a, b), 1):
            log.agree(number, info)
        log.agree(5, a if c.rank else b)
        log.agree(6, new)

    for error in ranks(2, work):
        assert isinstance(error, DesyncError)
        assert "their call 5 on GPUs): rank 0: b float32[4]; rank 1: a float32[4]" in str(error)


def test_known_calls_that_differ_are_found_by_the_next_comparison() -> None:
    def work(c: Any) -> None:
        a, b = (call_info(k, "float32", (4,), "") for k in "ab")
        for number, info in enumerate((a, b), 1):
            c._log.agree(number, info)
        for number in range(3, 3 + EVERY):
            c._log.agree(number, b if number == 20 and c.rank else a)

    for error in ranks(2, work):
        assert isinstance(error, DesyncError) and "their call 20 on GPUs" in str(error)


def test_a_rank_that_makes_one_call_less_is_found() -> None:
    def work(c: Any) -> None:
        a, new = (call_info(k, "float32", (4,), "") for k in "an")
        for number in range(1, 6 if c.rank else 5):
            c._log.agree(number, a)
        c._log.agree(6 if c.rank else 5, new)

    for error in ranks(2, work):
        assert isinstance(error, DesyncError)
        assert "call 5 on GPUs): rank 0: n float32[4]; rank 1: a float32[4]" in str(error)


def test_what_is_known_stays_bounded() -> None:
    log = CallLog(InProcessGroup((0,)).collectives(0))
    for number in range(MAX_KNOWN + 10):
        log.agree(number, call_info(f"call{number}", "float32", (4,), ""))
    assert len(log._known) == 10


def test_two_ranks_that_hang_in_different_calls_say_so() -> None:
    """Both calls are known, so both have started, and none ever ends."""

    def work(c: Any) -> None:
        c.all_reduce(array(4))
        c.all_to_all(array(4).reshape(2, 2))
        if c.rank:
            c.all_to_all(array(4).reshape(2, 2))
        else:
            c.all_reduce(array(4))

    errors = ranks(2, work, timeout_s=CALL_S)
    assert any(
        isinstance(e, DesyncError)
        and "rank 0: all_reduce(sum) float32[4]" in str(e)
        and "rank 1: all_to_all float32[2, 2]" in str(e)
        for e in errors
    ), errors


# ---- who never comes -----------------------------------------------------------------------------


def _first_alone(c: Any) -> None:
    """Both agree; then only rank 0 calls."""
    c.all_reduce(array())
    if c.rank == 0:
        c.timeout_s = 1.0  # only now: the first call may take longer
        c.all_reduce(array())


def test_a_rank_that_does_not_come_is_a_hang_that_names_the_call() -> None:
    error, _ = ranks(2, _first_alone)
    assert isinstance(error, HangError)
    assert "all_reduce(sum) float32[4] at" in str(error)
    assert "rank 0 waited 1 s for rank 1" in str(error)


def test_a_lost_peer_ends_the_call() -> None:
    is_lost = threading.Event()

    def check(peers: Any) -> None:
        if is_lost.is_set():
            raise PeerLostError(f"rank {peers[0]} failed first")

    def work(c: Any) -> None:
        c.all_reduce(array())
        if c.rank == 0:
            is_lost.set()
            c.all_reduce(array())

    error, _ = ranks(2, work, timeout_s=CALL_S, check=check)
    assert isinstance(error, PeerLostError)
    assert "rank 1 failed first (rank 0 was in all_reduce(sum) float32[4]" in str(error)


def test_after_an_error_everything_raises_it_and_close_does_not_wait() -> None:
    def work(c: Any) -> Any:
        try:
            _first_alone(c)
        except HangError:
            with pytest.raises(HangError):
                c.all_reduce(array())
            with pytest.raises(HangError):
                c.synchronize()
            with pytest.raises(HangError):
                device_watch.raise_if_broken()
            c.close()
            assert c._communicator.is_aborted and not c._communicator.is_destroyed
            return "as it should"
        return None

    assert ranks(2, work) == ["as it should", None]
    device_watch.raise_if_broken()  # the set is closed


def test_errors_of_nccl_end_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_watch, "ASYNC_GRACE_S", 0.1)

    def work(c: Any) -> None:
        c.all_reduce(array())
        if c.rank == 0:
            c._communicator.async_error = stand_in_cupy.NcclError("remote process exited")
            c.all_reduce(array())

    error, _ = ranks(2, work, timeout_s=CALL_S)
    assert isinstance(error, TransportError) and "remote process exited" in str(error)


def test_an_error_at_the_start_names_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(c: Any) -> None:
        def refuse(*_: Any) -> None:
            raise stand_in_cupy.NcclError("invalid usage")

        c._communicator.allReduce = refuse
        c.all_reduce(array())

    for error in ranks(2, work):
        assert isinstance(error, TransportError)
        assert "all_reduce(sum) float32[4]" in str(error) and "invalid usage" in str(error)


def test_a_peer_that_dies_while_ranks_join_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def never(*_: Any) -> None:
        over.wait(CALL_S)

    import cupy

    monkeypatch.setattr(cupy.cuda.nccl, "NcclCommunicator", never)

    def check(peers: Any) -> None:
        raise PeerLostError("rank 1 failed first")

    guard = InProcessGroup((0, 1)).collectives(0)
    try:
        with pytest.raises(PeerLostError, match="rank 1 failed first"):
            NcclCollectives("g", 0, (0, 1), LocalStore(), guard, check)
        with pytest.raises(HangError, match=r"not joined the ranks \[0, 1\] within 0.1 s"):
            NcclCollectives("h", 0, (0, 1), LocalStore(), guard, timeout_s=0.1)
    finally:
        over.set()


def test_ranks_that_nccl_refuses_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    def refuse(*_: Any) -> None:
        raise stand_in_cupy.NcclError("duplicate GPU detected")

    monkeypatch.setattr(cupy.cuda.nccl, "NcclCommunicator", refuse)
    guard = InProcessGroup((0, 1)).collectives(0)
    with pytest.raises(TransportError, match=r"join the ranks \[0, 1\]: on rank 0: duplicate GPU"):
        NcclCollectives("g", 0, (0, 1), LocalStore(), guard)


# ---- the watch itself ----------------------------------------------------------------------------


class Now:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def _watch(timeout_s: float = 10.0, **options: Any) -> tuple[DeviceWatch, Any, Now]:
    now = Now()
    ends = InProcessGroup((0, 1)).collectives(0, timeout_s=timeout_s, **options)
    communicator = stand_in_cupy.NcclCommunicator(1, bytes(127) + b"w", 0)
    return DeviceWatch("w", ends, communicator, Store(), now), ends, now


INFO = call_info("all_reduce(sum)", "float32", (4,), "train.py:3")


def test_waiting_is_counted_from_when_the_call_before_was_done() -> None:
    watch, ends, now = _watch()
    first, second = watch.begin(1, INFO), watch.begin(2, INFO)
    first.event, second.event = stand_in_cupy.Event(), stand_in_cupy.Event()
    now.s = 9.0
    first.event.done = True
    watch.look()
    now.s = 18.0
    watch.look()
    assert watch.error is None and not watch.is_idle
    now.s = 19.5
    watch.look()
    assert isinstance(watch.error, HangError) and watch.is_idle
    del ends


def test_a_call_that_ends_just_after_its_peer_has_left_is_no_error() -> None:
    def gone(peers: Any) -> None:
        raise PeerLostError("rank 1 exited")

    watch, ends, now = _watch(check=gone)
    work = watch.begin(1, INFO)
    work.event = stand_in_cupy.Event()
    watch.look()
    now.s = 0.05
    work.event.done = True
    watch.look()
    now.s = 5.0
    watch.look()
    assert watch.error is None and ends.rank == 0


def test_a_set_that_is_forgotten_is_watched_no_longer() -> None:
    watch, ends, _ = _watch()
    del ends
    gc.collect()
    assert watch.is_forgotten
    watch.begin(1, INFO)
    watch.look()
    assert watch.error is None
