"""A data set, a model, training steps, a graph and a checkpoint, all with types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F
from oneflow.optim import AdamW, Optimizer
from oneflow.optim.lr_scheduler import CosineAnnealingLR
from oneflow.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

Pair = tuple[flow.Tensor, flow.Tensor]


class Points(Dataset[Pair]):
    def __init__(self, count: int) -> None:
        self.x = flow.randn(count, 4)
        self.y = (self.x.sum(1) > 0).long()

    def __len__(self) -> int:
        return self.x.shape[0]

    def __getitem__(self, index: int) -> Pair:
        return self.x[index], self.y[index]


class Stream(IterableDataset[flow.Tensor]):
    def __iter__(self) -> Iterator[flow.Tensor]:
        yield from (flow.zeros(2) for _ in range(3))


class Block(nn.Module):
    def __init__(self, width: int, p: float = 0.1) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)
        self.drop = nn.Dropout(p)
        self.scale = nn.Parameter(flow.ones(width))
        self.register_buffer("seen", flow.zeros(1))

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        out: flow.Tensor = self.drop(F.gelu(self.linear(self.norm(x)))) * self.scale
        return x + out


class Net(nn.Module):
    def __init__(self, width: int = 8, classes: int = 2) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(2)])
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(width, classes))

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        h: flow.Tensor = self.first(x)
        for block in self.blocks:
            h = block(h)
        out: flow.Tensor = self.head(h)
        return out


class Step(nn.Graph):
    def __init__(self, model: Net, optimizer: Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x: flow.Tensor, y: flow.Tensor) -> flow.Tensor:
        loss: flow.Tensor = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def train(model: Net, data: Dataset[Pair], epochs: int) -> list[float]:
    optimizer = AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    schedule = CosineAnnealingLR(optimizer, 10)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    losses: list[float] = []
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        schedule.step()
    return losses


@flow.no_grad()
def accuracy(model: Net, data: TensorDataset) -> float:
    x, y = data.tensors
    model.eval()
    return float((model(x).argmax(1) == y).float().mean().item())


def main(path: Path) -> None:
    points, model = Points(32), Net()
    losses = train(model, points, 2)
    data = TensorDataset(points.x, points.y)
    device = flow.device("cpu")
    state: dict[str, flow.Tensor] = model.to(device).state_dict()
    flow.save(state, path / "model")
    again = Net()
    again.load_state_dict(flow.load(path / "model"))
    shape: flow.Size = again.first.weight.shape
    dtype: flow.dtype = again.first.weight.dtype
    graph = Step(again, flow.optim.SGD(again.parameters(), lr=0.1))
    loss: flow.Tensor = graph(points.x[:8], points.y[:8])
    print(len(losses), accuracy(model, data), shape[0], dtype, loss.item(), len(list(Stream())))
