"""`flow.backends.mps`: GPUs of Apple, which nothing here runs on."""

from __future__ import annotations

__all__ = ["is_available", "is_built", "is_macos_or_newer"]


def is_available() -> bool:
    """False: there are no kernels for Apple's GPUs."""
    return False


def is_built() -> bool:
    """False: there are no kernels for Apple's GPUs."""
    return False


def is_macos_or_newer(major: int, minor: int) -> bool:
    """False: the system is not macOS."""
    return False
