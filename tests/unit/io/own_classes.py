"""Classes of a program's own, as checkpoints may hold objects of them."""

from __future__ import annotations

import enum
from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any

from oneflow import nn

Point = namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = (1, 0, 0)
    BLUE = (0, 0, 1)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Table(dict):  # type: ignore[type-arg]
    """A dict whose items are attributes, too."""


@dataclass
class Sizes:
    width: int
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    value: Any


class Slots:
    __slots__ = ("left", "right")

    def __init__(self, left: Any, right: Any) -> None:
        self.left, self.right = left, right


class Counting:
    """An object with a state of its own making."""

    def __init__(self) -> None:
        self.count, self.cache = 3, object()

    def __getstate__(self) -> Any:
        return [self.count]

    def __setstate__(self, state: Any) -> None:
        self.count, self.cache = state[0], None


def double(x: Any) -> Any:
    return x * 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.tied = self.layer
        self.register_buffer("mean", self.layer.bias.detach() * 0 + 1)
        self.after, self.kind = double, nn.SiLU
        self.sizes, self.level = Sizes(4, ["a"]), Level.HIGH
        self.own = [self]

    def forward(self, x: Any) -> Any:
        return self.after(self.kind()(self.layer(x))) + self.mean
