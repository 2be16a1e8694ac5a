"""Reports of this rank's long waits to the scheduler, which knows those of all ranks and finds the
ranks that wait for each other in different calls (see `oneflow.scheduler.waits`).
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from oneflow.core.errors import DesyncError, PeerLostError
from oneflow.core.loop import result_of

if TYPE_CHECKING:
    from oneflow.actors.control import ControlClient

COMPILE = "compile"
LAST_WORD_S = 0.2  # a verdict on our own wait says more than that another rank has failed


class LongWaits:
    """The long waits that this rank has reported. One per process.

    Only a rank whose calls all come from one thread tells: of two threads, one may do the work
    that the other waits for.
    """

    def __init__(self) -> None:
        self._reached: dict[str, Callable[[], int]] = {}
        self._threads: set[int] = set()
        self._num_compiles = 0
        self._asked: concurrent.futures.Future[None] | None = None
        self._wait: tuple[str, int] | None = None

    def add_place(self, place: str, reached: Callable[[], int]) -> None:
        """reached: the number of the last call that this rank has begun at `place`."""
        self._threads.add(threading.get_ident())
        self._reached[place] = reached

    def still(
        self, client: ControlClient, place: str, number: int, text: str, missing: Sequence[int]
    ) -> None:
        """This rank has waited in a call for long. Raises DesyncError if it would for ever.

        Returns at once; to be called again and again while the wait lasts.
        """
        self._threads.add(threading.get_ident())
        if len(self._threads) > 1:
            return
        asked = self._asked
        if asked is not None and not asked.done():
            return
        self._asked = None
        if asked is not None and self._wait == (place, number):
            _raise_verdict(asked)
        self._wait = place, number
        reached = {place: count() for place, count in self._reached.items()}
        self._asked = client.ask_wait(place, number, text, missing, reached)

    def last_word(
        self, client: ControlClient, place: str, number: int, text: str, missing: Sequence[int]
    ) -> None:
        """The job is over. Raises DesyncError if this rank's wait was the cause."""
        if self._wait != (place, number):
            return
        self.still(client, place, number, text, missing)
        if self._asked is not None:
            concurrent.futures.wait([self._asked], LAST_WORD_S)
            if self._asked.done():
                _raise_verdict(self._asked)

    def compiled(
        self,
        client: ControlClient,
        ask: Callable[[], concurrent.futures.Future[bytes]],
        text: str,
    ) -> bytes:
        """The plan of one compile, which all ranks must ask for.

        Raises the errors of the compile, and DesyncError if others wait elsewhere for this rank.
        """
        from oneflow.boxing.collectives.base import LONG_WAIT_S
        from oneflow.boxing.transport.rendezvous import SLICE_S

        if not self._num_compiles:
            self.add_place(COMPILE, lambda: self._num_compiles)
        self._num_compiles += 1
        others = [r for r in range(client.world_size) if r != client.rank]
        wait = COMPILE, self._num_compiles, text, others
        asked, started_at = ask(), time.monotonic()
        try:
            while not concurrent.futures.wait([asked], SLICE_S).done:
                if time.monotonic() - started_at > LONG_WAIT_S:
                    self.still(client, *wait)
            return result_of(asked)
        except PeerLostError:
            self.last_word(client, *wait)
            raise
        finally:
            asked.cancel()


def _raise_verdict(asked: concurrent.futures.Future[None]) -> None:
    """Raise the scheduler's finding alone; the heartbeat judges whether it can be reached."""
    error = None if asked.cancelled() else asked.exception()
    if isinstance(error, DesyncError):
        raise DesyncError(str(error))
