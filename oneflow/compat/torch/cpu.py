"""`torch.cpu`: the host as if it were an accelerator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from oneflow.compat.torch.random import get_rng_state, set_rng_state
from oneflow.compat.torch.random import manual_seed as _seed

__all__ = [
    "current_device",
    "current_stream",
    "device_count",
    "get_rng_state",
    "is_available",
    "manual_seed",
    "manual_seed_all",
    "set_device",
    "set_rng_state",
    "stream",
    "synchronize",
]


def is_available() -> bool:
    """Return True."""
    return True


is_initialized = is_available


def device_count() -> int:
    """Return 1: the host is one device."""
    return 1


def current_device() -> str:
    """Return "cpu"."""
    return "cpu"


def set_device(device: object) -> None:
    """Change nothing: the host is one device."""


def synchronize(device: object = None) -> None:
    """Return at once: ops have run when their calls return."""


empty_cache = reset_peak_memory_stats = synchronize


def manual_seed(seed: int) -> None:
    """Seed the default generator, which all devices share."""
    _seed(seed)


manual_seed_all = manual_seed


class Stream:
    """The order of calls on the host."""

    def __init__(self, priority: int = -1) -> None:
        self.priority = priority

    def wait_stream(self, stream: object) -> None:
        """Return at once: ops run in the order of the calls."""


def current_stream(device: object = None) -> Stream:
    """Return the order of calls."""
    return Stream()


@contextmanager
def stream(stream: Stream) -> Iterator[None]:
    """Change nothing inside."""
    yield
