"""OneEmbedding: its store beside the limits of memory and disk.

    python benchmarks/one_embedding.py [table growth disk snapshot] [--count 100000000]

table: look-ups of a batch of known ids, beside NumPy's indexing of as many rows by known positions.
growth: look-ups as a store grows from a million rows, beside copies of its rows from known places,
and the memory of a row that is added. disk:
rows that are not in the cache, beside random reads of a file of the same size. snapshot: after 1 %
of the rows changed, and a full one. In memory: CPU time, the least of many turns; from disks: the
medians of wall time.
"""

from __future__ import annotations

import ctypes
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure import arguments, report

from oneflow.core.host_memory import own_memory
from oneflow.one_embedding.store.direct_file import DEPTH, BatchReader, DirectFile, aligned_bytes
from oneflow.one_embedding.store.initial import Column, InitialRows
from oneflow.one_embedding.store.options import (
    Options,
    make_cached_ssd_store_options,
    make_device_mem_store_options,
)
from oneflow.one_embedding.store.row_store import RowStore, open_store

BATCH = 1 << 17
DISK_BATCH = 1 << 14
SMALL_LINE, LINE = 8, 32
"""Numbers of a row: where two sides must hold all rows, and as 16 numbers with their Adagrad."""
CACHED = 0.05
"""Share of the rows that are in memory."""
CHANGED = 0.01
FIRST_ROWS = 1_000_000
ROUNDS = 15
Row = dict[str, Any]


def initial_of(line_size: int) -> InitialRows:
    return InitialRows(1, [[Column(line_size, "constant", 0.5)]])


@contextmanager
def opened(options: Callable[[str], Options], line_size: int, folder: Path) -> Iterator[RowStore]:
    with tempfile.TemporaryDirectory(dir=folder) as path:
        initial = initial_of(line_size)
        made = options(path)
        with open_store(made, key_type="int64", line_size=line_size, initial=initial) as store:
            yield store


def in_memory(path: str) -> Options:
    return make_device_mem_store_options(path, 1 << 40)


def id_of(positions: np.ndarray) -> np.ndarray:
    """Ids without any order, of the positions at which they are added."""
    return positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def fill(store: RowStore, begin: int, end: int, line_size: int) -> None:
    """Add the rows of positions, each with its position as its first number."""
    rows, tables = np.zeros((BATCH, line_size), np.float32), np.zeros(BATCH, np.int32)
    for first in range(begin, end, BATCH):
        positions = np.arange(first, min(first + BATCH, end))
        rows[: positions.size, 0] = positions
        store.put(id_of(positions), tables[: positions.size], rows[: positions.size])


