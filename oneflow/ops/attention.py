"""Attention in one op: its scores are never an output, so that a kernel need not store them."""

from __future__ import annotations

import math
from math import prod

from oneflow.core import dtype as dtypes
from oneflow.core.dtype import bool_, int64
from oneflow.core.errors import DTypeError, ShapeError
from oneflow.core.op import Op, declare
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import BROADCAST, PARTIAL, Sbp, SbpSignature, Split
from oneflow.core.tensor_type import TensorType
from oneflow.ops import binary, unary
from oneflow.ops.checks import require_float, require_shape
from oneflow.ops.compare import scalar_compare
from oneflow.ops.matmul import matmul
from oneflow.ops.reduce import sum_to_shape
from oneflow.ops.scalar import scalar_mul
from oneflow.ops.shape import expand, reshape, tril
from oneflow.ops.softmax import softmax, softmax_grad
from oneflow.ops.where import masked_fill

FEW_ROWS = 8
"""Rows of a query up to which a CPU reads keys and values where they lie."""
HIDDEN = {"float16": -3e4}
"""The score of what is not to be seen, -1e30 elsewhere: finite, so that a row without anything
else is no nan."""


class Attention(Op):
    """out = softmax(scale * q @ k^T + mask) @ v over the last two dims, and the statistics of rows.

    q: (..., rows, d).  k: (..., columns, d).  v: (..., columns, e).  The dims before are equal, but
    for dim -3, of which q may have a multiple: heads that share one of k and v, one after the
    other.
    mask: broadcastable to (..., rows, columns): a summand of the dtype of q, or bool (True: may be
    seen).  is_causal: row i sees columns 0..i only; not with a mask.
    Outputs: out (..., rows, e); lse (..., rows), the log of the sum of exp(scores), at least
    float32, for the backward pass: it has no gradient of its own. A row that sees nothing gives
    zeros, and has the lse -inf.
    """

    name = "attention"
    precision = "lower"

    @staticmethod
    def infer(
        q: Operand,
        k: Operand,
        v: Operand,
        mask: Operand | None = None,
        *,
        scale: float,
        is_causal: bool = False,
    ) -> tuple[TensorType, TensorType]:
        _check("attention", q, k, v, mask, is_causal)
        return q.meta.with_shape((*q.shape[:-1], v.shape[-1])), _statistics(q)

    @staticmethod
    def flops(q: TensorType, k: TensorType, v: TensorType, *_: TensorType, **__: object) -> int:
        """Count both products of all rows with all columns, as if nothing was masked."""
        return 2 * prod(q.shape[:-1]) * k.shape[-2] * (q.shape[-1] + v.shape[-1])

    @staticmethod
    def sbp(*types: TensorType, scale: float, is_causal: bool) -> list[SbpSignature]:
        return Attention.sbp_for(0, *types, scale=scale, is_causal=is_causal)

    @staticmethod
    def sbp_for(
        num_ranks: int, *types: TensorType, scale: float, is_causal: bool
    ) -> list[SbpSignature]:
        """A batch dim everywhere, rows of q that see all alike, columns of v."""
        q, k, _v, *mask = types
        rows, last = Split(q.ndim - 2), Split(q.ndim - 1)
        rest = (BROADCAST,) * len(mask)
        found = [
            SbpSignature((s, s, s, *_own(mask, q, s)), (s, s)) for s in _batch(q, k, num_ranks)
        ]
        if not is_causal:
            inputs = (rows, BROADCAST, BROADCAST, *_own(mask, q, rows))
            found.append(SbpSignature(inputs, (rows, rows)))
        found += [
            SbpSignature((BROADCAST, BROADCAST, s, *rest), (s, BROADCAST)) for s in (last, PARTIAL)
        ]
        return found

    @staticmethod
    def written(
        q: Tensor, k: Tensor, v: Tensor, *mask: Tensor, scale: float, is_causal: bool
    ) -> Tensor:
        weights = _weights(q, _for_each_head(q, k), mask, scale, is_causal)
        return matmul(weights, _for_each_head(q, v))

    @staticmethod
    def grad(
        d_out: Tensor | None,
        d_lse: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *rest: Tensor,
        scale: float,
        is_causal: bool,
    ) -> Gradients:
        *mask, out, lse = rest
        if d_out is None:
            return (None,) * (3 + len(mask))
        made = attention_grad(d_out, q, k, v, out, lse, *mask, scale=scale, is_causal=is_causal)
        if not mask:
            return made
        return (*made, lambda: _mask_grad(d_out, q, k, v, mask[0], scale))


