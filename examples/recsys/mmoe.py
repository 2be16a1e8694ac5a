"""MMoE (Ma and others, KDD 2018): experts, mixed for clicks and for purchases by gates of each."""

from __future__ import annotations

from clicks import FIELDS, NUMBERS
from layers import Store, dense, embedding
from train import main

import oneflow as flow
from oneflow import nn


class Mmoe(nn.Module):
    """Scores (rows, 2) of clicks and of purchases."""

    tasks = 2

    def __init__(self, store: Store, width: int = 16, experts: int = 4) -> None:
        super().__init__()
        inputs, size = FIELDS * width + NUMBERS, 32
        self.embedding = embedding(store, [width])
        self.experts = nn.ModuleList([nn.FusedMLP(inputs, [64], size) for _ in range(experts)])
        self.gates = nn.ModuleList([nn.Linear(inputs, experts) for _ in range(self.tasks)])
        self.towers = nn.ModuleList([dense(size, [16]) for _ in range(self.tasks)])

    def forward(self, numbers: flow.Tensor, ids: flow.Tensor) -> flow.Tensor:
        features = flow.cat([self.embedding(ids).flatten(1), numbers], 1)
        said = flow.stack([expert(features) for expert in self.experts], 1)
        scores = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            shares = gate(features).softmax(1)
            scores.append(tower((said * shares.unsqueeze(2)).sum(1)))
        return flow.cat(scores, 1)


if __name__ == "__main__":
    main(Mmoe)
