"""Rows that go to the parts they are meant for: an all_to_all of uneven sizes.

Tensors are cut along dim 0 into `num_parts` parts, balanced. Part s of `sizes`, int64[p * p], tells
how many of its rows go to part 0, 1, ...: the first ones of its share of each tensor go to part 0,
the next to part 1. The rows that a part gets lie in the order of the parts that they come from. On
p ranks nothing moves but sizes and those rows (boxing/rows.py). Memory is bounded: a part holds as
many rows as its share of the result has, and it is an error if more come.
"""

from __future__ import annotations

from oneflow.core.dtype import int64
from oneflow.core.errors import DTypeError, ShapeError
from oneflow.core.op import Op, declare
from oneflow.core.operand import Attr, Gradients, Operand, Tensor
from oneflow.core.sbp import Sbp, SbpSignature, Split
from oneflow.core.tensor_type import TensorType


def check_sizes(name: str, sizes: Operand, num_parts: int) -> None:
    """Raises DTypeError or ShapeError if these are no sizes of so many parts."""
    if sizes.dtype is not int64:
        raise DTypeError(f"{name}: sizes must be int64, got {sizes.meta}")
    if num_parts < 1 or sizes.shape != (num_parts**2,):
        raise ShapeError(
            f"{name}: sizes of {num_parts} parts are int64[{num_parts**2}], got {sizes.meta}"
        )


def check_rows(name: str, xs: tuple[Operand, ...], lead: int) -> None:
    """Raises ShapeError if tensors do not list rows alike in their first dims."""
    for x in xs:
        if not 1 <= lead <= x.ndim or x.shape[:lead] != xs[0].shape[:lead]:
            raise ShapeError(
                f"{name}: the first {lead} dims list rows, but {xs[0].meta} and {x.meta} differ"
            )


def are_cut_alike(num_ranks: int, num_parts: int, *types: TensorType) -> bool:
    """Whether tensors that are split over so many ranks give each rank whole parts."""
    if num_ranks == num_parts:
        return True
    return num_parts % num_ranks == 0 and not any(t.shape[0] % num_parts for t in types)


class ExchangeRows(Op):
    """(sizes, tensors...) -> (int64[p * p]: rows that came to part r from part 0, 1, ...,
    tensors...).

    lead: number of leading dims of a tensor that list rows; the others are of one row.  rows: dim 0
    of the results; 0: p times that of the tensors, room for all of them in each part.  is_padded:
    results are 0 where no row came; else they may be anything there.
    """

    name = "exchange_rows"
    precision = "either"
    moves_rows = True

    @staticmethod
    def infer(
        sizes: Operand,
        *xs: Operand,
        num_parts: int,
        lead: int = 1,
        rows: int = 0,
        is_padded: bool = True,
    ) -> tuple[TensorType, ...]:
        check_sizes("exchange_rows", sizes, num_parts)
        if not xs:
            raise ShapeError("exchange_rows: no tensors beside the sizes of their parts")
        check_rows("exchange_rows", xs, lead)
        room = rows or num_parts * xs[0].shape[0]
        return sizes.meta, *(x.meta.with_shape((room, *x.shape[1:])) for x in xs)

    @staticmethod
    def sbp(*types: TensorType, **_: Attr) -> list[SbpSignature]:
        return []

    @staticmethod
    def grad(*tensors: Tensor, num_parts: int, lead: int, **_: Attr) -> Gradients:
        count = len(tensors) // 3
        d_outs, xs, came = tensors[1:count], tensors[count + 1 : 2 * count], tensors[2 * count]
        rows = xs[0].meta.shape[0]

        def back(d: Tensor) -> Tensor:
            found: Tensor = exchange_rows(came, d, num_parts=num_parts, lead=lead, rows=rows)[1]
            return found

        return (None, *(None if d is None else back(d) for d in d_outs))


exchange_rows = declare(ExchangeRows)


class PackRows(Op):
    """Copies of sizes and of the rows that they count. Peers read (boxing/rows.py) memory that one
    op has made for them alone: this op makes it.
    """

    name = "pack_rows"
    precision = "either"

    @staticmethod
    def infer(
        sizes: Operand, *xs: Operand, num_parts: int, lead: int = 1
    ) -> tuple[TensorType, ...]:
        check_sizes("pack_rows", sizes, num_parts)
        check_rows("pack_rows", xs, lead)
        return sizes.meta, *(x.meta for x in xs)

    @staticmethod
    def sbp_for(
        num_ranks: int, sizes: TensorType, *xs: TensorType, num_parts: int, **_: Attr
    ) -> list[SbpSignature]:
        if not are_cut_alike(num_ranks, num_parts, *xs):
            return []
        every: tuple[Sbp, ...] = (Split(0),) * (1 + len(xs))
        return [SbpSignature(every, every)]


pack_rows = declare(PackRows)
