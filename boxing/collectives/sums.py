"""Sums of the blocks that arrive over connections, each added up as soon as it is complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from oneflow.boxing.collectives.exchange import combine, combine_all, is_half, view_of
from oneflow.boxing.collectives.streams import (
    BLOCK_NBYTES,
    Incoming,
    block_numel,
    blocks_of,
    raw,
)
from oneflow.kernels.array import Array

SLOTS = 4
"""Blocks of a sum that one peer may be ahead of the slowest."""


@dataclass(frozen=True)
class _Block:
    """target = operands, first to last; one is an array of this rank's, or the rank of a peer."""

    target: Array
    operands: tuple[Array | int, ...]


class Sums:
    """All sums of a call, block by block, in rank order whichever data come first.

    A peer fills one of its slots for every block that it has a part in, and at most `SLOTS` blocks
    ahead. When all parts of a block are there, it is added up and its slots are free; the one that
    was used last, which is in the cache, is used first. All streams bring blocks in one order, so a
    stream that waits never waits for one that waits for it.
    """

    def __init__(self, scratch_of: Callable[[int], Array]) -> None:
        self._scratch_of = scratch_of  # rank of a peer -> uint8, SLOTS blocks
        self._blocks: list[_Block] = []
        self._missing: list[int] = []
        self._reduce: list[np.ufunc] = []
        self._free: dict[int, list[int]] = {}
        self._slot_of: dict[tuple[int, int], int] = {}  # (rank, number of the block) -> slot
        self.done = 0
        """Blocks from the first on that are added up."""

    def add(self, target: Array, operands: Sequence[Array | int], reduce: np.ufunc) -> range:
        """One sum; operands: arrays like `target`, or ranks. Returns the numbers of its blocks."""
        first = len(self._blocks)
        remote = sum(isinstance(o, int) for o in operands)
        for index in blocks_of(target.shape, block_numel(target.itemsize)):
            own = tuple(o if isinstance(o, int) else view_of(o, index) for o in operands)
            self._blocks.append(_Block(view_of(target, index), own))
            self._missing.append(remote)
            self._reduce.append(reduce)
        return range(first, len(self._blocks))

    def receive(self, rank: int, blocks: range) -> Incoming:
        """The stream of the addends of `rank` to these blocks."""
        for number in blocks:
            while number >= self.done + SLOTS:
                yield None
            self._slot_of[rank, number] = self._free.setdefault(rank, list(range(SLOTS))).pop()
            yield raw(self._slot(rank, number))
            self._missing[number] -= 1
            self.advance()

    @property
    def is_done(self) -> bool:
        return self.done == len(self._blocks)

    def advance(self) -> None:
        """Add up the blocks that are complete."""
        while self.done < len(self._blocks) and self._missing[self.done] == 0:
            self._add_up(self.done)
            self.done += 1

    def _slot(self, rank: int, number: int) -> Array:
        target = self._blocks[number].target
        start = self._slot_of[rank, number] * BLOCK_NBYTES
        memory: Array = self._scratch_of(rank)[start : start + target.nbytes]
        slot: Array = memory.view(target.dtype).reshape(target.shape)
        return slot

    def _add_up(self, number: int) -> None:
        """The target is written last: it may be an operand itself."""
        block, reduce = self._blocks[number], self._reduce[number]
        operands = [self._slot(o, number) if isinstance(o, int) else o for o in block.operands]
        slot = next((i for i, o in enumerate(block.operands) if isinstance(o, int)), 0)
        total = operands[0]
        if is_half(total.dtype):  # in memory of its own
            combine_all(reduce, operands, block.target)
            operands.clear()
        for i, operand in enumerate(operands[1:], 1):
            is_last = i == len(operands) - 1
            into = block.target if is_last else self._partial(operands, slot, i, total)
            combine(reduce, total, operand, into)
            total = into
        for rank in block.operands:
            if isinstance(rank, int):
                self._free[rank].append(self._slot_of.pop((rank, number)))

    @staticmethod
    def _partial(operands: list[Array], slot: int, i: int, total: Array) -> Array:
        """Return the place of the sum of operands 0..i: a slot that has been read, never
        a source.
        """
        return operands[slot] if slot <= i else np.empty_like(total)
