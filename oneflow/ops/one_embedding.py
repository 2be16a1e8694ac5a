"""Rows of tables that are larger than memory and grow with the ids they are asked for: looked up,
their gradients kept, and updated.

The rows themselves are no tensor: every process that runs a kernel opens the table that `table`
describes (kernels/open_tables.py). Ops hand on the shadow instead, float32[BUCKETS]. A row belongs
to the bucket that its table and id hash to, and a rank holds the rows of those buckets that its
part of the shadow has, so that the layout of a table is the layout of its shadow. An op that
updates rows overwrites the shadow, and one that looks up reads it: that orders both, in a step and
over steps.

The gradient of a shadow is, per bucket, the norm of the gradients of the bucket's rows, which stay
in the open table until an update takes them. A function that is linear in gradients (a mean over
micro-batches, a clipped norm, the inverse of a scale) may be applied to the norms: the update
applies it to the rows.
"""

from __future__ import annotations

from typing import Any

from oneflow.core.dtype import float16, float32, int8, int32, int64
from oneflow.core.errors import ArgumentError, DTypeError, ShapeError
from oneflow.core.op import Boxes, Op, declare
from oneflow.core.operand import Attr, Attrs, Gradients, Operand, Tensor
from oneflow.core.sbp import BROADCAST, PARTIAL, SbpSignature, Split
from oneflow.core.tensor_type import TensorType
from oneflow.ops.exchange_rows import are_cut_alike, check_sizes, exchange_rows

BUCKETS = 5040
"""Parts into which ids are hashed: divisible by 1 to 10, 12, 14 and 16 ranks."""


def _check_ids(name: str, shadow: Operand, ids: Operand, table_ids: Operand | None) -> None:
    if shadow.shape != (BUCKETS,) or shadow.dtype is not float32:
        raise ShapeError(f"{name}: the shadow must be float32[{BUCKETS}], got {shadow.meta}")
    _check_table_ids(name, ids, table_ids)


def _check_table_ids(name: str, ids: Operand, table_ids: Operand | None) -> None:
    for what, x in (("ids", ids), ("table ids", table_ids)):
        if x is not None and x.dtype not in (int32, int64):
            raise DTypeError(f"{name}: {what} must be int32 or int64, got {x.meta}; cast them")
    if table_ids is not None and table_ids.shape != ids.shape:
        raise ShapeError(f"{name}: ids {ids.meta} and table ids {table_ids.meta} differ in shape")


class _OfOwnRows(Op):
    """An op over the rows of this rank: those of its part of the shadow, the first input."""

    may_repeat = False

    @staticmethod
    def localize(attrs: Attrs, in_boxes: Boxes, out_boxes: Boxes) -> Attrs:
        return {**attrs, "first": in_boxes[0].starts[0], "last": in_boxes[0].stops[0]}


class OneEmbeddingFusedLookup(_OfOwnRows):
    """out[*i] = the row of id ids[*i] in table table_ids[*i]; zeros for `padding_idx`.

    table_ids: None: ids of the last dim's position j belong to table j, or all to the one table.
    table: the description of the tables, JSON.  num_tables: their number.  size: elements of a row,
    without its states.  makes_rows: are rows made that are not there yet? Else only their first
    values are returned, and a table that is full has them too.
    """

    name = "one_embedding_fused_lookup"
    precision = "keep"

    @staticmethod
    def infer(
        shadow: Operand,
        ids: Operand,
        table_ids: Operand | None = None,
        *,
        table: str,
        size: int,
        num_tables: int = 1,
        padding_idx: int | None = None,
        makes_rows: bool = True,
    ) -> TensorType:
        _check_ids("one_embedding_fused_lookup", shadow, ids, table_ids)
        if table_ids is None and num_tables > 1 and ids.shape[-1:] != (num_tables,):
            raise ShapeError(
                f"one_embedding_fused_lookup: ids {ids.meta} must have a column for each of "
                f"{num_tables} tables; give table_ids for ids of other shapes"
            )
        return TensorType((*ids.shape, size), float32)

    @staticmethod
    def sbp(
        shadow: TensorType,
        ids: TensorType,
        table_ids: TensorType | None = None,
        **_: Attr,
    ) -> list[SbpSignature]:
        given = 1 if table_ids is None else 2
        return [SbpSignature((Split(0), *(BROADCAST,) * given), (PARTIAL,))]

    @staticmethod
    def grad(
        d_out: Tensor,
        shadow: Tensor,
        ids: Tensor,
        *rest: Tensor,
        table: str,
        num_tables: int,
        padding_idx: int | None,
        **_: Attr,
    ) -> Gradients:
        table_ids = rest[:-1]

        def norms() -> Tensor:
            return one_embedding_fused_lookup_grad(
                shadow,
                d_out,
                ids,
                *table_ids,
                table=table,
                num_tables=num_tables,
                padding_idx=padding_idx,
            )

        return (norms, None, *(None,) * len(table_ids))


