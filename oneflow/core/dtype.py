"""Element types. `DType` objects are singletons; `float32` and friends are module names here."""

from __future__ import annotations

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from oneflow.core.errors import DTypeError


class DType:
    """One element type: its name, its size in bytes and its NumPy counterpart."""

    __slots__ = ("bytes", "is_complex", "is_floating_point", "is_signed", "name", "np")

    def __init__(self, name: str, np_dtype: type) -> None:
        self.name = name
        self.np: np.dtype[Any] = np.dtype(np_dtype)
        self.bytes = self.np.itemsize
        self.is_complex = self.np.kind == "c"
        self.is_floating_point = self.np.kind == "f" or "float" in name
        self.is_signed = name != "bool" and not name.startswith("uint")

    @property
    def is_integer(self) -> bool:
        """True for int8..int64 and uint8; False for bool."""
        return self.np.kind in "iu"

    def __repr__(self) -> str:
        return f"oneflow.{self.name}"

    def __reduce__(self) -> str | tuple[Any, ...]:
        return dtype_of, (self.name,)


bool_ = DType("bool", np.bool_)
uint8 = DType("uint8", np.uint8)
int8 = DType("int8", np.int8)
int16 = DType("int16", np.int16)
int32 = DType("int32", np.int32)
int64 = DType("int64", np.int64)
float16 = DType("float16", np.float16)
bfloat16 = DType("bfloat16", ml_dtypes.bfloat16)
float32 = DType("float32", np.float32)
float64 = DType("float64", np.float64)
complex64 = DType("complex64", np.complex64)
complex128 = DType("complex128", np.complex128)
uint16 = DType("uint16", np.uint16)
uint32 = DType("uint32", np.uint32)
uint64 = DType("uint64", np.uint64)
float8_e4m3fn = DType("float8_e4m3fn", ml_dtypes.float8_e4m3fn)
float8_e5m2 = DType("float8_e5m2", ml_dtypes.float8_e5m2)

record = DType("record", np.object_)
tensor_buffer = DType("tensor_buffer", np.object_)
"""Names of upstream: no tensor has these; see oneflow/compat/upstream/tensor_buffers.py."""

ALL_DTYPES = (
    bool_, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64, complex64,
    complex128,
)  # fmt: skip
WIDE_UNSIGNED = (uint16, uint32, uint64)
STORED_DTYPES = (*WIDE_UNSIGNED, float8_e4m3fn, float8_e5m2)
"""Dtypes that files hold and casts reach; arithmetic on them is not promised."""
_BY_NAME = {d.name: d for d in (*ALL_DTYPES, *STORED_DTYPES)}
_BY_NP = {d.np: d for d in (*ALL_DTYPES, *STORED_DTYPES)}
_BY_PYTHON = {bool: bool_, int: int64, float: float32, complex: complex64}

# Order of promotion: the later wins; two of one rank (float16, bfloat16) meet in float32.
_RANK = {
    d: i for i, d in enumerate((bool_, uint8, int8, int16, int32, int64, *STORED_DTYPES,
                                float16, bfloat16, float32, float64, complex64, complex128))
}  # fmt: skip


DTypeLike: TypeAlias = "DType | str | type | np.dtype[Any]"
"""An element type as users give it."""


def dtype_of(value: DTypeLike) -> DType:
    """The DType named by a DType, a name, a NumPy dtype or a Python type. Raises DTypeError."""
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]
    if isinstance(value, type) and value in _BY_PYTHON:
        return _BY_PYTHON[value]
    try:
        return _BY_NP[np.dtype(value)]
    except (TypeError, KeyError, ValueError, SyntaxError):  # NumPy parses text as Python
        names = ", ".join(_BY_NAME)
        raise DTypeError(f"no such dtype: {value!r}; known are {names}") from None


def is_dtype(value: DTypeLike) -> bool:
    """Return whether `dtype_of` knows it."""
    try:
        dtype_of(value)
    except DTypeError:
        return False
    return True


def category(dtype: DType) -> int:
    """0 bool, 1 integer, 2 floating point, 3 complex."""
    if dtype is bool_:
        return 0
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else 1


def promote(a: DType, b: DType) -> DType:
    """The dtype in which values of `a` and `b` meet, as PyTorch promotes tensors of equal rank."""
    if a is b:
        return a
    if {a, b} == {float16, bfloat16}:
        return float32
    if {a, b} == {float64, complex64}:
        return complex128
    if {a, b} == {uint8, int8}:
        return int16
    for one, other in ((a, b), (b, a)):
        if one in WIDE_UNSIGNED and not other.is_floating_point:
            raise DTypeError(
                f"{one.name} and {other.name} meet in no dtype; cast one of them, to int64 say"
            )
    return a if _RANK[a] >= _RANK[b] else b
