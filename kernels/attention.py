"""Attention on a CPU: one head after the other, whose scores alone are stored."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from oneflow.core.dtype import bool_, float32
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.cpu_products import multiply
from oneflow.kernels.registry import kernel
from oneflow.ops.attention import FEW_ROWS

Index = tuple[int, ...]


def _wide(q: TensorType, *shape: int) -> TensorType:
    dtype = q.dtype if q.dtype.bytes >= 4 else float32
    return TensorType(shape, dtype)


def _workspace(ins: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """Scores of a head, which of them are hidden; q, k, v and out of the head, in float32."""
    q, k, v = ins[:3]
    scores = (q.shape[-2], k.shape[-2])
    hidden = TensorType(scores, bool_)
    parts = (*(t.shape[-2:] for t in (q, k, v)), (q.shape[-2], v.shape[-1]))
    return _wide(q, *scores), hidden, *(_wide(q, *shape) for shape in parts)


def _grad_workspace(ins: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """Those of the forward pass; gradients of scores, output, q, k and v of a head."""
    d_out, q, k, v = ins[:4]
    scores = _wide(q, q.shape[-2], k.shape[-2])
    parts = (d_out.shape[-2:], *(t.shape[-2:] for t in (q, k, v)))
    return *_workspace((q, k, v), attrs), scores, *(_wide(q, *shape) for shape in parts)


def heads(q: Array, k: Array) -> Iterator[tuple[Index, Index, bool]]:
    """The index of each head of q, that of its k and v, and whether it is the first with those."""
    times = q.shape[-3] // k.shape[-3] if q.ndim > 2 and k.shape[-3] else 1
    for index in np.ndindex(q.shape[:-2]):
        shared = (*index[:-1], index[-1] // times) if index else ()
        yield index, shared, not index or index[-1] % times == 0


def _score(
    s: Array,
    hidden: Array,
    q: Array,
    k: Array,
    mask: Array | None,
    scale: float,
    is_causal: bool,
) -> None:
    """s <- scale * q @ k^T + mask, -inf where nothing is to be seen."""
    multiply(q, k.T, s)
    s *= s.dtype.type(scale)
    if is_causal:
        rows, columns = (np.arange(n) for n in s.shape)
        np.greater(columns[None, :], rows[:, None], out=hidden)
    elif mask is None:
        return
    elif mask.dtype == np.bool_:
        np.logical_not(mask, out=hidden)
    else:
        s += mask
        return
    np.copyto(s, -math.inf, where=hidden)


def _masks(mask: tuple[Array, ...], q: Array, k: Array) -> Array | None:
    """The mask over every head, as a view."""
    whole = (*q.shape[:-1], k.shape[-2])
    return np.broadcast_to(mask[0], whole) if mask else None


def _softmax(s: Array) -> tuple[Array, Array]:
    """s <- exp(s - best); (best, sum) of each row, which may see nothing."""
    best = s.max(axis=-1, initial=-math.inf)
    best[np.isneginf(best)] = 0
    s -= best[:, None]
    np.exp(s, out=s)
    return best, s.sum(axis=-1)


@kernel("attention", device="cpu", workspace=_workspace)
def attention(
    xp: ArrayModule,
    out: Array,
    lse: Array,
    q: Array,
    k: Array,
    v: Array,
    *rest: Array,
    scale: float,
    is_causal: bool,
) -> None:
    *mask, s, hidden, wide_q, wide_k, wide_v, wide_out = rest
    if not is_causal and len(s) <= FEW_ROWS:
        from oneflow.kernels.expressions.attention import attend

        if attend(out, lse, q, k, v, mask[0] if mask else None, scale):
            return
    masks = _masks(tuple(mask), q, k)
    for at, shared, _ in heads(q, k):
        wide_q[...], wide_k[...], wide_v[...] = q[at], k[shared], v[shared]
        _score(s, hidden, wide_q, wide_k, None if masks is None else masks[at], scale, is_causal)
        best, total = _softmax(s)
        lse[at] = best + np.log(total)
        total[total == 0] = 1
        multiply(s, wide_v, wide_out)
        wide_out /= total[:, None]
        out[at] = wide_out


@kernel("attention_grad", device="cpu", workspace=_grad_workspace)
def attention_grad(
    xp: ArrayModule,
    d_q: Array,
    d_k: Array,
    d_v: Array,
    d_out: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *rest: Array,
    scale: float,
    is_causal: bool,
) -> None:
    *mask, p, hidden, wide_q, wide_k, wide_v, _, d_s, wide_d, own_q, own_k, own_v = rest
    masks = _masks(tuple(mask), q, k)
    d_k[...], d_v[...] = 0, 0
    for at, shared, is_first in heads(q, k):
        wide_q[...], wide_k[...], wide_v[...] = q[at], k[shared], v[shared]
        wide_d[...] = d_out[at]
        _score(p, hidden, wide_q, wide_k, None if masks is None else masks[at], scale, is_causal)
        # `lse` is as good as its dtype is: half a bit of a bfloat16 is 3 % of a probability.
        _, total = _softmax(p)
        total[total == 0] = 1
        p /= total[:, None]
        multiply(wide_d, wide_v.T, d_s)
        # Not the sum of d_out * out, which is as good as the rounded output is.
        d_s -= np.einsum("ij,ij->i", d_s, p)[:, None]
        d_s *= p
        d_s *= d_s.dtype.type(scale)
        multiply(d_s, wide_k, own_q)
        d_q[at] = own_q
        if is_first:
            own_k[...], own_v[...] = 0, 0
        multiply(d_s.T, wide_q, wide_k)
        multiply(p.T, wide_d, wide_v)
        own_k += wide_k
        own_v += wide_v
        d_k[shared], d_v[shared] = own_k, own_v
