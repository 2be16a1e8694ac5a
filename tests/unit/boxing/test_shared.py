"""Shared pages, and waking across threads and processes."""

from __future__ import annotations

import os
import socket
import time

import numpy as np
import pytest

from oneflow.boxing.shared import (
    SharedPage,
    exchange_pages,
    fetch_pages,
    futex_wait,
    page_server,
    publish_progress,
    wait_progress,
)
from oneflow.core.errors import TransportError

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
        page = SharedPage.create(64)
        page.words[0] = 100 + i
        pages = exchange_pages("g", i, [0, 1, 2], [page], store, 10.0)
        return [pages[r][0].words[0] for r in range(3)]

    assert in_threads(3, rank) == [[100, 101, 102]] * 3


def test_fetching_from_a_dead_process_is_a_transport_error() -> None:
    with pytest.raises(TransportError, match="shared memory 'x'"):
        fetch_pages(b"\0oneflow-nobody", "x", 1.0)


def test_the_server_knows_its_peers_user() -> None:
    page = SharedPage.create(64)
    page_server().publish("known", [page])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.connect(page_server().address)
        peer.send(b"known")
        _, fds, _, _ = socket.recv_fds(peer, 1, 4)
    assert len(fds) == 1
    os.close(fds[0])
    page_server().withdraw("known")


def test_futex_wait_returns_at_once_if_the_word_differs() -> None:
    page = SharedPage.create(64)
    started = time.monotonic()
    futex_wait(page, 0, 1, 20.0)
    assert time.monotonic() - started < 10.0
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
