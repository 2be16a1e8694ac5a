"""Ids that ranks exchange ahead of the look-up that needs them, so that they travel once.

A rank keeps the numbering of a batch whose ids it has sent ahead, and an owner the ids that came
from each rank. Where the look-up of that batch comes, the rank sends each owner one row instead: of
the table AS_BEFORE, with a digest of the ids that it sent, for which the owner puts those that it
kept. So a rank that looks up another batch than it said sends its ids, independently of the other
ranks.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from oneflow.core.errors import OneFlowError
from oneflow.kernels.array import Array
from oneflow.kernels.row_ids import are_same_ids

AS_BEFORE = -1
"""The table beside a digest."""
_MOST_SENT, _MOST_KEPT = 4, 8
"""Batches kept of each table by who sent them, and from each rank by who owns them: the oldest goes
for one more. Owners keep more, for a rank names none but those that it keeps itself."""


@dataclass(frozen=True)
class Grouped:
    """The distinct ids of a batch, grouped by owner: the result of one_embedding_unique."""

    sizes: Array
    keys: Array
    tables: Array
    inverse: Array

    def digests(self) -> list[int]:
        """Digests of the ids of each owner that has any."""
        ends = np.cumsum(self.sizes)
        return [
            _digest(self.keys[end - count : end], self.tables[end - count : end])
            for end, count in zip(ends.tolist(), self.sizes.tolist(), strict=True)
            if count
        ]


def _digest(keys: Array, tables: Array) -> int:
    hashed = blake2b(keys.tobytes(), digest_size=8)
    hashed.update(tables.tobytes())
    return int.from_bytes(hashed.digest(), "little", signed=True)


_LOCK = threading.Lock()
_SENT: dict[str, deque[tuple[Array, Array | None, Grouped]]] = {}
"""Batches that this rank has sent ahead, by the description of their tables."""


def note_sent(table: str, ids: Array, table_ids: Array | None, grouped: Grouped) -> None:
    """Keep a batch that goes to its owners ahead of its look-up."""
    copied = None if table_ids is None else table_ids.copy()
    parts = (grouped.sizes, grouped.keys, grouped.tables, grouped.inverse)
    with _LOCK:
        batches = _SENT.setdefault(table, deque(maxlen=_MOST_SENT))
        batches.append((ids.copy(), copied, Grouped(*(part.copy() for part in parts))))


def sent_before(table: str, ids: Array, table_ids: Array | None) -> Grouped | None:
    """A batch that was sent ahead, once; None of any other."""
    with _LOCK:
        batches = _SENT.get(table, ())
        for batch in batches:
            if are_same_ids((batch[0], batch[1]), (ids, table_ids)):
                rest = (b for b in batches if b is not batch)
                _SENT[table] = deque(rest, maxlen=_MOST_SENT)
                return batch[2]
    return None


def forget_sent(table: str) -> None:
    """Forget the ids that were sent ahead for the tables of a description."""
    with _LOCK:
        _SENT.pop(table, None)


class IdsAhead:
    """The ids that came to an owner ahead of their look-ups, from each rank."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._kept: dict[int, deque[tuple[int, Array, Array]]] = {}
        self.used = 0
        """Digests that were found here."""

    def keep(self, source: int, keys: Array, tables: Array) -> None:
        """Keep ids that came from a rank."""
        batches = self._kept.setdefault(source, deque(maxlen=_MOST_KEPT))
        batches.append((_digest(keys, tables), keys, tables))

    def take(self, source: int, digest: int) -> tuple[Array, Array]:
        """The ids of a digest that a rank names. Raises OneFlowError."""
        for batch in self._kept.get(source, ()):
            if batch[0] == digest:
                self._kept[source] = deque(
                    (b for b in self._kept[source] if b is not batch), maxlen=_MOST_KEPT
                )
                self.used += 1
                return batch[1], batch[2]
        raise OneFlowError(
            f"embedding {self._name!r}: rank {source} looks up ids that it sent ahead, but they "
            "did not come here: a step that failed was not ended on all ranks; start them anew"
        )
