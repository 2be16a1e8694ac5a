"""Ranks as threads of the test, and where they find each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from oneflow.boxing.transport.pages import SharedPage, fetch_page, page_server
from oneflow.core.errors import HangError
from tests.support.waiting import WAIT_S


class LocalStore:
    """The rendezvous of ranks that are threads of one process. lost: the error that every check
    raises.
    """

    def __init__(self) -> None:
        self.lost: Exception | None = None
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def put(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_s):
                raise HangError(f"nobody has put {key}")
            return self._values[key]

    def page(self, rank: int, name: str, timeout_s: float) -> SharedPage:
        return fetch_page(page_server().address, name, timeout_s)

    def check(self, ranks: Iterable[int]) -> None:
        if self.lost is not None:
            raise self.lost


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    results: list[Any] = [None] * count

    def run(i: int) -> None:
        results[i] = work(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    return results
