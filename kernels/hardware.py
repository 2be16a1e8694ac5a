"""The hardware layer: the interface of a kind of device, on which everything else runs.

A kind of device is one class over `Hardware`, and kernels registered under its name where the
general ones, which are written against its array module, do not serve. docs/DEVICES.md shows one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from oneflow.core.config import current_config
from oneflow.core.device import add_device_type, add_finder, device_number, device_types
from oneflow.core.errors import DeviceError, InternalError
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule, aligned_buffer, data_address

if TYPE_CHECKING:
    from oneflow.kernels.registry import Kernel

Host = np.ndarray[Any, Any]
ENTRY_POINTS = "oneflow.devices"


class Hardware(ABC):
    """One device of this process. Subclasses implement a kind of device.

    A subclass must define `array_class`, `count`, `use`, `from_host` and `to_host`.
    Its arrays behave like NumPy's (methods, operators, basic indexing with views, `strides`,
    `flags.c_contiguous`, the protocols `__array_ufunc__` and `__array_function__`), as those of
    CuPy do, and are never converted to NumPy arrays implicitly.

    Attributes:
        kind: Name of the kind, set by `register_device`.
        array_class: Class of its arrays.
        joins_neighbours: Arrays side by side in memory can be seen as one (actors/boxing.py).
        goes_by_host: Ops without a kernel for this kind run on the CPU, on copies of their arrays.
        maps_peers: Ranks of one host can read each other's memory in place.
        index: Number in `kind:index`.
        number: Physical device behind `index`; see `device_number`.
    """

    kind: ClassVar[str] = ""
    array_class: ClassVar[type]
    joins_neighbours: ClassVar[bool] = False
    maps_peers: ClassVar[bool] = False
    goes_by_host: ClassVar[bool] = False

    def __init__(self, index: int) -> None:
        self.index = index
        self.number = device_number(self.kind, index, self.count())

    @classmethod
    @abstractmethod
    def count(cls) -> int:
        """Return the number of devices of this kind on this host; 0 where there are none."""

    @classmethod
    def owns(cls, array: Array) -> bool:
        """Whether an array is on a device of this kind."""
        return isinstance(array, cls.array_class)

    @classmethod
    def number_of(cls, array: Array) -> int:
        """Return the physical device that an array is on."""
        return 0

    @classmethod
    def index_of(cls, array: Array) -> int:
        """Return the index of an array's device; of a shared device this rank's index."""
        number, local_rank = cls.number_of(array), current_config().local_rank
        return local_rank if local_rank % cls.count() == number else number

    @classmethod
    def address(cls, array: Array) -> int:
        """Return the address of the first element."""
        raise DeviceError(f"arrays of {cls.kind} do not tell their address")

    @classmethod
    def load_kernels(cls) -> None:
        """Import the modules that register kernels for this kind."""
        return

    @classmethod
    def kernel_of(cls, name: str, types: tuple[TensorType, ...], numel: int) -> Kernel | None:
        """Return the kernel of op `name` that goes before all registered ones; None: there is none.

        numel: Elements of the largest array.
        """
        return None

    @abstractmethod
    def use(self) -> ArrayModule:
        """Make this the current device of the calling thread. Return its array module."""

    @property
    def xp(self) -> ArrayModule:
        """The array module, with this device current."""
        return self.use()

    def pinned(self, array: Host) -> Host:
        """Copy a NumPy array to host memory that this device copies from by itself."""
        copied: Host = array.copy()
        return copied

    @abstractmethod
    def from_host(self, array: Host, non_blocking: bool = False) -> Array:
        """Copy a NumPy array to this device.

        non_blocking: The copy may still be under way at return; `array` then stays unchanged.
        """

    @classmethod
    @abstractmethod
    def to_host(cls, array: Array) -> Host:
        """Copy an array of this kind to a NumPy array; wait for its values."""

    def synchronize(self) -> None:
        """Wait for all launched kernels; here: kernels have finished when they return."""
        return

    def memory(self) -> tuple[int, int]:
        """Return the free and total bytes of the device; (0, 0) if it does not tell."""
        return 0, 0

    def allocate(self, nbytes: int) -> Array:
        """Return zeroed bytes as a uint8 array."""
        zeros: Array = self.use().zeros(nbytes, dtype=np.uint8)
        return zeros

    def copy(self, target: Array, source: Array) -> None:
        """Copy values between arrays of this device, or to it from a NumPy array."""
        target[...] = self.from_host(source) if isinstance(source, np.ndarray) else source

    def staging(self, part: Array) -> Host:
        """Return host memory like `part`, an array of this device, for its way over a socket."""
        return np.empty(part.shape, part.dtype)

    def to_staging(self, staged: Host, part: Array) -> None:
        """Copy an array of this device to its staging memory; wait for the values."""
        np.copyto(staged, self.to_host(part))

    def from_staging(self, part: Array, staged: Host) -> None:
        """Copy staging memory to an array of this device, and wait: `staged` is written again."""
        part[...] = self.from_host(staged)
        self.synchronize()


class Cpu(Hardware):
    """NumPy arrays; kernels have finished when they return."""

    kind = "cpu"
    array_class = np.ndarray
    joins_neighbours = maps_peers = True

    def __init__(self, index: int = 0) -> None:
        self.index, self.number = index, 0

    @classmethod
    def count(cls) -> int:
        return 1

    @classmethod
    def index_of(cls, array: Array) -> int:
        return 0

    @classmethod
    def address(cls, array: Array) -> int:
        return data_address(array)

    def use(self) -> ArrayModule:
        return np

    def from_host(self, array: Host, non_blocking: bool = False) -> Array:
        copied: Array = array.copy()
        return copied

    @classmethod
    def to_host(cls, array: Array) -> Host:
        return array

    def allocate(self, nbytes: int) -> Array:
        return aligned_buffer(nbytes)

    def copy(self, target: Array, source: Array) -> None:
        np.copyto(target, source)


_kinds: dict[str, type[Hardware]] = {"cpu": Cpu}
_BUILT_IN = {
    "cuda": ("oneflow.kernels.cuda_hardware", "Cuda"),
    "cpu+remat": ("oneflow.kernels.remat_hardware", "RematCpu"),
}
"""Modules and classes of kinds that are loaded when they are first asked for."""


def register_device(name: str, hardware: type[Hardware]) -> None:
    """Add a kind of device, so that tensors, graphs and ranks can be on it.

    An installed package registers its class without a call, by the entry point group
    `oneflow.devices`: the entry's name is the kind, its object the class.

    Args:
        name: The kind, an identifier in lower case, e.g. "npu"; not "cpu", "cuda" or "meta".
        hardware: Subclass of `oneflow.kernels.hardware.Hardware`.

    Raises:
        DeviceError: For a name that is taken or malformed, or a class that is no Hardware.

    Example:
        >>> flow.register_device("npu", Npu)              # doctest: +SKIP
        >>> flow.ones(2, device="npu") + 1                # doctest: +SKIP
    """
    if not (name.isidentifier() and name == name.lower()) or name in ("cpu", "cuda", "meta"):
        raise DeviceError(f"register_device: {name!r} cannot be the name of a new kind of device")
    if not (isinstance(hardware, type) and issubclass(hardware, Hardware)):
        raise DeviceError(f"register_device: {name} needs a subclass of Hardware, got {hardware!r}")
    known = _kinds.get(name)
    if known is not None and known is not hardware:
        raise DeviceError(f"register_device: {name} is registered already, as {known.__name__}")
    hardware.kind = name
    _kinds[name] = hardware
    add_device_type(name)


def _find_installed(name: str) -> None:
    """Register the kind `name` if an installed package brings it."""
    from importlib.metadata import entry_points  # 50 ms, and rarely needed

    for found in entry_points(group=ENTRY_POINTS, name=name):
        register_device(name, found.load())


add_finder(_find_installed)


def hardware_class(kind: str) -> type[Hardware]:
    """Return the class of a kind of device. Raises DeviceError for an unknown kind."""
    found = _kinds.get(kind)
    if found is None:
        if kind not in _BUILT_IN:
            raise DeviceError(f"there is no device {kind}: known are {', '.join(device_types())}")
        module, name = _BUILT_IN[kind]
        found = _kinds[kind] = getattr(import_module(module), name)
    return found


@cache
def _made(kind: str, index: int) -> Hardware:
    return hardware_class(kind)(index)


def hardware_for(kind: str, index: int | None = None) -> Hardware:
    """Return the device `kind:index` of this process, by default that of this rank. Raises
    DeviceError.
    """
    where = current_config().local_rank if index is None else index
    return _made(kind, where)


def array_module(kind: str, index: int | None = None) -> ArrayModule:
    """Make `kind:index` (default: this rank's own) current and return its array module."""
    if kind == "cpu":
        return np
    return hardware_for(kind, index).use()


def class_of(array: Array) -> type[Hardware]:
    """Return the kind of device that an array is on."""
    if isinstance(array, np.ndarray):
        return Cpu
    if hasattr(array, "__cuda_array_interface__"):
        return hardware_class("cuda")
    for kind in _kinds.values():
        if kind.owns(array):
            return kind
    raise InternalError(f"an array of class {type(array).__qualname__} is on no known device")


def device_of(array: Array) -> Hardware:
    """Return the device of this process that an array is on."""
    kind = class_of(array)
    return hardware_for(kind.kind, kind.index_of(array))


def to_host(array: Array) -> Host:
    """Return a NumPy array of the values; the same object if it is one."""
    return array if isinstance(array, np.ndarray) else class_of(array).to_host(array)


def address_of(array: Array) -> int:
    """Return the address of an array's first element, on any device."""
    return class_of(array).address(array)


def module_of(array: Array) -> ArrayModule:
    """Return the array module of the device that an array is on."""
    return np if isinstance(array, np.ndarray) else device_of(array).use()


def strided(x: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """The memory that `x` lies in, from its first element on, in another shape; strides: in
    bytes."""
    if isinstance(x, np.ndarray):
        if x.flags.c_contiguous:
            try:  # a tenth of the time of as_strided
                within: Array = np.ndarray(shape, x.dtype, x, 0, strides)
                return within
            except ValueError:  # beyond `x` itself: the imaginary part behind the real one
                pass
        beyond: Array = np.lib.stride_tricks.as_strided(x, shape, strides)
        return beyond
    seen: Array = module_of(x).lib.stride_tricks.as_strided(x, shape, strides)
    return seen
