"""Virtual time, and a network of connections that delay, lose, duplicate, reorder and break."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

EPOCH_OF_WALL_CLOCK = 1_790_000_000.0
KEPT_LINES = 400


class Violation(AssertionError):
    """Something happened that must never happen."""


class World:
    """The clock, the dice, and the events to come."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.trace: deque[str] = deque(maxlen=KEPT_LINES)
        self.num_events = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    @property
    def wall(self) -> float:
        return EPOCH_OF_WALL_CLOCK + self.now

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._count, action))

    def run_until(self, end: float) -> None:
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self._queue)
            self.num_events += 1
            action()
        self.now = max(self.now, end)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def say(self, text: str) -> None:
        self.trace.append(f"{self.now:9.3f} {text}")


class Peer(Protocol):
    """One end of a connection."""

    name: str

    def receive(self, connection: Connection, message: Any) -> None: ...

    def connection_broke(self, connection: Connection) -> None: ...


@dataclass
class Quality:
    """Faults of a network. is_stream: messages arrive in order, or the connection breaks."""

    is_stream: bool = True
    delay_s: float = 0.01
    loss: float = 0.0
    duplication: float = 0.0


class Line:
    """The line between a daemon and the scheduler: may be cut in either direction."""

    def __init__(self) -> None:
        self.is_cut_up = False
        self.is_cut_down = False

    @property
    def is_cut(self) -> bool:
        return self.is_cut_up or self.is_cut_down

    def set(self, up: bool, down: bool) -> None:
        self.is_cut_up, self.is_cut_down = up, down


class Connection:
    """Between `low` (a daemon) and `high` (the scheduler in one of its lives)."""

    def __init__(
        self, world: World, low: Peer, high: Peer, line: Line, quality: Quality, life: int
    ) -> None:
        self.world = world
        self.life = life
        self.epoch = 0  # as the scheduler knows it
        self.ends = {"up": high, "down": low}
        self.line = line
        self.quality = quality
        self.is_open = True
        self._last = {"up": 0.0, "down": 0.0}
        self._held: dict[str, list[Any]] = {"up": [], "down": []}

    def send(self, way: str, message: Any, is_reliable: bool = False) -> None:
        """way: up or down."""
        world, quality = self.world, self.quality
        if not self.is_open:
            return
        delay = world.rng.expovariate(1 / quality.delay_s)
        if quality.is_stream or is_reliable:
            at = max(self._last[way], world.now + delay)
            self._last[way] = at
            world.after(at - world.now, lambda: self._deliver(way, message))
            return
        if world.chance(quality.loss):
            return
        for _ in range(2 if world.chance(quality.duplication) else 1):
            late = world.rng.expovariate(1 / quality.delay_s)
            world.after(late, lambda: self._deliver(way, message))

    def _deliver(self, way: str, message: Any) -> None:
        if not self.is_open:
            if way == "up" and self.world.chance(0.5):  # it had arrived, but was not looked at yet
                self.ends[way].receive(self, message)
            return
        is_cut = self.line.is_cut_up if way == "up" else self.line.is_cut_down
        if is_cut or self._held[way]:
            if self.quality.is_stream:
                self._held[way].append(message)
                self.world.after(0.25, lambda: self._flush(way))
            return
        self.ends[way].receive(self, message)

    def _flush(self, way: str) -> None:
        is_cut = self.line.is_cut_up if way == "up" else self.line.is_cut_down
        while self.is_open and not is_cut and self._held[way]:
            self.ends[way].receive(self, self._held[way].pop(0))

    def heal(self) -> None:
        self._flush("up")
        self._flush("down")

    def break_off(self) -> None:
        """Ends it; either side hears of that, sooner or later."""
        if not self.is_open:
            return
        self.is_open = False
        for end in self.ends.values():
            self._tell(end)

    def _tell(self, end: Peer) -> None:
        late = 5.0 if self.line.is_cut else 0.5
        self.world.after(self.world.rng.uniform(0, late), lambda: end.connection_broke(self))
