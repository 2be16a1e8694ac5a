"""Arrays by name in one file, in the safetensors format: 8 bytes length, a JSON header, the data
without gaps.

Written and checked here rather than by the library: every offset is compared with the dtype, the
shape and the size of the file before a byte of data is read, and bfloat16 needs no torch. Format:
huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import json
import math
import os
import struct
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from oneflow.core.errors import CheckpointError

MAX_HEADER_NBYTES = 100 << 20
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

Arrays = dict[str, np.ndarray[Any, Any]]


def write(target: Path | BinaryIO, arrays: Arrays, metadata: dict[str, str]) -> None:
    """Writes a whole file or none: beside the target first, then renamed.  target: a path or an
    open binary file.
    """
    if not isinstance(target, Path):
        _write_to(target, arrays, metadata)
        return
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            _write_to(file, arrays, metadata)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write_to(file: BinaryIO, arrays: Arrays, metadata: dict[str, str]) -> None:
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name, array in arrays.items():
        code = _CODE_OF.get(array.dtype)
        if code is None:
            raise CheckpointError(f"save: an array of {array.dtype} has no form in a checkpoint")
        header[name] = {
            "dtype": code,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)))
    file.write(text)
    for array in arrays.values():
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def read(data: memoryview) -> tuple[Arrays, dict[str, str]]:
    """The arrays (over copies of the data) and the metadata. Raises CheckpointError if anything
    does not fit.
    """
    header, start = _header(data)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError("load: the metadata are no strings by name")
    body = data[start:]
    arrays, covered = {}, 0
    for name, entry in header.items():
        array, nbytes = _array(name, entry, body)
        arrays[name] = array
        covered += nbytes
    if covered != len(body):
        raise CheckpointError(f"load: the tensors cover {covered} of {len(body)} bytes of data")
    return arrays, metadata


def _header(data: memoryview) -> tuple[dict[str, Any], int]:
    if len(data) < 8:
        raise CheckpointError(f"load: a file of {len(data)} bytes is no checkpoint")
    (size,) = struct.unpack("<Q", data[:8])
    if size > MAX_HEADER_NBYTES or 8 + size > len(data):
        raise CheckpointError(
            f"load: a header of {size} bytes does not fit a file of {len(data)} bytes"
        )
    try:
        header = json.loads(bytes(data[8 : 8 + size]))
    except (ValueError, RecursionError) as error:
        raise CheckpointError("load: the header is no JSON") from error
    if not isinstance(header, dict):
        raise CheckpointError("load: the header is no JSON object")
    return header, 8 + size


def _array(name: str, entry: Any, body: memoryview) -> tuple[np.ndarray[Any, Any], int]:
    try:
        dtype = _BY_CODE[entry["dtype"]]
        shape = tuple(entry["shape"])
        begin, end = entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"load: the entry of tensor {name!r} is malformed") from error
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
        raise CheckpointError(f"load: tensor {name!r} has a shape or offsets that are no sizes")
    if not begin <= end <= len(body) or end - begin != math.prod(shape) * dtype.itemsize:
        raise CheckpointError(
            f"load: tensor {name!r} is {dtype}{list(shape)} but its bytes are {begin} to {end} of "
            f"{len(body)}"
        )
    flat = np.frombuffer(body[begin:end], dtype=np.uint8).copy()
    return flat.view(dtype).reshape(shape), end - begin