one_embedding_fused_lookup = declare(OneEmbeddingFusedLookup)


class OneEmbeddingFusedLookupGrad(_OfOwnRows):
    """The norms, per bucket, of the sums of d over equal ids; the sums are kept for the update."""

    name = "one_embedding_fused_lookup_grad"

    @staticmethod
    def infer(
        shadow: Operand,
        d: Operand,
        ids: Operand,
        table_ids: Operand | None = None,
        *,
        table: str,
        num_tables: int = 1,
        padding_idx: int | None = None,
    ) -> TensorType:
        _check_ids("one_embedding_fused_lookup_grad", shadow, ids, table_ids)
        if d.shape[:-1] != ids.shape:
            raise ShapeError(
                f"one_embedding_fused_lookup_grad: the gradient {d.meta} does not fit the ids "
                f"{ids.meta}"
            )
        return shadow.meta

    @staticmethod
    def sbp(shadow: TensorType, *rest: TensorType, **_: Attr) -> list[SbpSignature]:
        return [SbpSignature((Split(0), *(BROADCAST,) * len(rest)), (Split(0),))]


one_embedding_fused_lookup_grad = declare(OneEmbeddingFusedLookupGrad)


class OneEmbeddingUpdate(_OfOwnRows):
    """Updates the rows whose gradients are kept, and forgets these.

    norms: those that the gradients gave, added up and scaled: the rows' gradients are scaled alike.
    lr, step: as in update.py.  is_wanted: bool[]; where it is false, the gradients are forgotten
    and nothing else changes.  rule: the name of the update op of a dense parameter; rows are its
    parameter and states.  options: its attrs, (name, value) each.  first_states: the first value of
    each state of a new row.  catches_up: the steps in which a row got no gradient are made up for
    when it gets one: the means of adam_update are decayed, and the row moves on by its momentum.
    """

    name = "one_embedding_update"
    mutates = {0: 0}
    has_effect = True

    @staticmethod
    def infer(
        shadow: Operand,
        norms: Operand,
        lr: Operand,
        step: Operand,
        is_wanted: Operand | None = None,
        *,
        table: str,
        rule: str,
        options: tuple[Attr, ...] = (),
        first_states: tuple[float, ...] = (),
        catches_up: bool = False,
    ) -> TensorType:
        if norms.meta != shadow.meta:
            raise ShapeError(
                f"one_embedding_update: the norms {norms.meta} do not fit the shadow {shadow.meta}"
            )
        for number in (lr, step, is_wanted):
            if number is not None and number.shape != ():
                raise ShapeError(
                    f"one_embedding_update: lr, step and is_wanted are numbers, got {number.meta}"
                )
        return shadow.meta

    @staticmethod
    def sbp(*types: TensorType, **_: Attr) -> list[SbpSignature]:
        numbers = (BROADCAST,) * (len(types) - 2)
        return [SbpSignature((Split(0), Split(0), *numbers), (Split(0),))]


