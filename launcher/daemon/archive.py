"""A working directory as one file: tar, compressed, named by the digest of its bytes.

Nothing in it is trusted when it is unpacked: sizes, numbers and names are bounded and checked while
reading, before anything is written outside the folder it may write to.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import posixpath
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, Protocol, cast

from oneflow.core.errors import OneFlowError

MAX_NBYTES = 1 << 30  # of all files together
MAX_ENTRIES = 100_000
MAX_RATIO = 200  # unpacked bytes for one packed
SLACK_NBYTES = 10 << 20  # a small archive may pack better than that: zeros, mostly
MAX_NAME_CHARS = 4096
MAX_DEPTH = 64
SKIPPED = frozenset((".git", "__pycache__", ".hg", ".svn", ".mypy_cache", ".pytest_cache"))
MAX_HEADER_NBYTES = 64 << 10  # of long names and the like
_HEADER_TYPES = (b"x", b"g", b"X", b"L", b"K")
_SPARSE_TYPES = (b"S",)
IGNORE_FILE = ".onefignore"  # written like a .gitignore; one in the working directory itself
MAX_IGNORE_NBYTES = 64 << 10
VIRTUAL = "pyvenv.cfg"  # a folder with this file is a virtual environment: of this host only
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


class ArchiveError(OneFlowError, ValueError):
    """A working directory that cannot be packed, or an archive that is not to be unpacked."""

    exit_code = 64


def measure(folder: Path, hidden: bool = True, left_out: Collection[Path] = ()) -> tuple[int, int]:
    """Return the number of files that `pack` would send, and their bytes."""
    sizes = [
        found.st_size
        for path in _walk(folder.resolve(), "", _ignore_rules(folder, hidden), left_out)
        if stat.S_ISREG((found := path.lstat()).st_mode)
    ]
    return len(sizes), sum(sizes)


def pack(folder: Path, target: Path, hidden: bool = True, left_out: Collection[Path] = ()) -> str:
    """Writes `folder` to the file `target`, without version control, caches, virtual
    environments and the names in its .onefignore; return its digest.

    hidden: whether names that begin with a dot are sent, too; those that .onefignore takes back
    (`!.name`) are.
    left_out: folders, links in them followed, that are not sent either.

    The same files give the same digest: times, owners and the order of the folder do not count.
    Raises ArchiveError if it is too large, or holds a link that leads out of it or a device.
    """
    if not folder.is_dir():
        raise ArchiveError(f"--working-dir {str(folder)!r} is not a folder")
    partial = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with open(partial, "wb") as raw:
            with _compressor(raw) as out, tarfile.open(fileobj=out, mode="w|") as tar:
                _add_all(tar, folder.resolve(), hidden, left_out)
            raw.flush()
            os.fsync(raw.fileno())
        digest = digest_of(partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return digest


def unpack(archive: Path, folder: Path) -> None:
    """Make `folder` (which must not be there yet) of the files in `archive`, whole or not at all.

    Raises ArchiveError that names the entry which may not be unpacked.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with open(archive, "rb") as raw:
            packed = os.fstat(raw.fileno()).st_size
            budget = min(MAX_NBYTES, SLACK_NBYTES + MAX_RATIO * packed) + MAX_ENTRIES * 1024
            with _decompressor(raw) as source:
                _extract_all(_Bounded(source, budget), partial, packed)
        partial.rename(folder)
    except ArchiveError:
        raise
    except (tarfile.TarError, ValueError, ArithmeticError, LookupError, EOFError) as error:
        raise ArchiveError(f"{archive.name} is not a whole archive: {error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def digest_of(path: Path) -> str:
    """blake2b-256 of a file's bytes, hex."""
    found = hashlib.blake2b(digest_size=32)
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            found.update(data)
    return found.hexdigest()


# -- packing ---------------------------------------------------------------------------------------


def _compressor(raw: IO[bytes]) -> Any:
    try:
        import zstandard
    except ImportError:
        return gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0)
    return zstandard.ZstdCompressor(level=3).stream_writer(raw, closefd=False)


