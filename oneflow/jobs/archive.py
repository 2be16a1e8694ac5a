"""The container of a job file: a zip archive without compression, in the one form that we write.

Entries lie one after the other without gaps, then the directory, then its end; nothing else is in
the file. So a file cannot hold the same name twice, a path out of its folder, an entry that is
larger unpacked than packed, or bytes that belong to two entries: reading refuses every archive that
is not in that form. Any zip program can look into it.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from oneflow.core.errors import CheckpointError
from oneflow.core.folders import sync_folder
from oneflow.core.whole_files import PendingFile
from oneflow.io.files import OpenFile, Readable, read_bytes
from oneflow.jobs.description import EntryInfo, JobFileError

MAX_ENTRIES = 64
MAX_DIRECTORY_NBYTES = 64 << 10
NAME = re.compile(r"(?:data/)?[a-z][a-z0-9_]{0,63}\.[a-z]{2,12}")
CHUNK_NBYTES = 1 << 20

_END = struct.Struct("<4s4H2IH")
_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_EXTRA = struct.Struct("<2H")
_FULL = 0xFFFFFFFF
_STAMP = (1980, 1, 1, 0, 0, 0)  # equal jobs make equal files


@dataclass(frozen=True)
class Entry:
    """An entry of the archive.

    offset: of its first byte in the file. crc: of its bytes.
    """

    name: str
    offset: int
    nbytes: int
    crc: int


class Part:
    """An entry's bytes as a `Readable`."""

    def __init__(self, source: Readable, entry: Entry) -> None:
        self.where = f"{source.where}: {entry.name}"
        self.nbytes = entry.nbytes
        self._source, self._offset = source, entry.offset

    def read_into(self, offset: int, target: memoryview) -> None:
        if offset < 0 or offset + target.nbytes > self.nbytes:
            raise CheckpointError(f"{self.where} has {self.nbytes} bytes, too few")
        self._source.read_into(self._offset + offset, target)

    def close(self) -> None:
        """The file stays open: other entries are in it."""


# ---- writing -------------------------------------------------------------------------------------


class Hashed:
    """A file to write to that counts and digests the bytes that go through."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.blake2b(digest_size=32)
        self._nbytes = 0

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        self._digest.update(view)
        self._nbytes += view.nbytes
        return self._file.write(view)

    @property
    def info(self) -> EntryInfo:
        return EntryInfo(nbytes=self._nbytes, digest=self._digest.hexdigest())


class Writer:
    """Writes the entries of one file, which appears under its name when all is there.

    written: the entries so far.
    """

    def __init__(self, path: Path) -> None:
        self.written: dict[str, EntryInfo] = {}
        self._pending = PendingFile(path)
        self._zip = zipfile.ZipFile(self._pending.file, "w", zipfile.ZIP_STORED)

    @contextmanager
    def entry(self, name: str, nbytes: int = 0) -> Iterator[Hashed]:
        """A file to write an entry to.  nbytes: about so many are to come."""
        info = zipfile.ZipInfo(name, _STAMP)
        info.create_system = 3
        info.external_attr = 0o644 << 16
        with self._zip.open(info, "w", force_zip64=nbytes > (1 << 31) - (1 << 20)) as raw:
            file = Hashed(raw)
            yield file
        self.written[name] = file.info

    def commit(self) -> None:
        self._zip.close()
        self._pending.commit()
        sync_folder(self._pending.path.parent)

    def abort(self) -> None:
        self._pending.abort()


# ---- reading -------------------------------------------------------------------------------------


def read_entries(source: OpenFile) -> dict[str, Entry]:
    """The entries of a file by name. Raises JobFileError for every other form of archive."""
    count, size, start = _end(source)
    directory = read_bytes(source, start, size)
    entries: dict[str, Entry] = {}
    at = expected = 0
    for _ in range(count):
        found, at, header = _central(source, directory, at, start)
        if found.name in entries:
            raise JobFileError(f"{source.where}: {found.name} is there twice")
        if header != expected:
            raise JobFileError(
                f"{source.where}: {found.name} begins at byte {header}, where {expected} was to "
                "come: entries overlap or leave gaps"
            )
        entries[found.name] = found
        expected = found.offset + found.nbytes
    if at != size or expected != start:
        raise JobFileError(f"{source.where}: there are bytes that belong to no entry")
    return entries


def _end(source: OpenFile) -> tuple[int, int, int]:
    """Number of entries, size and place of the directory."""
    if source.nbytes < _END.size:
        raise JobFileError(f"{source.where}: {source.nbytes} bytes are no job file")
    at = source.nbytes - _END.size
    magic, disk, first_disk, here, count, size, start, comment = _END.unpack(
        read_bytes(source, at, _END.size)
    )
    if magic != b"PK\5\6" or comment:
        raise JobFileError(
            f"{source.where} is no job file, or only a part of one: it has no directory at its end"
        )
    if 0xFFFF in (here, count) or _FULL in (size, start):
        at, (disk, first_disk, here, count, size, start) = _end64(source, at)
    if disk or first_disk or here != count or start + size != at:
        raise JobFileError(f"{source.where}: the directory is not where its end says")
    if count > MAX_ENTRIES or size > MAX_DIRECTORY_NBYTES:
        raise JobFileError(
            f"{source.where}: {count} entries in a directory of {size} bytes; a job file has at "
            f"most {MAX_ENTRIES} in {MAX_DIRECTORY_NBYTES}"
        )
    return count, size, start


def _end64(source: OpenFile, end: int) -> tuple[int, tuple[int, ...]]:
    at = end - _LOCATOR.size
    if at >= _END64.size:
        magic, disk, place, disks = _LOCATOR.unpack(read_bytes(source, at, _LOCATOR.size))
        if magic == b"PK\6\7" and disk == 0 and disks == 1 and place == at - _END64.size:
            found = _END64.unpack(read_bytes(source, place, _END64.size))
            if found[0] == b"PK\6\6" and found[1] == _END64.size - 12:
                return place, found[4:10]
    raise JobFileError(f"{source.where}: the end of the directory is malformed")


def _central(source: OpenFile, directory: bytes, at: int, limit: int) -> tuple[Entry, int, int]:
    """One record of the directory, where the next begins, and where the entry's header is."""
    where = source.where
    if at + _CENTRAL.size > len(directory):
        raise JobFileError(f"{where}: the directory ends early")
    (magic, _, _, flags, method, _, _, crc, packed, nbytes, name_size, extra_size, comment_size,
     disk, _, _, header) = _CENTRAL.unpack_from(directory, at)  # fmt: skip
    at += _CENTRAL.size
    stop = at + name_size + extra_size
    if magic != b"PK\1\2" or comment_size or disk or stop > len(directory):
        raise JobFileError(f"{where}: the directory is malformed")
    name = _name(where, directory[at : at + name_size])
    extra = _sizes64(where, name, directory[at + name_size : stop], (nbytes, packed, header))
    nbytes, packed, header = extra
    if flags or method or packed != nbytes:
        raise JobFileError(
            f"{where}: {name} is compressed, encrypted or written in pieces; a job file holds its "
            "entries as they are"
        )
    offset = _local(source, name, header, nbytes, crc, limit)
    if offset + nbytes > limit:
        raise JobFileError(f"{where}: {name} claims {nbytes} bytes, more than there are")
    return Entry(name, offset, nbytes, crc), stop, header


