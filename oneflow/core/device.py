"""Devices of this process: `cpu`, `cuda` and registered kinds, with an index, and `meta`, where
tensors have a shape and a dtype but no values. Devices of other kinds are values to compare with.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeAlias

from oneflow.core.config import current_config
from oneflow.core.errors import DeviceError

REMAT, GPU_REMAT = "cpu+remat", "cuda+remat"
_types = ["cpu", "cuda", REMAT]
_finders: list[Callable[[str], None]] = []
META = "meta"
FOREIGN = ("hpu", "ipu", "mlu", "mps", "mtia", "musa", "npu", "privateuseone", "xla", "xpu")
"""Kinds of devices that PyTorch knows; without a registered implementation they hold no tensor."""


def device_types() -> tuple[str, ...]:
    """Return the kinds of devices that tensors can be on, built-in kinds first."""
    return tuple([kind for kind in _types if kind != REMAT])


def add_device_type(name: str) -> None:
    """Add a kind of device (kernels/hardware.py holds its implementation)."""
    if name not in _types:
        _types.append(name)


def add_finder(find: Callable[[str], None]) -> None:
    """Call `find(name)` when an unknown kind is named; it may register that kind."""
    _finders.append(find)


def is_device_type(name: str) -> bool:
    """Return whether tensors can be on this kind of device. Installed packages are searched for
    an unknown kind.
    """
    if name not in _types and name.isidentifier():
        for find in _finders:
            find(name)
    return name in _types


def is_device_name(name: str) -> bool:
    """Return whether a text names a kind of device, also one that Device or an op refuses."""
    return name in (*_types, META, *FOREIGN, GPU_REMAT) or is_device_type(name)


def device_number(kind: str, index: int, count: int) -> int:
    """Return the physical device behind `kind:index` on a host with `count` devices.

    Ranks that outnumber the devices share them in turn: `kind:local_rank` is device local_rank
    modulo count. Raises DeviceError if there is no such device.
    """
    if 0 <= index < count:
        return index
    if count and index == current_config().local_rank:
        return index % count
    raise DeviceError(f"there is no {kind}:{index}: this host has {count} {kind.upper()} devices")


def load_cupy() -> Any:
    """CuPy, which all work on `cuda` needs. Raises DeviceError where it is not installed."""
    if (tf32 := current_config().tf32) is not None:
        os.environ["CUPY_TF32"] = str(int(tf32))  # CuPy reads it when it is imported
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

    A process has one CPU: devices of type cpu are equal under any number, so that tensors on
    "cpu:0" and "cpu:1" mix, as in PyTorch.
    """

    __slots__ = ("index", "type")

    index: int
    type: str

    def __init__(self, type: DeviceLike, index: int | None = None) -> None:
        text = str(type)
        name, _, number = text.partition(":")
        is_number = number.isascii() and number.isdecimal() and len(number) < 10
        if name == GPU_REMAT:
            raise DeviceError(
                "there is no cuda+remat: memory of a GPU is not dropped and computed again; use "
                "cpu+remat, or flow.utils.checkpoint on cuda (docs/REMAT.md)"
            )
        if not is_device_name(name) or (number and not is_number):
            raise DeviceError(
                f"Expected one of {', '.join(device_types())} device type "
                f"at start of device string: {text}"
            )
        self.type = name
        self.index = (
            int(number) if number else (current_config().local_rank if index is None else index)
        )

    @property
    def rematable(self) -> bool:
        """Whether results on this device may be dropped and computed again (`flow.remat`)."""
        return self.type == REMAT

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
        return self.type in ("cpu", REMAT) or self.index == other.index

    def __hash__(self) -> int:
        return hash((self.type, 0 if self.type in ("cpu", REMAT) else self.index))


def require_kind(kind: str) -> None:
    """Raise DeviceError for a kind of device without an implementation."""
    if kind in FOREIGN and not is_device_type(kind):
        raise DeviceError(
            f"no tensor can be on {kind}: use {' or '.join(device_types())} "
            f"(a package may bring {kind}: docs/DEVICES.md)"
        )


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
