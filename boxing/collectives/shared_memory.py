"""Collectives of ranks on one host, through memory that they all map.

Every rank owns a control page that its peers read:

    word 0            progress: grows by one with every phase of every call; all ranks count alike
    words 8..         one word per rank, 1 while that rank sleeps on word 0
    two call slots    [call number, signature, window number, text], used in turn
    pipeline area     chunks of large sums, two blocks in turn: inputs of others' parts, own reduced
    part

and a window, two halves used in turn, with what others read in a call. Why turns are enough: a rank
enters call n+1 only after it has read all it wants in call n, and leaves call n+1 only after all
have entered it; so when it writes for call n+2, nobody reads what it wrote for call n. Windows grow
by doubling: peers see a new window number and fetch that page.

Only the owner writes to its pages, sleep words aside. x86 keeps stores in order, so data are there
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
    SLICE_S,
    TEXT_NBYTES,
    CallInfo,
    Check,
    Collectives,
    call_info,
    pack,
    unpack,
)
from oneflow.boxing.collectives.exchange import Array, Exchange
from oneflow.boxing.shared import (
    KeyValueStore,
    SharedPage,
    exchange_pages,
    fetch_pages,
    page_server,
    publish_progress,
    wait_progress,
)

BLOCK_NBYTES = 1 << 20
"""Data of one pipeline step, over all ranks: a block and its copies stay in the caches."""

FIRST_WINDOW_NBYTES = 64 << 10
SPIN_S = 50e-6

_PROGRESS = 0
_SLEEPERS = 8
_CALL = struct.Struct(f"<qqq{TEXT_NBYTES}s")
_LINE = 64


class SharedMemoryCollectives(Collectives):
    """group_name: never used before in this job; kv: where the ranks find each other."""

    def __init__(
        self,
        group_name: str,
        rank: int,
        ranks: Sequence[int],
        kv: KeyValueStore,
        check: Check | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        super().__init__(rank, ranks, check, timeout_s)
        self._name = group_name
        self._calls = 0
        self._ticks = 0
        self._waited_s = 0.0
        self._layout()
        control = SharedPage.create(self._area + 2 * self._slot_nbytes)
        pages = exchange_pages(group_name, rank, ranks, [control], kv, timeout_s)
        self._control = {r: page[0] for r, page in pages.items()}
        self._mine = control
        self._sleepers = control.words[_SLEEPERS : _SLEEPERS + self.size]
        self._addresses = {r: kv.get(f"pages/{group_name}/{r}", timeout_s) for r in self.peers}
        self._windows: list[SharedPage] = []
        self._window_number = 0
        self._window_numbers = (0,) * self.size  # as all ranks have mapped them
        self._peer_windows: dict[int, SharedPage] = {}
        self._last_text: list[CallInfo | None] = [None, None]
        self._wait_all(call_info("open", "group", (), ""), self._step_done())  # all have mapped all

    def _layout(self) -> None:
        self._slots = _aligned((_SLEEPERS + self.size) * 8)
        self._slot_step = _aligned(_CALL.size)
        self._area = _aligned(self._slots + 2 * self._slot_step, 4096)
        part = _aligned(-(-BLOCK_NBYTES // self.size))
        self._part_nbytes = part
        self._slot_nbytes = part * self.size + part  # inputs of all parts, own result

    # ---- one call --------------------------------------------------------------------------------

    def _exchange(
        self, info: CallInfo, source: Array | None, target: Array, exchange: Exchange, reduce: Any
    ) -> None:
        if self.size > 1:
            numel = exchange.packed_numel(self.rank)
            if numel:
                pack(source, exchange.packed(self.rank), self._window(target.dtype, numel))
            self._enter(info)
        elif source is None:
            return
        parity = self._calls % 2

        def packed_of(rank: int) -> Array:
            page = self._peer_windows[rank]
            count = exchange.packed_numel(rank)
            return page.array(target.dtype, parity * (page.nbytes // 2), count)

        unpack(self.rank, source, target, exchange, packed_of, reduce)
        self.received_nbytes += exchange.received_numel(self.rank) * target.dtype.itemsize

    def _window(self, dtype: Any, numel: int) -> Array:
        """The half of this rank's window for the next call, at least so large."""
        nbytes = numel * dtype.itemsize
        if not self._windows or self._windows[-1].nbytes // 2 < nbytes:
            self._grow(nbytes)
        page = self._windows[-1]
        return page.array(dtype, (self._calls + 1) % 2 * (page.nbytes // 2), numel)

    def _grow(self, nbytes: int) -> None:
        half = FIRST_WINDOW_NBYTES
        while half < nbytes:
            half *= 2
        self._window_number += 1
        self._windows.append(SharedPage.create(2 * half))
        page_server().publish(self._window_name(self.rank, self._window_number), self._windows[-1:])
        if len(self._windows) > 1:  # all have read the old one in the call before last, or will not
            page_server().withdraw(self._window_name(self.rank, self._window_number - 1))
            self._windows.pop(0).close()

    def _window_name(self, rank: int, number: int) -> str:
        return f"{self._name}/{rank}/{number}"

    def _enter(self, info: CallInfo) -> None:
        """Says what this rank calls, waits until all have come, and compares."""
        self._calls += 1
        parity = self._calls % 2
        page, at = self._mine, self._slots + parity * self._slot_step
        words, word = page.words, at // 8
        words[word] = self._calls
        words[word + 1] = info.signature
        words[word + 2] = self._window_number
        if self._last_text[parity] is not info:
            page.bytes[at + 24 : at + 24 + TEXT_NBYTES] = np.frombuffer(info.encoded, np.uint8)
            self._last_text[parity] = info
        self._wait_all(info, self._step_done())
        for peer in self.peers:
            theirs = self._control[peer].words
            if theirs[word] != self._calls or theirs[word + 1] != info.signature:
                self._raise_desync({r: self._call_text(r, at) for r in self.ranks})
        numbers = tuple(self._control[r].words[word + 2] for r in self.ranks)
        if numbers != self._window_numbers:
            self._map_windows(numbers)
            self._wait_all(info, self._step_done())

    def _map_windows(self, numbers: tuple[int, ...]) -> None:
        """All ranks see the same new numbers, so all come here together, and none leaves before all
        have mapped."""
        for rank, old, new in zip(self.ranks, self._window_numbers, numbers, strict=True):
            if rank != self.rank and old != new:
                self._map_window(rank, new)
        self._window_numbers = numbers

    def _map_window(self, peer: int, number: int) -> None:
        name = self._window_name(peer, number)
        page = fetch_pages(self._addresses[peer], name, self.timeout_s)[0]
        old = self._peer_windows.get(peer)
        self._peer_windows[peer] = page
        if old is not None:
            old.close()

    def _call_text(self, rank: int, at: int) -> str:
        raw = self._control[rank].bytes[at + 24 : at + 24 + TEXT_NBYTES].tobytes()
        return raw.rstrip(b"\0").decode(errors="replace")

    # ---- large sums ------------------------------------------------------------------------------

    def _all_reduce_large(self, info: CallInfo, flat: Array, out: Array, op: str) -> None:
        """Block by block through the pipeline area: copy in, reduce the own part, copy out.

        The next block is copied in before the last is copied out, so that peers seldom wait for
        each other.
        """
        blocks = _blocks(flat.size, self._part_nbytes // flat.itemsize * self.size)
        reduce = REDUCTIONS[op]
        self._copy_in(flat, blocks[0], 0)
        self._enter(info)
        for k, block in enumerate(blocks):
            self._wait_all(info, self._ticks)  # the inputs of block k are there
            self._reduce_own(flat, out, block, k % 2, reduce)
            reduced = self._step_done()
            if k + 1 < len(blocks):
                self._copy_in(flat, blocks[k + 1], (k + 1) % 2)
                self._step_done()
            self._wait_all(info, reduced)
            self._copy_out(out, block, k % 2)
        self.received_nbytes += self._pipeline_nbytes(blocks, flat.itemsize)

    def _copy_in(self, flat: Array, block: tuple[int, int], slot: int) -> None:
        for i in range(self.size):
            if i != self.index:
                a, b = self._part(block, i)
                self._input(self.rank, i, slot, flat.dtype, b - a)[...] = flat[a:b]

    def _reduce_own(
        self, flat: Array, out: Array, block: tuple[int, int], slot: int, reduce: Any
    ) -> None:
        a, b = self._part(block, self.index)
        pieces = [
            flat[a:b] if r == self.rank else self._input(r, self.index, slot, flat.dtype, b - a)
            for r in self.ranks
        ]
        result = self._result(self.rank, slot, flat.dtype, b - a)
        reduce(pieces[0], pieces[1], out=result)
        for piece in pieces[2:]:
            reduce(result, piece, out=result)
        out[a:b] = result

    def _copy_out(self, out: Array, block: tuple[int, int], slot: int) -> None:
        for i, r in enumerate(self.ranks):
            if r != self.rank:
                a, b = self._part(block, i)
                out[a:b] = self._result(r, slot, out.dtype, b - a)

    def _part(self, block: tuple[int, int], index: int) -> tuple[int, int]:
        start, stop = balanced_part(block[1] - block[0], self.size, index)
        return block[0] + start, block[0] + stop

    def _input(self, rank: int, part: int, slot: int, dtype: Any, count: int) -> Array:
        at = self._area + slot * self._slot_nbytes + part * self._part_nbytes
        return self._control[rank].array(dtype, at, count)

    def _result(self, rank: int, slot: int, dtype: Any, count: int) -> Array:
        return self._input(rank, self.size, slot, dtype, count)

    def _pipeline_nbytes(self, blocks: list[tuple[int, int]], itemsize: int) -> int:
        own = sum(b - a for a, b in (self._part(block, self.index) for block in blocks))
        total = blocks[-1][1]
        return (own * (self.size - 1) + total - own) * itemsize

    # ---- progress --------------------------------------------------------------------------------

    def _step_done(self) -> int:
        self._ticks += 1
        publish_progress(self._mine, _PROGRESS, self._ticks, self._sleepers)
        return self._ticks

    def _wait_all(self, info: CallInfo, target: int) -> None:
        self._waited_s = 0.0
        sleeper = _SLEEPERS + self.index
        for peer in self.peers:
            page = self._control[peer]
            if page.words[_PROGRESS] < target:
                wait_progress(
                    page, _PROGRESS, target, sleeper, lambda: self._check(info, target), SPIN_S
                )

    def _check(self, info: CallInfo, target: int) -> None:
        self._waited_s += SLICE_S
        self._still_waiting(info, lambda: self._behind(target), self._waited_s)

    def _behind(self, target: int) -> list[int]:
        return [r for r in self.peers if self._control[r].words[_PROGRESS] < target]

    def close(self) -> None:
        self._sleepers.release()
        page_server().withdraw(self._window_name(self.rank, self._window_number))
        page_server().withdraw(f"{self._name}/{self.rank}")
        pages = [*self._control.values(), *self._windows, *self._peer_windows.values()]
        for page in pages:
            page.close()


def _aligned(nbytes: int, step: int = _LINE) -> int:
    return -(-nbytes // step) * step


def _blocks(numel: int, size: int) -> list[tuple[int, int]]:
    return [(start, min(start + size, numel)) for start in range(0, numel, size)]
