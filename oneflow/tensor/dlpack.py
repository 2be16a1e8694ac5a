"""DLPack capsules over NumPy arrays, also of dtypes that NumPy itself exchanges with no one.

NumPy refuses bfloat16 and float8, whose dtypes are extensions. Their memory travels as unsigned
integers of the same width, and the description in the capsule names the real dtype:
NumPy writes it, or reads it, under the other name. https://dmlc.github.io/dlpack/latest/c_api.html
"""

from __future__ import annotations

import ctypes
from typing import Any, cast

import numpy as np

from oneflow.core.dtype import DType, bfloat16, float8_e4m3fn, float8_e5m2
from oneflow.kernels.array import Array

_UNSIGNED = 1  # kDLUInt
_CODES = {bfloat16: 4, float8_e4m3fn: 10, float8_e5m2: 12}  # of DLDataTypeCode
_UNSIGNED_OF_NBYTES = {1: np.uint8, 2: np.uint16}
_CAPSULES = {b"dltensor": 0, b"dltensor_versioned": 32}  # bytes before the DLTensor

_is_named = ctypes.pythonapi.PyCapsule_IsValid
_is_named.argtypes, _is_named.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


class _Description(ctypes.Structure):
    """The head of a DLTensor, as far as its dtype."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


class _Writable:
    """The memory of an array that NumPy takes for one that may only be read; it is not so."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__ | {"data": (array.ctypes.data, False)}


def _description(capsule: object) -> _Description | None:
    for name, skipped in _CAPSULES.items():
        if _is_named(capsule, name):
            return _Description.from_address(_pointer(capsule, name) + skipped)
    return None


def capsule_of(array: Array, options: dict[str, object]) -> object:
    """A capsule over the memory of an array.  options: those of `__dlpack__`."""
    code = None
    if isinstance(array, np.ndarray):
        code = next((code for dtype, code in _CODES.items() if dtype.np == array.dtype), None)
    if code is None:
        return cast(Any, array).__dlpack__(**options)
    bits: Any = array.view(_UNSIGNED_OF_NBYTES[array.itemsize])
    capsule: object = bits.__dlpack__(**options)
    description = _description(capsule)
    assert description is not None
    description.code = code
    return capsule


class _Owner:
    """An owner that hands out the capsule of `source`, an object or a bare capsule of CPU memory;
    it remembers the dtype where NumPy has to be told another one.
    """

    def __init__(self, source: object) -> None:
        self.source: Any = source
        self.dtype: DType | None = None
        self.is_old = False  # its capsules cannot say whether memory may be written: it may

    def __dlpack__(self, **options: object) -> object:
        source = self.source
        capsule = source.__dlpack__(**options) if hasattr(source, "__dlpack__") else source
        self.is_old = bool(_is_named(capsule, b"dltensor"))
        description = _description(capsule)
        if description is not None:
            for dtype, code in _CODES.items():
                if (description.code, description.bits) == (code, 8 * dtype.np.itemsize):
                    description.code, self.dtype = _UNSIGNED, dtype
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        if hasattr(self.source, "__dlpack_device__"):
            kind, index = self.source.__dlpack_device__()
            return int(kind), int(index)
        return 1, 0  # kDLCPU


def array_of(source: object) -> np.ndarray[Any, Any]:
    """An array over the memory that an object with `__dlpack__`, or a capsule, hands out."""
    owner = _Owner(source)
    exporter: Any = owner  # NumPy's declaration knows no options but `stream`
    array = np.from_dlpack(exporter)
    if owner.is_old and not array.flags.writeable:
        array = np.asarray(_Writable(array))
    return array if owner.dtype is None else array.view(owner.dtype.np)
