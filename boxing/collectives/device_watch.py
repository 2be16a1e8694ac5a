"""Looks after collectives that run on GPUs: a kernel that waits for a peer cannot look itself.

Calls on GPUs return before they are done. One thread of the process asks, once in `SLICE_S`, for
each set of ranks: is the oldest call done? Has NCCL met an error? If not done for long: is a peer
gone, does a peer say that it makes another call, is the time-out over? Then the communicator is
aborted, which lets its kernels end; they leave no result behind, so from then on every use of the
set, and every copy to the host (`raise_if_broken`), raises the error.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from oneflow.boxing.collectives.base import LONG_WAIT_S, CallInfo, Collectives
from oneflow.boxing.collectives.call_log import raise_difference
from oneflow.boxing.transport.rendezvous import SLICE_S, KeyValueStore
from oneflow.core.errors import OneFlowError, PeerLostError, TransportError
from oneflow.core.log import get_logger

log = get_logger(__name__)

LEAVE_GRACE_S = 1.0
"""A peer that has done its part may leave: so long may a call take to end after a peer is gone."""

ASYNC_GRACE_S = 2.0
"""NCCL notices that a peer died before the scheduler says so, which tells more: so long it may take
until NCCL's own words are used."""

ABORT_GRACE_S = 1.0
"""So long an abort waits for this rank to be done with starting a call."""

_ASK_S = 0.05
_POST_EVERY_S = 1.0


class Communicator(Protocol):
    """The communicator that is watched."""

    def check_async_error(self) -> None: ...
    def abort(self) -> None: ...


@dataclass(eq=False)
class Work:
    """One call. event: recorded behind its kernels; None while they are still being started."""

    number: int
    info: CallInfo
    begun_at: float
    event: Any = None

    @property
    def is_done(self) -> bool:
        return self.event is not None and bool(self.event.done)


