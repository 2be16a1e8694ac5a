"""Snapshots of a store: which parts of its files of rows are valid under a name.

A snapshot is one small file, `snapshots/NAME.json`, that lists extents of files of rows, oldest
first; of two rows with one id the later one counts. It gets its name when all that it lists is on
the disk, so it is there whole or not at all. Parts of ranks belong together where they were saved
at one moment, on which the ranks agree; the part before stays beside each, because ranks may be
killed while only some of them have replaced theirs. Files that no snapshot lists were left
by a killed process, or replaced, and are removed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from oneflow.core.errors import ArgumentError, RowStoreError
from oneflow.core.folders import sync_folder
from oneflow.core.whole_files import PendingFile
from oneflow.one_embedding.store.direct_file import as_disk_error
from oneflow.one_embedding.store.index import Index
from oneflow.one_embedding.store.row_log import (
    Extent,
    RowLayout,
    RowLog,
    keys_path,
    numbers_in,
    rows_path,
)
from oneflow.services.failpoints import failpoint

Array: TypeAlias = "np.ndarray[Any, Any]"

VERSION = 2
_WITHOUT_CHECKS = 1
"""The version before, whose files of rows have no checks; it is read, and goes on as the other."""
_FOLDER = "snapshots"
_SUFFIX, _BEFORE = ".json", ".before"
_BATCH_ROWS = 1 << 15


@dataclass(frozen=True)
class Snapshot:
    """The contents of a snapshot of one rank.

    rank, num_ranks: of the run that saved it.  saved_ns: when, the same of all ranks.
    """

    key_type: str
    line_size: int
    block_nbytes: int
    file_nbytes: int
    rank: int
    num_ranks: int
    extents: tuple[Extent, ...]
    saved_ns: int

    @property
    def layout(self) -> RowLayout:
        return RowLayout(self.line_size, self.block_nbytes, self.file_nbytes)

    @property
    def num_slots(self) -> int:
        return sum(extent.rows for extent in self.extents)


def path_of(folder: Path, name: str) -> Path:
    """Path of the snapshot of a name. Raises ArgumentError for a name that no file can have."""
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise ArgumentError(
            f"snapshot {name!r}: a name has neither / nor NUL and begins with no point"
        )
    return folder / _FOLDER / f"{name}{_SUFFIX}"


def write_snapshot(folder: Path, name: str, snapshot: Snapshot) -> None:
    """Give a snapshot its name, in place of an older one. Raises RowStoreError for a full disk."""
    path = path_of(folder, name)
    said = {"version": VERSION, **asdict(snapshot)}
    try:
        path.parent.mkdir(exist_ok=True)
        pending = PendingFile(path)
        try:
            pending.file.write(json.dumps(said, indent=1).encode())
        except OSError:
            pending.abort()
            raise
        failpoint("rows.snapshot")
        if snapshot.num_ranks > 1 and path.exists():
            beside = path.with_name(f".{name}{_BEFORE}.{os.getpid()}")
            os.link(path, beside)
            os.replace(beside, _before(path))
        pending.commit()
        sync_folder(path.parent)
        sync_folder(folder)
    except OSError as error:
        raise as_disk_error(error, path) from error


def _before(path: Path) -> Path:
    return path.with_name(f".{path.name.removesuffix(_SUFFIX)}{_BEFORE}")


def read_snapshot(folder: Path, name: str) -> Snapshot:
    """Read a snapshot. Raises FileNotFoundError if there is none, RowStoreError for a torn one."""
    return _read(path_of(folder, name))


def _read(path: Path) -> Snapshot:
    data = path.read_bytes()
    try:
        said = json.loads(data)
        version = said.pop("version")
        if version not in (_WITHOUT_CHECKS, VERSION):
            raise RowStoreError(f"{path} is of version {version}, this program reads {VERSION}")
        said["extents"] = tuple(Extent(**extent) for extent in said["extents"])
        return Snapshot(**said)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RowStoreError(f"{path} is torn: {error}; load another snapshot") from error


def names_in(folder: Path) -> list[str]:
    """Names of the snapshots of a folder, in order."""
    return _names_in({folder})


def remove_snapshot(folder: Path, name: str) -> None:
    """Take the name of a snapshot away; `remove_unlisted` removes the files that no other one
    lists.
    """
    path = path_of(folder, name)
    path.unlink(missing_ok=True)
    _before(path).unlink(missing_ok=True)


def remove_unlisted(folder: Path, used: Sequence[int] = ()) -> None:
    """Remove files of rows that no snapshot lists, besides those in use. Nothing is removed where a
    snapshot cannot be read, because it might list them."""
    listed = set(used)
    for path in (folder / _FOLDER).glob("*"):
        if path.suffix not in (_SUFFIX, _BEFORE):
            path.unlink()  # of a process that was killed before it gave the name
            continue
        try:
            snapshot = _read(path)
        except RowStoreError:
            return
        listed.update(extent.number for extent in snapshot.extents)
    for number in numbers_in(folder):
        if number not in listed:
            rows_path(folder, number).unlink(missing_ok=True)
            keys_path(folder, number).unlink(missing_ok=True)


def find_snapshot(folders: Sequence[Path], name: str) -> list[tuple[Path, Snapshot]]:
    """Return the newest snapshot of a name that all its ranks have: each rank's folder and part.

    folders: of all ranks of this run; those of runs on other numbers of ranks lie beside them.
    """
    candidates = {*folders, *(near for f in folders for near in f.parent.glob("*-*"))}
    sets: dict[tuple[int, int], dict[int, tuple[Path, Snapshot]]] = {}
    for is_before in (False, True):
        for folder in sorted(candidates):
            path = path_of(folder, name)
            try:
                found = _read(_before(path) if is_before else path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            parts = sets.setdefault((found.saved_ns, found.num_ranks), {})
            parts[found.rank] = (folder, found)
        whole = [key for key, parts in sets.items() if len(parts) == key[1]]
        if whole:
            return list(sets[max(whole)].values())
        own = [key for key, parts in sets.items() if _are_alone(folders, key[1], parts)]
        if own:
            return list(sets[max(own)].values())
    if not sets:
        listed = ", ".join(str(folder) for folder in folders)
        raise RowStoreError(f"no snapshot {name!r} in {listed}; {_say_names(candidates)}")
    (_, count), parts = max(sets.items())
    missing = sorted(set(range(count)) - set(parts))
    raise RowStoreError(
        f"snapshot {name!r} is not complete: of {count} ranks, {missing} saved none; "
        f"{_say_names(candidates)}"
    )


def _are_alone(
    folders: Sequence[Path], num_ranks: int, parts: dict[int, tuple[Path, Snapshot]]
) -> bool:
    """Tell whether the ranks of the missing parts are on other hosts, so that they have no folder
    here: each sees to its own part."""
    missing = [folder for rank, folder in enumerate(folders) if rank not in parts]
    return num_ranks == len(folders) and not any(folder.exists() for folder in missing)


def _names_in(folders: set[Path]) -> list[str]:
    paths = {path for f in folders for path in (f / _FOLDER).glob(f"[!.]*{_SUFFIX}")}
    return sorted({path.name.removesuffix(_SUFFIX) for path in paths})


def _say_names(folders: set[Path]) -> str:
    names = _names_in(folders)
    return f"there are {', '.join(names)}" if names else "there is none at all"


def check_fits(name: str, snapshot: Snapshot, key_type: str, line_size: int) -> None:
    """Raise RowStoreError for a snapshot of other rows."""
    if snapshot.line_size != line_size:
        raise RowStoreError(
            f"snapshot {name!r} has rows of {snapshot.line_size} numbers, this store of "
            f"{line_size}; open it with the same embedding_dim and an optimizer of as many states"
        )
    if snapshot.key_type != key_type:
        raise RowStoreError(
            f"snapshot {name!r} has ids of {snapshot.key_type}, this store of {key_type}"
        )


def index_of(log: RowLog, index: Index, base: int = 0) -> None:
    """Give the ids of a log their slots plus `base`, the last of each, and count those in use."""
    for number in log.numbers():
        ids, slots = log.ids(number)
        keys, tables = np.ascontiguousarray(ids["key"]), np.ascontiguousarray(ids["table"])
        index.assign(keys, tables, slots + base)
    for _, _, places in index.entries():
        log.count_in(places - base)


def batches_of(folder: Path, snapshot: Snapshot) -> Iterator[tuple[Array, Array, Array]]:
    """Yield keys (uint64[n]), tables (int32[n]) and rows (float32[n, line_size]) of a snapshot,
    each id once."""
    log = RowLog(folder, snapshot.layout)
    try:
        log.use(snapshot.extents)
        index = Index()
        index_of(log, index)
        for number in log.numbers():
            ids, slots = log.ids(number)
            for begin in range(0, slots.size, _BATCH_ROWS):
                some = slice(begin, begin + _BATCH_ROWS)
                keys = np.ascontiguousarray(ids["key"][some])
                tables = np.ascontiguousarray(ids["table"][some])
                last = np.flatnonzero(index.find(keys, tables) == slots[some])
                if last.size:
                    yield keys[last], tables[last], log.read(slots[some][last])
    finally:
        log.close()
