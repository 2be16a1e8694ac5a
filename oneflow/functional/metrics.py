"""Measures of how good predictions are."""

from __future__ import annotations

from oneflow.core.dtype import float32, float64
from oneflow.functional.promotion import as_type
from oneflow.functional.shaping import reshape
from oneflow.functional.sort_and_search import searchsorted, sort
from oneflow.tensor.tensor import Tensor


def roc_auc_score(label: Tensor, pred: Tensor) -> Tensor:
    """The area under the ROC curve: the share of pairs of a positive and a negative sample that
    `pred` puts in the right order, ties counting half. float32, of one element.
    """
    scores = reshape(pred.detach(), (-1,))
    is_positive = as_type(reshape(label, (-1,)) > 0, float64)
    line = sort(scores)[0]
    below = searchsorted(line, scores)
    up_to = searchsorted(line, scores, right=True)
    rank = (as_type(below, float64) + as_type(up_to, float64) + 1) / 2
    positives = is_positive.sum()
    negatives = scores.meta.numel - positives
    wins = (rank * is_positive).sum() - positives * (positives + 1) / 2
    return reshape(as_type(wins / (positives * negatives), float32), (1,))
