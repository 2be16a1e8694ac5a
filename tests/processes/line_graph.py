"""The smallest graph that trains."""

from __future__ import annotations

from typing import Any

import oneflow as flow
from oneflow import nn


class Line(nn.Graph):
    """Fits y = 3 x."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(1, 1)
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1))

    def build(self, x: Any, y: Any) -> Any:
        loss = ((self.model(x) - y) ** 2).mean()
        loss.backward()
        return loss
