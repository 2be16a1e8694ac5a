"""Ids that are exchanged ahead of their look-up: two ranks in one process."""

from __future__ import annotations

import numpy as np
import pytest

from oneflow.core.errors import OneFlowError
from oneflow.kernels import one_embedding as kernels
from oneflow.kernels.ids_ahead import AS_BEFORE
from oneflow.kernels.open_tables import close_tables, open_table
from oneflow.ops.one_embedding import BUCKETS
from tests.unit.ops.one_embedding_samples import _description

Array = np.ndarray
RANKS, TABLES = 2, 3
TEXT = _description(TABLES).replace("samples", "ids sent ahead by samples")
SHADOW = np.zeros(BUCKETS // RANKS, np.float32)


def part(rank: int) -> dict[str, int]:
    return {"first": rank * BUCKETS // RANKS, "last": (rank + 1) * BUCKETS // RANKS}


def sent(ids: Array, is_ahead: bool) -> tuple[Array, Array, Array, Array]:
    """Ids as a rank sends them for its part of a batch."""
    outs = (
        np.zeros(RANKS, np.int64),
        np.zeros_like(ids),
        np.zeros(ids.shape, np.int32),
        np.zeros_like(ids),
    )
    told = {"table": TEXT, "num_parts": RANKS, "num_tables": TABLES, "padding_idx": None}
    kernels.unique(np, *outs, ids, is_ahead=is_ahead, **told)
    return outs


def came(batches: list[tuple[Array, ...]], to: int) -> tuple[Array, Array, Array]:
    """Ids as they come to an owner: numbers from each rank, the ids and their tables."""
    sizes, keys, tables = [], [], []
    for of_sizes, of_keys, of_tables, _ in batches:
        end = int(of_sizes[: to + 1].sum())
        begin = end - int(of_sizes[to])
        sizes.append(end - begin)
        keys.append(of_keys.reshape(-1)[begin:end])
        tables.append(of_tables.reshape(-1)[begin:end])
    room = np.zeros(40, np.int64), np.zeros(40, np.int32)
    for target, parts in zip(room, (keys, tables), strict=True):
        listed = np.concatenate(parts)
        target[: listed.size] = listed
    return np.array(sizes), *room


def recalled(rank: int, given: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    outs = tuple(np.zeros_like(x) for x in given)
    kernels.recall(np, *outs, SHADOW, *given, table=TEXT, num_parts=RANKS, **part(rank))
    return outs


@pytest.fixture
def batches() -> object:
    yield [np.random.default_rng(k).integers(0, 9, (4, TABLES)) for k in range(RANKS)]
    close_tables(TEXT)


def send_ahead(batches: list[Array]) -> None:
    ahead = [sent(ids, is_ahead=True) for ids in batches]
    for rank in range(RANKS):
        sizes, keys, tables = came(ahead, rank)
        kernels.prefetch(
            np, SHADOW.copy(), SHADOW, keys, tables, sizes, table=TEXT, num_parts=RANKS,
            padding_idx=None, makes_rows=True, **part(rank),
        )  # fmt: skip


def test_ids_that_were_sent_ahead_are_named_by_one_row_for_each_owner(
    batches: list[Array],
) -> None:
    plain = [sent(ids, is_ahead=False) for ids in batches]
    send_ahead(batches)
    named = [sent(ids, is_ahead=False) for ids in batches]
    for wanted, found in zip(plain, named, strict=True):
        assert found[0].tolist() == [1] * RANKS
        assert found[2].reshape(-1)[:RANKS].tolist() == [AS_BEFORE] * RANKS
        np.testing.assert_array_equal(found[3], wanted[3])
    for rank in range(RANKS):
        for wanted, found in zip(came(plain, rank), recalled(rank, came(named, rank)), strict=True):
            np.testing.assert_array_equal(found, wanted)
    again = [sent(ids, is_ahead=False) for ids in batches]
    np.testing.assert_array_equal(again[0][1], plain[0][1])  # once: a second look-up sends its ids


def test_a_rank_that_looks_up_other_ids_sends_them(batches: list[Array]) -> None:
    send_ahead(batches)
    others = [batches[0], batches[1] + 20]
    found = [sent(ids, is_ahead=False) for ids in others]
    assert found[0][0].tolist() == [1, 1] and int(found[1][0].sum()) > RANKS
    plain = [sent(ids, is_ahead=False) for ids in others]  # none is kept any more
    for rank in range(RANKS):
        got = recalled(rank, came(found, rank))
        for wanted, ours in zip(came(plain, rank), got, strict=True):
            np.testing.assert_array_equal(ours, wanted)


def test_ids_that_did_not_come_are_told(batches: list[Array]) -> None:
    send_ahead(batches)
    named = [sent(ids, is_ahead=False) for ids in batches]
    open_table(TEXT, **part(1)).ids_ahead._kept.clear()
    recalled(0, came(named, 0))
    with pytest.raises(OneFlowError, match="rank 0 looks up ids that it sent ahead"):
        recalled(1, came(named, 1))
