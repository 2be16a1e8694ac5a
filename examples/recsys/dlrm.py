"""DLRM (Naumov and others, 2019): dot products of all embeddings and of the numbers' vector."""

from __future__ import annotations

from clicks import FIELDS, NUMBERS
from layers import Store, dense, embedding
from train import main

import oneflow as flow
from oneflow import nn


class Dlrm(nn.Module):
    """Scores (rows, 1) of clicks."""

    tasks = 1

    def __init__(self, store: Store, width: int = 16) -> None:
        super().__init__()
        self.embedding = embedding(store, [width])
        self.bottom = nn.FusedMLP(NUMBERS, [32], width)
        count = FIELDS + 1
        self.top = dense(width + count * (count - 1) // 2, [64, 32])

    def forward(self, numbers: flow.Tensor, ids: flow.Tensor) -> flow.Tensor:
        vector = self.bottom(numbers)
        products = flow._C.fused_dot_feature_interaction(
            [vector.unsqueeze(1), self.embedding(ids)], output_concat=vector
        )
        return self.top(products)


if __name__ == "__main__":
    main(Dlrm)
