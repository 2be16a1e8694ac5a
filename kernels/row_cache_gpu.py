"""A cache of rows in the memory of a GPU, in front of tables in slower memory: its CUDA C, and the
functions that launch it.

An id may lie in any of the WAYS lines of the set that its hash names. A line that is needed goes to
the id that missed whose warp claims it first: an empty one, else the one that was used least, where
the others of the set have lost a use, as under the hand of a clock. Lines that the batch under way
uses are pinned to it; an id whose set has no other line is `beyond` the cache for this batch.

Places of a batch: int64[n], of the first of equal ids its line, -1 of the others; those beyond
the cache follow its lines.
"""

from __future__ import annotations

import numpy as np

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.cuda_launch import by_item, cuda_source, long
from oneflow.kernels.rows_gpu import COMMON, DeviceIds, DeviceTable, or_null

WAYS = 32
NUMBER, KEY, TABLE, LINE, OLD_KEY, OLD_TABLE, WAS_CHANGED, RECORD = range(8)
"""Words of the record of an id that missed: its number in the batch, itself and its table; the line
that it gets, or -1; the id that was there and its table, or -1; and whether its row was changed."""

cuda_source(
    "row_cache_gpu",
    COMMON
    + r"""
#define WAYS 32
#define MOST_USES 7
#define RECORD 7

// Places of ids, NEW of those that missed, and -1 of all unless `is_wanted`, where it is given.
// tags: the table of a line's id plus 1, 0 where it is empty. counted, asked: as of rows_find.
extern "C" __global__ void cache_find(const u64* keys, const int* tables, const int* at,
                                      const int* slots, i64 n, const u64* line_keys,
                                      const int* tags, int* pins, unsigned char* uses, i64 sets,
                                      int stamp, const bool* is_wanted, i64* places, i64* head,
                                      i64 counted, i64 asked) {
  int lane = threadIdx.x % 32;
  for (i64 i = FIRST / 32; i < n; i += (i64)gridDim.x * blockDim.x / 32) {
    bool is_first = first_of(at, slots, i) == i && (!is_wanted || *is_wanted);
    i64 place = -1;
    if (is_first) {
      u64 key = keys[i];
      int table = tables[i];
      i64 line = (i64)__umul64hi(index_bits(key, table), (u64)sets) * WAYS + lane;
      bool is_it = tags[line] == table + 1 && line_keys[line] == key;
      unsigned found = __ballot_sync(0xffffffffu, is_it);
      place = found ? line - lane + __ffs(found) - 1 : NEW;
      if (is_it) {
        pins[line] = stamp;
        if (uses[line] < MOST_USES) uses[line] += 1;
      }
    }
    if (lane) continue;
    places[i] = place;
    if (counted && is_first) atomicAdd((u64*)head + counted, 1ull);
    if (counted && place == NEW) atomicAdd((u64*)head + ABSENT, 1ull);
    if (asked && at[i] >= 0) atomicAdd((u64*)head + asked, 1ull);
  }
}

// Lines for the ids that missed, unless `claims` is 0, and a record of each; a warp each.
extern "C" __global__ void cache_claim(const u64* keys, const int* tables, const i64* places,
                                       i64 n, u64* line_keys, int* tags, int* pins,
                                       unsigned char* uses, unsigned char* changed, i64 sets,
                                       int stamp, i64 claims, i64* records, i64* count) {
  int lane = threadIdx.x % 32;
  for (i64 i = FIRST / 32; i < n; i += (i64)gridDim.x * blockDim.x / 32) {
    if (places[i] != NEW) continue;
    u64 key = keys[i];
    int table = tables[i];
    i64 line = (i64)__umul64hi(index_bits(key, table), (u64)sets) * WAYS + lane, taken = -1;
    while (claims) {
      int pin = ((volatile int*)pins)[line], tag = ((volatile int*)tags)[line];
      int state = ((volatile unsigned char*)uses)[line];
      int worth = pin == stamp ? 1 << 20 : tag ? 32 * (1 + state) + lane : lane;
      int least = worth;
      for (int o = 16; o > 0; o >>= 1) {
        int other = __shfl_xor_sync(0xffffffffu, least, o);
        least = other < least ? other : least;
      }
      if (least == 1 << 20) break;
      bool is_mine = worth == least && atomicCAS(pins + line, pin, stamp) == pin;
      unsigned won = __ballot_sync(0xffffffffu, is_mine);
      if (!won) continue;
      if (tag && state && pin != stamp && !is_mine) uses[line] = (unsigned char)(state - 1);
      taken = line - lane + __ffs(won) - 1;
      break;
    }
    if (lane) continue;
    i64* record = records + RECORD * (i64)atomicAdd((u64*)count, 1ull);
    record[0] = i;
    record[1] = (i64)key;
    record[2] = table;
    record[3] = taken;
    record[5] = -1;
    record[6] = 0;
    record[4] = 0;
    if (taken < 0) continue;
    record[4] = (i64)line_keys[taken];
    record[5] = tags[taken] - 1;
    record[6] = changed[taken];
    line_keys[taken] = key;
    tags[taken] = table + 1;
    uses[taken] = 0;
    changed[taken] = 0;
  }
}
""",
)