attention = declare(Attention)


class AttentionGrad(Op):
    """(d_q, d_k, d_v) of attention, from its inputs and outputs and the gradient of `out`."""

    name = "attention_grad"
    stays_wide = range(5, 6)

    @staticmethod
    def infer(
        d_out: Operand,
        q: Operand,
        k: Operand,
        v: Operand,
        out: Operand,
        lse: Operand,
        mask: Operand | None = None,
        *,
        scale: float,
        is_causal: bool = False,
    ) -> tuple[TensorType, TensorType, TensorType]:
        _check("attention_grad", q, k, v, mask, is_causal)
        require_float("attention_grad", q, d_out, out)
        rows = q.shape[:-1]
        require_shape("attention_grad", (*rows, v.shape[-1]), d_out=d_out, out=out)
        require_shape("attention_grad", rows, lse=lse)
        return q.meta, k.meta, v.meta

    @staticmethod
    def flops(
        d_out: TensorType, q: TensorType, k: TensorType, v: TensorType, *_: object, **__: object
    ) -> int:
        """Count the products for the scores, d_q and d_k, and those for d_v and the scores' own."""
        per_score = 3 * q.shape[-1] + 2 * v.shape[-1]
        return 2 * prod(q.shape[:-1]) * k.shape[-2] * per_score

    @staticmethod
    def sbp(*types: TensorType, scale: float, is_causal: bool) -> list[SbpSignature]:
        return AttentionGrad.sbp_for(0, *types, scale=scale, is_causal=is_causal)

    @staticmethod
    def sbp_for(
        num_ranks: int, *types: TensorType, scale: float, is_causal: bool
    ) -> list[SbpSignature]:
        """The layouts of attention; sums over the split dim are partial."""
        _d_out, q, k, _v, _out, _lse, *mask = types
        rows, last, b, p = Split(q.ndim - 2), Split(q.ndim - 1), BROADCAST, PARTIAL
        rest = (b,) * len(mask)
        found = [
            SbpSignature((*(s,) * 6, *_own(mask, q, s)), (s, s, s)) for s in _batch(q, k, num_ranks)
        ]
        if not is_causal:
            inputs = (rows, rows, b, b, rows, rows, *_own(mask, q, rows))
            found.append(SbpSignature(inputs, (rows, p, p)))
        found.append(SbpSignature((last, b, b, last, last, b, *rest), (p, p, last)))
        found.append(SbpSignature((p, b, b, b, b, b, *rest), (p, p, p)))
        return found


attention_grad = declare(AttentionGrad)


# ---- over a cache in blocks ----------------------------------------------------------------------


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
        _check_pages(q, k, v, keys, values)
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


def _check_pages(q: Operand, k: Operand, v: Operand, keys: Operand, values: Operand) -> None:
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


# ---- checks and layouts --------------------------------------------------------------------------


def _check(
    who: str, q: Operand, k: Operand, v: Operand, mask: Operand | None, is_causal: bool
) -> None:
    require_float(who, q, k, v)
    shapes = [t.shape for t in (q, k, v)]
    if min(map(len, shapes)) < 2 or len(set(map(len, shapes))) > 1:
        raise ShapeError(f"{who}: needs q, k and v of one number of dims, 2 at least; {q} {k} {v}")
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ShapeError(
            f"{who}: q {q} and k {k} need equal last dims, k and v {v} equally many columns"
        )
    heads, shared = (t.shape[-3] if q.ndim > 2 else 1 for t in (q, k))
    if k.shape[:-2] != v.shape[:-2] or q.shape[:-3] != k.shape[:-3] or not _divides(shared, heads):
        raise ShapeError(
            f"{who}: the dims before the last two of q {q}, k {k} and v {v} must be equal, but for "
            "dim -3 of q, a multiple of that of k and v"
        )
    if mask is not None:
        _check_mask(who, q, k, mask, is_causal)


