"""Samples of the ops of OneEmbedding, over tables whose new rows are known numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from oneflow.ops.one_embedding import BUCKETS

from .sample import Sample, integers

Array = np.ndarray[Any, Any]

FIRST = (0.5, -2.0, 1.25)
"""The numbers of a new row, by table."""
WIDTH = 3


def _description(tables: int) -> str:
    columns = [[{"width": WIDTH, "kind": "constant", "first": first}] for first in FIRST[:tables]]
    options = {
        "kv_store": {
            "caches": [{"policy": "full", "value_memory_kind": "device"}],
            "persistent_table": {"path": "", "capacity_hint": 0},
        },
        "size_factor": 1,
    }
    return json.dumps(
        {
            "name": f"samples of {tables}",
            "key_type": "int64",
            "line_size": WIDTH,
            "columns": columns,
            "seed": 0,
            "store": options,
        }
    )


def _tables(ids: Array, table_ids: tuple[Array, ...], num_tables: int) -> Array:
    return table_ids[0] if table_ids else np.broadcast_to(np.arange(num_tables), ids.shape)


def _rows(
    shadow: Array, ids: Array, *table_ids: Array, num_tables: int, padding_idx: int | None, **_: Any
) -> Array:
    first = np.array(FIRST)[_tables(ids, table_ids, num_tables)]
    return np.where(ids == padding_idx, 0.0, first)[..., None] * np.ones(WIDTH)


def _bucket(key: int, table: int) -> int:
    """The bucket of a row, in Python's integers."""
    mask = 2**64 - 1
    x = key ^ ((table + 1) * 0x9E3779B97F4A7C15 & mask)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ x >> shift) * factor & mask
    return ((x ^ x >> 31) >> 32) * BUCKETS >> 32


def _norms(
    shadow: Array,
    d: Array,
    ids: Array,
    *table_ids: Array,
    num_tables: int,
    padding_idx: int | None,
    **_: Any,
) -> Array:
    sums: dict[tuple[int, int], Array] = {}
    tables = _tables(ids, table_ids, num_tables)
    for key, table, row in zip(ids.flat, tables.flat, d.reshape(-1, WIDTH), strict=True):
        if key != padding_idx:
            pair = (int(key), int(table))
            sums[pair] = sums.get(pair, 0) + row.astype(np.float64)
    out = np.zeros(BUCKETS)
    for (key, table), total in sums.items():
        out[_bucket(key, table)] += (total**2).sum()
    return np.sqrt(out)


# ---- over ranks ----------------------------------------------------------------------------------


def _owner(key: int, table: int, num_parts: int) -> int:
    counts = [len(x) for x in np.array_split(np.arange(BUCKETS), num_parts)]
    return int(np.repeat(np.arange(num_parts), counts)[_bucket(key, table)])


def _unique(
    ids: Array,
    *table_ids: Array,
    num_parts: int,
    num_tables: int,
    padding_idx: int | None,
    **_: Any,
) -> tuple[Array, ...]:
    sizes = np.zeros((num_parts, num_parts), np.int64)
    keys, tables, inverse = np.zeros_like(ids), np.zeros_like(ids), np.full(ids.shape, -1)
    of_ids = np.ascontiguousarray(_tables(ids, table_ids, num_tables))
    split = [np.array_split(x, num_parts) for x in (ids, of_ids, keys, tables, inverse)]
    for part, arrays in enumerate(zip(*split, strict=True)):
        given, given_tables, out, out_tables, places = (x.reshape(-1) for x in arrays)
        pairs = list(zip(given.tolist(), given_tables.tolist(), strict=True))
        firsts = dict.fromkeys(pair for pair in pairs if pair[0] != padding_idx)
        listed = sorted(firsts, key=lambda pair: _owner(*pair, num_parts))
        for i, (key, table) in enumerate(listed):
            sizes[part, _owner(key, table, num_parts)] += 1
            out[i], out_tables[i] = key, table
        places[:] = [listed.index(pair) if pair in firsts else -1 for pair in pairs]
    return sizes.reshape(-1), keys, tables, inverse


def _looked_up(
    shadow: Array, came: Array, keys: Array, tables: Array, **_: Any
) -> tuple[Array, Array]:
    return came, np.array(FIRST)[tables][..., None] * np.ones(WIDTH)


def _gathered(
    shadow: Array, rows: Array, inverse: Array, *_: Array, num_parts: int, **__: Any
) -> Array:
    out = np.zeros((*inverse.shape, WIDTH))
    split = (np.array_split(x, num_parts) for x in (rows, inverse, out))
    for source, places, target in zip(*split, strict=True):
        flat = np.concatenate([source.reshape(-1, WIDTH), np.zeros((1, WIDTH))])
        target[...] = flat[places]
    return out


