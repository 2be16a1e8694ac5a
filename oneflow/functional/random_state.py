"""Generators of random numbers: a seed and the number of calls made so far. Each random op call
takes the next one.

The numbers are a function of (seed, call, global element index), so neither device nor layout
changes them. A graph makes the calls that its `build` would make eagerly: while it is traced its
random ops are given the number of their call instead of a seed, and each step works out the seeds.

The default generator begins with a seed of the system's, another one in each process, so a run
repeats only after `manual_seed`. Ranks that draw a global tensor together use the generator of the
first rank of its placement.
"""

from __future__ import annotations

import os
import struct
from typing import Any

import numpy as np

from oneflow.core.device import Device, DeviceLike
from oneflow.core.dispatch import current_mode
from oneflow.core.draws import mix_seed
from oneflow.core.errors import CheckpointError, GraphError
from oneflow.tensor.tensor import Tensor, wrap

OWN_SEED = 67280421310721
"""Seed of a generator that a program makes for itself, until it chooses one; as in PyTorch."""

_SEED_BITS = 53  # a float64 holds such an integer exactly, so it survives JSON of any reader
_STATE = struct.Struct("<QQ")
STATE_NBYTES = _STATE.size


def _draws() -> Any:
    """Return the object that numbers the draws of the graph that this thread traces, or None."""
    return current_mode().draws


class Generator:
    """`Generator("cpu")`. All devices draw the same numbers from one seed, which is the same in
    every run until another is chosen.
    """

    def __init__(self, device: DeviceLike = "cpu") -> None:
        self.device = Device("cpu" if device == "auto" else device)
        self._seed = OWN_SEED
        self._calls = 0

    def manual_seed(self, seed: int) -> Generator:
        """Starts again from `seed`. Raises GraphError inside the build() of a graph."""
        if _draws() is not None:
            raise GraphError(
                "manual_seed: build() is traced once and run many times, so it cannot seed a "
                "generator; seed it before the graph is called"
            )
        self._seed, self._calls = int(seed) & 0xFFFFFFFFFFFFFFFF, 0
        return self

    def initial_seed(self) -> int:
        """The seed it was started from."""
        return self._seed

    def seed(self) -> int:
        """Starts again from a seed that cannot be foreseen; returns it. Ranks get different
        ones.
        """
        self.manual_seed(int.from_bytes(os.urandom(8), "little") >> (64 - _SEED_BITS))
        return self._seed

    def next_seed(self) -> int:
        """The seed of the next call."""
        self._calls += 1
        return mix_seed(self._seed, self._calls)

    @property
    def position(self) -> tuple[int, int]:
        """Seed, and number of calls made since."""
        return self._seed, self._calls

    def move_to(self, position: tuple[int, int]) -> None:
        """Goes on from where `position` was taken."""
        self._seed, self._calls = position

    def skip(self, calls: int) -> None:
        """Move on as if so many calls had been made."""
        self._calls += calls

    def get_state(self) -> Tensor:
        """uint8 tensor of 16 bytes: seed and number of calls."""
        return wrap(np.frombuffer(_STATE.pack(self._seed, self._calls), dtype=np.uint8).copy())

    def set_state(self, state: Tensor) -> None:
        """Goes on where a generator with this state was. Raises CheckpointError if it is no such
        state.
        """
        data = np.ascontiguousarray(state.numpy()).tobytes()
        if len(data) != _STATE.size:
            raise CheckpointError(
                f"a generator state has {_STATE.size} bytes, this one has {len(data)}"
            )
        draws = _draws()
        if draws is not None:
            draws.know(self)
        self._seed, self._calls = _STATE.unpack(data)


default_generator = Generator()
default_generator.seed()


def next_seed(generator: Generator | None = None) -> int:
    """The `seed` of the next random op: while a graph is traced, which of its draws it is."""
    chosen, draws = generator or default_generator, _draws()
    if draws is None:
        return chosen.next_seed()
    draw: int = draws.draw(chosen)
    return draw


def host_seed(generator: Generator | None = None) -> int:
    """The seed of numbers that the host draws at once: orders of rows, say."""
    return (generator or default_generator).next_seed()


def manual_seed(seed: int) -> Generator:
    """Seeds the default generator."""
    return default_generator.manual_seed(seed)


def initial_seed() -> int:
    """The seed of the default generator."""
    return default_generator.initial_seed()


def seed() -> int:
    """Seeds the default generator with a number that cannot be foreseen; returns it."""
    return default_generator.seed()


def get_rng_state() -> Tensor:
    """The state of the default generator."""
    return default_generator.get_state()


def set_rng_state(state: Tensor) -> None:
    """Sets the state of the default generator."""
    default_generator.set_state(state)
