"""How a rank waits for the others of a set: not for the dead, and not in a circle."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oneflow.boxing.collectives.base import ADVICE, LONG_WAIT_S, SLICE_S
from oneflow.core.errors import HangError, PeerLostError, TransportError
from oneflow.core.location import user_call

if TYPE_CHECKING:
    from oneflow.actors.control import ControlClient
    from oneflow.boxing.collectives.base import Collectives
    from oneflow.distributed.long_waits import LongWaits

OPENING = 0  # the number of the first thing that the ranks of a set do together


class Meeting:
    """One set of ranks, as a backend of collectives needs it: the keys of the job, and the checks
    of a rank that waits.
    """

    def __init__(self, client: ControlClient, waits: LongWaits, ranks: tuple[int, ...]) -> None:
        self._client, self._waits = client, waits
        self._peers = tuple(r for r in ranks if r != client.rank)
        self._place = place_of(ranks)
        self._started_at = time.monotonic()
        self._first = f"{user_call()} (the first call on {_named(ranks)})"
        self._opened: Collectives | None = None
        waits.add_place(self._place, self._calls)

    def watch(self, opened: Collectives) -> None:
        """The set is open: its long waits are told from now on."""
        self._opened, opened.watch = opened, self

    def _calls(self) -> int:
        return OPENING if self._opened is None else self._opened.calls

    def put(self, key: str, value: bytes) -> None:
        """As `ControlClient.put`."""
        self._client.put(key, value)

    def get(self, key: str, timeout_s: float) -> bytes:
        """As `ControlClient.get`, but notices that the other ranks will not come.

        Raises HangError after `timeout_s`.
        """
        asked, started_at = self._client.ask_get(key, timeout_s), time.monotonic()
        try:
            while not concurrent.futures.wait([asked], SLICE_S).done:
                self.check(self._peers)
            return asked.result()
        except TransportError as error:
            if time.monotonic() - started_at < timeout_s:
                raise
            raise HangError(f"{self._first}: {error}. {ADVICE}") from None
        finally:
            asked.cancel()

    def check(self, missing: Sequence[int]) -> None:
        """Raises PeerLostError if the job is over or one of `missing` has left."""
        if self._opened is None and time.monotonic() - self._started_at > LONG_WAIT_S:
            self.still(OPENING, self._first, self._peers)
        try:
            self._client.check(missing)
        except PeerLostError as error:
            if self._opened is None:
                self.last_word(OPENING, self._first, self._peers)
            if self._client.aborted is None:
                raise PeerLostError(f"{error}. {ADVICE}") from None
            raise

    def still(self, number: int, text: str, missing: Sequence[int]) -> None:
        """See `LongWaits.still`."""
        self._waits.still(self._client, self._place, number, text, missing)

    def last_word(self, number: int, text: str, missing: Sequence[int]) -> None:
        """See `LongWaits.last_word`."""
        self._waits.last_word(self._client, self._place, number, text, missing)


def place_of(ranks: Sequence[int]) -> str:
    """`0-3,8`: a short name of an ascending set of ranks."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _named(ranks: Sequence[int]) -> str:
    return f"ranks {place_of(ranks)}" if len(ranks) > 1 else f"rank {ranks[0]}"