one_embedding_update = declare(OneEmbeddingUpdate)


# ---- over ranks ----------------------------------------------------------------------------------
#
# A batch that is split over ranks is looked up in steps, each an op, with exchanges between them:
# unique ids, grouped by owner -> exchange_rows -> look-up by the owners -> exchange_rows back ->
# gather; and backward sums per unique id -> exchange_rows -> kept by the owners for the update.

COMMUNICATIONS = ("float32", "float16", "int8")
"""Forms in which rows and their gradients travel. int8: each row divided by a scale of its own, a
bfloat16 in its last two bytes."""
SCALE_NBYTES = 2


def _sent(shape: tuple[int, ...], size: int, communication: str) -> TensorType:
    """Type of rows on their way."""
    if communication == "int8":
        return TensorType((*shape, size + SCALE_NBYTES), int8)
    return TensorType((*shape, size), float32 if communication == "float32" else float16)


def _check_sent(name: str, sizes: Operand, num_parts: int, communication: str) -> None:
    check_sizes(name, sizes, num_parts)
    if communication not in COMMUNICATIONS:
        raise ArgumentError(
            f"{name}: communication is {communication!r}, must be one of "
            f"{', '.join(COMMUNICATIONS)}"
        )


def _all_split(num_inputs: int, num_outputs: int) -> list[SbpSignature]:
    return [SbpSignature((Split(0),) * num_inputs, (Split(0),) * num_outputs)]


class _OfParts(Op):
    """An op that every part does for itself: ranks do it where each has one part of everything."""

    @classmethod
    def sbp_for(
        cls, num_ranks: int, *types: TensorType, num_parts: int, **_: Attr
    ) -> list[SbpSignature]:
        if not are_cut_alike(num_ranks, num_parts, *types):
            return []
        return _all_split(len(types), cls.num_outputs)


class OneEmbeddingUnique(_OfParts):
    """The distinct ids of each part of a batch, grouped by the part that owns their rows.

    Returns sizes, int64[p * p], as exchange_rows takes them; ids and their tables, in the shape of
    the batch, those that are there first, then 0; and for each id of the batch its place among
    them, -1 for `padding_idx`. table: the description of the tables.  is_ahead: the batch is looked
    up later; its ids then are not sent again (kernels/ids_ahead.py), but a digest of them instead.
    """

    name = "one_embedding_unique"
    precision = "keep"

    @staticmethod
    def infer(
        ids: Operand,
        table_ids: Operand | None = None,
        *,
        table: str,
        num_parts: int,
        num_tables: int = 1,
        padding_idx: int | None = None,
        is_ahead: bool = False,
    ) -> tuple[TensorType, TensorType, TensorType, TensorType]:
        _check_table_ids("one_embedding_unique", ids, table_ids)
        if table_ids is None and num_tables > 1 and (ids.ndim < 2 or ids.shape[-1] != num_tables):
            raise ShapeError(
                f"one_embedding_unique: ids {ids.meta} must be rows of an id for each of "
                f"{num_tables} tables; give table_ids for ids of other shapes"
            )
        long = TensorType(ids.shape, int64)
        return TensorType((num_parts**2,), int64), long, TensorType(ids.shape, int32), long


one_embedding_unique = declare(OneEmbeddingUnique)


