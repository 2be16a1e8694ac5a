"""Arrays by name in one file, in the safetensors format: 8 bytes length, a JSON header, the data
without gaps.

Written and checked here rather than by the library: arrays are written and read one at a time, so
that a file may be larger than memory; every offset is compared with the dtype, the shape and the
size of the file before a byte of data is read; and bfloat16 needs no torch. Format:
huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import ml_dtypes
import numpy as np

from oneflow.core.errors import CheckpointError, InternalError
from oneflow.core.metrics import METRICS
from oneflow.io.boxes import read_box
from oneflow.io.files import Readable, read_bytes
from oneflow.kernels.array import Array

MAX_HEADER_NBYTES = 100 << 20
MAX_NUM_DIMS = 32
MAX_ARRAY_NBYTES = 1 << 62
_CODES = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "I16": np.int16,
    "I32": np.int32,
    "I64": np.int64,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F32": np.float32,
    "F64": np.float64,
    "C64": np.complex64,
    "C128": np.complex128,
    "U16": np.uint16,
    "U32": np.uint32,
    "U64": np.uint64,
}
_BY_CODE = {code: np.dtype(kind) for code, kind in _CODES.items()}
_CODE_OF = {dtype: code for code, dtype in _BY_CODE.items()}
_BY_NAME = {dtype.name: dtype for dtype in _CODE_OF}


def has_form(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of `dtype` can be written."""
    return dtype in _CODE_OF


def dtype_named(name: str) -> np.dtype[Any] | None:
    """The dtype of that name if arrays of it can be written."""
    return _BY_NAME.get(name)


def is_possible(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether an array can have this shape: also one without elements has limits to its dims."""
    extents = math.prod(max(n, 1) for n in shape)
    return len(shape) <= MAX_NUM_DIMS and extents * dtype.itemsize < MAX_ARRAY_NBYTES


@dataclass(frozen=True)
class Entry:
    """One array of a file. begin, end: bytes from the start of the file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


Kind: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
"""Dtype and shape of an array."""


class Sink(Protocol):
    """A file to write to."""

    def write(self, data: bytes | memoryview, /) -> int: ...


class Writer:
    """Writes a header at once and then the arrays, which must come in its order.

    shapes: name -> dtype and shape.  offsets: name -> where its bytes begin in the file.
    """

    def __init__(
        self,
        file: Sink,
        shapes: Mapping[str, Kind],
        metadata: Mapping[str, str],
    ) -> None:
        header: dict[str, Any] = {"__metadata__": metadata}
        at, places = 0, {}
        for name, (dtype, shape) in shapes.items():
            end = at + math.prod(shape) * dtype.itemsize
            places[name] = at
            offsets = [at, end]
            header[name] = {"dtype": _CODE_OF[dtype], "shape": shape, "data_offsets": offsets}
            at = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        if len(text) > MAX_HEADER_NBYTES:
            raise CheckpointError(
                f"save: {len(shapes)} tensors and what is around them need a header of {len(text)} "
                f"bytes, more than the {MAX_HEADER_NBYTES} that are read; save in several files"
            )
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        self.offsets = {name: 8 + len(text) + place for name, place in places.items()}
        self._file = file
        self._coming = iter(shapes.items())

    def add(self, name: str, array: Array) -> None:
        """Writes the next array."""
        if next(self._coming, None) != (name, (array.dtype, tuple(array.shape))):
            raise InternalError(f"save: {name} comes out of turn, or is not what was announced")
        METRICS.checkpoint_nbytes["write"] += array.nbytes
        self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


class Container:
    """The header of a file, checked; the arrays are read when asked for.

    Raises CheckpointError if anything does not fit.
    """

    def __init__(self, source: Readable) -> None:
        self.source = source
        header, start = _header(source)
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            raise CheckpointError("load: the metadata are no strings by name")
        self.metadata: dict[str, str] = metadata
        self.entries = {n: _entry(n, e, start, source.nbytes) for n, e in header.items()}
        _check_cover(self.entries, start, source.nbytes)

    def read(self, name: str) -> Array:
        """A new array."""
        entry = self.entries[name]
        array: Array = np.empty(entry.shape, entry.dtype)
        whole = tuple(slice(0, n) for n in entry.shape)
        read_box(self.source, entry.begin, entry.shape, whole, array)
        return array


def _header(source: Readable) -> tuple[dict[str, Any], int]:
    if source.nbytes < 8:
        raise CheckpointError(f"load: a file of {source.nbytes} bytes is no checkpoint")
    (size,) = struct.unpack("<Q", read_bytes(source, 0, 8))
    if size > MAX_HEADER_NBYTES or 8 + size > source.nbytes:
        raise CheckpointError(
            f"load: a header of {size} bytes does not fit a file of {source.nbytes} bytes"
        )
    try:
        header = json.loads(read_bytes(source, 8, size))
    except (ValueError, RecursionError) as error:
        raise CheckpointError("load: the header is no JSON") from error
    if not isinstance(header, dict):
        raise CheckpointError("load: the header is no JSON object")
    return header, 8 + size


def _entry(name: str, entry: Mapping[str, Any], start: int, nbytes: int) -> Entry:
    try:
        dtype = _BY_CODE[entry["dtype"]]
        shape = tuple(entry["shape"])
        begin, end = entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"load: the entry of tensor {name!r} is malformed") from error
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)) or not is_possible(
        shape, dtype
    ):
        raise CheckpointError(f"load: tensor {name!r} has a shape or offsets that are no sizes")
    if not begin <= end <= nbytes - start or end - begin != math.prod(shape) * dtype.itemsize:
        raise CheckpointError(
            f"load: tensor {name!r} is {dtype}{list(shape)} but its bytes are {begin} to {end} of "
            f"{nbytes - start}"
        )
    return Entry(dtype, shape, start + begin, start + end)


def _check_cover(entries: dict[str, Entry], start: int, nbytes: int) -> None:
    """Every byte belongs to one tensor: no file claims more than it holds."""
    at = start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != at:
            raise CheckpointError(
                f"load: tensor {name!r} begins at byte {entry.begin}, where {at} was to come: the "
                "tensors overlap or leave gaps"
            )
        at = entry.end
    if at != nbytes:
        raise CheckpointError(f"load: the tensors cover {at - start} of {nbytes - start} bytes")
