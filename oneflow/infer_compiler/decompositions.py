"""PyTorch's operators taken apart before the graphs are ours, where the parts are faster, or draw
the numbers that PyTorch draws without a compiler.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from oneflow.infer_compiler.aten import CALLS

if TYPE_CHECKING:
    import torch

KEPT = frozenset(name.partition(".")[0] for name in CALLS) | {"bernoulli", "addmm", "baddbmm"}
"""Operators that are not to be taken apart."""

MOST_SCORES = 1 << 24
"""Attention with more scores than this keeps to memory that is linear in the length."""


def decompositions() -> dict[Any, Any]:
    """PyTorch's compositions of operators, without those that we have as one."""
    import torch
    from torch._decomp import core_aten_decompositions

    table = dict(core_aten_decompositions())
    for op in list(table):
        name = str(op).removeprefix("aten.")
        if name in CALLS or name.partition(".")[0] in KEPT:
            del table[op]
    aten = torch.ops.aten
    table[aten.native_dropout.default] = _dropout
    attention = getattr(aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)
    if attention is not None:
        table[attention.default] = _attention_backward
    return table


def _dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw as PyTorch does without a compiler, so that the next number is the same, too."""
    import torch

    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    kept = torch.ops.aten.bernoulli.p(x, 1 - p)
    return x * (kept / (1 - p) if p < 1 else kept), kept.bool()


def _attention_backward(
    d_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    _out: torch.Tensor,
    _statistics: torch.Tensor,
    _dropout: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """Gradients by whole products: for short sequences faster than block by block."""
    scores = math.prod(q.shape[:-1]) * k.shape[-2]
    if not isinstance(scores, int) or scores > MOST_SCORES:
        return NotImplemented
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    p = _probabilities(q @ k.transpose(-1, -2) * factor, is_causal, attn_mask)
    d_p = d_out @ v.transpose(-1, -2)
    d_scores = p * (d_p - (d_p * p).sum(-1, keepdim=True)) * factor
    d_v = p.transpose(-1, -2) @ d_out
    return d_scores @ k, d_scores.transpose(-1, -2) @ q, d_v


def _probabilities(
    scores: torch.Tensor, is_causal: bool, mask: torch.Tensor | None
) -> torch.Tensor:
    """Softmax of the scores that are not masked; zeros in rows that are masked whole."""
    import torch

    if is_causal:
        rows, columns = (torch.arange(n, device=scores.device) for n in scores.shape[-2:])
        scores = torch.where(columns <= rows[:, None], scores, -math.inf)
    if mask is None:
        return scores.softmax(-1)
    if mask.dtype == torch.bool:
        scores = torch.where(mask, scores, -math.inf)
    else:
        scores = scores + mask
    is_dead = scores.amax(-1, keepdim=True) == -math.inf
    return torch.where(is_dead, 0.0, scores.softmax(-1))