def _check_mask(who: str, q: Operand, k: Operand, mask: Operand, is_causal: bool) -> None:
    if is_causal:
        raise ShapeError(f"{who}: takes a mask or is_causal, not both")
    if mask.dtype is not bool_ and mask.dtype is not q.dtype:
        raise DTypeError(f"{who}: mask {mask} must be bool or of the dtype of q {q}; cast it first")
    whole = (*q.shape[:-1], k.shape[-2])
    sizes = whole[len(whole) - mask.ndim :]
    if mask.ndim > len(whole) or any(
        n not in (1, m) for n, m in zip(mask.shape, sizes, strict=True)
    ):
        raise ShapeError(f"{who}: mask {mask} cannot be broadcast to {list(whole)}")


def _divides(part: int, whole: int) -> bool:
    return part == whole or (part > 0 and whole % part == 0)


def _statistics(q: Operand) -> TensorType:
    """One number per row, at least float32."""
    dtype = q.dtype if q.dtype.bytes >= 4 else dtypes.float32
    return TensorType(q.shape[:-1], dtype)


def _batch(q: TensorType, k: TensorType, num_ranks: int) -> list[Split]:
    """The dims that q, k and v share, split alike: heads that share others only where each rank
    gets whole sets of them."""
    dims = [Split(i) for i in range(q.ndim - 2)]
    if q.ndim > 2 and q.shape[-3] != k.shape[-3]:
        is_even = num_ranks > 0 and k.shape[-3] % num_ranks == 0
        return dims if is_even else dims[:-1]
    return dims


def _own(mask: list[TensorType], q: TensorType, split: Split) -> tuple[Sbp, ...]:
    """The layout of the mask, if there is one, where q is split."""
    layouts: list[Sbp] = []
    for m in mask:
        dim = split.dim - (q.ndim - m.ndim)
        is_split = dim >= 0 and m.shape[dim] == q.shape[split.dim]
        layouts.append(Split(dim) if is_split else BROADCAST)
    return tuple(layouts)


# ---- written with ops that have gradients of every order, and store the scores -------------------


def _for_each_head(q: Tensor, x: Tensor) -> Tensor:
    """k or v once for each head of q."""
    shape = x.meta.shape
    if len(shape) < 3 or q.meta.shape[-3] == shape[-3]:
        return x
    times = q.meta.shape[-3] // shape[-3]
    apart = reshape(x, shape=(*shape[:-2], 1, *shape[-2:]))
    wide = expand(apart, shape=(*shape[:-2], times, *shape[-2:]))
    return reshape(wide, shape=(*q.meta.shape[:-2], *shape[-2:]))


def _weights(
    q: Tensor, k: Tensor, mask: tuple[Tensor, ...], scale: float, is_causal: bool
) -> Tensor:
    """Softmax of the scores; all zeros in a row that sees nothing."""
    scores = scalar_mul(matmul(q, k, transpose_b=True), value=scale)
    if not mask and not is_causal:
        return softmax(scores)
    if is_causal:
        ones = unary.full_like(scores, value=1)
        blocked = scalar_compare(tril(ones, diagonal=0), value=0, kind="eq")
    elif mask[0].meta.dtype is bool_:
        blocked = unary.logical_not(mask[0])
    else:
        blocked = scalar_compare(mask[0], value=-math.inf, kind="eq")
        scores = binary.add(scores, masked_fill(mask[0], blocked, value=0))
    hidden = HIDDEN.get(scores.meta.dtype.name, -1e30)
    weights = softmax(masked_fill(scores, blocked, value=hidden))
    return masked_fill(weights, blocked, value=0)


def _mask_grad(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float
) -> Tensor | None:
    """The gradient of a mask is as large as the scores."""
    if mask.meta.dtype is bool_:
        return None
    weights = _weights(q, _for_each_head(q, k), (mask,), scale, False)
    d_weights = matmul(d_out, _for_each_head(q, v), transpose_b=True)
    return sum_to_shape(softmax_grad(d_weights, weights), mask.meta.shape)
