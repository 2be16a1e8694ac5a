"""The pages through which the ranks of a host work together: one a rank, all of one layout.

word 0        where ranks sleep: the owner's progress (collectives), or 1 while the owner
              itself sleeps (mailboxes)
word 1        1 once the owner maps no peer's GPU memory any more (see `gpu_memory`)
word 2        when the owner was woken, ns; 0: it was not (mailboxes)
words 8..     one a rank, 1 while that rank sleeps on word 0 (collectives)
core bits     the cores that the owner may use
areas         laid out by the users of the pages: calls and data of collectives, or mailboxes
              and registers
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from oneflow.boxing.transport.pages import SharedPage, page_server
from oneflow.boxing.transport.rendezvous import Rendezvous

EVENT, UNMAPPED, WOKEN_AT, SLEEPERS = 0, 1, 2, 8
"""Words of the header."""

LINE_NBYTES = 64
_CORES_NBYTES = 256


def lines(nbytes: int, step: int = LINE_NBYTES) -> int:
    """`nbytes` rounded up to whole cache lines, or to whole steps."""
    return -(-nbytes // step) * step


def areas_at(num_ranks: int) -> int:
    """Offset of the first area in the page of each of `num_ranks` ranks."""
    return _cores_at(num_ranks) + _CORES_NBYTES


def _cores_at(num_ranks: int) -> int:
    return lines((SLEEPERS + num_ranks) * 8)


def new_page(num_ranks: int, nbytes: int) -> SharedPage:
    """A page of this rank for areas of `nbytes`. Raises TransportError if memory is short."""
    page = SharedPage.create(areas_at(num_ranks) + nbytes)
    start = _cores_at(num_ranks)
    bits = page.bytes[start : start + _CORES_NBYTES]
    for core in os.sched_getaffinity(0):
        if core < 8 * _CORES_NBYTES:
            bits[core // 8] |= 1 << core % 8
    return page


class RankPages:
    """The pages of `ranks` (ascending), as `rank` maps them.

    name: under which the own page was published; "": it was not.
    """

    def __init__(
        self, rank: int, ranks: Sequence[int], pages: Mapping[int, SharedPage], name: str = ""
    ) -> None:
        self.rank, self.ranks = rank, tuple(ranks)
        self.index = self.ranks.index(rank)
        self.by_rank = dict(pages)
        self.mine = self.by_rank[rank]
        self.areas_at = areas_at(len(self.ranks))
        self._name = name

    @property
    def num_cores(self) -> int:
        """Return the number of cores that the ranks have together. If they are fewer than the
        ranks, a rank that spins keeps its core from one that it waits for: sums of four ranks on
        two cores take twice as long as with waits that sleep.
        """
        found = np.zeros(_CORES_NBYTES, np.uint8)
        start = _cores_at(len(self.ranks))
        for page in self.by_rank.values():
            found |= page.bytes[start : start + _CORES_NBYTES]
        return int(np.unpackbits(found).sum())

    def spin_s(self, wanted_s: float) -> float:
        """Return how long a wait may spin: not at all if there are more ranks than cores."""
        return wanted_s if len(self.ranks) <= self.num_cores else 0.0

    def close(self) -> None:
        """Unmap all pages; a page goes with the last rank that does so. Idempotent."""
        if self._name:
            page_server().withdraw(self._name)
        for page in self.by_rank.values():
            page.close()


def open_rank_pages(
    name: str,
    rank: int,
    ranks: Sequence[int],
    nbytes: int,
    kv: Rendezvous,
    timeout_s: float = 60.0,
) -> RankPages:
    """Give a new page with areas of `nbytes` to all `ranks` and map theirs; all of them call it.

    name: never used before in this job.  nbytes: of this rank's areas; others may have more or
    less. Raises TransportError, or as `kv.check` does.
    """
    own, server = f"{name}/{rank}", page_server()
    pages = {rank: new_page(len(ranks), nbytes)}
    server.publish(own, pages[rank])
    try:
        for peer in (r for r in ranks if r != rank):
            pages[peer] = kv.page(peer, f"{name}/{peer}", timeout_s)
    except BaseException:
        server.withdraw(own)
        for page in pages.values():
            page.close()
        raise
    return RankPages(rank, ranks, {r: pages[r] for r in ranks}, own)