def _name(where: str, raw: bytes) -> str:
    name = raw.decode("ascii", "replace")
    if not NAME.fullmatch(name):
        raise JobFileError(f"{where}: {name[:80]!r} is no name of an entry of a job file")
    return name


def _sizes64(
    where: str, name: str, extra: bytes, sizes: tuple[int, int, int]
) -> tuple[int, int, int]:
    """Sizes and place with those that did not fit in 32 bits, which stand in the extra field."""
    if not extra:
        if _FULL in sizes:
            raise JobFileError(f"{where}: {name} has no size")
        return sizes
    wanted = [i for i, n in enumerate(sizes) if n == _FULL]
    if len(extra) < _EXTRA.size:
        raise JobFileError(f"{where}: the extra field of {name} is malformed")
    kind, size = _EXTRA.unpack_from(extra)
    if kind != 1 or size != 8 * len(wanted) or len(extra) != _EXTRA.size + size:
        raise JobFileError(f"{where}: {name} has an extra field that a job file has not")
    found = list(sizes)
    for i, value in zip(wanted, struct.unpack_from(f"<{len(wanted)}Q", extra, 4), strict=True):
        found[i] = value
    return found[0], found[1], found[2]


def _local(source: OpenFile, name: str, header: int, nbytes: int, crc: int, limit: int) -> int:
    """Return where the bytes of an entry begin; its own header must agree with the directory."""
    if header + _LOCAL.size > limit:
        raise JobFileError(f"{source.where}: {name} begins at byte {header}, beyond the entries")
    (magic, _, flags, method, _, _, own_crc, packed, size, name_size, extra_size) = _LOCAL.unpack(
        read_bytes(source, header, _LOCAL.size)
    )
    offset: int = header + _LOCAL.size + name_size + extra_size
    if name_size != len(name) or extra_size > 64 or offset > limit:
        raise JobFileError(f"{source.where}: the header of {name} is not what the directory says")
    rest = read_bytes(source, header + _LOCAL.size, name_size + extra_size)
    size, packed, _ = _sizes64(source.where, name, rest[name_size:], (size, packed, 0))
    found = magic, flags, method, own_crc, packed, size, rest[:name_size]
    if found != (b"PK\3\4", 0, 0, crc, nbytes, nbytes, name.encode()):
        raise JobFileError(f"{source.where}: the header of {name} is not what the directory says")
    return offset


def pieces(source: Readable) -> Iterator[bytes]:
    """All bytes, in pieces of bounded size."""
    for at in range(0, source.nbytes, CHUNK_NBYTES):
        yield read_bytes(source, at, min(CHUNK_NBYTES, source.nbytes - at))


def digest_of(source: Readable, crc: int | None = None) -> str:
    """blake2b-256 of a source's bytes, hex. crc: if given, it must fit too."""
    digest, found = hashlib.blake2b(digest_size=32), 0
    for piece in pieces(source):
        digest.update(piece)
        found = zlib.crc32(piece, found)
    if crc is not None and found != crc:
        raise JobFileError(f"{source.where} is damaged: its checksum is wrong")
    return digest.hexdigest()
