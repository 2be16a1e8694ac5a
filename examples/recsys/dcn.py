"""DCN v2 (Wang and others, WWW 2021): layers that cross all features, then dense ones."""

from __future__ import annotations

from clicks import FIELDS, NUMBERS
from layers import Cross, Store, dense, embedding
from train import main

import oneflow as flow
from oneflow import nn


class Dcn(nn.Module):
    """Scores (rows, 1) of clicks."""

    tasks = 1

    def __init__(self, store: Store, width: int = 16) -> None:
        super().__init__()
        inputs = FIELDS * width + NUMBERS
        self.embedding = embedding(store, [width])
        self.cross = Cross(inputs, 2)
        self.deep = dense(inputs, [64, 32])

    def forward(self, numbers: flow.Tensor, ids: flow.Tensor) -> flow.Tensor:
        features = flow.cat([self.embedding(ids).flatten(1), numbers], 1)
        return self.deep(self.cross(features))


if __name__ == "__main__":
    main(Dcn)