def _summed(
    d: Array, inverse: Array, sizes: Array, *, num_parts: int, **_: Any
) -> tuple[Array, Array]:
    out = np.zeros(d.shape)
    split = (np.array_split(x, num_parts) for x in (d, inverse, out))
    for source, places, target in zip(*split, strict=True):
        np.add.at(target.reshape(-1, WIDTH), places.reshape(-1), source.reshape(-1, WIDTH))
    return sizes, out


def _kept(shadow: Array, came: Array, keys: Array, tables: Array, sums: Array, **_: Any) -> Array:
    return _norms(shadow, sums, keys, tables, num_tables=len(FIRST), padding_idx=None)


def _owned(num_parts: int, each: int) -> tuple[Array, Array]:
    """Ids of three tables whose rows each part owns, one part after the other."""
    rng = np.random.default_rng(num_parts)
    found: list[list[tuple[int, int]]] = [[] for _ in range(num_parts)]
    while any(len(pairs) < each for pairs in found):
        pair = int(rng.integers(0, 9)), int(rng.integers(0, 3))
        found[_owner(*pair, num_parts)].append(pair)
    keys, tables = np.array([pairs[:each] for pairs in found]).reshape(-1, 2).T
    return keys.copy(), tables.astype(np.int32)


def _samples_over_ranks() -> list[Sample]:
    shadow = np.zeros(BUCKETS, np.float32)
    ids, tables = integers(0, 6, 7, 2), integers(0, 3, 7, 2, seed=1, dtype=np.int32)
    rng = np.random.default_rng(3)
    listed = [
        Sample(
            "one_embedding_unique",
            given,
            {"table": _description(3), "num_parts": parts, "num_tables": 3, "padding_idx": 2},
            _unique,
        )
        for parts in (1, 3)
        for given in ((ids, tables), (integers(0, 6, 7, 3),))
    ]
    # All that there is room for is there: what lies beyond may be anything.
    for parts, came in ((1, [6]), (3, [2, 0, 0, 1, 1, 0, 0, 0, 2])):
        keys, of_keys = _owned(parts, 6 // parts)
        # Eighths, which also as partial sums add up without rounding.
        rows, d = (rng.integers(-20, 20, (6, WIDTH)).astype(np.float32) / 8 for _ in range(2))
        inverse = np.concatenate([rng.permutation(6 // parts) for _ in range(parts)])
        some = np.where(np.arange(6) == 1, -1, inverse)
        told = {"table": _description(3), "num_parts": parts, "communication": "float32"}
        sized, sizes = {**told, "size": WIDTH}, np.array(came)
        ask = (shadow, sizes, keys, of_keys)
        listed += [
            Sample("one_embedding_lookup", ask, sized, _looked_up),
            Sample(
                "one_embedding_gather",
                (shadow, rows, some, sizes, keys, of_keys),
                sized,
                _gathered,
                wrt=(),
            ),
            Sample("one_embedding_sums", (d, inverse, sizes), told, _summed),
            Sample("one_embedding_keep", (*ask, rows), told, _kept),
            Sample(
                "one_embedding_recall",
                ask,
                {"table": _description(3), "num_parts": parts},
                lambda shadow, *ids, **_: ids,
            ),
            Sample(
                "one_embedding_prefetch",
                (shadow, keys, of_keys, sizes),
                {"table": _description(3), "num_parts": parts, "padding_idx": None},
                lambda shadow, *_, **__: shadow,
            ),
        ]
    return listed


def _samples() -> list[Sample]:
    shadow = np.zeros(BUCKETS, np.float32)
    ids, tables = integers(0, 6, 5, 4), integers(0, 3, 5, 4, seed=1, dtype=np.int32)
    columns = integers(0, 6, 5, 3)
    d = np.random.default_rng(2).normal(size=(5, 4, WIDTH))
    one = {"table": _description(1), "num_tables": 1, "padding_idx": None}
    three = {"table": _description(3), "num_tables": 3, "padding_idx": 2}
    look_up, back = "one_embedding_fused_lookup", "one_embedding_fused_lookup_grad"
    update = {"table": _description(1), "rule": "sgd_update", "options": (), "first_states": ()}
    numbers = (np.array(0.1), np.array(1))
    listed = [
        Sample(look_up, (shadow, ids), {**one, "size": WIDTH}, _rows),
        Sample(look_up, (shadow, ids, tables), {**three, "size": WIDTH}, _rows),
        Sample(look_up, (shadow, columns), {**three, "size": WIDTH}, _rows),
        Sample(back, (shadow, d, ids), one, _norms),
        Sample(back, (shadow, d, ids, tables), three, _norms),
        Sample(back, (shadow, d[:, :3], columns), three, _norms),
        # Without a gradient that waits nothing happens: tests of the embedding have the others.
        Sample(
            "one_embedding_update",
            (shadow, shadow, *numbers, np.array(False)),
            {**update, "catches_up": False},
            lambda shadow, *_, **__: shadow,
        ),
    ]
    listed += _samples_over_ranks()
    return [replace(sample, dtypes=("float32",)) for sample in listed]


ONE_EMBEDDING_SAMPLES = _samples()
