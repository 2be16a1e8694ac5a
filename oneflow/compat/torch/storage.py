"""`torch.storage`: classes of storages with a dtype, which PyTorch itself gives up."""

from __future__ import annotations

from oneflow.compat.torch.untyped_storage import UntypedStorage
from oneflow.core.errors import OneFlowError

__all__ = ["ByteStorage", "FloatStorage", "StorageBase", "TypedStorage"]

StorageBase = UntypedStorage


class TypedStorage:
    """A storage with a dtype: none is ever made, so `isinstance` is False."""

    def __init__(self, *_: object, **__: object) -> None:
        raise OneFlowError("TypedStorage: use flow.UntypedStorage, and Tensor.view(dtype)")


class _LegacyStorage(TypedStorage):
    """A storage of one dtype: none is ever made, so `isinstance` is False."""


class ByteStorage(_LegacyStorage):
    """A storage of uint8: none is ever made, so `isinstance` is False."""


class FloatStorage(_LegacyStorage):
    """A storage of float32: none is ever made, so `isinstance` is False."""
