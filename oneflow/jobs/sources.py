"""Opens the files that a data declaration names: each column becomes an array over a file, mapped
into memory, of which only the rows that are asked for are read.

Columns without rows of a fixed size in the file (csv, compressed npz) are unpacked once, in pieces,
into a nameless file in the job's folder. Nothing read can name code: arrays of Python objects are
refused.
"""

from __future__ import annotations

import csv
import math
import os
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO, TypeAlias

import numpy as np

from oneflow.core.errors import OneFlowError
from oneflow.io.container import Container, dtype_named
from oneflow.io.files import OpenFile, Readable
from oneflow.jobs.description import Column, DataSpec, JobFileError
from oneflow.kernels.array import Array

MAX_NPY_HEADER = 10_000
CSV_ROWS_AT_ONCE = 4096
MAX_CSV_FIELD = 1 << 16
_FILE_ERRORS = (
    OSError, OneFlowError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile,
    zlib.error, csv.Error, struct.error, SyntaxError, tokenize.TokenError, TypeError, OverflowError,
)  # fmt: skip
"""Errors of NumPy, `zipfile` and `csv` for files that are not what their names say."""

_LOCAL = struct.Struct("<4s5H3I2H")
_COPY_NBYTES = 1 << 20


@dataclass(frozen=True)
class Access:
    """The rights of a job to read. roots: folders of this host whose files its data may be in,
    None: all. scratch: a folder for columns that must be unpacked.
    """

    roots: tuple[Path, ...] | None = None
    scratch: Path | None = None


Inside: TypeAlias = "Callable[[], tuple[Path, int, Readable]]"
"""Gives the path, the offset and the reader of the arrays in the job file."""


def open_columns(
    kind: str, columns: Sequence[Column], access: Access, inside: Inside | None = None
) -> dict[str, Array]:
    """An array by column name, rows along dim 0.

    inside: gives the path, the offset and the `Readable` of the arrays in the job file.
    Raises JobFileError, naming the column, for files that are not as declared.
    """
    return {c.name: _open(kind, c, access, inside) for c in columns}


def open_data(data: DataSpec, access: Access, inside: Inside | None = None) -> dict[str, Array]:
    """Open the data as `open_columns` does, compared with the declaration."""
    found = open_columns(data.kind, data.columns, access, inside)
    for column in data.columns:
        array = found[column.name]
        declared = (data.rows, *column.shape)
        if array.shape != declared or array.dtype.name != column.dtype:
            raise JobFileError(
                f"data column {column.name!r}: {column.path or 'the job file'} holds "
                f"{array.dtype.name}{list(array.shape)}, the job was made for "
                f"{column.dtype}{list(declared)}"
            )
    return found


def _open(kind: str, column: Column, access: Access, inside: Inside | None) -> Array:
    try:
        if kind == "arrays":
            return _inside(column, inside)
        path = allowed(column.path, access.roots)
        return _OPENERS[kind](path, column, access)
    except JobFileError:
        raise
    except _FILE_ERRORS as error:
        where = column.path or "the job file"
        raise JobFileError(f"data column {column.name!r}: {where}: {error}") from error


def allowed(path: str, roots: tuple[Path, ...] | None) -> Path:
    """The file behind a path of a job file. Raises JobFileError if jobs may not read it."""
    if not os.path.isabs(path):
        raise JobFileError(f"data: {path!r} must be an absolute path, as on the ranks' hosts")
    real = Path(os.path.realpath(path))
    if roots is not None and not any(real.is_relative_to(root) for root in roots):
        listed = os.pathsep.join(map(str, roots)) or "none"
        raise JobFileError(
            f"data: {path} is in no folder that jobs may read on this host (ONEFLOW_DATA_ROOTS: "
            f"{listed}); whoever runs `daemon run` or `cluster up` can allow it by --data-root; or "
            "put the arrays into the job file"
        )
    if not real.is_file():
        raise JobFileError(f"data: {path} is not a file of this host")
    return real