def _add_all(tar: tarfile.TarFile, folder: Path, hidden: bool, left_out: Collection[Path]) -> None:
    total = count = 0
    for path in _walk(folder, "", _ignore_rules(folder, hidden), left_out):
        info = tar.gettarinfo(path, arcname=str(path.relative_to(folder)))
        if info is not None and info.islnk():  # another name of a file: sent as a file, as any
            info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
        if info is None or not (info.isfile() or info.isdir() or info.issym()):
            continue  # sockets and pipes are of no use elsewhere
        count, total = count + 1, total + info.size
        if count > MAX_ENTRIES or total > MAX_NBYTES:
            limit = f"{MAX_ENTRIES} entries and {MAX_NBYTES >> 20} MiB"
            raise ArchiveError(
                f"--working-dir {str(folder)!r} is larger than {limit}; name in {IGNORE_FILE} what "
                "is not to be sent"
            )
        if info.issym():
            _check_link(path, folder)
        info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
        if info.isfile():
            with open(path, "rb") as file:
                tar.addfile(info, file)
        else:
            tar.addfile(info)


def _ignore_rules(folder: Path, hidden: bool) -> Callable[[str], bool]:
    """Tells whether a path below the folder is left out; that of a folder ends with a /."""
    try:
        with open(folder / IGNORE_FILE, "rb") as file:
            data = file.read(MAX_IGNORE_NBYTES + 1)
    except FileNotFoundError:
        data = b""
    except OSError as error:
        raise ArchiveError(f"--working-dir {str(folder)!r}: {error}") from None
    if len(data) > MAX_IGNORE_NBYTES:
        raise ArchiveError(f"{folder / IGNORE_FILE} is larger than {MAX_IGNORE_NBYTES >> 10} KiB")
    lines = [] if hidden else [".*"]  # before those of the file, which may take names back
    lines += data.decode("utf-8", "surrogateescape").splitlines()
    if not lines:
        return lambda path: False
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(lines).match_file
    except ValueError as error:
        raise ArchiveError(f"{folder / IGNORE_FILE}: {error}") from None


def _walk(
    folder: Path, below: str, is_left_out: Callable[[str], bool], left_out: Collection[Path]
) -> Iterator[Path]:
    """below: the path of `folder` in the working directory, with a / at its end."""
    for entry in sorted(os.scandir(folder), key=lambda e: e.name):
        is_folder = entry.is_dir(follow_symlinks=False)
        path = below + entry.name + "/" * is_folder
        if entry.name in SKIPPED or is_left_out(path):
            continue
        if is_folder and os.path.isfile(os.path.join(entry.path, VIRTUAL)):
            continue
        if is_folder and Path(entry.path) in left_out:
            continue
        yield Path(entry.path)
        if is_folder:
            yield from _walk(Path(entry.path), path, is_left_out, left_out)


def _check_link(path: Path, folder: Path) -> None:
    target = os.readlink(path)
    resolved = Path(os.path.normpath(path.parent / target))
    if os.path.isabs(target) or not resolved.is_relative_to(folder):
        raise ArchiveError(
            f"{path} is a link to {target!r}, which is not in the working directory; a line "
            f"/{path.relative_to(folder)} in {IGNORE_FILE} leaves it behind"
        )


# -- unpacking -------------------------------------------------------------------------------------


class Source(Protocol):
    """A stream to read from."""

    def read(self, nbytes: int, /) -> bytes: ...


class _Bounded:
    """A stream that raises once more than `budget` bytes came out of it."""

    def __init__(self, source: Source, budget: int) -> None:
        self._source, self._left = source, budget

    def read(self, nbytes: int) -> bytes:
        try:
            data: bytes = self._source.read(nbytes)
        except Exception as error:  # each compressor has its own ways to say so
            raise ArchiveError(f"not a whole archive: {error}") from None
        self._left -= len(data)
        if self._left < 0:
            raise ArchiveError("the archive unpacks to more than it may")
        return data


