"""Blocks of arrays, packing, and sums that come in pieces: without sockets."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from oneflow.boxing.collectives.streams import (
    BLOCK_NBYTES,
    blocks_of,
    incoming_part,
    outgoing_parts,
    view_of,
)
from oneflow.boxing.collectives.sums import SLOTS, Sums

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (4, 3, 5), (2, 0, 3), (1, 1, 9)])
@pytest.mark.parametrize("max_numel", [1, 4, 16, 1000])
def test_blocks_cover_an_array_in_order_without_gaps(
    shape: tuple[int, ...], max_numel: int
) -> None:
    x = np.arange(int(np.prod(shape))).reshape(shape)
    blocks = [view_of(x, index).reshape(-1) for index in blocks_of(shape, max_numel)]
    assert all(block.size <= max_numel for block in blocks)
    np.testing.assert_array_equal(np.concatenate([*blocks, []]), x.reshape(-1))


def test_strided_parts_arrive_as_they_were() -> None:
    source = np.arange(900_000, dtype=np.int32).reshape(900, 1000)
    target = np.zeros((1000, 1000), np.int32)
    parts = [source[:, 3:700], source[10:20], source[::1, 999:]]
    places = [target[50:950, 100:797], target[0:10], target[50:950, 999:]]
    scratch = [np.empty(BLOCK_NBYTES, np.uint8) for _ in range(2)]
    sent = (bytes(v) for views in outgoing_parts(parts, scratch[0]) for v in views)
    left = b""
    for into in itertools.chain.from_iterable(incoming_part(p, scratch[1]) for p in places):
        while len(left) < len(into):
            left += next(sent)
        into[:], left = left[: len(into)], left[len(into) :]
    assert left == b"" and next(sent, None) is None
    for part, place in zip(parts, places, strict=True):
        np.testing.assert_array_equal(place, part)


def test_contiguous_parts_are_sent_from_where_they_are() -> None:
    source = np.arange(100.0)
    [[first, second]] = outgoing_parts([source[:10], source[50:]], np.empty(0, np.uint8))
    source[3], source[60] = -1.0, -2.0
    assert np.frombuffer(first)[3] == -1.0 and np.frombuffer(second)[10] == -2.0


@pytest.mark.parametrize("seed", range(8))
def test_sums_have_the_same_bits_whoever_comes_first(seed: int) -> None:
    size, own = 5 * BLOCK_NBYTES // 4 + 7, seed % 4
    values = [np.random.default_rng(r).standard_normal(size).astype(np.float32) for r in range(4)]
    memory = {r: np.empty(SLOTS * BLOCK_NBYTES, np.uint8) for r in range(4)}
    target = values[own].copy()  # in place
    sums = Sums(memory.__getitem__)
    blocks = sums.add(target, [target if r == own else r for r in range(4)], np.add)
    streams = {r: sums.receive(r, blocks) for r in range(4) if r != own}
    filled = dict.fromkeys(streams, 0)
    rng = np.random.default_rng(seed)
    while streams:  # a random stream gets its next block, as far as it may go
        rank = int(rng.choice(list(streams)))
        into = next(streams[rank], memory)
        if into is memory:
            del streams[rank]
        elif into is not None:
            a = filled[rank]
            into[:] = values[rank].view(np.uint8)[a : a + len(into)].data
            filled[rank] = a + len(into)
    expected = ((values[0] + values[1]) + values[2]) + values[3]
    assert sums.done == len(blocks)
    assert target.tobytes() == expected.tobytes()
