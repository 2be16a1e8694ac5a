"""The types of the objects that kernels work on, and contiguous forms of arrays."""

from __future__ import annotations

import ctypes
from types import EllipsisType, ModuleType
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
"""An array of NumPy, or of CuPy, which has the same methods."""

DATA_AT = object.__basicsize__
"""The place of the address of its elements in an array object of NumPy."""


def data_address(array: Array) -> int:
    """Address of the first element of a NumPy array. `array.ctypes.data` makes an object on the way
    there, which takes ten times as long (0.8 us)."""
    return ctypes.c_int64.from_address(id(array) + DATA_AT).value


ArrayModule: TypeAlias = ModuleType
"""`xp`: numpy, cupy, or the array module of a registered device."""


class GpuId(Protocol):
    """A device of CuPy."""

    id: int


class GpuArray(Protocol):
    """The side of a CuPy array that NumPy's arrays do not have."""

    @property
    def device(self) -> GpuId: ...
    @property
    def data(self) -> GpuBlock: ...
    def get(self) -> Array: ...
    def set(self, host: Array) -> None: ...


class GpuBlock(Protocol):
    """Memory of CuPy: its address."""

    ptr: int


class GpuEvent(Protocol):
    """An event of CuPy."""

    done: bool

    def synchronize(self) -> None: ...


class GpuGraph(Protocol):
    """A recorded graph of CuPy."""

    def launch(self) -> None: ...


class GpuStream(Protocol):
    """A stream of CuPy."""

    ptr: int

    def begin_capture(self) -> None: ...
    def end_capture(self) -> GpuGraph: ...
    def record(self, event: GpuEvent) -> GpuEvent: ...
    def synchronize(self) -> None: ...
    def wait_event(self, event: GpuEvent) -> None: ...


def as_gpu(x: Array) -> GpuArray:
    """A CuPy array, typed with the members that NumPy's arrays do not have."""
    return cast(GpuArray, x)


def address(x: Array) -> int:
    """The address of the elements of a CuPy array."""
    return as_gpu(x).data.ptr


IndexPart: TypeAlias = "int | slice | EllipsisType"


ALIGNMENT = 64
"""Bytes: a cache line, and the alignment that BLAS likes."""


def aligned_buffer(nbytes: int) -> np.ndarray[Any, Any]:
    """Zeroed uint8 memory that starts at a multiple of 64."""
    raw = np.zeros(nbytes + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


def at(*index: IndexPart) -> tuple[IndexPart, ...]:
    """An index of several parts: `x[at(0, *rest)]`."""
    return index


def as_rows(x: Array) -> Array:
    """A contiguous matrix of the rows of the last dim. Copies only arrays with gaps."""
    return np.ascontiguousarray(x).reshape(-1, x.shape[-1])


def as_flat(x: Array) -> Array:
    """All elements in one contiguous row. Copies only arrays with gaps."""
    return np.ascontiguousarray(x).reshape(-1)


def is_pinned(array: Array) -> bool:
    """Does the array, or the base of this view, lie in pinned memory?"""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    owner = owner.obj if isinstance(owner, memoryview) else owner
    return type(owner).__name__ == "PinnedMemoryPointer"
