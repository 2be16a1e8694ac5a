"""Collectives of ranks on one host, through memory that they all map.

Every rank owns one page that its peers read:

    header            that of all pages of ranks (see `rank_pages`): word 0 is the progress, which
                      grows by one with every step of every call; all ranks count alike
    two call slots    [call number, signature, text], used in turn
    data slots        a ring that others read: pieces of this rank's data, or sums that it made

An exchange goes through the ring in rounds (see `rounds`): round k+1 is packed while others may
still read round k. Data are never gathered in one place first: the ring is in the cache when it is
read, so large data cross the memory bus twice (out of the source, into the target), as a single
copy would. Single copies out of a peer's private memory (process_vm_readv) were tried and take
longer, by half and more: 370 us against 225 for 4 MiB and 13.4 ms against 10.4 for 64 MiB, two
ranks on two cores, because the kernel looks up every page; and containers often forbid it.

Why NUM_SLOTS slots are enough: a rank packs round g+1 only after all have said that they packed
round g, which they say after they have read round g-2. Sums use a slot for a block and say two
things about it, so they are at least as safe. Rounds are counted over all calls.

Only the owner writes to its page, sleep words aside. x86 keeps stores in order, so data are there
when progress says so.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from oneflow.boxing.boxes import balanced_part
from oneflow.boxing.collectives.base import (
    REDUCTIONS,
    TEXT_NBYTES,
    CallInfo,
    Collectives,
    call_info,
)
from oneflow.boxing.collectives.exchange import Exchange, combine_all, sum_exchange
from oneflow.boxing.collectives.rounds import Put, put, rounds_of, take
from oneflow.boxing.transport.rank_pages import (
    EVENT,
    LINE_NBYTES,
    SLEEPERS,
    areas_at,
    lines,
    open_rank_pages,
)
from oneflow.boxing.transport.rendezvous import SLICE_S, Check, Rendezvous
from oneflow.boxing.transport.waking import publish_progress, wait_progress
from oneflow.core.config import current_config
from oneflow.kernels.array import Array
from oneflow.services.failpoints import failpoint

SLOT_NBYTES = 512 << 10
"""Size of one rank's slot. A few of them fit into a core's cache; smaller ones mean more waits:
with 256 KiB 4 MiB take a fifth longer, with 384 KiB to 768 KiB all sizes are within a few percent.
"""

NUM_SLOTS = 3

_Block = tuple[int, int]
_CALL = struct.Struct(f"<qq{TEXT_NBYTES}s")


class SharedMemoryCollectives(Collectives):
    """group_name: never used before in this job; kv: where the ranks find each other.

    spin_s: how long a wait looks before it sleeps; None: as configured; 0 if there are more ranks
    than cores.
    """

    def __init__(
        self,
        group_name: str,
        rank: int,
        ranks: Sequence[int],
        kv: Rendezvous,
        check: Check | None = None,
        timeout_s: float = 300.0,
        spin_s: float | None = None,
    ) -> None:
        super().__init__(rank, ranks, check, timeout_s)
        self._calls = 0
        self._ticks = 0
        self._rounds = 0
        self._waited_s = 0.0
        self._calls_at = areas_at(self.size)
        self._call_step = lines(_CALL.size)
        self._slots_at = lines(self._calls_at + 2 * self._call_step, 4096)
        self._slot_step = lines(SLOT_NBYTES + self.size * LINE_NBYTES, 4096)
        nbytes = self._slots_at + NUM_SLOTS * self._slot_step - self._calls_at
        self._shared = open_rank_pages(group_name, rank, ranks, nbytes, kv, timeout_s)
        self._spin_s = self._shared.spin_s(current_config().spin_s if spin_s is None else spin_s)
        self._mine, self._pages = self._shared.mine, self._shared.by_rank
        self._sleepers = self._mine.words[SLEEPERS : SLEEPERS + self.size]
        self._views: dict[np.dtype[Any], list[dict[int, Array]]] = {}
        self._last_text: list[CallInfo | None] = [None, None]
        self._wait_all(call_info("open", "group", (), ""), self._step_done())  # all have mapped all

    # ---- one call --------------------------------------------------------------------------------

    def _exchange(
        self,
        info: CallInfo,
        source: Array | None,
        target: Array,
        exchange: Exchange,
        reduce: np.ufunc,
    ) -> None:
        slots = self._slots(target.dtype)
        rounds = rounds_of(exchange, self.rank, SLOT_NBYTES // target.dtype.itemsize)
        last = len(rounds) - 1
        base = self._rounds
        self._rounds += len(rounds)
        self._put(source, rounds[0].puts, slots, base)
        self._enter(info)
        if self.rank in exchange.zero_filled:
            target[...] = 0
        for k, turn in enumerate(rounds):
            here = slots[(base + k) % NUM_SLOTS]
            if k:
                self._wait_all(info, self._ticks)
            if k < last:
                self._put(source, rounds[k + 1].puts, slots, base + k + 1)
                self._step_done()
            take(source, target, turn.own, here, reduce)
            take(source, target, turn.takes, here, reduce)
        self.received_nbytes += exchange.received_numel(self.rank) * target.dtype.itemsize

    def _put(
        self, source: Array | None, puts: Sequence[Put], slots: list[dict[int, Array]], n: int
    ) -> None:
        if source is not None:
            put(source, puts, slots[n % NUM_SLOTS][self.rank])

    def _slots(self, dtype: np.dtype[Any]) -> list[dict[int, Array]]:
        """The data slots of all ranks as arrays of `dtype`."""
        found = self._views.get(dtype)
        if found is None:
            count = self._slot_step // dtype.itemsize
            found = self._views[dtype] = [
                {
                    r: page.array(dtype, self._slots_at + i * self._slot_step, count)
                    for r, page in self._pages.items()
                }
                for i in range(NUM_SLOTS)
            ]
        return found

    def _enter(self, info: CallInfo) -> None:
        """Post this rank's call, wait until all have come, and compare."""
        self._calls += 1
        parity = self._calls % 2
        at = self._calls_at + parity * self._call_step
        words, word = self._mine.words, at // 8
        words[word] = self._calls
        words[word + 1] = info.signature
        if self._last_text[parity] is not info:
            self._mine.bytes[at + 16 : at + 16 + TEXT_NBYTES] = np.frombuffer(
                info.encoded, np.uint8
            )
            self._last_text[parity] = info
        failpoint("collective.entered")
        self._wait_all(info, self._step_done())
        for peer in self.peers:
            theirs = self._pages[peer].words
            if theirs[word] != self._calls or theirs[word + 1] != info.signature:
                self._raise_desync({r: self._call_text(r, at) for r in self.ranks})

    def _call_text(self, rank: int, at: int) -> str:
        raw = self._pages[rank].bytes[at + 16 : at + 16 + TEXT_NBYTES].tobytes()
        return raw.rstrip(b"\0").decode(errors="replace")

    # ---- large sums ------------------------------------------------------------------------------

    def _all_reduce_large(self, info: CallInfo, flat: Array, out: Array, op: str) -> None:
        """Let each of two ranks add up everything: that reads as much of the other as two phases
        do.

        More ranks divide every block: copy in, reduce the own part, copy out. The next block is
        copied in before the last is copied out, so that peers seldom wait for each other.
        """
        reduce = REDUCTIONS[op]
        if self.size == 2:
            self._exchange(info, flat, out, sum_exchange(self.ranks, flat.size), reduce)
            return
        slots = self._slots(flat.dtype)
        part = lines(-(-SLOT_NBYTES // self.size)) // flat.itemsize
        blocks = _blocks(flat.size, SLOT_NBYTES // flat.itemsize)
        base = self._rounds
        self._rounds += len(blocks)
        self._copy_in(flat, blocks[0], slots[base % NUM_SLOTS], part)
        self._enter(info)
        for k, block in enumerate(blocks):
            here = slots[(base + k) % NUM_SLOTS]
            if k:
                self._wait_all(info, self._ticks)  # the inputs of block k are there
            self._reduce_own(flat, out, block, here, part, reduce)
            reduced = self._step_done()
            if k + 1 < len(blocks):
                self._copy_in(flat, blocks[k + 1], slots[(base + k + 1) % NUM_SLOTS], part)
                self._step_done()
            self._wait_all(info, reduced)
            self._copy_out(out, block, here, part)
        self.received_nbytes += self._block_nbytes(blocks, flat.itemsize)

    def _copy_in(self, flat: Array, block: _Block, slots: dict[int, Array], part: int) -> None:
        mine = slots[self.rank]
        for i in range(self.size):
            if i != self.index:
                a, b = self._part(block, i)
                mine[i * part : i * part + b - a] = flat[a:b]

    def _reduce_own(
        self,
        flat: Array,
        out: Array,
        block: _Block,
        slots: dict[int, Array],
        part: int,
        reduce: np.ufunc,
    ) -> None:
        a, b = self._part(block, self.index)
        at = slice(self.index * part, self.index * part + b - a)
        pieces = [flat[a:b] if r == self.rank else slots[r][at] for r in self.ranks]
        result = slots[self.rank][at]
        combine_all(reduce, pieces, result)
        out[a:b] = result

    def _copy_out(self, out: Array, block: _Block, slots: dict[int, Array], part: int) -> None:
        for i, r in enumerate(self.ranks):
            if r != self.rank:
                a, b = self._part(block, i)
                out[a:b] = slots[r][i * part : i * part + b - a]

    def _part(self, block: _Block, index: int) -> _Block:
        start, stop = balanced_part(block[1] - block[0], self.size, index)
        return block[0] + start, block[0] + stop

    def _block_nbytes(self, blocks: list[_Block], itemsize: int) -> int:
        own = sum(b - a for a, b in (self._part(block, self.index) for block in blocks))
        total = blocks[-1][1]
        return (own * (self.size - 1) + total - own) * itemsize

    # ---- progress --------------------------------------------------------------------------------

    def _step_done(self) -> int:
        self._ticks += 1
        publish_progress(self._mine, EVENT, self._ticks, self._sleepers)
        return self._ticks

    def _wait_all(self, info: CallInfo, target: int) -> None:
        self._waited_s = 0.0
        sleeper = SLEEPERS + self.index
        for peer in self.peers:
            page = self._pages[peer]
            if page.words[EVENT] < target:
                wait_progress(
                    page,
                    EVENT,
                    target,
                    sleeper,
                    lambda: self._check(info, target),
                    self._spin_s,
                )

    def _check(self, info: CallInfo, target: int) -> None:
        self._waited_s += SLICE_S
        self._still_waiting(info, lambda: self._behind(target), self._waited_s)

    def _behind(self, target: int) -> list[int]:
        return [r for r in self.peers if self._pages[r].words[EVENT] < target]

    def close(self) -> None:
        self._views.clear()
        self._sleepers.release()
        self._shared.close()


def _blocks(numel: int, size: int) -> list[_Block]:
    return [(start, min(start + size, numel)) for start in range(0, numel, size)]
