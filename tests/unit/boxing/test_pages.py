"""Shared pages, and waking across threads and processes."""

from __future__ import annotations

import os
import socket
import threading

import numpy as np
import pytest

from oneflow.boxing.transport.pages import SharedPage, fetch_page, page_server
from oneflow.boxing.transport.rank_pages import RankPages, areas_at, new_page, open_rank_pages
from oneflow.boxing.transport.waking import futex_wait, publish_progress, wait_progress
from oneflow.core.errors import TransportError
from tests.support.waiting import CALL_S

from .boxing_ranks import LocalStore, in_threads


def test_two_mappings_of_a_page_show_the_same_memory() -> None:
    page = SharedPage.create(100)
    other = SharedPage.from_fd(os.dup(page.fd))
    page.words[3] = 42
    other.array(np.float32, 64, 2)[:] = (1.5, 2.5)
    assert other.words[3] == 42
    assert page.array(np.float32, 64, 2).tolist() == [1.5, 2.5]
    page.close()
    page.close()
    other.close()


def test_a_page_that_can_shrink_under_its_readers_is_refused() -> None:
    fd = os.memfd_create("loose")
    os.ftruncate(fd, 4096)
    with pytest.raises(TransportError, match="not sealed"):
        SharedPage.from_fd(fd)


def test_a_sealed_page_cannot_be_cut() -> None:
    page = SharedPage.create(4096)
    with pytest.raises(OSError):
        os.ftruncate(page.fd, 0)
    page.close()


def test_all_ranks_map_the_pages_of_all() -> None:
    store = LocalStore()

    def rank(i: int) -> list[int]:
        pages = open_rank_pages("g", i, [0, 1, 2], 64, store, CALL_S)
        pages.mine.bytes[pages.areas_at] = 100 + i
        met.wait(CALL_S)
        found = [int(pages.by_rank[r].bytes[pages.areas_at]) for r in range(3)]
        met.wait(CALL_S)
        pages.close()
        return found

    met = threading.Barrier(3)
    assert in_threads(3, rank) == [[100, 101, 102]] * 3


def test_pages_that_cannot_all_be_mapped_are_given_back() -> None:
    store = LocalStore()
    before = sum("oneflow" in os.readlink(f"/proc/self/fd/{fd}") for fd in open_fds())
    with pytest.raises(TransportError, match="shared memory 'h/1'"):
        open_rank_pages("h", 0, [0, 1], 64, store, 0.2)
    assert sum("oneflow" in os.readlink(f"/proc/self/fd/{fd}") for fd in open_fds()) <= before


def open_fds() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]


def test_areas_begin_behind_the_header_and_ranks_know_how_many_cores_they_have() -> None:
    cores = os.sched_getaffinity(0)
    pages = {rank: new_page(3, 100) for rank in (0, 2, 5)}
    found = RankPages(2, (0, 2, 5), pages)
    assert found.areas_at % 64 == 0 and found.mine.nbytes >= found.areas_at + 100
    assert found.num_cores == len(cores) and found.mine is pages[2]
    assert found.spin_s(1.0) == (1.0 if len(cores) >= 3 else 0.0)
    assert not any(found.mine.bytes[areas_at(3) :])
    found.close()


def test_fetching_from_a_dead_process_is_a_transport_error() -> None:
    with pytest.raises(TransportError, match="shared memory 'x'"):
        fetch_page(b"\0oneflow-nobody", "x", 1.0)


def test_the_server_knows_its_peers_user() -> None:
    page = SharedPage.create(64)
    page_server().publish("known", page)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.connect(page_server().address)
        peer.send(b"known")
        _, fds, _, _ = socket.recv_fds(peer, 1, 4)
    assert len(fds) == 1
    os.close(fds[0])
    page_server().withdraw("known")


def test_futex_wait_returns_at_once_if_the_word_differs() -> None:
    page = SharedPage.create(64)
    futex_wait(page, 0, 1, 1e6)  # seconds
    page.close()


def test_no_wake_up_is_lost_between_two_sleepers() -> None:
    mine, yours = SharedPage.create(64), SharedPage.create(64)
    pages, rounds = (mine, yours), 300

    def rank(i: int) -> None:
        for k in range(1, rounds + 1):
            publish_progress(pages[i], 0, k, pages[i].words[1:2])
            wait_progress(pages[1 - i], 0, k, 1, lambda: None, spin_s=0.0)

    in_threads(2, rank)
    assert mine.words[0] == yours.words[0] == rounds


def test_a_waiter_gives_up_when_its_check_raises() -> None:
    page = SharedPage.create(64)

    def check() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        wait_progress(page, 0, 1, 1, check, 0.0)
    assert page.words[1] == 0