class OneEmbeddingRecall(_OfOwnRows):
    """(shadow, came, keys, tables) -> (came, keys, tables), digests replaced by ids that came."""

    name = "one_embedding_recall"
    precision = "keep"

    @staticmethod
    def infer(
        shadow: Operand,
        came: Operand,
        keys: Operand,
        tables: Operand,
        *,
        table: str,
        num_parts: int,
    ) -> tuple[TensorType, TensorType, TensorType]:
        _check_ids("one_embedding_recall", shadow, keys, tables)
        check_sizes("one_embedding_recall", came, num_parts)
        return came.meta, keys.meta, tables.meta

    @staticmethod
    def sbp_for(
        num_ranks: int,
        shadow: TensorType,
        came: TensorType,
        keys: TensorType,
        tables: TensorType,
        *,
        num_parts: int,
        **_: Attr,
    ) -> list[SbpSignature]:
        if are_cut_alike(num_ranks, num_parts, keys):
            return _all_split(4, 3)
        return [SbpSignature((Split(0), *(BROADCAST,) * 3), (BROADCAST,) * 3)]


one_embedding_recall = declare(OneEmbeddingRecall)


class OneEmbeddingLookup(_OfOwnRows):
    """The rows of ids that came to each part, in the order in which they came.

    came: int64[p * p], ids from each part.  keys, tables: the ids and their tables.  table, size,
    makes_rows: as of one_embedding_fused_lookup. Returns `came` as sizes of the way back, and the
    rows in the form that `communication` names.
    """

    name = "one_embedding_lookup"
    precision = "keep"

    @staticmethod
    def infer(
        shadow: Operand,
        came: Operand,
        keys: Operand,
        tables: Operand,
        *,
        table: str,
        size: int,
        num_parts: int,
        communication: str = "float32",
        makes_rows: bool = True,
    ) -> tuple[TensorType, TensorType]:
        _check_ids("one_embedding_lookup", shadow, keys, tables)
        _check_sent("one_embedding_lookup", came, num_parts, communication)
        return came.meta, _sent(keys.shape, size, communication)

    @staticmethod
    def sbp_for(
        num_ranks: int,
        shadow: TensorType,
        came: TensorType,
        keys: TensorType,
        tables: TensorType,
        *,
        num_parts: int,
        communication: str,
        **_: Attr,
    ) -> list[SbpSignature]:
        if are_cut_alike(num_ranks, num_parts, keys):
            return _all_split(4, 2)
        if communication != "float32":
            return []  # no sums of such rows
        return [SbpSignature((Split(0), *(BROADCAST,) * 3), (BROADCAST, PARTIAL))]


one_embedding_lookup = declare(OneEmbeddingLookup)


class OneEmbeddingGather(_OfParts):
    """out[*i] = the row that came back for the unique id inverse[*i]; zeros where that is -1.

    rows, sizes: as they came back.  keys, tables: the ids that came to each part, with which the
    gradients of their rows go to the shadow.
    """

    name = "one_embedding_gather"
    precision = "keep"

    @staticmethod
    def infer(
        shadow: Operand,
        rows: Operand,
        inverse: Operand,
        sizes: Operand,
        keys: Operand,
        tables: Operand,
        *,
        table: str,
        size: int,
        num_parts: int,
        communication: str = "float32",
    ) -> TensorType:
        _check_ids("one_embedding_gather", shadow, keys, tables)
        _check_sent("one_embedding_gather", sizes, num_parts, communication)
        if rows.meta != _sent(inverse.shape, size, communication):
            raise ShapeError(
                f"one_embedding_gather: {rows.meta} are no rows of {size} numbers for "
                f"{inverse.meta}"
            )
        return TensorType((*inverse.shape, size), float32)

    @staticmethod
    def grad(
        d_out: Tensor,
        shadow: Tensor,
        rows: Tensor,
        inverse: Tensor,
        sizes: Tensor,
        keys: Tensor,
        tables: Tensor,
        out: Tensor,
        *,
        table: str,
        num_parts: int,
        communication: str,
        **_: Attr,
    ) -> Gradients:
        told: dict[str, Any] = {
            "table": table,
            "num_parts": num_parts,
            "communication": communication,
        }

        def norms() -> Tensor:
            sent, sums = one_embedding_sums(d_out, inverse, sizes, **told)
            came, there = exchange_rows(
                sent,
                sums,
                num_parts=num_parts,
                lead=len(keys.meta.shape),
                rows=keys.meta.shape[0],
                is_padded=False,
            )
            return one_embedding_keep(shadow, came, keys, tables, there, **told)

        return (norms, None, None, None, None, None)