class RowCache(DeviceTable):
    """The lines of a cache in the memory of the current GPU: as many as `nbytes` have room for, at
    least one set."""

    def __init__(self, xp: ArrayModule, nbytes: int, line_size: int) -> None:
        self.num_sets = max(1, nbytes // (WAYS * (4 * line_size + 18)))
        self.num_lines = self.num_sets * WAYS
        super().__init__(xp, self.num_lines, line_size)
        self.keys = xp.zeros(self.num_lines, np.uint64)
        self.tags = xp.zeros(self.num_lines, np.int32)
        self.changed = xp.zeros(self.num_lines, np.uint8)
        self._pins = xp.zeros(self.num_lines, np.int32)
        self._uses = xp.zeros(self.num_lines, np.uint8)
        self._stamp = 0

    @property
    def nbytes(self) -> int:
        """Device memory of all lines."""
        return self.num_lines * (4 * self.line_size + 18)

    def clear(self) -> None:
        """Hold no rows."""
        for array in (self.tags, self.changed, self._pins, self._uses):
            array.fill(0)

    def find(self, ids: DeviceIds, is_wanted: Array | None, *, counted: int, asked: int) -> Array:
        """Places of a batch, -2 of ids that are not there; those that are stay until the next one.
        Arguments: `RowTable.find`."""
        xp = self.xp
        self._stamp = self._stamp % (1 << 30) + 1
        places: Array = xp.empty(ids.size, np.int64)
        if is_wanted is not None:
            is_wanted = xp.asarray(is_wanted, np.bool_)
        by_item(
            "cache_find", 32 * ids.size, ids.keys, ids.tables, ids.at, ids.slots, long(ids.size),
            self.keys, self.tags, self._pins, self._uses, long(self.num_sets),
            np.int32(self._stamp), or_null(is_wanted), places, self.head, long(counted),
            long(asked),
        )  # fmt: skip
        return places

    def claim(self, ids: DeviceIds, places: Array, *, claims: bool) -> Array:
        """The records of ids that missed, int64 (count, RECORD) on the host, in their order. Waits
        for the GPU. claims: do they get lines?"""
        xp = self.xp
        count = xp.zeros(1, np.int64)
        records = xp.empty((ids.size, RECORD), np.int64)
        by_item(
            "cache_claim", 32 * ids.size, ids.keys, ids.tables, places, long(ids.size), self.keys,
            self.tags, self._pins, self._uses, self.changed, long(self.num_sets),
            np.int32(self._stamp), long(claims), records, count,
        )  # fmt: skip
        found = xp.asnumpy(records[: int(count[0])])
        ordered: Array = found[np.argsort(found[:, NUMBER])]
        return ordered

    def restore(self, records: Array) -> None:
        """Give the claimed lines their former ids back, whose rows are still there."""
        claimed = records[records[:, LINE] >= 0]
        columns = (claimed[:, k] for k in (LINE, OLD_KEY, OLD_TABLE, WAS_CHANGED))
        lines, keys, tables, changed = map(self.xp.asarray, columns)
        self.keys[lines], self.tags[lines] = keys.view(np.uint64), tables + 1
        self.changed[lines] = changed
