"""Devices of this process: `cpu` and `cuda`, with an index, and `meta`, where tensors have a shape
and a dtype but no values. Devices of other kinds are values to compare with.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, TypeAlias

from oneflow.core.config import current_config
from oneflow.core.errors import DeviceError

DEVICE_TYPES = ("cpu", "cuda")
META = "meta"
FOREIGN = ("hpu", "ipu", "mlu", "mps", "mtia", "musa", "npu", "privateuseone", "xla", "xpu")
"""Kinds of devices that PyTorch knows and on which no tensor can be here."""
NAMED = (*DEVICE_TYPES, META, *FOREIGN)


def load_cupy() -> Any:
    """CuPy, which all work on `cuda` needs. Raises DeviceError where it is not installed."""
    try:
        import cupy
    except ImportError as error:
        raise DeviceError(
            "device cuda needs CuPy: pip install 'oneflow-actors[cuda]' (or [cuda13])"
        ) from error
    return cupy


ErrorClass: TypeAlias = type[BaseException] | None
"""First argument of `__exit__`; inside Device, `type` is a text."""

DeviceLike: TypeAlias = "Device | str"
"""A device as users give it: itself, or its text."""


class Device:
    """`Device("cuda", 1)`, `Device("cuda:1")`, `Device("cpu")`, `Device("meta")`. The index is the
    local rank by default. Inside `with device:` new tensors are there if no device is given.

    A process has one CPU: devices of type cpu are equal, whatever their number, so that tensors
    on "cpu:0" and "cpu:1" mix, as in PyTorch.
    """

    __slots__ = ("index", "type")

    index: int
    type: str

    def __init__(self, type: DeviceLike, index: int | None = None) -> None:
        text = str(type)
        name, _, number = text.partition(":")
        is_number = number.isascii() and number.isdecimal() and len(number) < 10
        if name not in NAMED or (number and not is_number):
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

    def __enter__(self) -> Device:
        _chosen.devices = (*_chosen.devices, self)
        return self

    def __exit__(
        self,
        kind: ErrorClass,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _chosen.devices = _chosen.devices[:-1]

    def __str__(self) -> str:
        if self.type != "cuda" and self.index == current_config().local_rank:
            return self.type
        return f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"device(type='{self.type}', index={self.index})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Device) or self.type != other.type:
            return False
        return self.type == "cpu" or self.index == other.index

    def __hash__(self) -> int:
        return hash((self.type, 0 if self.type == "cpu" else self.index))


def require_kind(kind: str) -> None:
    """Raise DeviceError for a kind of device on which nothing here runs."""
    if kind in FOREIGN:
        raise DeviceError(f"no tensor can be on {kind}: use cpu or cuda")


class _Chosen(threading.local):
    """The devices of the with-blocks that this thread is in."""

    devices: tuple[Device, ...] = ()
    default: Device | None = None


_chosen = _Chosen()


def chosen_device() -> Device | None:
    """The device of the innermost `with device:`, or else the default of this thread, if it has
    one.
    """
    return _chosen.devices[-1] if _chosen.devices else _chosen.default


def set_chosen_device(device: Device | None) -> None:
    """Set the default of this thread, outside of all blocks; None: there is none."""
    _chosen.default = device
