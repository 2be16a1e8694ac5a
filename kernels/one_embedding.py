"""Kernels of oneflow/ops/one_embedding.py, over the tables that are open in this process."""

from __future__ import annotations

import numpy as np

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.open_tables import Rule, loops, open_table
from oneflow.kernels.registry import kernel


@kernel("one_embedding_fused_lookup", device="cpu")
def fused_lookup(
    xp: ArrayModule,
    out: Array,
    shadow: Array,
    ids: Array,
    table_ids: Array | None = None,
    *,
    table: str,
    size: int,
    num_tables: int,
    padding_idx: int | None,
    first: int | None = None,
    last: int | None = None,
) -> None:
    rows = open_table(table, first, last)
    request = rows.request(ids, table_ids, padding_idx)
    loops().pick(rows.look_up(request), request.inverse, out.reshape(-1, size))


@kernel("one_embedding_fused_lookup_grad", device="cpu")
def fused_lookup_grad(
    xp: ArrayModule,
    out: Array,
    shadow: Array,
    d: Array,
    ids: Array,
    table_ids: Array | None = None,
    *,
    table: str,
    num_tables: int,
    padding_idx: int | None,
    first: int | None = None,
    last: int | None = None,
) -> None:
    rows = open_table(table, first, last)
    request = rows.request(ids, table_ids, padding_idx)
    out[...] = rows.keep(request, np.ascontiguousarray(d, np.float32).reshape(-1, d.shape[-1]))


@kernel("one_embedding_update", device="cpu")
def update(
    xp: ArrayModule,
    out: Array,
    shadow: Array,
    norms: Array,
    lr: Array,
    step: Array,
    is_wanted: Array | None = None,
    *,
    table: str,
    rule: str,
    options: tuple[tuple[str, object], ...],
    first_states: tuple[float, ...],
    catches_up: bool,
    first: int | None = None,
    last: int | None = None,
) -> None:
    rows = open_table(table, first, last)
    if is_wanted is not None and not is_wanted:
        rows.forget()
        return
    taken = rows.take(norms)
    if taken is not None:
        rows.update(*taken, Rule(rule, dict(options), first_states, catches_up), lr, step)
