"""`torch.ops` to packages under mock_torch, and `flow.utils.load_library`: ops in C++ libraries."""

from __future__ import annotations

from pathlib import Path

__all__ = ["load_library"]


def load_library(path: str | Path) -> None:
    """Raise OSError: ops of a C++ library are written for another runtime.

    Packages that bring one, such as torchvision, then do without it.
    """
    raise OSError(f"{path}: ops in C++ libraries cannot be loaded; write the op in Python")
