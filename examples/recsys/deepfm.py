"""DeepFM (Guo and others, IJCAI 2017): a factorization machine beside dense layers."""

from __future__ import annotations

from clicks import FIELDS, NUMBERS
from layers import Store, dense, embedding, pairs
from train import main

import oneflow as flow
from oneflow import nn


class DeepFm(nn.Module):
    """Scores (rows, 1) of clicks. A row of the tables has a vector and a weight."""

    tasks = 1

    def __init__(self, store: Store, width: int = 16) -> None:
        super().__init__()
        self.embedding = embedding(store, [width, 1])
        self.linear = nn.Linear(NUMBERS, 1)
        self.deep = dense(FIELDS * width + NUMBERS, [64, 32])

    def forward(self, numbers: flow.Tensor, ids: flow.Tensor) -> flow.Tensor:
        rows = self.embedding(ids)
        vectors, weights = rows[:, :, :-1], rows[:, :, -1:]
        first = weights.sum(1) + self.linear(numbers)
        second = pairs(vectors)
        return first + second + self.deep(flow.cat([vectors.flatten(1), numbers], 1))


if __name__ == "__main__":
    main(DeepFm)
