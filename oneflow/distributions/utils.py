"""Probabilities from their logarithms and the other way round, as distributions need them."""

from __future__ import annotations

from oneflow.functional.creation import zeros
from oneflow.functional.gather_scatter import scatter
from oneflow.functional.rearrange import tril_indices
from oneflow.functional.shaping import reshape
from oneflow.nn import functional as F
from oneflow.ops.binary import sub
from oneflow.ops.unary import clamp, log, log1p, neg, sigmoid
from oneflow.surfaces import accept_paths
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.layout import finfo
from oneflow.tensor.tensor import Tensor


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """Return probabilities of log odds (binary), or of logarithms over the last dim."""
    made: Tensor = sigmoid(logits) if is_binary else F.softmax(logits, -1)
    return made


def clamp_probs(probs: Tensor) -> Tensor:
    """Return probabilities that are neither 0 nor 1, by the smallest step of their dtype."""
    eps = finfo(probs.dtype).eps
    inside: Tensor = clamp(probs, min=eps, max=1 - eps)
    return inside


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """Return log odds of probabilities (binary), or their logarithms."""
    inside = clamp_probs(probs)
    logs: Tensor = log(inside)
    return sub(logs, log1p(neg(inside))) if is_binary else logs


def tril_matrix_to_vec(mat: Tensor, diag: int = 0) -> Tensor:
    """Return the elements of the lower triangle of square matrices, row by row.

    diag: the last diagonal that belongs to it: 0 the main one, -1 the one below.
    """
    rows, columns = tril_indices(int(mat.shape[-1]), int(mat.shape[-1]), diag)
    return mat[..., rows, columns]


def vec_to_tril_matrix(vec: Tensor, diag: int = 0) -> Tensor:
    """Return square matrices (..., n, n) with these elements in their lower triangle, row by row.

    diag: the last diagonal that belongs to it.  Raises ValueError if no triangle has so many.
    """
    count, n, found = int(vec.shape[-1]), 0, 0
    while found < count:
        n += 1
        found = sum(min(max(row + 1 + diag, 0), n) for row in range(n))
    if found != count:
        raise ValueError(f"no triangle up to diagonal {diag} has {count} elements")
    rows, columns = tril_indices(n, n, diag)
    empty = zeros((*vec.shape[:-1], n * n), dtype=vec.dtype, **layout_of(vec))
    places = (rows * n + columns).expand(vec.shape)
    return reshape(scatter(empty, -1, places, vec), (*vec.shape[:-1], n, n))


accept_paths(__name__)
