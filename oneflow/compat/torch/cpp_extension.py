"""`torch.utils.cpp_extension`: extensions in C++ are written for PyTorch's runtime."""

from __future__ import annotations

from typing import NoReturn

from oneflow.core.errors import OneFlowError

__all__ = [
    "CUDA_HOME",
    "BuildExtension",
    "CUDAExtension",
    "CppExtension",
    "include_paths",
    "load",
    "load_inline",
]

CUDA_HOME = ROCM_HOME = None
IS_HIP_EXTENSION = False


def load(*_: object, **__: object) -> NoReturn:
    """Refuse: extensions in C++ are written for PyTorch's runtime."""
    raise OneFlowError(
        "utils.cpp_extension: ops in C++ are written for PyTorch's runtime; write the op in Python"
    )


load_inline = CppExtension = CUDAExtension = SyclExtension = load


class BuildExtension:
    """A command of setuptools that would build such extensions."""

    def __init__(self, *_: object, **__: object) -> None:
        load()


def include_paths(*_: object) -> list[str]:
    """Return an empty list: there are no headers."""
    return []


library_paths = include_paths


def is_ninja_available() -> bool:
    """Return False: nothing is built here."""
    return False


verify_ninja_availability = load
