"""Probabilities from their logarithms and the other way round, as distributions need them."""

from __future__ import annotations

from oneflow.nn import functional as F
from oneflow.ops.binary import sub
from oneflow.ops.unary import clamp, log, log1p, neg, sigmoid
from oneflow.surfaces import accept_paths
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


accept_paths(__name__)
