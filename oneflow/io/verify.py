"""Whether the bytes of a folder of shards are those that were written, before memory is taken for
them.

Each rank reads a share of every part, for any layout to come, through one small buffer: all
ranks together read each byte once. The checksums of shares add up to those of the parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from oneflow.core.op import Box
from oneflow.distributed.world import world
from oneflow.io.all_or_none import AllOrNone
from oneflow.io.checksum import MODULUS, checksum
from oneflow.io.manifest import Manifest
from oneflow.io.shard_reader import ShardReader

PIECE_NBYTES = 4 << 20
"""So much memory it takes, and the arithmetic of the checksum."""


def verify_digests(pact: AllOrNone, reader: ShardReader, manifest: Manifest) -> None:
    """All ranks call it. Raises CheckpointError on all of them for a file that is not there or not
    of its size, and for bytes that changed."""
    pact.attempt(lambda: reader.check_files(_wholes(manifest)))
    pact.meet()
    mine = pact.attempt(lambda: _sums(reader, manifest, pact.rank, pact.world_size))
    pact.meet()
    sums = np.array(mine, np.uint64)
    if pact.world_size > 1 and sums.size:
        sums = world().everyone.all_reduce(sums, what=f"check of a folder's digests, {sums.size}")
    _compare(reader, manifest, sums.tolist())


def verify_alone(reader: ShardReader, manifest: Manifest) -> None:
    """Compute digests as `verify_digests`, by one process."""
    reader.check_files(_wholes(manifest))
    _compare(reader, manifest, _sums(reader, manifest, 0, 1))


def _wholes(manifest: Manifest) -> list[tuple[str, Box]]:
    return [(n, Box((0,) * len(s.shape), s.shape)) for n, s in manifest.tensors.items()]


def _sums(reader: ShardReader, manifest: Manifest, rank: int, num_ranks: int) -> list[int]:
    """Return, for each part of each tensor, the sum of this rank's share."""
    buffer: np.ndarray[Any, Any] = np.empty(PIECE_NBYTES, np.uint8)
    sums: list[int] = []
    for name, stored in manifest.tensors.items():
        for part in stored.parts:
            total, most = 0, PIECE_NBYTES // stored.dtype.itemsize
            for box in _share(part.box, most, (rank + len(sums)) % num_ranks, num_ranks):
                total += checksum(reader.read_piece(name, part, box, buffer), box.starts)
            sums.append(total % MODULUS)
    return sums


def _compare(reader: ShardReader, manifest: Manifest, sums: list[int]) -> None:
    found = iter(sums)
    for name, stored in manifest.tensors.items():
        for part in stored.parts:
            if next(found) != part.digest:
                raise reader.damaged(name, part)


def _share(box: Box, most: int, number: int, count: int) -> Iterator[Box]:
    """Cut the pieces of a box into `count` nearly equal runs and return the `number`-th."""
    pieces = list(_pieces(box, most))
    return iter(pieces[len(pieces) * number // count : len(pieces) * (number + 1) // count])


def _pieces(box: Box, most: int) -> Iterator[Box]:
    """The box cut into boxes of at most `most` elements, each in one run of the C order."""
    if math.prod(box.shape) <= most:
        yield box
        return
    dim = next(d for d, n in enumerate(box.shape) if n > 1)
    starts, stops = box.starts, box.stops
    middle = (starts[dim] + stops[dim]) // 2
    yield from _pieces(Box(starts, (*stops[:dim], middle, *stops[dim + 1 :])), most)
    yield from _pieces(Box((*starts[:dim], middle, *starts[dim + 1 :]), stops), most)
