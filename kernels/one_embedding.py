"""Kernels of oneflow/ops/one_embedding.py, over the tables that are open in this process.

Tables lie in host memory and on disks: what a GPU looks up or adds is copied from there and back.
"""

from __future__ import annotations

import numpy as np

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.linalg import on_host
from oneflow.kernels.open_tables import Rule, loops, open_table
from oneflow.kernels.registry import kernel


@kernel("one_embedding_fused_lookup")
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
    request = rows.request(on_host(xp, ids), _on_host(xp, table_ids), padding_idx)
    found = out if xp is np else np.empty(out.shape, out.dtype)
    loops().pick(rows.look_up(request), request.inverse, found.reshape(-1, size))
    if found is not out:
        out[...] = xp.asarray(found)


@kernel("one_embedding_fused_lookup_grad")
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
    request = rows.request(on_host(xp, ids), _on_host(xp, table_ids), padding_idx)
    sums = np.ascontiguousarray(on_host(xp, d), np.float32).reshape(-1, d.shape[-1])
    out[...] = xp.asarray(rows.keep(request, sums))


@kernel("one_embedding_update")
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
    taken = rows.take(on_host(xp, norms))
    if taken is not None:
        way = Rule(rule, dict(options), first_states, catches_up)
        rows.update(*taken, way, on_host(xp, lr), on_host(xp, step))


def _on_host(xp: ArrayModule, x: Array | None) -> Array | None:
    return None if x is None else on_host(xp, x)
