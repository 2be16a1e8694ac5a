"""`flow.model`: upstream's trainer of early versions, which scripts only name. Training loops are
written out here: an nn.Module, an optimizer, and nn.Graph where it should be compiled.
"""

from __future__ import annotations

from oneflow.core.errors import OneFlowError
from oneflow.nn.module import Module

__all__ = [
    "Callback",
    "CheckpointConfig",
    "DataModule",
    "Model",
    "NumpyDataModule",
    "TrainingConfig",
    "ValidationConfig",
]


def _refused(name: str) -> OneFlowError:
    return OneFlowError(
        f"flow.model.{name}: this trainer of early versions does not exist here; write the loop "
        "with nn.Module, an optimizer and, to compile it, nn.Graph"
    )


class Callback:
    """A base class whose methods a trainer would call; no trainer does."""


class Model(Module):
    """Raise OneFlowError when made."""

    def __init__(self, *args: object, **options: object) -> None:
        raise _refused(type(self).__name__)


class DataModule(Module):
    """Raise OneFlowError when made."""

    def __init__(self, *args: object, **options: object) -> None:
        raise _refused(type(self).__name__)


class NumpyDataModule(DataModule):
    """Raise OneFlowError when made."""


class _Settings:
    """Raise OneFlowError when made."""

    def __init__(self, *args: object, **options: object) -> None:
        raise _refused(type(self).__name__)


class TrainingConfig(_Settings):
    """Raise OneFlowError when made."""


class ValidationConfig(_Settings):
    """Raise OneFlowError when made."""


class CheckpointConfig(_Settings):
    """Raise OneFlowError when made."""