def _mapped(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> Array:
    """Read-only rows of a file, which must be large enough."""
    kind = np.dtype(dtype)
    nbytes = math.prod(shape) * kind.itemsize
    size = path.stat().st_size
    if offset + nbytes > size:
        raise JobFileError(
            f"data: {path} has {size} bytes, {kind.name}{list(shape)} from byte {offset} on needs "
            f"{offset + nbytes}"
        )
    if not nbytes:
        return np.empty(shape, kind)
    return np.memmap(path, kind, "r", offset, shape)


def _plain(dtype: np.dtype[Any], where: str) -> np.dtype[Any]:
    kind: np.dtype[Any] = np.dtype(dtype)
    if dtype_named(kind.name) != kind:
        raise JobFileError(f"{where}: elements of {kind} cannot be data of a job")
    return kind


# ---- formats -------------------------------------------------------------------------------------


def _inside(column: Column, inside: Inside | None) -> Array:
    if inside is None:
        raise JobFileError(f"data column {column.name!r}: the job file holds no arrays")
    path, offset, source = inside()
    return _of_container(column.name, path, offset, source)


def _of_container(key: str, path: Path, offset: int, source: Readable) -> Array:
    entry = Container(source).entries.get(key)
    if entry is None:
        raise JobFileError(f"data: there is no array {key!r} in {source.where}")
    return _mapped(path, entry.dtype, entry.shape, offset + entry.begin)


def _safetensors(path: Path, column: Column, access: Access) -> Array:
    with OpenFile(path) as file:
        return _of_container(_key(column), path, 0, file)


def _key(column: Column) -> str:
    if len(column.keys) != 1:
        raise JobFileError(f"data column {column.name!r}: one name is needed, not {column.keys}")
    return column.keys[0]


def _kind(column: Column) -> np.dtype[Any]:
    found = dtype_named(column.dtype)
    if found is None:
        raise JobFileError(f"data column {column.name!r}: {column.dtype!r} is no dtype of data")
    return found


def _raw(path: Path, column: Column, access: Access) -> Array:
    kind = _kind(column)
    row = math.prod(column.shape) * kind.itemsize
    if not row:
        raise JobFileError(f"data column {column.name!r}: rows without elements")
    rows, rest = divmod(path.stat().st_size - column.offset, row)
    if rest or rows < 0:
        raise JobFileError(
            f"data column {column.name!r}: {path} is no whole number of rows of {row} bytes from "
            f"byte {column.offset} on"
        )
    return _mapped(path, kind, (rows, *column.shape), column.offset)


def _npy(path: Path, column: Column, access: Access) -> Array:
    with path.open("rb") as file:
        dtype, shape = _npy_header(file, str(path))
        return _mapped(path, dtype, shape, file.tell())


def _npy_header(file: IO[bytes], where: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    version = np.lib.format.read_magic(file)
    reader = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if reader is None:
        raise JobFileError(f"{where}: a npy file of version {version} cannot be read")
    shape, is_fortran, dtype = reader(file, max_header_size=MAX_NPY_HEADER)
    if is_fortran and len(shape) > 1:
        raise JobFileError(
            f"{where} lies column by column; save numpy.ascontiguousarray(array) instead"
        )
    if not shape:
        raise JobFileError(f"{where} is a single number, not rows")
    return _plain(dtype, where), shape


def _npz(path: Path, column: Column, access: Access) -> Array:
    name = f"{_key(column)}.npy"
    with zipfile.ZipFile(path) as archive:
        if name not in archive.namelist():
            there = ", ".join(n.removesuffix(".npy") for n in archive.namelist()[:20])
            raise JobFileError(f"data: {path} has no array {_key(column)!r}; it has {there}")
        info = archive.getinfo(name)
        with archive.open(info) as member:
            dtype, shape = _npy_header(member, f"{path}: {name}")
            begin = member.tell()
            if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
                return _mapped(path, dtype, shape, _stored_at(path, info) + begin)
            return _unpacked(member, dtype, shape, access, f"{path}: {name}")


def _stored_at(path: Path, info: zipfile.ZipInfo) -> int:
    """Return where a member's bytes begin."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = _LOCAL.unpack(file.read(_LOCAL.size))
    return int(info.header_offset + _LOCAL.size + header[-2] + header[-1])


def _unpacked(
    member: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...], access: Access, where: str
) -> Array:
    """So many bytes as the array has, never more, in a file without a name."""
    left = math.prod(shape) * dtype.itemsize
    with _scratch(access) as file:
        while left:
            piece = member.read(min(left, _COPY_NBYTES))
            if not piece:
                raise JobFileError(f"{where} ends {left} bytes early")
            file.write(piece)
            left -= len(piece)
        return _of_scratch(file, dtype, shape)


def _scratch(access: Access) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=access.scratch)


def _of_scratch(file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    file.flush()
    if not math.prod(shape):
        return np.empty(shape, dtype)
    return np.memmap(file, dtype, "r", 0, shape)


def _csv(path: Path, column: Column, access: Access) -> Array:
    kind, rows = _kind(column), 0
    with path.open(newline="", encoding="utf-8") as text, _scratch(access) as file:
        for block in _blocks(text, path, column.keys, kind):
            file.write(block.tobytes())
            rows += len(block)
        shape = (rows, *((len(column.keys),) if column.shape else ()))
        return _of_scratch(file, kind, shape)


def _blocks(
    text: TextIO, path: Path, keys: tuple[str, ...], kind: np.dtype[Any]
) -> Iterator[Array]:
    """The wanted columns of a csv file with a line of names, some thousand rows at a time."""
    lines = csv.reader(text)
    before = csv.field_size_limit(MAX_CSV_FIELD)
    try:
        names = [n.strip() for n in next(lines, [])]
        places = [_place(path, names, key) for key in keys]
        block: list[list[str]] = []
        for line in lines:
            if not line:
                continue
            if len(line) != len(names):
                raise JobFileError(
                    f"data: {path}:{lines.line_num} has {len(line)} fields, the first line names "
                    f"{len(names)}"
                )
            block.append([line[p] for p in places])
            if len(block) == CSV_ROWS_AT_ONCE:
                yield _numbers(block, kind, path, lines.line_num)
                block = []
        if block:
            yield _numbers(block, kind, path, lines.line_num)
    except csv.Error as error:
        raise JobFileError(f"data: {path}:{lines.line_num}: {error}") from None
    finally:
        csv.field_size_limit(before)


def _place(path: Path, names: list[str], key: str) -> int:
    if names.count(key) != 1:
        raise JobFileError(
            f"data: {path} has {names.count(key)} columns named {key!r}; it has "
            f"{', '.join(names[:20])}"
        )
    return names.index(key)


def _numbers(block: list[list[str]], kind: np.dtype[Any], path: Path, line: int) -> Array:
    try:
        whole = np.dtype(kind).kind in "iu"
        return np.array([[int(f) if whole else float(f) for f in row] for row in block], kind)
    except (ValueError, OverflowError) as error:
        raise JobFileError(
            f"data: {path}, lines {max(2, line - len(block) + 1)} to {line}: {error}"
        ) from None


_OPENERS: dict[str, Callable[[Path, Column, Access], Array]] = {
    "npz": _npz,
    "npy": _npy,
    "safetensors": _safetensors,
    "csv": _csv,
    "raw": _raw,
}