class DeviceWatch:
    """The calls of one rank on one set of ranks that are not known to be done.

    ends: the set.  kv: where ranks that wait name their calls.  clock: seconds.
    """

    def __init__(
        self,
        name: str,
        ends: Collectives,
        communicator: Communicator,
        kv: KeyValueStore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.starting = threading.Lock()
        """Held while a call is being started."""
        self.error: Exception | None = None
        self._key = f"nccl/{name}/waits"
        self._ends = weakref.ref(ends)
        self._communicator = communicator
        self._kv = kv
        self._clock = clock
        self._works: deque[Work] = deque()
        self._lock = threading.Lock()
        self._moved_at = clock()
        self._posted_at = 0.0
        self._lost_at: float | None = None
        self._failed_at: float | None = None

    def begin(self, number: int, info: CallInfo) -> Work:
        """Notes down a call before it starts."""
        work = Work(number, info, self._clock())
        with self._lock:
            self._works.append(work)
        return work

    def drop(self, work: Work) -> None:
        """The call was never started."""
        with self._lock:
            if work in self._works:
                self._works.remove(work)

    @property
    def is_idle(self) -> bool:
        """All calls are done, or there is nothing to wait for any more."""
        self._pop_done()
        return self.error is not None or not self._works

    @property
    def is_forgotten(self) -> bool:
        """The set was thrown away without `close`."""
        return self._ends() is None

    def raise_if_broken(self) -> None:
        """Raises the error for which the communicator was aborted."""
        if self.error is not None:
            raise self.error

    def look(self) -> None:
        """One look; on trouble aborts the communicator and keeps the error."""
        ends = self._ends()
        if ends is None or self.error is not None:
            return
        try:
            self._look(ends)
        except Exception as error:
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Aborts, so that kernels that wait for a peer end; `error` is raised from then on."""
        self.error = error if isinstance(error, OneFlowError) else TransportError(f"NCCL: {error}")
        log.error("GPU collectives are given up: %s", self.error)
        is_still = self.starting.acquire(timeout=ABORT_GRACE_S)
        try:
            self._communicator.abort()  # also of a rank that hangs in the start of a call
        finally:
            if is_still:
                self.starting.release()
        with self._lock:
            self._works.clear()

    def _look(self, ends: Collectives) -> None:
        self._pop_done()
        self._check_nccl(ends)
        with self._lock:
            oldest = self._works[0] if self._works else None
        if oldest is None:
            self._lost_at = None
            return
        waited_s = self._clock() - max(oldest.begun_at, self._moved_at)
        self._check_peers(ends, oldest)
        if waited_s > LONG_WAIT_S:
            self._tell(ends, oldest)
        if waited_s > ends.timeout_s and not oldest.is_done:
            ends._raise_hang(oldest.info, ends.peers)

    def _check_nccl(self, ends: Collectives) -> None:
        try:
            self._communicator.check_async_error()
        except Exception:
            now = self._clock()
            self._failed_at = now if self._failed_at is None else self._failed_at
            if ends._peer_check is not None:
                ends._peer_check(ends.peers)
            if now - self._failed_at >= ASYNC_GRACE_S:
                raise

    def _pop_done(self) -> None:
        with self._lock:
            while self._works and self._works[0].is_done:
                self._works.popleft()
                self._moved_at = self._clock()

    def _check_peers(self, ends: Collectives, oldest: Work) -> None:
        if ends._peer_check is None:
            return
        try:
            ends._peer_check(ends.peers)
        except PeerLostError as error:
            now = self._clock()
            self._lost_at = now if self._lost_at is None else self._lost_at
            if now - self._lost_at >= LEAVE_GRACE_S and not oldest.is_done:
                ends._raise_lost(oldest.info, ends.peers, error)

    def _tell(self, ends: Collectives, oldest: Work) -> None:
        """Tell others the call that this rank waits in, and look whether a peer waits in another
        call of that number: then both would wait for ever."""
        if ends.watch is not None:
            ends.watch.still(oldest.number, oldest.info.text, ends.peers)
        now = self._clock()
        if now - self._posted_at < _POST_EVERY_S:
            return
        self._posted_at = now
        mine = f"{oldest.number}\n{oldest.info.signature}\n{oldest.info.text}"
        self._kv.put(f"{self._key}/{ends.rank}", mine.encode())
        texts = {ends.rank: oldest.info.text}
        for peer in ends.peers:
            said = self._waits_of(peer)
            if said is None or int(said[0]) != oldest.number:
                continue
            if int(said[1]) != oldest.info.signature:
                texts[peer] = said[2]
        if len(texts) > 1:
            raise_difference(oldest.number, texts)

    def _waits_of(self, peer: int) -> list[str] | None:
        """[number, signature, text] of the call in which a peer said it waits."""
        try:
            return self._kv.get(f"{self._key}/{peer}", _ASK_S).decode().split("\n", 2)
        except OneFlowError:
            return None  # it waits for nothing


class _Looker:
    """The thread that looks at all watches of this process, as long as there are any."""

    def __init__(self) -> None:
        self._watches: list[DeviceWatch] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, watch: DeviceWatch) -> None:
        with self._lock:
            self._watches.append(watch)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="oneflow-device-watch", daemon=True
                )
                self._thread.start()

    def remove(self, watch: DeviceWatch) -> None:
        with self._lock:
            if watch in self._watches:
                self._watches.remove(watch)

    def first_error(self) -> Exception | None:
        with self._lock:
            return next((w.error for w in self._watches if w.error is not None), None)

    def _run(self) -> None:
        while True:
            time.sleep(SLICE_S)
            with self._lock:
                self._watches = [w for w in self._watches if not w.is_forgotten]
                watches = list(self._watches)
                if not watches:
                    self._thread = None
                    return
            for watch in watches:
                watch.look()


_looker = _Looker()
add_watch = _looker.add
remove_watch = _looker.remove


def raise_if_broken() -> None:
    """Raise the error for which GPU collectives of this process were given up, if any: the arrays
    that their kernels left must not be used. Call it after waiting for a GPU."""
    error = _looker.first_error()
    if error is not None:
        raise error