class Batches:
    """Look-ups of batches of distinct random positions below `count`."""

    def __init__(self, count: int, batch: int, line_size: int, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._count = count
        self.out = np.empty((batch, line_size), np.float32)
        self.tables = np.zeros(batch, np.int32)
        self.draw()

    def draw(self) -> None:
        drawn = np.unique(self._rng.integers(0, self._count, self.tables.size * 2))
        self.positions = self._rng.permutation(drawn)[: self.tables.size]
        self.keys = id_of(self.positions)

    def look_up(self, store: RowStore) -> None:
        store.get(self.keys, self.tables[: self.keys.size], self.out[: self.keys.size])

    def check(self) -> None:
        found = self.out[: self.keys.size, 0]
        if not np.array_equal(found, self.positions.astype(np.float32)):
            raise SystemExit("a look-up gave other rows")


def cpu_s(run: Callable[[], object]) -> float:
    """Seconds of all cores."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


def measure_table(num_rows: int, folder: Path) -> Row:
    """Batch look-ups beside NumPy's indexing with known positions."""
    with opened(in_memory, SMALL_LINE, folder) as store:
        fill(store, 0, num_rows, SMALL_LINE)
        known = np.zeros((num_rows, SMALL_LINE), np.float32)
        known[:, 0] = np.arange(num_rows)
        batches = Batches(num_rows, BATCH, SMALL_LINE)
        ours, theirs = [], []
        for _ in range(ROUNDS):
            batches.draw()
            ours.append(cpu_s(lambda: batches.look_up(store)) / batches.keys.size)
            batches.check()
            batches.draw()  # else what one side fetched is in the processor's cache for both
            theirs.append(cpu_s(lambda: known[batches.positions]) / batches.keys.size)
    return {
        "what": f"table: {num_rows:,} ids, look-ups beside NumPy indexing",
        "ours": f"{min(ours) * 1e9:.0f} ns",
        "beside": f"{min(theirs) * 1e9:.0f} ns",
        "ratio": round(min(theirs) / min(ours), 2),
        "to reach": ">= 0.5",
    }


def resident() -> int:
    """Bytes of this process that are in memory, without freed ones that the allocator keeps."""
    ctypes.CDLL(None).malloc_trim(0)
    return own_memory()["rss"]


def measure_growth(num_rows: int, folder: Path) -> Row:
    """Seconds of a look-up and memory over rows, from a million rows to all."""
    first = min(FIRST_ROWS, num_rows // 10)
    with opened(in_memory, LINE, folder) as store:

        def look_up_s(count: int) -> tuple[float, float]:
            batches, seconds, known = Batches(count, BATCH, LINE), [], []
            tier: Any = store._tier
            for _ in range(ROUNDS):
                batches.draw()
                out = batches.out[: batches.keys.size]
                fetch = partial(tier._rows.fetch, batches.positions, out)
                known.append(cpu_s(fetch) / batches.keys.size)
                batches.draw()
                seconds.append(cpu_s(lambda: batches.look_up(store)) / batches.keys.size)
            batches.check()
            return min(seconds), min(known)

        fill(store, 0, first, LINE)
        (small_s, small_known_s), before_nbytes = look_up_s(first), resident()
        longest, seconds = 0.0, 0.0
        for at in range(first, num_rows, BATCH):
            last_s = cpu_s(partial(fill, store, at, min(at + BATCH, num_rows), LINE))
            longest, seconds = max(longest, last_s), seconds + last_s
        large_s, large_known_s = look_up_s(num_rows)
        nbytes = (resident() - before_nbytes) / ((num_rows - first) * 4 * LINE)
    return {
        "what": f"growth: {first:,} to {num_rows:,} rows of {LINE}",
        "ours": f"{large_s * 1e9:.0f} ns; a new row {seconds / (num_rows - first) * 1e9:.0f} ns, "
        f"the slowest {BATCH:,} {longest * 1e3:.0f} ms",
        "beside": f"{small_s * 1e9:.0f} ns; rows from known places {small_known_s * 1e9:.0f} and "
        f"{large_known_s * 1e9:.0f} ns, {large_known_s / small_known_s:.2f}",
        "ratio": f"time {large_s / small_s:.2f}, memory {nbytes:.3f}",
        "to reach": "<= 1.5, <= 1.15",
    }


class RandomReads:
    """Reads of random blocks of a file, as many at once as the store has under way."""

    def __init__(self, path: Path, nbytes: int, block_nbytes: int, batch: int) -> None:
        self._blocks, self._size = nbytes // block_nbytes, block_nbytes
        self._rng = np.random.default_rng(3)
        self._file = DirectFile(path, block_nbytes, create=True)
        piece = aligned_bytes(1 << 24)
        piece[:] = np.frombuffer(self._rng.bytes(piece.size), np.uint8)
        for offset in range(0, nbytes, piece.size):
            self._file.write(offset, piece)
        self._file.sync()
        self._target = aligned_bytes(batch * block_nbytes).reshape(batch, block_nbytes)
        self._reader = BatchReader(DEPTH)

    def read(self) -> None:
        count = len(self._target)
        offsets = self._rng.integers(0, self._blocks, count) * self._size
        self._reader.read(np.full(count, self._file.handle), offsets, self._target)

    def close(self) -> None:
        self._reader.close()
        self._file.close()


def measure_disk(num_rows: int, folder: Path) -> Row:
    """Rows a second that come from the disk, beside random reads of the same blocks."""
    budget_mb = CACHED * num_rows * 4 * LINE / 2**20

    def on_disk(path: str) -> Options:
        return make_cached_ssd_store_options(max(1, round(budget_mb)), path)

    with opened(on_disk, LINE, folder) as store, tempfile.TemporaryDirectory(dir=folder) as beside:
        fill(store, 0, num_rows, LINE)
        store.save_snapshot("all")
        batches = Batches(num_rows, DISK_BATCH, LINE)
        reads = RandomReads(Path(beside) / "blocks", num_rows * 4 * LINE, 4096, DISK_BATCH)
        ours, theirs = [], []
        for _ in range(ROUNDS):
            batches.draw()
            before, begin = store.statistics.disk_hits, time.perf_counter()
            batches.look_up(store)
            seconds = time.perf_counter() - begin
            ours.append((store.statistics.disk_hits - before) / seconds)
            batches.check()
            begin = time.perf_counter()
            reads.read()
            theirs.append(DISK_BATCH / (time.perf_counter() - begin))
        reads.close()
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    return {
        "what": f"disk: {num_rows:,} rows of {LINE}, {CACHED:.0%} in memory",
        "ours": f"{statistics.median(ours) / 1e3:.1f} k rows/s from the disk",
        "beside": f"{statistics.median(theirs) / 1e3:.1f} k random reads/s of 4 KiB",
        "ratio": round(ratio, 2),
        "to reach": ">= 0.7",
    }


def measure_snapshot(num_rows: int, folder: Path, kind: str) -> Row:
    """A snapshot after 1 % of the rows changed beside a full one: seconds and bytes."""
    budget_mb = max(1, round(CACHED * num_rows * 4 * LINE / 2**20))

    def options(path: str) -> Options:
        if kind == "disk":
            return make_cached_ssd_store_options(budget_mb, path)
        return in_memory(path)

    def saved(name: str) -> tuple[float, int]:
        before, begin = store.statistics.disk_nbytes_written, time.perf_counter()
        store.save_snapshot(name)
        seconds = time.perf_counter() - begin
        return seconds, store.statistics.disk_nbytes_written - before

    with opened(options, LINE, folder) as store:
        begin = time.perf_counter()
        fill(store, 0, num_rows, LINE)
        filled_s = time.perf_counter() - begin
        full_s, full_nbytes = saved("full")
        if kind == "disk":  # most rows went there while they were added
            full_s += filled_s
            full_nbytes = store.statistics.disk_nbytes_written
        seconds, nbytes = [], 0
        for turn in range(5):
            batches = Batches(num_rows, int(CHANGED * num_rows), LINE, seed=turn)
            batches.look_up(store)
            store.put(batches.keys, batches.tables[: batches.keys.size], batches.out)
            few_s, nbytes = saved(f"few{turn}")
            seconds.append(few_s)
    few_s = statistics.median(seconds)
    return {
        "what": f"snapshot, {kind}: {CHANGED:.0%} of {num_rows:,} rows of {LINE} changed",
        "ours": f"{few_s:.3f} s, {nbytes / 1e6:.1f} MB",
        "beside": f"full {full_s:.2f} s, {full_nbytes / 1e6:.0f} MB",
        "ratio": f"time {few_s / full_s:.3f}, bytes {nbytes / full_nbytes:.3f}",
        "to reach": "<= 0.05",
    }


def main() -> None:
    parser = arguments(__doc__)
    rows = ("table", "growth", "disk", "snapshot")
    parser.add_argument("rows", nargs="*", choices=[*rows, []], default=[], help="what to measure")
    parser.add_argument("--count", type=int, default=10_000_000, help="rows of the stores")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; else the temporary")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.gettempdir())
    print(f"{shutil.disk_usage(folder).free >> 30} GiB are free in {folder}")
    found: list[Row] = []
    for name in given.rows or rows:
        if name == "table":
            found.append(measure_table(given.count, folder))
        elif name == "growth":
            found.append(measure_growth(given.count, folder))
        elif name == "disk":
            found.append(measure_disk(given.count, folder))
        else:
            found += [measure_snapshot(given.count, folder, kind) for kind in ("memory", "disk")]
    report("OneEmbedding's store", found, given.json)


if __name__ == "__main__":
    main()
