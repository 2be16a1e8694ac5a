"""xDeepFM (Lian and others, KDD 2018): a compressed interaction network beside dense layers."""

from __future__ import annotations

from clicks import FIELDS, NUMBERS
from layers import Compressed, Store, dense, embedding
from train import main

import oneflow as flow
from oneflow import nn


class XDeepFm(nn.Module):
    """Scores (rows, 1) of clicks. A row of the tables has a vector and a weight."""

    tasks = 1

    def __init__(self, store: Store, width: int = 16) -> None:
        super().__init__()
        sizes = [8, 8]
        self.embedding = embedding(store, [width, 1])
        self.linear = nn.Linear(NUMBERS, 1)
        self.crossed = Compressed(FIELDS, sizes)
        self.mix = nn.Linear(sum(sizes), 1)
        self.deep = dense(FIELDS * width + NUMBERS, [64, 32])

    def forward(self, numbers: flow.Tensor, ids: flow.Tensor) -> flow.Tensor:
        rows = self.embedding(ids)
        vectors, weights = rows[:, :, :-1], rows[:, :, -1:]
        first = weights.sum(1) + self.linear(numbers)
        crossed = self.mix(self.crossed(vectors))
        return first + crossed + self.deep(flow.cat([vectors.flatten(1), numbers], 1))


if __name__ == "__main__":
    main(XDeepFm)
