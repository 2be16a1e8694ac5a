"""`torch.serialization`: saving and loading, and classes that a file may name.

A file may name the classes and functions that are listed, each by itself or by a pattern such as
"models.*".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from types import TracebackType
from typing import Any

from oneflow.compat.torch.untyped_storage import UntypedStorage
from oneflow.core.device import Device
from oneflow.io.checkpoint import load, save
from oneflow.io.decoding import names_of_code
from oneflow.io.files import Target
from oneflow.io.safe_names import Names, trusted
from oneflow.io.sources import Foreign, open_source

__all__ = [
    "add_safe_globals",
    "clear_safe_globals",
    "default_restore_location",
    "get_default_load_endianness",
    "get_safe_globals",
    "get_unsafe_globals_in_checkpoint",
    "load",
    "location_tag",
    "safe_globals",
    "save",
    "skip_data",
]


def add_safe_globals(safe_globals: Iterable[Any]) -> None:
    """Take note of classes, functions and patterns of names that files may name."""
    trusted.extend(one for one in safe_globals if one not in trusted)


def get_safe_globals() -> list[Any]:
    """Return the classes and functions that were noted."""
    return list(trusted)


def clear_safe_globals() -> None:
    """Forget all classes and functions that were noted."""
    trusted.clear()


class safe_globals:
    """A block in which more classes and functions are noted."""

    def __init__(self, safe_globals: Iterable[Any]) -> None:
        self._more = list(safe_globals)

    def __enter__(self) -> safe_globals:
        self._before = list(trusted)
        add_safe_globals(self._more)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        trusted[:] = self._before


def get_unsafe_globals_in_checkpoint(f: Target) -> list[str]:
    """Return the names of classes and functions in a file of `save` that `load` would not follow.
    Raises CheckpointError for a file of PyTorch.
    """
    source = open_source(f, support_pytorch_format=False)
    if isinstance(source, Foreign):
        return []
    with closing(source):
        names = names_of_code(source.form)
    follows = Names(weights_only=True).may
    return [name.replace(":", ".") for name in names if not follows(name)]


def default_restore_location(storage: object, location: str) -> Any:
    """Return the storage as it is: `load(map_location=...)` says where tensors go."""
    return storage


def location_tag(storage: UntypedStorage) -> str:
    """Return the device of a storage, as a file names it."""
    device = getattr(storage, "device", Device("cpu"))
    return "cpu" if device.type == "cpu" else str(device)


def get_default_load_endianness() -> None:
    """Return None: files say which byte order they have."""


def skip_data(*_: object, **__: object) -> Callable[..., Any]:
    """Refuse: files always hold the values of their tensors."""
    raise NotImplementedError("serialization.skip_data: files hold the values of their tensors")
