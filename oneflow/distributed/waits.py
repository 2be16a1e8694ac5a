"""The waits of a rank for the others of a set: not for the dead, and not in a circle."""

from __future__ import annotations

import concurrent.futures
import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from oneflow.boxing.collectives.base import ADVICE, LONG_WAIT_S, lost_in
from oneflow.boxing.transport.pages import SharedPage, fetch_page
from oneflow.boxing.transport.rendezvous import SLICE_S, wait_for_news
from oneflow.core.errors import HangError, PeerLostError, TransportError
from oneflow.core.location import user_call, user_location
from oneflow.core.loop import result_of

if TYPE_CHECKING:
    from oneflow.actors.control import ControlClient
    from oneflow.actors.job import Job
    from oneflow.boxing.collectives.base import Collectives
    from oneflow.distributed.long_waits import LongWaits

MAX_PLACE_CHARS = 200
NEWS_S = 15.0  # the scheduler gets so long to say that a peer whose pages are gone is lost
OPENING = 0  # the number of the first thing that the ranks of a set do together


class Meeting:
    """One set of ranks, as a backend of collectives needs it: the keys of the job, and the checks
    of a rank that waits.
    """

    def __init__(
        self, client: ControlClient, waits: LongWaits, ranks: tuple[int, ...], channel: str = ""
    ) -> None:
        self._client, self._waits = client, waits
        self._peers = tuple(r for r in ranks if r != client.rank)
        self._place = f"{place_of(ranks)}{channel}"
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
        """Put a value as `ControlClient.put` does."""
        self._client.put(key, value)

    def get(self, key: str, timeout_s: float) -> bytes:
        """Get a value as `ControlClient.get` does, but notice that the other ranks will not come.

        Raises HangError after `timeout_s`.
        """
        asked = self._client.ask_get(key, timeout_s)
        try:
            with self._no_longer_than(timeout_s):
                while not concurrent.futures.wait([asked], SLICE_S).done:
                    self.check(self._peers)
                return result_of(asked)
        finally:
            asked.cancel()

    def page(self, rank: int, name: str, timeout_s: float) -> SharedPage:
        """Map a page as `ControlClient.page` does, but notice that the other ranks will not come.

        Raises HangError after `timeout_s`.
        """
        address, end = self._client.members[rank].pages, time.monotonic() + timeout_s
        with self._no_longer_than(timeout_s):
            try:
                return fetch_page(address, name, timeout_s, lambda: self.check(self._peers))
            except TransportError:
                if time.monotonic() < end:  # the rank is gone, not late
                    wait_for_news(self.check, self._peers, NEWS_S)
                raise

    @contextmanager
    def _no_longer_than(self, timeout_s: float) -> Iterator[None]:
        started_at = time.monotonic()
        try:
            yield
        except TransportError as error:
            if time.monotonic() - started_at < timeout_s:
                raise
            raise HangError(f"{self._first}: {error}. {ADVICE}") from None

    def check(self, missing: Iterable[int]) -> None:
        """Raises PeerLostError if the job is over or one of `missing` has left."""
        if self._opened is None and time.monotonic() - self._started_at > LONG_WAIT_S:
            self.still(OPENING, self._first, self._peers)
        try:
            self._client.check(missing)
        except PeerLostError as error:
            if self._opened is None:
                self.last_word(OPENING, self._first, self._peers)
                _raise_lost(self._client, error, self._first)
            _raise_lost(self._client, error)

    def still(self, number: int, text: str, missing: Sequence[int]) -> None:
        """See `LongWaits.still`."""
        self._waits.still(self._client, self._place, number, text, missing)

    def last_word(self, number: int, text: str, missing: Sequence[int]) -> None:
        """See `LongWaits.last_word`."""
        self._waits.last_word(self._client, self._place, number, text, missing)


class StepWatch:
    """The checks that a graph's executor makes while it waits for other ranks in a step.

    name: of the bound graph, equal on all ranks.
    """

    def __init__(self, client: ControlClient, waits: LongWaits, name: str) -> None:
        self._client, self._waits, self._name = client, waits, name
        self._job: Job | None = None
        self._step = 0
        self._since = 0.0

    def watch(self, job: Job) -> Job:
        """The graph is bound: its long waits are told from now on."""
        self._job = job
        self._waits.add_place(self._name, lambda: job.calls)
        return job

    def check(self, missing: Iterable[int]) -> None:
        """Raises PeerLostError if the job is over or one of `missing` has left, DesyncError if they
        wait elsewhere for this rank."""
        waited_s = self._waited_s()
        if waited_s > LONG_WAIT_S:
            self._waits.still(*self._wait(missing))
        try:
            self._client.check(missing)
        except PeerLostError as error:
            if waited_s > LONG_WAIT_S:
                self._waits.last_word(*self._wait(missing))
            _raise_lost(self._client, error, self._text())

    def _waited_s(self) -> float:
        """Since the first wait of this step."""
        step = 0 if self._job is None else self._job.calls
        if step != self._step:
            self._step, self._since = step, time.monotonic()
        return time.monotonic() - self._since if step else 0.0

    def _wait(self, missing: Iterable[int]) -> tuple[ControlClient, str, int, str, list[int]]:
        return self._client, self._name, self._step, self._text(), sorted(missing)

    def _text(self) -> str:
        when = f"step {self._step}" if self._step else "the opening"
        return f"{when} of graph {self._name.split('.')[0]} at {user_location()}"


def _raise_lost(client: ControlClient, error: PeerLostError, doing: str = "") -> NoReturn:
    """A rank that left in order, while others need it, has most likely taken another way.

    doing: this rank's call, if no one else will say so.
    """
    if client.aborted is None:
        error = PeerLostError(f"{error}. {ADVICE}")
    raise lost_in(error, client.rank, doing) if doing else error from None


def place_of(ranks: Sequence[int]) -> str:
    """`0-3,8,16-64:8`: a short name of an ascending set of ranks, its own for each set."""
    parts: list[str] = []
    start = 0
    while start < len(ranks):
        stop = _end_of_run(ranks, start)
        step = ranks[start + 1] - ranks[start] if stop - start > 1 else 1
        if stop - start < 3 and step > 1:
            stop = start + 1
        first, last = ranks[start], ranks[stop - 1]
        by = f":{step}" if step > 1 else ""
        parts.append(str(first) if first == last else f"{first}-{last}{by}")
        start = stop
    name = ",".join(parts)
    if len(name) <= MAX_PLACE_CHARS:
        return name
    return f"{name[: MAX_PLACE_CHARS // 2]}...{hashlib.sha256(name.encode()).hexdigest()}"


def _end_of_run(ranks: Sequence[int], start: int) -> int:
    """Behind the last of the ranks from `start` on that are equally far apart."""
    stop = min(start + 2, len(ranks))
    while stop < len(ranks) and ranks[stop] - ranks[stop - 1] == ranks[start + 1] - ranks[start]:
        stop += 1
    return stop


def _named(ranks: Sequence[int]) -> str:
    return f"ranks {place_of(ranks)}" if len(ranks) > 1 else f"rank {ranks[0]}"
