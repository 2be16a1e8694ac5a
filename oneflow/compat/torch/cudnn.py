"""`torch.backends.cudnn.flags`: switches of cuDNN for a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from oneflow.backends import cudnn

NAMES = ("enabled", "benchmark", "deterministic", "allow_tf32")


def set_flags(
    _enabled: bool | None = None,
    _benchmark: bool | None = None,
    _benchmark_limit: int | None = None,
    _deterministic: bool | None = None,
    _allow_tf32: bool | None = None,
    _fp32_precision: str = "none",
) -> tuple[bool, ...]:
    """Set switches that are given, which warn as by themselves; return their former values."""
    before = tuple(bool(getattr(cudnn, name)) for name in NAMES)
    given = (_enabled, _benchmark, _deterministic, _allow_tf32)
    for name, value in zip(NAMES, given, strict=True):
        if value is not None:
            setattr(cudnn, name, value)
    return before


@contextmanager
def flags(
    enabled: bool = False,
    benchmark: bool = False,
    benchmark_limit: int = 10,
    deterministic: bool = False,
    allow_tf32: bool = True,
    fp32_precision: str = "none",
) -> Iterator[None]:
    """Set nothing inside: results are the same with any switches."""
    yield