one_embedding_gather = declare(OneEmbeddingGather)


class OneEmbeddingSums(_OfParts):
    """(d, inverse, sizes) -> (sizes, the sums of d over equal numbers in `inverse`, in the form in
    which they travel)."""

    name = "one_embedding_sums"
    precision = "keep"

    @staticmethod
    def infer(
        d: Operand,
        inverse: Operand,
        sizes: Operand,
        *,
        table: str,
        num_parts: int,
        communication: str = "float32",
    ) -> tuple[TensorType, TensorType]:
        _check_sent("one_embedding_sums", sizes, num_parts, communication)
        if d.shape[:-1] != inverse.shape:
            raise ShapeError(
                f"one_embedding_sums: the gradient {d.meta} does not fit {inverse.meta}"
            )
        return sizes.meta, _sent(inverse.shape, d.shape[-1], communication)


one_embedding_sums = declare(OneEmbeddingSums)


class OneEmbeddingKeep(_OfOwnRows):
    """The norms, per bucket, of the sums of gradients over equal ids that came from several parts;
    the sums are kept for the update. sums: of keys, in the form in which they travelled."""

    name = "one_embedding_keep"
    precision = "keep"

    @staticmethod
    def infer(
        shadow: Operand,
        came: Operand,
        keys: Operand,
        tables: Operand,
        sums: Operand,
        *,
        table: str,
        num_parts: int,
        communication: str = "float32",
    ) -> TensorType:
        _check_ids("one_embedding_keep", shadow, keys, tables)
        _check_sent("one_embedding_keep", came, num_parts, communication)
        if sums.shape[:-1] != keys.shape:
            raise ShapeError(f"one_embedding_keep: sums {sums.meta} do not fit the ids {keys.meta}")
        return shadow.meta

    @staticmethod
    def sbp_for(
        num_ranks: int, *types: TensorType, num_parts: int, **_: Attr
    ) -> list[SbpSignature]:
        rest = Split(0) if are_cut_alike(num_ranks, num_parts, types[2]) else BROADCAST
        return [SbpSignature((Split(0), *(rest,) * 4), (Split(0),))]


one_embedding_keep = declare(OneEmbeddingKeep)


class OneEmbeddingPrefetch(_OfOwnRows):
    """Begin to read the rows of ids that the next step looks up, while this step computes; return
    the shadow. Rows that a step changes are read again by the look-up of the next one.

    table_ids, num_tables, padding_idx: as of one_embedding_fused_lookup.  came: given for ids that
    came to each part, as to one_embedding_lookup.  makes_rows: as of one_embedding_fused_lookup.
    """

    name = "one_embedding_prefetch"
    precision = "keep"
    has_effect = True

    @staticmethod
    def infer(
        shadow: Operand,
        ids: Operand,
        table_ids: Operand | None = None,
        came: Operand | None = None,
        *,
        table: str,
        num_parts: int = 1,
        padding_idx: int | None = None,
        makes_rows: bool = True,
    ) -> TensorType:
        _check_ids("one_embedding_prefetch", shadow, ids, table_ids)
        if came is not None:
            check_sizes("one_embedding_prefetch", came, num_parts)
        return shadow.meta

    @staticmethod
    def sbp_for(
        num_ranks: int, *types: TensorType, num_parts: int, **_: Attr
    ) -> list[SbpSignature]:
        is_cut = len(types) == 4 and are_cut_alike(num_ranks, num_parts, types[1])
        rest = Split(0) if is_cut else BROADCAST
        return [SbpSignature((Split(0), *(rest,) * (len(types) - 1)), (Split(0),))]


one_embedding_prefetch = declare(OneEmbeddingPrefetch)
