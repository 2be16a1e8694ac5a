"""Reports of a rank about its long waits, and when it keeps quiet."""

from __future__ import annotations

import concurrent.futures
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.boxing.transport.pages import page_server
from oneflow.core.errors import DesyncError, HangError, PeerLostError, TransportError
from oneflow.distributed.long_waits import LongWaits
from oneflow.distributed.waits import Meeting, StepWatch, place_of

WAIT = ("0-1", 3, "all_reduce at x.py:1", [1])


class Client:
    """The scheduler's side, as the test wants it."""

    rank, world_size, aborted = 0, 2, None

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.answer: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.left: set[int] = set()
        self.members: list[Any] = []
        self.value: concurrent.futures.Future[bytes] = concurrent.futures.Future()

    def ask_wait(self, *wait: Any) -> concurrent.futures.Future[None]:
        self.asked.append(wait)
        self.answer = concurrent.futures.Future()
        return self.answer

    def ask_get(self, key: str, timeout_s: float) -> concurrent.futures.Future[bytes]:
        return self.value

    def check(self, ranks: Any) -> None:
        if self.left.intersection(ranks):
            raise PeerLostError("rank 1 exited 0 while peers run: rank 0 needs it")


def test_asks_again_only_after_the_answer() -> None:
    waits, client = LongWaits(), Client()
    waits.add_place("0-1", lambda: 3)
    waits.add_place("0-2", lambda: 7)
    for _ in range(3):
        waits.still(client, *WAIT)
    assert client.asked == [(*WAIT, {"0-1": 3, "0-2": 7})]
    client.answer.set_result(None)
    waits.still(client, *WAIT)
    assert len(client.asked) == 2


def test_a_verdict_is_raised_in_the_call_it_is_about_only() -> None:
    waits, client = LongWaits(), Client()
    waits.still(client, *WAIT)
    client.answer.set_exception(DesyncError("a circle"))
    waits.still(client, "0-1", 4, "a later call", [1])  # it went on: an old story
    client.answer.set_exception(DesyncError("another circle"))
    with pytest.raises(DesyncError, match="another circle"):
        waits.still(client, "0-1", 4, "a later call", [1])


def test_a_broken_line_is_not_judged_here() -> None:
    waits, client = LongWaits(), Client()
    waits.still(client, *WAIT)
    client.answer.set_exception(TransportError("gone"))
    waits.still(client, *WAIT)
    client.answer.cancel()
    waits.still(client, *WAIT)
    assert len(client.asked) == 3


def test_a_rank_with_calls_from_two_threads_keeps_quiet() -> None:
    """Keeps quiet: one thread may be about to do the act that the other waits for."""
    waits, client = LongWaits(), Client()
    thread = threading.Thread(target=lambda: waits.add_place("0-2", lambda: 1))
    thread.start()
    thread.join()
    waits.still(client, *WAIT)
    assert client.asked == []


def test_the_last_word_is_that_of_the_own_wait() -> None:
    waits, client = LongWaits(), Client()
    waits.last_word(client, *WAIT)  # was never told: nothing to hear
    assert client.asked == []
    waits.still(client, *WAIT)
    client.answer.set_exception(DesyncError("a circle"))
    with pytest.raises(DesyncError, match="a circle"):
        waits.last_word(client, *WAIT)


def test_opening_a_set_ends_when_a_rank_has_left() -> None:
    client = Client()
    meeting = Meeting(client, LongWaits(), (0, 1))
    client.left = {1}
    with pytest.raises(PeerLostError, match=r"exited 0 .* Maybe executing different code") as lost:
        meeting.get("x", 10.0)
    assert client.value.cancelled()
    said = str(lost.value)
    assert re.search(r"\(rank 0 was in .*\(the first call on ranks 0-1\)\)$", said), said


def test_opening_a_set_asks_after_a_rank_whose_pages_are_gone() -> None:
    client = Client()
    client.members = [SimpleNamespace(pages=b"\0oneflow-nobody")] * 2
    meeting = Meeting(client, LongWaits(), (0, 1))
    threading.Timer(0.1, client.left.add, (1,)).start()
    with pytest.raises(PeerLostError, match="exited 0"):
        meeting.page(1, "x", 10.0)


def test_a_set_that_nobody_else_opens_is_given_up() -> None:
    client = Client()
    client.members = [SimpleNamespace(pages=page_server().address)] * 2
    with pytest.raises(HangError, match=r"the first call on ranks 0-1\): shared memory 'x'"):
        Meeting(client, LongWaits(), (0, 1)).page(1, "x", 0.2)


@pytest.mark.parametrize(("calls", "when"), [(0, "the opening"), (3, "step 3")])
def test_a_step_that_loses_a_rank_names_its_graph(calls: int, when: str) -> None:
    client = Client()
    watch = StepWatch(client, LongWaits(), "Mean.abc.0")
    if calls:
        watch.watch(SimpleNamespace(calls=calls))
    watch.check([1])
    client.left = {1}
    text = rf"\(rank 0 was in {when} of graph Mean at .*{Path(__file__).name}:\d+\)$"
    with pytest.raises(PeerLostError, match=text):
        watch.check([1])


def test_opening_a_set_that_nobody_comes_to_is_a_hang() -> None:
    client = Client()
    meeting = Meeting(client, LongWaits(), (0, 1))
    client.value.set_exception(TransportError("get 'x': nobody put it within 0 s"))
    with pytest.raises(HangError, match=r"\(the first call on ranks 0-1\): get 'x'"):
        meeting.get("x", 0.0)


def test_places_have_short_names() -> None:
    assert place_of((0, 1)) == "0-1"
    assert place_of((3,)) == "3"
    assert place_of((0, 2, 3, 4, 9)) == "0,2-4,9"
    assert place_of((1, 9)) == "1,9"
    assert place_of((0, 8, 16, 24, 25)) == "0-24:8,25"
    assert place_of(range(4096)) == "0-4095"


def test_every_set_has_a_name_of_its_own() -> None:
    sets = [tuple(r for r in range(10) if n >> r & 1) for n in range(1, 1024)]
    assert len({place_of(s) for s in sets}) == len(sets)
    odd = [tuple(r * r + (r == n) for r in range(300)) for n in (200, 250)]
    assert len({place_of(s) for s in odd}) == 2 and len(place_of(odd[0])) < 200
