"""Samples of ops on rows that go to parts (oneflow/ops/exchange_rows.py)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .sample import Sample, normal

Array = np.ndarray[Any, Any]
SIZES = np.array([[1, 0, 2], [0, 1, 1], [2, 0, 0]])
"""Rows of three parts of 7 rows for each of them: all rows go somewhere."""


def _exchanged(
    sizes: Array, *xs: Array, num_parts: int, lead: int, rows: int = 0, **_: Any
) -> tuple[Array, ...]:
    counts = sizes.reshape(num_parts, num_parts)
    outs = []
    for x in xs:
        flat = [part.reshape(-1, *x.shape[lead:]) for part in np.array_split(x, num_parts)]
        out = np.zeros((rows or num_parts * x.shape[0], *x.shape[1:]))
        for to, target in enumerate(np.array_split(out, num_parts)):
            came = [p[counts[s, :to].sum() :][: counts[s, to]] for s, p in enumerate(flat)]
            joined = np.concatenate(came)
            target.reshape(-1, *x.shape[lead:])[: len(joined)] = joined
        outs.append(out)
    return counts.T.reshape(-1), *outs


def _packed(sizes: Array, *xs: Array, **_: Any) -> tuple[Array, ...]:
    return sizes, *xs


def _samples() -> list[Sample]:
    exchange, pack = "exchange_rows", "pack_rows"
    three, one = {"num_parts": 3, "lead": 1}, {"num_parts": 1, "lead": 2}
    flat, ids = SIZES.reshape(-1), np.arange(7)
    few, pairs = np.array([5]), normal(3, 2, 4)
    full = {"is_padded": True}
    return [
        Sample(exchange, (flat, normal(7, 2)), {**three, "rows": 0, **full}, _exchanged),
        Sample(exchange, (flat, ids, normal(7)), {**three, "rows": 10, **full}, _exchanged),
        Sample(exchange, (few, pairs), {**one, "rows": 4, **full}, _exchanged),
        Sample(pack, (flat, normal(7, 2), ids), three, _packed),
        Sample(pack, (np.array([6]), pairs), one, _packed),
    ]


ROW_SAMPLES = _samples()
