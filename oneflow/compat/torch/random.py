"""`torch.random`: the default generator, and blocks that give its state back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from oneflow.functional.random_state import (
    default_generator,
    get_rng_state,
    initial_seed,
    manual_seed,
    seed,
    set_rng_state,
)

__all__ = [
    "default_generator",
    "fork_rng",
    "get_rng_state",
    "initial_seed",
    "manual_seed",
    "seed",
    "set_rng_state",
]


@contextmanager
def fork_rng(
    devices: Iterable[object] | None = None, enabled: bool = True, device_type: str = "cuda"
) -> Iterator[None]:
    """Give the default generator its state back at the end; all devices share it."""
    before = default_generator.position
    try:
        yield
    finally:
        if enabled:
            default_generator.move_to(before)
