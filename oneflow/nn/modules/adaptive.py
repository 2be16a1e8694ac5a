"""Softmax over many classes of which few are frequent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from oneflow.core.errors import ShapeError
from oneflow.functional.concat_split import cat
from oneflow.functional.elementwise import pick
from oneflow.functional.gather_scatter import gather
from oneflow.functional.nn.activation import log_softmax
from oneflow.functional.reduction import argmax
from oneflow.nn.module import Module
from oneflow.nn.modules.containers import ModuleList, Sequential
from oneflow.nn.modules.linear import Linear
from oneflow.tensor.creation_like import Kind
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Scored(NamedTuple):
    """output: log-probability of each target.  loss: minus their mean."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """Log-softmax of n_classes sorted by frequency: classes below cutoffs[0] have scores of their
    own, the others are in clusters that end at each cutoff, each with a smaller inner size.

    div_value: by how much each cluster's inner size is smaller than the one before. head_bias: the
    scores of the first classes and of the clusters have a bias. Every cluster is computed for every
    sample. Grave et al., "Efficient softmax approximation for GPUs", 2017.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        **kind: Unpack[Kind],
    ) -> None:
        super().__init__()
        ends = list(cutoffs)
        if not ends or ends != sorted(set(ends)) or ends[0] <= 0 or ends[-1] > n_classes - 1:
            raise ValueError(
                "cutoffs should be a sequence of unique, positive integers sorted in an increasing "
                f"order, where each value is between 1 and n_classes-1, got {ends}"
            )
        self.in_features, self.n_classes = in_features, n_classes
        self.cutoffs, self.div_value, self.head_bias = [*ends, n_classes], div_value, head_bias
        self.shortlist_size = ends[0]
        self.n_clusters = len(ends)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, head_bias, **kind)
        self.tail = ModuleList()
        for i in range(self.n_clusters):
            inner = int(in_features // div_value ** (i + 1))
            size = self.cutoffs[i + 1] - self.cutoffs[i]
            self.tail.append(
                Sequential(
                    Linear(in_features, inner, False, **kind), Linear(inner, size, False, **kind)
                )
            )

    def reset_parameters(self) -> None:
        """Draws new first values."""
        self.head.reset_parameters()
        for first, second in self.tail:
            first.reset_parameters()
            second.reset_parameters()

    def forward(self, input: Tensor, target: Tensor) -> Scored:
        """input: (n, in_features), target: (n,) classes; or one sample without n."""
        if input.ndim - 1 != target.ndim or input.shape[:-1] != target.shape:
            raise ShapeError(
                f"AdaptiveLogSoftmaxWithLoss: input {input.meta} and target {target.meta} should "
                "have the same size before the last dim"
            )
        logs = self.log_prob(input if input.ndim == 2 else input.unsqueeze(0))
        chosen = gather(logs, 1, target.reshape(-1, 1)).reshape(tuple(target.shape))
        return Scored(chosen, (-chosen).mean())

    def log_prob(self, input: Tensor) -> Tensor:
        """Log-probabilities (n, n_classes)."""
        head = log_softmax(self.head(input), 1)
        parts = [head[:, : self.shortlist_size]]
        for i, tail in enumerate(self.tail):
            cluster = head[:, self.shortlist_size + i : self.shortlist_size + i + 1]
            parts.append(log_softmax(tail(input), 1) + cluster)
        joined: Tensor = cat(parts, dim=1)
        return joined

    def predict(self, input: Tensor) -> Tensor:
        """The class with the highest score; where that is a cluster, the likeliest of all."""
        best = argmax(self.head(input), dim=1)
        return pick(best >= self.shortlist_size, argmax(self.log_prob(input), dim=1), best)