def _decompressor(raw: IO[bytes]) -> AbstractContextManager[Source]:
    head = raw.read(4)
    raw.seek(0)
    if head[:2] == _GZIP:
        return gzip.GzipFile(fileobj=raw, mode="rb")
    if head == _ZSTD:
        try:
            import zstandard
        except ImportError:
            raise ArchiveError(
                "the archive is packed with zstd: install the package zstandard on this host"
            ) from None
        made = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        stream: AbstractContextManager[Source] = made.stream_reader(raw, closefd=False)
        return stream
    raise ArchiveError("not an archive: neither gzip nor zstd")


def _extract_all(source: Source, folder: Path, packed: int) -> None:
    total = count = 0
    cap = min(MAX_NBYTES, SLACK_NBYTES + MAX_RATIO * packed)
    links: set[str] = set()
    stream = cast("IO[bytes]", source)  # of which this mode only reads
    with _Tar.open(fileobj=stream, mode="r|", tarinfo=_Entry) as tar:
        for info in tar:
            count, total = count + 1, total + max(info.size, 0)
            _check_entry(info, links)
            if count > MAX_ENTRIES:
                raise ArchiveError(f"the archive has more than {MAX_ENTRIES} entries")
            if total > cap:
                raise ArchiveError(f"the archive unpacks to more than {cap} bytes")
            if info.issym():
                links.add(posixpath.normpath(info.name))
            tar.members = []  # or a million entries would stay in memory
            try:
                _extract(tar, info, folder)
            except (NotADirectoryError, FileExistsError, IsADirectoryError):
                raise ArchiveError(f"entry {_shown(info)} does not fit another one") from None
            except OSError as error:
                if error.errno not in _BY_NAMES:
                    raise
                raise ArchiveError(f"entry {_shown(info)}: {error.strerror}") from None


_BY_NAMES = (errno.ENAMETOOLONG, errno.ENOENT, errno.EINVAL, errno.ELOOP)
"""Faults of names, not of this host's disk."""


def _extract(tar: tarfile.TarFile, info: tarfile.TarInfo, folder: Path) -> None:
    """Write an entry that was checked; not by tarfile's filters, which Python has since 3.11.4.

    Neither owners nor bits that give power to others are taken over.
    """
    path = folder / info.name
    if info.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if info.issym():
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(info.name), info.linkname))
        if inside.startswith(("/", "../")) or inside == "..":
            raise ArchiveError(f"entry {_shown(info)} may not be unpacked: its link leads out")
        os.symlink(info.linkname, path)
        return
    with cast("IO[bytes]", tar.extractfile(info)) as source, open(path, "wb") as target:
        shutil.copyfileobj(source, target)
    is_program = info.mode & 0o100
    os.chmod(path, info.mode & (0o755 if is_program else 0o644) | 0o600)
    os.utime(path, (info.mtime, info.mtime))


class _Tar(tarfile.TarFile):
    """An archive that is read entry by entry."""

    members: list[tarfile.TarInfo]  # read so far


class _Entry(tarfile.TarInfo):
    """Refuses headers whose content tarfile would read into memory, however long it is."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Entry:
        info = super().frombuf(buf, encoding, errors)
        if info.type in _HEADER_TYPES and info.size > MAX_HEADER_NBYTES:
            raise ArchiveError(f"an entry has a header of {info.size} bytes")
        return info


def _check_entry(info: tarfile.TarInfo, links: set[str]) -> None:
    """links: names of the links before it; nothing may be written through one."""
    name = info.name
    if not (info.isfile() or info.isdir() or info.issym()) or info.type in _SPARSE_TYPES:
        raise ArchiveError(f"entry {_shown(info)} is neither a file, a folder nor a link")
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise ArchiveError(f"entry {_shown(info)} lies outside of the archive")
    if len(name) > MAX_NAME_CHARS or len(parts) > MAX_DEPTH:
        raise ArchiveError(f"entry {_shown(info)} has too long a name")
    if info.size < 0 or getattr(info, "sparse", None) is not None:
        raise ArchiveError(f"entry {_shown(info)} has no size we can trust")
    if links:
        below = posixpath.normpath(name).split("/")
        if any("/".join(below[:n]) in links for n in range(1, len(below) + 1)):
            raise ArchiveError(f"entry {_shown(info)} goes through a link")


def _shown(info: tarfile.TarInfo) -> str:
    return repr(info.name[:200])
