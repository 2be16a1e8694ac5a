"""Kernels of oneflow/ops/one_embedding.py, over the tables that are open in this process.

Rows in the memory of a GPU are looked up and updated there (device_rows.py). Those of other tables
lie in host memory and on disks: a GPU is sent the distinct rows of a batch and hands them out, and
adds up the gradients of equal ids before they leave it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.exchange_rows import parts_of
from oneflow.kernels.hardware import to_host
from oneflow.kernels.ids_ahead import AS_BEFORE, Grouped, note_sent, sent_before
from oneflow.kernels.open_tables import OpenTable, Rule, count_asked, open_table
from oneflow.kernels.registry import kernel
from oneflow.kernels.row_forms import decoded, encoded_of
from oneflow.kernels.row_ids import Request, described, loops
from oneflow.ops.one_embedding import BUCKETS


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
    makes_rows: bool,
    **part: int | None,
) -> None:
    rows = open_table(table, **part)
    rows.check_width(size)
    if (there := rows.on_device(xp)) is not None:
        there.look_up(out, ids, table_ids, padding_idx, makes_rows=makes_rows)
        return
    request = rows.request(to_host(ids), _on_host(table_ids), padding_idx)
    lines = rows.look_up(request, makes_rows=makes_rows)
    if xp is np:
        loops().pick(lines, request.inverse, out.reshape(-1, size))
        return
    lines = np.concatenate([lines, np.zeros((1, size), np.float32)])  # the last for -1, no row
    xp.take(xp.asarray(lines), xp.asarray(request.inverse), axis=0, out=out.reshape(-1, size))


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
    **part: int | None,
) -> None:
    rows = open_table(table, **part)
    rows.check_width(d.shape[-1])
    if (there := rows.on_device(xp)) is not None:
        there.keep(out, d, ids, table_ids, padding_idx)
        return
    request = rows.request(to_host(ids), _on_host(table_ids), padding_idx)
    flat = xp.ascontiguousarray(d, np.float32).reshape(-1, d.shape[-1])
    if xp is np:
        out[...] = rows.keep(request, flat)
        return
    sums = xp.zeros((request.keys.size + 1, d.shape[-1]), np.float32)  # the last of -1, no row
    xp.add.at(sums, xp.asarray(request.inverse), flat)
    out[...] = xp.asarray(rows.keep_sums(request, to_host(sums[:-1])))


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
    **part: int | None,
) -> None:
    rows = open_table(table, **part)
    way = Rule(rule, dict(options), first_states, catches_up)
    there = rows.on_device(xp)
    if there is not None and there.waiting:
        way.check_fits(rows)
        there.update(norms, way.on_device(), lr, step, is_wanted)
        return
    if is_wanted is not None and not is_wanted:
        rows.forget()
        return
    taken = rows.take(to_host(norms))
    if taken is not None:
        rows.update(*taken, way, to_host(lr), to_host(step))


def _on_host(x: Array | None) -> Array | None:
    return None if x is None else to_host(x)


# ---- over ranks ----------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _owners(num_parts: int) -> Array:
    """The part that owns each bucket."""
    counts = [len(part) for part in np.array_split(np.arange(BUCKETS), num_parts)]
    return np.repeat(np.arange(num_parts), counts)


def _counts(xp: ArrayModule, sizes: Array, num_parts: int) -> list[int]:
    """Rows that lie in each part that is here."""
    counts: list[int] = to_host(sizes).reshape(-1, num_parts).sum(axis=1).tolist()
    return counts


def _left_out(xp: ArrayModule, sizes: Array, num_parts: int, keys: Array) -> Array:
    """bool[ids]: those behind the ones that came, of each part that is here; counted on a GPU."""
    counts = sizes.reshape(-1, num_parts).sum(axis=1)
    parts = parts_of(xp, keys, len(counts), keys.ndim)
    left = [xp.arange(len(x)) >= count for x, count in zip(parts, counts, strict=True)]
    found: Array = left[0] if len(left) == 1 else xp.concatenate(left)
    return found


def _filled(xp: ArrayModule, x: Array, counts: list[int], lead: int) -> Array:
    """The rows that are there of all parts that are here: (rows, elements of one)."""
    parts = zip(parts_of(np, to_host(x), len(counts), lead), counts, strict=True)
    found = [part[:count] for part, count in parts]
    return found[0] if len(found) == 1 else np.concatenate(found)


def _fill(xp: ArrayModule, out: Array, rows: Array, counts: list[int], lead: int) -> None:
    """Put rows at the beginning of each part."""
    first = 0
    for part, count in zip(parts_of(xp, out, len(counts), lead), counts, strict=True):
        part[:count] = xp.asarray(rows[first : first + count])
        first += count


@kernel("one_embedding_unique")
def unique(
    xp: ArrayModule,
    sizes: Array,
    keys: Array,
    tables: Array,
    inverse: Array,
    ids: Array,
    table_ids: Array | None = None,
    *,
    table: str,
    num_parts: int,
    num_tables: int,
    padding_idx: int | None,
    is_ahead: bool,
) -> None:
    known, owners = described(table), _owners(num_parts)
    count = sizes.size // num_parts
    is_one = count == 1  # a rank's part, and not all parts in one process
    given_ids = (to_host(ids), _on_host(table_ids))
    before = None if is_ahead or not is_one else sent_before(table, *given_ids)
    if before is not None:
        _tell_as_before(xp, before, sizes, keys, tables, inverse)
        return
    made = [np.empty(x.shape, x.dtype) for x in (sizes, keys, tables, inverse)]
    outs = made if xp is not np else [sizes, keys, tables, inverse]
    given = np.array_split(given_ids[0], count)
    tabled = [None] * count if given_ids[1] is None else np.array_split(given_ids[1], count)
    for k, (part, of_part) in enumerate(zip(given, tabled, strict=True)):
        known.check(part, of_part, padding_idx)
        asked = known.number(part, of_part, padding_idx)
        count_asked(asked)
        lists = [np.array_split(x, count)[k].reshape(-1) for x in outs]
        loops().to_owners(
            owners, asked.buckets, asked.keys.view(np.int64), asked.tables, asked.inverse, *lists
        )
    if is_ahead and is_one:
        note_sent(table, *given_ids, Grouped(*(x.reshape(-1) for x in outs)))
    if xp is not np:
        for out, host in zip((sizes, keys, tables, inverse), outs, strict=True):
            out[...] = xp.asarray(host)


def _tell_as_before(
    xp: ArrayModule, before: Grouped, sizes: Array, keys: Array, tables: Array, inverse: Array
) -> None:
    """Name the ids that their owners have: each gets the digest of its own."""
    digests = before.digests()
    sizes[...] = xp.asarray((before.sizes > 0).astype(sizes.dtype))
    keys.reshape(-1)[: len(digests)] = xp.asarray(np.array(digests, np.int64))
    tables.reshape(-1)[: len(digests)] = AS_BEFORE
    inverse[...] = xp.asarray(before.inverse.reshape(inverse.shape))


@kernel("one_embedding_recall")
def recall(
    xp: ArrayModule,
    sizes: Array,
    out: Array,
    out_tables: Array,
    shadow: Array,
    came: Array,
    keys: Array,
    tables: Array,
    *,
    table: str,
    num_parts: int,
    **part: int | None,
) -> None:
    sizes[...], out[...], out_tables[...] = came, keys, tables
    counts = to_host(came)
    if counts.size != num_parts:
        return  # all parts are here, which send no digests
    flat = [_filled(xp, x, [int(counts.sum())], x.ndim)[:, 0] for x in (keys, tables)]
    ends = np.cumsum(counts)
    digests = [k for k in range(num_parts) if counts[k] == 1 and flat[1][ends[k] - 1] == AS_BEFORE]
    if not digests:
        return
    ahead = open_table(table, **part).ids_ahead
    pieces = [
        ahead.take(k, int(flat[0][end - 1]))
        if k in digests
        else tuple(x[end - n : end] for x in flat)
        for k, (end, n) in enumerate(zip(ends.tolist(), counts.tolist(), strict=True))
    ]
    sizes[...] = xp.asarray(np.array([len(of[0]) for of in pieces], counts.dtype))
    total = sum(len(of[0]) for of in pieces)
    for target, lists in zip((out, out_tables), zip(*pieces, strict=True), strict=True):
        _fill(xp, target, np.concatenate(lists)[:, None], [total], target.ndim)


@kernel("one_embedding_lookup")
def lookup(
    xp: ArrayModule,
    sizes: Array,
    out: Array,
    shadow: Array,
    came: Array,
    keys: Array,
    tables: Array,
    *,
    table: str,
    size: int,
    num_parts: int,
    communication: str,
    makes_rows: bool,
    **part: int | None,
) -> None:
    rows = open_table(table, **part)
    sizes[...] = came
    if (there := rows.on_device(xp)) is not None:
        found = xp.empty((*keys.shape, size), np.float32)
        left = _left_out(xp, came, num_parts, keys)
        there.look_up(found, keys, tables, None, makes_rows=makes_rows, is_left=left)
        if communication == "float32":
            out[...] = found
            return
        counts = _counts(xp, came, num_parts)
        lines = _filled(xp, found, counts, keys.ndim)
        _fill(xp, out, encoded_of(table, "rows", lines, communication), counts, keys.ndim)
        return
    counts = _counts(xp, came, num_parts)
    asked = _request(xp, rows, keys, tables, counts)
    sent = encoded_of(
        table, "rows", rows.look_up(asked, makes_rows=makes_rows, counts_ids=False), communication
    )
    if (asked.inverse < 0).any():  # of other ranks
        sent = np.concatenate([sent, np.zeros_like(sent, shape=(1, sent.shape[1]))])
    _fill(xp, out, sent[asked.inverse], counts, keys.ndim)


@kernel("one_embedding_gather")
def gather(
    xp: ArrayModule,
    out: Array,
    shadow: Array,
    rows: Array,
    inverse: Array,
    sizes: Array,
    keys: Array,
    tables: Array,
    *,
    table: str,
    size: int,
    num_parts: int,
    communication: str,
) -> None:
    counts, lead = _counts(xp, sizes, num_parts), inverse.ndim
    targets, numbers = parts_of(xp, out, len(counts), lead), _parts(xp, inverse, counts)
    sources = parts_of(np, to_host(rows), len(counts), lead)
    for source, count, places, target in zip(sources, counts, numbers, targets, strict=True):
        found = target if xp is np else np.empty(target.shape, target.dtype)
        loops().pick(decoded(source[:count], communication), places, found)
        if found is not target:
            target[...] = xp.asarray(found)


@kernel("one_embedding_sums")
def sums(
    xp: ArrayModule,
    sent_sizes: Array,
    out: Array,
    d: Array,
    inverse: Array,
    sizes: Array,
    *,
    table: str,
    num_parts: int,
    communication: str,
) -> None:
    counts, lead = _counts(xp, sizes, num_parts), inverse.ndim
    sent_sizes[...] = sizes
    given = parts_of(np, np.ascontiguousarray(to_host(d), np.float32), len(counts), lead)
    added = []
    for part, count, places in zip(given, counts, _parts(xp, inverse, counts), strict=True):
        total = np.zeros((count, d.shape[-1]), np.float32)
        loops().sum_rows(part, places, total)
        added.append(encoded_of(table, "gradients", total, communication))
    _fill(xp, out, np.concatenate(added), counts, lead)


@kernel("one_embedding_keep")
def keep(
    xp: ArrayModule,
    out: Array,
    shadow: Array,
    came: Array,
    keys: Array,
    tables: Array,
    sums: Array,
    *,
    table: str,
    num_parts: int,
    communication: str,
    **part: int | None,
) -> None:
    rows = open_table(table, **part)
    if (there := rows.on_device(xp)) is not None:
        d = sums.reshape(-1, sums.shape[-1])
        if communication != "float32":
            d = xp.asarray(decoded(to_host(d), communication))
        there.keep(out, d, keys, tables, None, _left_out(xp, came, num_parts, keys))
        return
    counts = _counts(xp, came, num_parts)
    asked = _request(xp, rows, keys, tables, counts)
    d = decoded(_filled(xp, sums, counts, keys.ndim), communication)
    out[...] = xp.asarray(rows.keep(asked, d))


@kernel("one_embedding_prefetch")
def prefetch(
    xp: ArrayModule,
    out: Array,
    shadow: Array,
    ids: Array,
    table_ids: Array | None = None,
    came: Array | None = None,
    *,
    table: str,
    num_parts: int,
    padding_idx: int | None,
    makes_rows: bool,
    **part: int | None,
) -> None:
    out[...] = shadow
    rows = open_table(table, **part)
    if came is None or table_ids is None:
        given = to_host(ids), _on_host(table_ids)
        rows.read_ahead(*given, padding_idx, makes_rows=makes_rows)
        return
    counts = _counts(xp, came, num_parts)
    keys, tables = (_filled(xp, x, counts, x.ndim)[:, 0] for x in (ids, table_ids))
    if came.size == num_parts:
        begin = 0
        for source, count in enumerate(to_host(came).tolist()):
            some = slice(begin, begin + count)
            rows.ids_ahead.keep(source, keys[some].copy(), tables[some].copy())
            begin += count
    rows.read_ahead(keys, tables, None, makes_rows=makes_rows)


def _request(
    xp: ArrayModule, rows: OpenTable, keys: Array, tables: Array, counts: list[int]
) -> Request:
    keys, tables = (_filled(xp, x, counts, x.ndim)[:, 0] for x in (keys, tables))
    return rows.request(keys, tables, None)


def _parts(xp: ArrayModule, inverse: Array, counts: list[int]) -> list[Array]:
    return [x.reshape(-1) for x in parts_of(np, to_host(inverse), len(counts), inverse.ndim)]
