"""`torch._dynamo`, `torch._inductor`: settings of PyTorch's compiler, which does not run here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from oneflow.compat.torch.compiling import OptimizedModule
from oneflow.core.errors import OneFlowError

__all__ = ["OptimizedModule", "config"]


class _Config:
    """Settings of a compiler that does not run: any can be set, and reads as it was set."""

    def __init__(self) -> None:
        self.suppress_errors = False
        self.cache_size_limit = 8

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Config()
        setattr(self, name, made)  # a group, such as `config.triton`
        return made

    def __bool__(self) -> bool:
        return False

    @contextmanager
    def patch(self, *_: object, **__: object) -> Iterator[None]:
        """Change nothing inside: the compiler does not run."""
        yield


config = _Config()


class TorchDynamoException(OneFlowError):
    """PyTorch's error of code that it cannot compile: never raised."""


class Unsupported(TorchDynamoException):
    """PyTorch's error of code that it cannot compile: never raised."""


class TensorifyScalarRestartAnalysis(TorchDynamoException):
    """A sign between parts of PyTorch's compiler: never raised."""


def is_compile_supported(device_type: str) -> bool:
    """Return False: PyTorch's compiler does not run."""
    return False


def has_triton() -> bool:
    """Return False: kernels of Triton are for PyTorch's tensors."""
    return False


def _set_lru_cache(enabled: bool) -> None:
    """Change nothing: of the plans of a function the oldest goes."""


def list_backends(*_: object) -> list[str]:
    """Return an empty list: PyTorch's compiler does not run."""
    return []
