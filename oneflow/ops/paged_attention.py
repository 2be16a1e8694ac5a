"""Attention of tokens of many sequences, whose keys and values lie in blocks of one cache."""

from __future__ import annotations

from oneflow.core.dtype import int64
from oneflow.core.errors import DTypeError, ShapeError
from oneflow.core.op import Op, declare
from oneflow.core.operand import Operand
from oneflow.core.sbp import BROADCAST, SbpSignature, Split
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import require_float, require_shape


class PagedAttention(Op):
    """Write each row's key and value to the cache, then attend to all tokens up to the row's own.

    A row is one token of any sequence; a sequence may have several rows, of a prompt that is read
    in pieces. All rows are written before any is attended to.

    q: (rows, heads, d).  k: (rows, shared, d).  v: (rows, shared, e); `heads` is a multiple of
    `shared`, and neighbouring heads share one.
    keys: (blocks, shared, block, d) and values: (blocks, shared, block, e), the cache.
    tables: (rows, most), int64: the blocks of a row's sequence, in the order of its tokens.
    lengths: (rows,), int64: tokens of the sequence up to the row's own one; 0: the row is padding,
    which writes nothing and gives zeros.
    window: tokens that a row sees at most, its own included; 0: all.
    Outputs: out (rows, heads, e), and the cache, which is overwritten.
    """

    name = "paged_attention"
    mutates = {1: 3, 2: 4}

    @staticmethod
    def infer(
        q: Operand,
        k: Operand,
        v: Operand,
        keys: Operand,
        values: Operand,
        tables: Operand,
        lengths: Operand,
        *,
        scale: float,
        window: int = 0,
    ) -> tuple[TensorType, TensorType, TensorType]:
        _check(q, k, v, keys, values)
        _check_places(q, tables, lengths)
        return q.meta.with_shape((*q.shape[:2], v.shape[2])), keys.meta, values.meta

    @staticmethod
    def flops(q: TensorType, k: TensorType, v: TensorType, *rest: TensorType, **_: object) -> int:
        """Count both products as if every row saw all that its table has room for."""
        keys, _values, tables, _lengths = rest
        return 2 * q.shape[0] * q.shape[1] * tables.shape[1] * keys.shape[2] * 2 * v.shape[2]

    @staticmethod
    def positions(*types: TensorType, **_: object) -> dict[int, range]:
        keys, tables = types[3], types[5]
        return {5: range(keys.shape[0]), 6: range(tables.shape[1] * keys.shape[2] + 1)}

    @staticmethod
    def sbp(*types: TensorType, **attrs: object) -> list[SbpSignature]:
        return PagedAttention.sbp_for(0, *types, **attrs)

    @staticmethod
    def sbp_for(num_ranks: int, *types: TensorType, **_: object) -> list[SbpSignature]:
        """Heads, where each rank gets whole sets of those that share one."""
        heads, shared = types[0].shape[1], types[1].shape[1]
        is_even = num_ranks > 0 and shared % num_ranks == 0
        if heads != shared and not is_even:
            return []
        split = Split(1)
        return [SbpSignature((*(split,) * 5, BROADCAST, BROADCAST), (split,) * 3)]


paged_attention = declare(PagedAttention)


def _check(q: Operand, k: Operand, v: Operand, keys: Operand, values: Operand) -> None:
    who = PagedAttention.name
    require_float(who, q, k, v, keys, values)
    if q.ndim != 3 or k.ndim != 3 or v.ndim != 3 or keys.ndim != 4 or values.ndim != 4:
        raise ShapeError(
            f"{who}: needs q {q}, k {k} and v {v} of 3 dims, keys {keys} and values {values} of 4"
        )
    (rows, heads, depth), shared = q.shape, k.shape[1]
    if not shared or heads % shared:
        raise ShapeError(f"{who}: q {q} needs a multiple of the {shared} heads of k {k}")
    require_shape(who, (rows, shared, depth), k=k)
    require_shape(who, (rows, shared, v.shape[2]), v=v)
    require_shape(who, (keys.shape[0], shared, keys.shape[2], depth), keys=keys)
    require_shape(who, (*keys.shape[:3], v.shape[2]), values=values)


def _check_places(q: Operand, tables: Operand, lengths: Operand) -> None:
    who = PagedAttention.name
    for what, x in (("tables", tables), ("lengths", lengths)):
        if x.dtype is not int64:
            raise DTypeError(f"{who}: {what} {x} must be int64; cast it first")
    require_shape(who, q.shape[:1], lengths=lengths)
    if tables.ndim != 2 or tables.shape[0] != q.shape[0]:
        raise ShapeError(f"{who}: tables {tables} needs a row for each of q {q}")
