"""PNN (Qu and others, ICDM 2016): inner products of all pairs of fields, then dense layers."""

from __future__ import annotations

from clicks import FIELDS, NUMBERS
from layers import Store, dense, embedding
from train import main

import oneflow as flow
from oneflow import nn


class Pnn(nn.Module):
    """Scores (rows, 1) of clicks."""

    tasks = 1

    def __init__(self, store: Store, width: int = 16) -> None:
        super().__init__()
        self.embedding = embedding(store, [width])
        products = FIELDS * (FIELDS - 1) // 2
        self.deep = dense(FIELDS * width + products + NUMBERS, [64, 32])

    def forward(self, numbers: flow.Tensor, ids: flow.Tensor) -> flow.Tensor:
        vectors = self.embedding(ids)
        products = flow._C.fused_dot_feature_interaction([vectors])
        return self.deep(flow.cat([vectors.flatten(1), products, numbers], 1))


if __name__ == "__main__":
    main(Pnn)
