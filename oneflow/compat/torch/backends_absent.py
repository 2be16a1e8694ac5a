"""`torch.backends.mkldnn`, `mkl`, `openmp`, `nnpack`, `xnnpack`, `opt_einsum`: libraries that
kernels of PyTorch may use. None is used here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from oneflow.backends.switches import declare_switches

__all__ = ["deterministic", "enabled", "flags", "is_available", "set_flags", "strategy", "verbose"]

NOT_USED = "kernels do not use this library"

enabled = False
deterministic = True
strategy = None
declare_switches(__name__, dict.fromkeys(("enabled", "deterministic", "strategy"), NOT_USED))


def is_available() -> bool:
    """Return False: kernels do not use this library."""
    return False


def set_flags(*_: object, **__: object) -> tuple[bool]:
    """Change nothing: kernels do not use this library."""
    return (False,)


@contextmanager
def flags(*_: object, **__: object) -> Iterator[None]:
    """Change nothing inside: kernels do not use this library."""
    yield


class verbose:
    """A block that would print the library's calls; nothing is printed."""

    def __init__(self, level: int = 0) -> None:
        self.level = level

    def __enter__(self) -> verbose:
        return self

    def __exit__(self, *_: object) -> None:
        return None
