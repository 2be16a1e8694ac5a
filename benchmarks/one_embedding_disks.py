"""Libraries for OneEmbedding's disk tier: LMDB, RocksDB (rocksdict), and a file of fixed rows.

    pip install lmdb rocksdict && python benchmarks/one_embedding_disks.py --rows 5000000

Each holds the same rows (one embedding with its optimizer state) by 8-byte ids. Batches of random
ids are read, then changed rows are written back and made safe, in turns; the limit is random reads
of 4 KiB of a file, as many under way at once. Pages that the kernel keeps are dropped before each
read, because a table that is larger than memory has none.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from measure import arguments, report
from one_embedding import RandomReads, id_of

from oneflow.one_embedding.store.index import Index
from oneflow.one_embedding.store.row_log import RowLayout, RowLog

LINE = 32
READ, WRITE, FILL = 1 << 14, 1 << 15, 1 << 17
ROUNDS = 9


class Side(Protocol):
    """Rows by id on a disk."""

    def write(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Write rows so that a crash does not lose them."""

    def read(self, keys: np.ndarray) -> np.ndarray:
        """Rows of ids, float32 (n, LINE)."""

    def forget(self) -> None:
        """Let the kernel drop its pages of the files."""


class Lmdb:
    def __init__(self, folder: Path, num_rows: int) -> None:
        import lmdb

        self._folder = folder
        size = 16 * num_rows * 4 * LINE + (1 << 28)
        self._open = partial(lmdb.open, str(folder), map_size=size, readahead=False)
        self._env = self._open()

    def forget(self) -> None:
        self._env.close()  # the kernel drops no page that is mapped
        drop_pages(self._folder)
        self._env = self._open()

    def write(self, keys: np.ndarray, rows: np.ndarray) -> None:
        order = np.argsort(keys)
        pairs = [(keys[i].astype(">u8").tobytes(), rows[i].tobytes()) for i in order]
        with self._env.begin(write=True) as change, change.cursor() as cursor:
            cursor.putmulti(pairs)

    def read(self, keys: np.ndarray) -> np.ndarray:
        order = np.argsort(keys)
        with self._env.begin(buffers=True) as look, look.cursor() as cursor:
            found = cursor.getmulti([keys[i].astype(">u8").tobytes() for i in order])
            rows = np.empty((keys.size, LINE), np.float32)
            for i, (_, value) in zip(order, found, strict=True):
                rows[i] = np.frombuffer(value, np.float32)
        return rows


class RocksDb:
    def __init__(self, folder: Path) -> None:
        import rocksdict

        self._library, self._folder = rocksdict, folder
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_use_direct_reads(True)
        self._options = options
        self._db = rocksdict.Rdict(str(folder), options)
        self._safe = rocksdict.WriteOptions()
        self._safe.sync = True

    def write(self, keys: np.ndarray, rows: np.ndarray) -> None:
        batch = self._library.WriteBatch(raw_mode=True)
        for key, row in zip(keys, rows, strict=True):
            batch.put(key.tobytes(), row.tobytes())
        self._db.write(batch, self._safe)

    def forget(self) -> None:
        self._db.flush()
        drop_pages(self._folder)

    def read(self, keys: np.ndarray) -> np.ndarray:
        found = self._db.get([key.tobytes() for key in keys])
        return np.stack([np.frombuffer(value, np.float32) for value in found])


class FixedRows:
    """The store's own log of rows, with its index in memory."""

    def __init__(self, folder: Path) -> None:
        self._log, self._index = RowLog(folder, RowLayout(LINE, 4096)), Index()
        self._folder = folder

    def forget(self) -> None:
        drop_pages(self._folder)

    def write(self, keys: np.ndarray, rows: np.ndarray) -> None:
        tables = np.zeros(keys.size, np.int32)
        self._index.assign(keys, tables, self._log.append(keys, tables, rows))
        self._log.sync()

    def read(self, keys: np.ndarray) -> np.ndarray:
        return self._log.read(self._index.find(keys, np.zeros(keys.size, np.int32)))


def drop_pages(folder: Path) -> None:
    """Let the kernel forget its pages of the files of a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; else the temporary")
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(dir=given.folder) as base:
        folders = {name: Path(base) / name for name in ("fixed rows", "LMDB", "RocksDB")}
        for folder in folders.values():
            folder.mkdir()
        sides: dict[str, Side] = {
            "fixed rows": FixedRows(folders["fixed rows"]),
            "LMDB": Lmdb(folders["LMDB"], given.rows),
            "RocksDB": RocksDb(folders["RocksDB"]),
        }
        filled = {}
        for name, side in sides.items():
            begin = time.perf_counter()
            for first in range(0, given.rows, FILL):
                positions = np.arange(first, min(first + FILL, given.rows))
                side.write(id_of(positions), rows_at(positions))
            filled[name] = given.rows / (time.perf_counter() - begin)
        limit = RandomReads(Path(base) / "blocks", given.rows * 4 * LINE, 4096, READ)
        reads: dict[str, list[float]] = {name: [] for name in (*sides, "random reads")}
        writes: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(ROUNDS):
            some = rng.choice(given.rows, READ, replace=False)
            begin = time.perf_counter()
            limit.read()
            reads["random reads"].append(READ / (time.perf_counter() - begin))
            for name, side in sides.items():
                side.forget()
                begin = time.perf_counter()
                found = side.read(id_of(some))
                reads[name].append(READ / (time.perf_counter() - begin))
                if not np.array_equal(found, rows_at(some)):
                    raise SystemExit(f"{name} gave other rows")
            changed = rng.choice(given.rows, WRITE, replace=False)
            for name, side in sides.items():
                begin = time.perf_counter()
                side.write(id_of(changed), rows_at(changed))
                writes[name].append(WRITE / (time.perf_counter() - begin))
        limit.close()
        table: list[dict[str, Any]] = []
        most = statistics.median(reads["random reads"])
        for name in sides:
            read = statistics.median(reads[name])
            table.append({
                "rows on disk": name,
                "read k/s": round(read / 1e3, 1),
                "of random reads": round(read / most, 2),
                "written back k/s": round(statistics.median(writes[name]) / 1e3, 1),
                "filled k/s": round(filled[name] / 1e3, 1),
                "bytes over rows": round(bytes_in(folders[name]) / (given.rows * 4 * LINE), 2),
            })  # fmt: skip
    print(f"random reads of 4 KiB: {most / 1e3:.1f} k/s")
    report(f"{given.rows:,} rows of {LINE} numbers", table, given.json)


def rows_at(positions: np.ndarray) -> np.ndarray:
    """Rows that hold their position, and numbers that no library makes smaller."""
    rows = positions[:, None] * 2654435761 + np.arange(LINE) * 40503
    rows = (rows ^ (rows >> 13)) * 1274126177 % 16777213
    return rows.astype(np.float32)


if __name__ == "__main__":
    main()
