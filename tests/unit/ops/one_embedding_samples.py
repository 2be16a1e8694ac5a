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
    return [replace(sample, dtypes=("float32",)) for sample in listed]


ONE_EMBEDDING_SAMPLES = _samples()
