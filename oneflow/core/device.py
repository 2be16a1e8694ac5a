"""Devices of this process: `cpu` and `cuda`, with an index."""

from __future__ import annotations

from typing import Any, TypeAlias

from oneflow.core.config import current_config
from oneflow.core.errors import DeviceError

DEVICE_TYPES = ("cpu", "cuda")


def load_cupy() -> Any:
    """CuPy, which all work on `cuda` needs. Raises DeviceError where it is not installed."""
    try:
        import cupy
    except ImportError as error:
        raise DeviceError(
            "device cuda needs CuPy: pip install 'oneflow-actors[cuda]' (or [cuda13])"
        ) from error
    return cupy


DeviceLike: TypeAlias = "Device | str"
"""A device as users give it: itself, or its text."""


class Device:
    """`Device("cuda", 1)`, `Device("cuda:1")`, `Device("cpu")`. The index defaults to the local
    rank.
    """

    __slots__ = ("index", "type")

    index: int
    type: str

    def __init__(self, type: DeviceLike, index: int | None = None) -> None:
        text = str(type)
        name, _, number = text.partition(":")
        is_number = number.isascii() and number.isdecimal() and len(number) < 10
        if name not in DEVICE_TYPES or (number and not is_number):
            raise DeviceError(
                f"Expected one of {', '.join(DEVICE_TYPES)} device type "
                f"at start of device string: {text}"
            )
        self.type = name
        self.index = (
            int(number) if number else (current_config().local_rank if index is None else index)
        )

    @property
    def rematable(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"device(type='{self.type}', index={self.index})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))
