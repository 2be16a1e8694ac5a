"""Embeddings of the tests, each under a name of its own."""

from __future__ import annotations

from itertools import count
from typing import Any

import oneflow as flow

one = flow.one_embedding
_numbers = count()


def embedding(
    dim: Any = 4, tables: int = 2, size_factor: int = 3, capacity: int = 1000, **given: Any
) -> Any:
    """A MultiTableEmbedding with normal first values, its rows in memory."""
    initializer = one.make_normal_initializer(0.0, 1.0)
    return one.MultiTableEmbedding(
        **{
            "name": f"test {next(_numbers)}",
            "embedding_dim": dim,
            "dtype": flow.float,
            "key_type": flow.int64,
            "tables": [one.make_table_options(initializer)] * tables,
            "store_options": one.make_device_mem_store_options("", capacity, size_factor),
            "seed": 7,
            **given,
        }
    )
