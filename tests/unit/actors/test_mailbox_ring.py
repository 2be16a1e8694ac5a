"""Messages through rings in shared memory: in order, none lost, however full the ring is."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from oneflow.actors.mailbox import (
    RING_SLOTS,
    SharedMemoryBus,
    areas_nbytes,
    register_bytes,
)
from oneflow.boxing.transport.pages import SharedPage
from oneflow.boxing.transport.rank_pages import RankPages, new_page
from tests.support.waiting import CALL_S, WAIT_S

RANKS = [0, 2, 5]  # those of one host need not be neighbours


def bus_of(rank: int, blocks: list[SharedPage]) -> SharedMemoryBus:
    return SharedMemoryBus(RankPages(rank, RANKS, dict(zip(RANKS, blocks, strict=True))))


@pytest.fixture
def blocks() -> Iterator[list[SharedPage]]:
    pages = [new_page(len(RANKS), areas_nbytes(len(RANKS), 128)) for _ in RANKS]
    yield pages
    for page in pages:
        page.close()


@pytest.fixture
def buses(blocks: list[SharedPage]) -> Iterator[dict[int, SharedMemoryBus]]:
    made = {rank: bus_of(rank, blocks) for rank in RANKS}
    yield made
    for bus in made.values():
        bus.close()


def test_messages_come_in_order_over_many_rounds(buses: dict[int, SharedMemoryBus]) -> None:
    rng, sent, received = random.Random(0), 0, 0
    while received < 20 * RING_SLOTS:
        for _ in range(rng.randrange(2 * RING_SLOTS // 3)):
            buses[0].post(2, sent)
            sent += 1
        buses[0].poll()  # sends what had to wait
        for sender, code in buses[2].poll():
            assert (sender, code) == (0, received)
            received += 1
    assert sent >= received


@pytest.mark.parametrize("count", [RING_SLOTS - 1, RING_SLOTS, RING_SLOTS + 1, 5 * RING_SLOTS + 3])
def test_what_does_not_fit_is_sent_later(buses: dict[int, SharedMemoryBus], count: int) -> None:
    for code in range(count):
        buses[0].post(5, code)
    first = buses[5].poll()
    assert len(first) == min(count, RING_SLOTS)
    found = [code for _, code in first]
    while len(found) < count:
        buses[0].wait(1.0)  # returns at once: there is something to send
        assert buses[0].poll() == []
        found += [code for _, code in buses[5].poll()]
    assert found == list(range(count))
    assert buses[5].poll() == []


def test_every_sender_has_a_ring_of_its_own(buses: dict[int, SharedMemoryBus]) -> None:
    for code in range(RING_SLOTS + 10):
        buses[0].post(2, code)
    buses[5].post(2, 7)
    buses[2].post(0, 9)
    assert (5, 7) in buses[2].poll()
    assert buses[0].poll() == [(2, 9)]


def test_codes_of_all_sizes_travel(buses: dict[int, SharedMemoryBus]) -> None:
    codes = [0, 1, 2**31, 2**40 + 1, 2**62]
    for code in codes:
        buses[2].post(5, code)
    assert buses[5].poll() == [(2, code) for code in codes]


def test_a_sleeper_is_woken(buses: dict[int, SharedMemoryBus]) -> None:
    thread = threading.Timer(0.05, buses[5].post, (0, 3))
    thread.start()
    start = time.monotonic()
    while not (arrived := buses[0].poll()):
        buses[0].wait(WAIT_S)
        assert time.monotonic() - start < CALL_S, "slept through its message"
    thread.join()
    assert arrived == [(5, 3)]


def test_registers_lie_behind_the_rings(blocks: list[SharedPage]) -> None:
    pages = RankPages(0, RANKS, dict(zip(RANKS, blocks, strict=True)))
    registers = register_bytes(pages, 0)
    assert registers.nbytes >= 128 and registers.ctypes.data % 64 == 0
    registers[:] = 0xFF
    buses = [bus_of(r, blocks) for r in RANKS[:2]]
    buses[1].post(0, 4)
    assert buses[0].poll() == [(2, 4)]
    assert np.all(registers == 0xFF)


ECHO = """
import sys
from oneflow.actors.mailbox import SharedMemoryBus
from oneflow.boxing.transport.pages import SharedPage
from oneflow.boxing.transport.rank_pages import RankPages
pages = dict(enumerate(SharedPage.from_fd(int(fd)) for fd in sys.argv[2:]))
bus, left = SharedMemoryBus(RankPages(1, [0, 1], pages)), int(sys.argv[1])
while left or bus._stuck:
    for sender, code in bus.poll():
        bus.post(sender, code + 1)
        left -= 1
    bus.wait(0.05)
"""


def test_two_processes() -> None:
    """More messages than the ring holds, there and back."""
    count = 4 * RING_SLOTS
    pages = [new_page(2, areas_nbytes(2, 0)) for _ in range(2)]
    fds = [page.fd for page in pages]
    command = [sys.executable, "-c", ECHO, str(count), *map(str, fds)]
    peer = subprocess.Popen(command, pass_fds=fds)
    bus = SharedMemoryBus(RankPages(0, [0, 1], dict(enumerate(pages))))
    for code in range(count):
        bus.post(1, code)
    found: list[int] = []
    deadline = time.monotonic() + WAIT_S
    try:
        while len(found) < count and time.monotonic() < deadline and peer.poll() in (None, 0):
            found += [code for _, code in bus.poll()]
            bus.wait(0.05)
        assert found == list(range(1, count + 1))
        assert peer.wait(CALL_S) == 0
    finally:
        peer.kill()
        peer.wait()
        bus.close()
        for page in pages:
            page.close()
