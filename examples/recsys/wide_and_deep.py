"""Wide and deep (Cheng and others, 2016): a weight for each id beside dense layers."""

from __future__ import annotations

from clicks import FIELDS, NUMBERS
from layers import Store, dense, embedding
from train import main

import oneflow as flow
from oneflow import nn


class WideAndDeep(nn.Module):
    """Scores (rows, 1) of clicks. A row of the tables has a vector and a weight."""

    tasks = 1

    def __init__(self, store: Store, width: int = 16) -> None:
        super().__init__()
        self.embedding = embedding(store, [width, 1])
        self.deep = dense(FIELDS * width + NUMBERS, [64, 32])

    def forward(self, numbers: flow.Tensor, ids: flow.Tensor) -> flow.Tensor:
        rows = self.embedding(ids)
        deep = self.deep(flow.cat([rows[:, :, :-1].flatten(1), numbers], 1))
        return rows[:, :, -1].sum(1, keepdim=True) + deep


if __name__ == "__main__":
    main(WideAndDeep)
