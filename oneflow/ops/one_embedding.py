"""Rows of tables that are larger than memory and grow with the ids they are asked for: looked up,
their gradients kept, and updated.

The rows themselves are no tensor: every process that runs a kernel opens the table that `table`
describes (kernels/open_tables.py). What ops hand on instead is the shadow, float32[BUCKETS]. A row
belongs to the bucket that its table and id hash to, and a rank holds the rows of those buckets that
its part of the shadow has, so that the layout of a table is the layout of its shadow. Who updates
rows overwrites the shadow, and who looks up reads it: that orders both, in a step and over steps.

The gradient of a shadow is, per bucket, the norm of the gradients of the bucket's rows, which stay
in the open table until an update takes them. What is linear in gradients (a mean over
micro-batches, a clipped norm, the inverse of a scale) may be done to the norms: the update does it
to the rows.
"""

from __future__ import annotations

from oneflow.core.dtype import float32, int32, int64
from oneflow.core.errors import DTypeError, ShapeError
from oneflow.core.op import Boxes, Op, declare
from oneflow.core.operand import Attr, Attrs, Gradients, Operand, Tensor
from oneflow.core.sbp import BROADCAST, PARTIAL, SbpSignature, Split
from oneflow.core.tensor_type import TensorType

BUCKETS = 5040
"""Parts into which ids are hashed: divisible by 1 to 10, 12, 14 and 16 ranks."""


def _check_ids(name: str, shadow: Operand, ids: Operand, table_ids: Operand | None) -> None:
    if shadow.shape != (BUCKETS,) or shadow.dtype is not float32:
        raise ShapeError(f"{name}: the shadow must be float32[{BUCKETS}], got {shadow.meta}")
    for what, x in (("ids", ids), ("table ids", table_ids)):
        if x is not None and x.dtype not in (int32, int64):
            raise DTypeError(f"{name}: {what} must be int32 or int64, got {x.meta}; cast them")
    if table_ids is not None and table_ids.shape != ids.shape:
        raise ShapeError(f"{name}: ids {ids.meta} and table ids {table_ids.meta} differ in shape")


def _own_buckets(attrs: Attrs, shadow: Boxes) -> Attrs:
    return {**attrs, "first": shadow[0].starts[0], "last": shadow[0].stops[0]}


class OneEmbeddingFusedLookup(Op):
    """out[*i] = the row of id ids[*i] in table table_ids[*i]; zeros for `padding_idx`.

    table_ids: None: ids of the last dim's position j belong to table j, or all to the one table.
    table: the description of the tables, JSON.  num_tables: their number.  size: elements of a row,
    without its states.  Rows that are not there yet are made.
    """

    name = "one_embedding_fused_lookup"
    may_repeat = False

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
    def localize(attrs: Attrs, in_boxes: Boxes, out_boxes: Boxes) -> Attrs:
        return _own_buckets(attrs, in_boxes)

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


class OneEmbeddingFusedLookupGrad(Op):
    """The norms, per bucket, of the sums of d over equal ids; the sums are kept for the update."""

    name = "one_embedding_fused_lookup_grad"
    may_repeat = False

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

    @staticmethod
    def localize(attrs: Attrs, in_boxes: Boxes, out_boxes: Boxes) -> Attrs:
        return _own_buckets(attrs, in_boxes)


one_embedding_fused_lookup_grad = declare(OneEmbeddingFusedLookupGrad)


class OneEmbeddingUpdate(Op):
    """Updates the rows whose gradients are kept, and forgets these.

    norms: those that the gradients gave, added up and scaled: the rows' gradients are scaled alike.
    lr, step: as in update.py.  is_wanted: bool[]; where it is false, the gradients are forgotten
    and nothing else changes.  rule: the name of the update op of a dense parameter; rows are its
    parameter and states.  options: its attrs, (name, value) each.  first_states: the first value of
    each state of a new row.  catches_up: the steps in which a row got no gradient are made up for
    when it gets one: the means of adam_update are decayed, and the row moves on by its momentum.
    """

    name = "one_embedding_update"
    may_repeat = False
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

    @staticmethod
    def localize(attrs: Attrs, in_boxes: Boxes, out_boxes: Boxes) -> Attrs:
        return _own_buckets(attrs, in_boxes)


one_embedding_update = declare(OneEmbeddingUpdate)
