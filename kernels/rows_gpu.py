"""A table of rows in the memory of a GPU: its CUDA C, and the functions that launch it.

The table is an index and the rows. The index is open addressing in one block: entries of two words,
an id and its table (TABLE_BITS) with the row's place plus one; an empty one is 0. A row that is
made gets the next place, in the order in which ids first come in a batch, as on a CPU
(oneflow/one_embedding/store/tier.py); its numbers are functions of seed, table and id
(oneflow/one_embedding/store/initial.py), with the same roundings.

Nothing here waits for the GPU: a batch is as long as it came, and of equal ids the first stands for
all. A batch of n ids is handled by int32 numbers i < n; `slots` is a hash table of them.

head: int64[HEAD]: see the names below. Launches of a batch follow each other on one stream, which
orders them: `rows_place` reads ROWS and writes ROWS_AFTER, and the last one moves that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.cuda_launch import THREADS, by_block, by_item, cuda_source, launch, long
from oneflow.one_embedding.store.loops import TABLE_BITS
from oneflow.ops.one_embedding import BUCKETS

ROWS, ROWS_AFTER, ASKED, CAME, DISTINCT, UPDATED, ABSENT, CREATED, BAD_ID, BAD_TABLE = range(10)
HEAD = 10
"""Words of a head: rows that are there, before and after the batch under way; ids that were looked
up, of batches and of those that came from other ranks, the distinct ones among them, those that
were updated, and those of both that were not there; rows made; a negative id that came and must
not, or 0; and a table id that there is not, plus 1 unless it is negative, or 0."""
LOAD = 2 / 3
"""Share of an index in use when all rows are there: an id is found after two entries on average."""
KINDS = {"constant": 0, "uniform": 1, "normal": 2, "trunc_normal": 3}

COMMON = (
    r"""
#define TABLE_BITS """
    + str(TABLE_BITS)
    + r"""
#define PLACE_BITS (64 - TABLE_BITS)
#define PLACES ((1ull << PLACE_BITS) - 1)
#define NEW (-2)
enum { ROWS, ROWS_AFTER, ASKED, CAME, DISTINCT, UPDATED, ABSENT, CREATED, BAD_ID, BAD_TABLE };

// The hash by which ids are spread over buckets (kernels/fused/rows.py).
__device__ u64 bucket_bits(u64 key, int table) {
  u64 x = key ^ ((u64)(table + 1) * 0x9E3779B97F4A7C15ull);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// The hash of the index (oneflow/one_embedding/store/loops.py).
__device__ u64 index_bits(u64 key, int table) {
  u64 h = key ^ ((u64)(table + 1) * 0x9E3779B97F4A7C15ull);
  h = (h ^ (h >> 33)) * 0xFF51AFD7ED558CCDull;
  h = (h ^ (h >> 33)) * 0xC4CEB9FE1A85EC53ull;
  return h ^ (h >> 33);
}

// The first of the ids that equal id i; -1 for one without a row.
__device__ int first_of(const int* at, const int* slots, i64 i) {
  return at[i] < 0 ? -1 : slots[at[i]];
}

// Of THREADS flags: how many come before this thread's; their number goes to `total`.
__device__ int flags_before(bool flag, int* total) {
  __shared__ int part[THREADS / 32];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  unsigned vote = __ballot_sync(0xffffffffu, flag);
  __syncthreads();
  if (lane == 0) part[warp] = __popc(vote);
  __syncthreads();
  int before = __popc(vote & ((1u << lane) - 1)), sum = 0;
  for (int w = 0; w < THREADS / 32; ++w) {
    if (w < warp) before += part[w];
    sum += part[w];
  }
  *total = sum;
  return before;
}
"""
)
"""The CUDA C that all tables on GPUs share: hashes, and ids that are the first of equal ones."""

cuda_source(
    "rows_gpu",
    COMMON
    + r"""
// ---- distinct ids -----------------------------------------------------------------------------

// keys, tables, buckets, at: of every id. at: its place in `slots`, which are -1 before and hold
// the first of equal ids then; -1 for padding, for ids of other ranks and for those that no table
// takes. table_ids: null: columns of the batch in turn. is_left: those that are left out, or null.
extern "C" __global__ void rows_number(const i64* ids, const int* table_ids, const bool* is_left,
                                       i64 n, i64 num_tables, i64 has_padding, i64 padding,
                                       i64 is_signed, i64 first, i64 last, i64 num_buckets,
                                       u64* keys, int* tables, int* buckets, int* at, int* slots,
                                       i64 mask, i64* head) {
  FLAT(i, n) {
    i64 id = ids[i], table = table_ids ? table_ids[i] : i % num_tables;
    keys[i] = (u64)id;
    tables[i] = (int)table;
    at[i] = -1;
    if ((has_padding && id == padding) || (is_left && is_left[i])) continue;
    if (table < 0 || table >= num_tables) {
      head[BAD_TABLE] = table < 0 ? table : table + 1;
      continue;
    }
    if (is_signed && id < 0) { head[BAD_ID] = id; continue; }
    u64 bits = bucket_bits((u64)id, (int)table);
    i64 bucket = (i64)(((bits >> 32) * (u64)num_buckets) >> 32);
    if (bucket < first || bucket >= last) continue;
    buckets[i] = (int)(bucket - first);
    for (i64 s = (i64)(bits & (u64)mask);; s = (s + 1) & mask) {
      int other = ((volatile int*)slots)[s];
      if (other < 0) other = atomicCAS(slots + s, -1, (int)i);
      if (other < 0 || (ids[other] == id &&
                        (table_ids ? table_ids[other] : other % num_tables) == table)) {
        if (other > i) atomicMin(slots + s, (int)i);
        at[i] = (int)s;
        break;
      }
    }
  }
}

// ---- the index --------------------------------------------------------------------------------

__device__ i64 index_begin(u64 key, int table, i64 size) {
  return (i64)__umul64hi(index_bits(key, table), (u64)size);
}

__device__ void index_insert(u64* entries, i64 size, u64 key, int table, i64 place) {
  u64 word = ((u64)table << PLACE_BITS) | (u64)(place + 1);
  i64 e = index_begin(key, table, size);
  while (atomicCAS(entries + 2 * e + 1, 0ull, word) != 0) e = e + 1 == size ? 0 : e + 1;
  entries[2 * e] = key;
}

// places: of the first of equal ids, NEW where it is not there; -1 of all others, and of all
// unless `is_wanted`, where it is given. fresh: new ids of each block. counted, asked: the
// words of the head that count the distinct ids, DISTINCT or UPDATED, and all; 0: none does.
extern "C" __global__ void rows_find(const u64* keys, const int* tables, const int* at,
                                     const int* slots, i64 n, const u64* entries, i64 size,
                                     const bool* is_wanted, i64* places, i64* fresh, i64* head,
                                     i64 counted, i64 asked) {
  i64 i = FIRST, place = -1;
  bool is_first = i < n && first_of(at, slots, i) == i && (!is_wanted || *is_wanted);
  if (is_first) {
    u64 key = keys[i];
    int table = tables[i];
    i64 e = index_begin(key, table, size);
    for (place = NEW;; e = e + 1 == size ? 0 : e + 1) {
      u64 word = entries[2 * e + 1];
      if (word == 0) break;
      if (entries[2 * e] == key && (int)(word >> PLACE_BITS) == table) {
        place = (i64)(word & PLACES) - 1;
        break;
      }
    }
  }
  if (i < n) places[i] = place;
  int created, firsts, all;
  flags_before(place == NEW, &created);
  flags_before(is_first, &firsts);
  flags_before(i < n && at[i] >= 0, &all);
  if (threadIdx.x == 0) {
    fresh[blockIdx.x] = created;
    if (counted) {
      atomicAdd((u64*)head + counted, (u64)firsts);
      atomicAdd((u64*)head + ABSENT, (u64)created);
    }
    if (asked) atomicAdd((u64*)head + asked, (u64)all);
  }
}

// New ids get the places behind those that are there, in order, and entries of the index.
extern "C" __global__ void rows_place(const u64* keys, const int* tables, i64 n, u64* entries,
                                      i64 size, i64 capacity, i64* places, const i64* fresh,
                                      i64* head) {
  __shared__ i64 part[THREADS];
  i64 i = FIRST, sum = 0;
  for (i64 b = threadIdx.x; b < blockIdx.x; b += THREADS) sum += fresh[b];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int o = THREADS / 2; o > 0; o >>= 1) {
    if (threadIdx.x < o) part[threadIdx.x] += part[threadIdx.x + o];
    __syncthreads();
  }
  bool is_new = i < n && places[i] == NEW;
  int total, before = flags_before(is_new, &total);
  i64 begin = head[ROWS] + part[0];
  if (is_new) {
    i64 place = begin + before;
    if (place < capacity) index_insert(entries, size, keys[i], tables[i], place);
    places[i] = place < capacity ? place : -1;
  }
  if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) head[ROWS_AFTER] = begin + total;
}

// Entries for ids that have places.
extern "C" __global__ void rows_insert(const u64* keys, const int* tables, const i64* places, i64 n,
                                       u64* entries, i64 size) {
  FLAT(i, n) index_insert(entries, size, keys[i], tables[i], places[i]);
}

// Ids, tables and places of all entries, or of those whose rows changed; in any order.
extern "C" __global__ void rows_list(const u64* entries, i64 size, const unsigned char* changed,
                                     u64* keys, int* tables, i64* places, i64* count) {
  FLAT(e, size) {
    u64 word = entries[2 * e + 1];
    if (word == 0) continue;
    i64 place = (i64)(word & PLACES) - 1;
    if (changed && !changed[place]) continue;
    i64 to = (i64)atomicAdd((u64*)count, 1ull);
    keys[to] = entries[2 * e];
    tables[to] = (int)(word >> PLACE_BITS);
    places[to] = place;
  }
}

// ---- first values -----------------------------------------------------------------------------

// Philox2x32-10 (oneflow/core/rng.py).
__device__ void philox(u64 seed, u64 index, u32* high, u32* low) {
  u32 left = (u32)index, right = (u32)(index >> 32) ^ (u32)(seed >> 32), key = (u32)seed;
  for (int i = 0; i < 10; ++i) {
    u64 product = (u64)left * 0xD256D193ull;
    left = (u32)(product >> 32) ^ key ^ right;
    right = (u32)product;
    key += 0x9E3779B9u;
  }
  *high = left;
  *low = right;
}

__device__ u64 mixed_in(u64 state, u64 word) {
  state = (state ^ word) + 0x9E3779B97F4A7C15ull;
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBull;
  return state ^ (state >> 31);
}

__device__ double normal_of(u32 high, u32 low) {
  double u = __dmul_rn((double)high + 1.0, 2.3283064365386963e-10);
  double radius = __dsqrt_rn(__dmul_rn(-2.0, log(u)));
  return __dmul_rn(radius, cos(__dmul_rn((double)low, 1.4629180792671596e-09)));
}

// Number j of a new row. columns: for each of a table the number behind its last, kind, two
// parameters and two bounds. seeds: of the row's first index and of its numbers, by table.
__device__ float first_value(const double* columns, i64 num_columns, const u64* seeds, u64 key,
                             int table, i64 j) {
  const double* column = columns + 6 * num_columns * table;
  while (j >= column[0]) column += 6;
  int kind = (int)column[1];
  double a = column[2], b = column[3];
  if (kind == 0) return (float)a;
  u32 high, low;
  philox(seeds[2 * table], key, &high, &low);
  u64 index = (((u64)high << 32) | low) + (u64)j, seed = seeds[2 * table + 1];
  philox(seed, index, &high, &low);
  if (kind == 1) {
    double unit = (double)(i64)(((u64)high << 21) ^ (u64)(low >> 11)) * 1.1102230246251565e-16;
    return (float)__dadd_rn(a, __dmul_rn(__dsub_rn(b, a), unit));
  }
  double value = __dadd_rn(a, __dmul_rn(b, normal_of(high, low)));
  if (kind == 3)
    for (u64 attempt = 1; value < column[4] || value > column[5]; ++attempt) {
      philox(mixed_in(mixed_in(0x9E3779B97F4A7C15ull, seed), attempt), index, &high, &low);
      value = __dadd_rn(a, __dmul_rn(b, normal_of(high, low)));
    }
  return (float)value;
}

// The rows that `rows_place` gave places; a warp each.
extern "C" __global__ void rows_create(float* lines, i64 pitch, const u64* keys, const int* tables,
                                       const i64* places, i64 n, unsigned char* changed,
                                       const double* columns, i64 num_columns, const u64* seeds,
                                       const i64* head) {
  i64 there = head[ROWS], lane = threadIdx.x % 32;
  for (i64 i = FIRST / 32; i < n; i += (i64)gridDim.x * blockDim.x / 32) {
    i64 place = places[i];
    if (place < there) continue;
    for (i64 j = lane; j < pitch; j += 32)
      lines[place * pitch + j] = first_value(columns, num_columns, seeds, keys[i], tables[i], j);
    if (lane == 0) changed[place] = 1;
  }
}

// ---- rows -------------------------------------------------------------------------------------

// The last launch of a batch: its rows are there.
__device__ void finish(i64* head) {
  if (FIRST) return;
  head[CREATED] += head[ROWS_AFTER] - head[ROWS];
  head[ROWS] = head[ROWS_AFTER];
}

// out: the first `size` numbers of the row of every id; the first values of ids that are NEW still,
// and zeros where there is no row.
extern "C" __global__ void rows_take(float* out, i64 size, const float* lines, i64 pitch,
                                     const u64* keys, const int* tables, const int* at,
                                     const int* slots, const i64* places, i64 n,
                                     const double* columns, i64 num_columns, const u64* seeds,
                                     i64* head) {
  FLAT(x, n * size) {
    i64 i = x / size, j = x % size;
    int first = first_of(at, slots, i);
    i64 place = first < 0 ? -1 : places[first];
    if (place >= 0) out[x] = lines[place * pitch + j];
    else if (place == NEW)
      out[x] = first_value(columns, num_columns, seeds, keys[i], tables[i], j);
    else out[x] = 0.0f;
  }
  finish(head);
}

// Notes that rows were changed, in step *step where `marks_step`: in their last number.
extern "C" __global__ void rows_mark(float* lines, i64 pitch, const i64* places, i64 n,
                                     unsigned char* changed, const i64* step, i64 marks_step,
                                     i64* head) {
  FLAT(i, n) {
    i64 place = places[i];
    if (place < 0) continue;
    changed[place] = 1;
    if (marks_step) lines[place * pitch + pitch - 1] = (float)*step;
  }
  finish(head);
}

// Replaces whole rows.
extern "C" __global__ void rows_put(float* lines, i64 pitch, const float* rows, const i64* places,
                                    i64 n) {
  FLAT(x, n * pitch) {
    i64 place = places[x / pitch];
    if (place >= 0) lines[place * pitch + x % pitch] = rows[x];
  }
}

// The rows at places.
extern "C" __global__ void rows_get(float* rows, const float* lines, i64 pitch, const i64* places,
                                    i64 n) {
  FLAT(x, n * pitch) rows[x] = lines[places[x / pitch] * pitch + x % pitch];
}

// ---- gradients --------------------------------------------------------------------------------

// sums, at the first of equal ids: the sums of d.
extern "C" __global__ void rows_add(float* sums, const float* d, i64 size, const int* at,
                                    const int* slots, i64 n) {
  FLAT(x, n * size) {
    int first = first_of(at, slots, x / size);
    if (first >= 0) atomicAdd(sums + first * size + x % size, d[x]);
  }
}

// squares[bucket] += the squares of a sum; a warp each.
extern "C" __global__ void rows_squares(double* squares, const float* sums, i64 size,
                                        const int* buckets, const int* at, const int* slots,
                                        i64 n) {
  for (i64 i = FIRST / 32; i < n; i += (i64)gridDim.x * blockDim.x / 32) {
    if (first_of(at, slots, i) != i) continue;
    double total = 0.0;
    for (i64 j = threadIdx.x % 32; j < size; j += 32) {
      double value = sums[i * size + j];
      total += value * value;
    }
    for (int o = 16; o > 0; o >>= 1) total += __shfl_xor_sync(0xffffffffu, total, o);
    if (threadIdx.x % 32 == 0) atomicAdd(squares + buckets[i], total);
  }
}

extern "C" __global__ void rows_norms(float* norms, const double* squares, i64 n) {
  FLAT(i, n) norms[i] = (float)sqrt(squares[i]);
}

// The factor between norms that were told and those that came back, from the largest: one block.
extern "C" __global__ void rows_scale(float* scale, const float* told, const float* norms, i64 n) {
  __shared__ float most[THREADS];
  __shared__ i64 where[THREADS];
  float value = -1.0f;
  i64 at = 0;
  ROW(i, n)
    if (value == value && !(told[i] <= value)) { value = told[i]; at = i; }
  most[threadIdx.x] = value;
  where[threadIdx.x] = at;
  __syncthreads();
  if (threadIdx.x) return;
  for (int t = 1; t < THREADS; ++t)
    if (value == value && !(most[t] <= value)) { value = most[t]; at = where[t]; }
  float after = norms[at];
  bool is_one = n == 0 || value == after || value == 0.0f || !(value - value == 0.0f);
  *scale = is_one ? 1.0f : (float)((double)after / (double)value);
}
""",
)


@dataclass(frozen=True)
class DeviceIds:
    """The ids of a batch on a GPU, and which are equal: see `rows_number` above.

    keys: uint64[n].  tables, buckets, at: int32[n].  slots: int32[2^k].
    """

    keys: Array
    tables: Array
    buckets: Array
    at: Array
    slots: Array

    @property
    def size(self) -> int:
        return int(self.keys.size)

    def are_later(self, xp: ArrayModule) -> Array:
        """bool[n]: ids that are not the first of equal ones, or have no row here."""
        numbers = xp.arange(self.size, dtype=np.int32)
        found: Array = (self.at < 0) | (self.slots[self.at] != numbers)
        return found


class DeviceTable:
    """The common part of tables in the memory of the current GPU.

    lines: float32 (rows, line_size), whose rows `places` name.  head: counts.
    """

    def __init__(self, xp: ArrayModule, num_lines: int, line_size: int) -> None:
        self.xp, self.line_size = xp, line_size
        self.lines: Any = xp.empty((num_lines, line_size), np.float32)
        self.head: Any = xp.zeros(HEAD, np.int64)

    def number(
        self,
        ids: Array,
        table_ids: Array | None,
        *,
        num_tables: int,
        padding_idx: int | None = None,
        is_signed: bool = False,
        buckets: tuple[int, int] = (0, BUCKETS),
        is_left: Array | None = None,
    ) -> DeviceIds:
        """The distinct ids of a batch. ids: integers of any shape.  is_left: bool[n], of ids that
        are left out."""
        xp = self.xp
        ids = xp.ascontiguousarray(ids, np.int64).reshape(-1)
        if table_ids is not None:
            table_ids = xp.ascontiguousarray(table_ids, np.int32).reshape(-1)
        n = int(ids.size)
        slots = xp.empty(1 << max(4, (2 * n - 1).bit_length()), np.int32)
        slots.data.memset_async(0xFF, slots.nbytes)
        found, buckets_of, at = (xp.empty(n, np.int32) for _ in range(3))
        made = DeviceIds(xp.empty(n, np.uint64), found, buckets_of, at, slots)
        padding = 0 if padding_idx is None else padding_idx
        numbers = num_tables, padding_idx is not None, padding, is_signed, *buckets, BUCKETS
        by_item(
            "rows_number", n, ids, or_null(table_ids), or_null(is_left), long(n),
            *map(long, numbers), made.keys, made.tables, made.buckets, made.at, slots,
            long(slots.size - 1), self.head,
        )  # fmt: skip
        return made

    def distinct(self, keys: Array, tables: Array) -> DeviceIds:
        """Ids of the host, uint64[n] and int32[n], of which none are equal."""
        xp = self.xp
        numbers = xp.arange(keys.size, dtype=np.int32)
        known = xp.asarray(keys), xp.asarray(tables)
        return DeviceIds(*known, xp.zeros(keys.size, np.int32), numbers, numbers)

    def get(self, places: Array) -> Array:
        """The rows at places of the host, there: float32[n, line_size]."""
        xp = self.xp
        rows = xp.empty((places.size, self.line_size), np.float32)
        there, n = xp.asarray(places), long(places.size)
        by_item("rows_get", rows.size, rows, self.lines, long(self.line_size), there, n)
        found: Array = xp.asnumpy(rows)
        return found

    def put(self, rows: Array, places: Array) -> None:
        """Replace rows by those of the host, float32[n, line_size]; places: -1 for none."""
        there, at, n = self.xp.asarray(rows), self.xp.asarray(places), long(places.size)
        by_item("rows_put", rows.size, self.lines, long(self.line_size), there, at, n)


class RowTable(DeviceTable):
    """The rows and the index of a table in the memory of the current GPU.

    capacity: most rows.  columns, seeds: of `first_value` above.  Places of a batch: int64[n], of
    the first of equal ids, -1 of the others.
    """

    def __init__(
        self, xp: ArrayModule, capacity: int, line_size: int, columns: Array, seeds: Array
    ) -> None:
        super().__init__(xp, capacity, line_size)
        self.capacity = capacity
        self.entries = xp.zeros((_entries_of(capacity), 2), np.uint64)
        self.changed = xp.zeros(capacity, np.uint8)
        self._columns, self._seeds = xp.asarray(columns), xp.asarray(seeds)

    @property
    def nbytes(self) -> int:
        """Device memory of rows and index."""
        return self.nbytes_of(self.capacity, self.line_size)

    @staticmethod
    def nbytes_of(capacity: int, line_size: int) -> int:
        """The same of any table."""
        return capacity * (4 * line_size + 1) + 16 * _entries_of(capacity)

    def clear(self) -> None:
        """Have no rows."""
        self.entries.fill(0)
        self.changed.fill(0)
        self.head.fill(0)

    # ---- ids -------------------------------------------------------------------------------------

    def find(
        self,
        ids: DeviceIds,
        is_wanted: Array | None = None,
        *,
        counted: int = 0,
        asked: int = 0,
    ) -> tuple[Array, Array]:
        """(places, new ids by block) of a batch; a place is -2 where a row is to be made.

        is_wanted: bool[]; if it is false all ids are left out.  counted, asked: DISTINCT or
        UPDATED, and ASKED or CAME, the words of the head that count them, or 0.
        """
        xp = self.xp
        places = xp.empty(ids.size, np.int64)
        fresh = xp.empty(max(1, _blocks(ids.size)), np.int64)
        if not ids.size:
            fresh.fill(0)
        elif is_wanted is not None:
            is_wanted = xp.asarray(is_wanted, np.bool_)
        by_block(
            "rows_find", ids.size, ids.keys, ids.tables, ids.at, ids.slots, long(ids.size),
            self.entries, long(len(self.entries)), or_null(is_wanted), places, fresh, self.head,
            long(counted),
            long(asked),
        )  # fmt: skip
        return places, fresh

    def place(self, ids: DeviceIds, places: Array, fresh: Array) -> None:
        """Give new ids places; `take`, `mark` or `finish` completes the batch."""
        by_block(
            "rows_place", ids.size, ids.keys, ids.tables, long(ids.size), self.entries,
            long(len(self.entries)), long(self.capacity), places, fresh, self.head,
        )  # fmt: skip

    def create(self, ids: DeviceIds, places: Array) -> None:
        """Write the first values of new rows."""
        numbers = long(self.line_size), long(ids.size), long(self._columns.shape[1])
        pitch, n, columns = numbers
        by_item(
            "rows_create", 32 * ids.size, self.lines, pitch, ids.keys, ids.tables,
            places, n, self.changed, self._columns, columns, self._seeds, self.head,
        )  # fmt: skip

    def insert(self, keys: Array, tables: Array, places: Array) -> None:
        """Give ids of the host, none of which is there, places of their own."""
        xp = self.xp
        ids = [xp.asarray(a) for a in (keys, tables, places)]
        n = long(keys.size), self.entries, long(len(self.entries))
        by_item("rows_insert", keys.size, *ids, *n)

    def listed(self, *, is_changed: bool = False) -> tuple[Array, Array, Array]:
        """Keys, tables and places of all ids on the host, or of changed rows, in any order."""
        xp = self.xp
        most = self.num_changed if is_changed else int(self.head[ROWS])
        found = [xp.empty(most, t) for t in (np.uint64, np.int32, np.int64)]
        changed = self.changed if is_changed else None
        of = self.entries, long(len(self.entries)), or_null(changed)
        by_item("rows_list", len(self.entries), *of, *found, xp.zeros(1, np.int64))
        keys, tables, places = map(xp.asnumpy, found)
        return keys, tables, places

    @property
    def num_changed(self) -> int:
        """Rows that changed."""
        return int(self.changed.sum(dtype=np.int64))

    # ---- rows ------------------------------------------------------------------------------------

    def fill(self, begin: int, rows: Array, changed: Array) -> None:
        """Have rows of the host, and whether they changed, at the places from `begin`."""
        end = begin + len(rows)
        self.lines[begin:end].set(rows)
        self.changed[begin:end].set(changed.astype(np.uint8))

    def take(self, out: Array, ids: DeviceIds, places: Array) -> None:
        """Write the first numbers of the row of each id into `out`, float32[n, k]: first values of
        those that got no place, zeros for ids that are left out. Ends a batch."""
        first_values = self._columns, long(self._columns.shape[1]), self._seeds
        take_rows(out, ids, self.lines, places, self.head, first_values)


def take_rows(
    out: Array,
    ids: DeviceIds,
    lines: Array,
    places: Array,
    head: Array,
    first_values: tuple[object, ...] = (np.int64(0),) * 3,
) -> None:
    """Write the first numbers of the row of each id into `out`, float32[n, k]. Ends a batch."""
    batch = ids.keys, ids.tables, ids.at, ids.slots, places, long(ids.size)
    shape = long(out.shape[-1]), lines, long(lines.shape[1])
    by_item("rows_take", out.size, out, *shape, *batch, *first_values, head)


def mark_rows(lines: Array, places: Array, changed: Array, step: Array | None, head: Array) -> None:
    """Note that rows were changed. step: int64[], written as their last number. Ends a batch."""
    n, marks = long(places.size), long(step is not None)
    args = changed, or_null(step), marks, head
    by_item("rows_mark", places.size, lines, long(lines.shape[1]), places, n, *args)


# ---- gradients -----------------------------------------------------------------------------------


def sums_of(xp: ArrayModule, d: Array, ids: DeviceIds) -> Array:
    """float32[n, size]: at the first of equal ids the sum of their rows of d, which has no gaps."""
    sums: Array = xp.zeros(d.shape, np.float32)
    n = long(ids.size)
    by_item("rows_add", d.size, sums, d, long(d.shape[1]), ids.at, ids.slots, n)
    return sums


def norms_of(xp: ArrayModule, sums: Array, ids: DeviceIds, norms: Array) -> None:
    """Write the norm of the sums of each bucket into `norms`, float32[buckets]."""
    squares = xp.zeros(norms.size, np.float64)
    batch = ids.buckets, ids.at, ids.slots, long(ids.size)
    by_item("rows_squares", 32 * ids.size, squares, sums, long(sums.shape[1]), *batch)
    by_item("rows_norms", norms.size, norms, squares, long(norms.size))


def scale_of(xp: ArrayModule, told: Array, norms: Array) -> Array:
    """float32[1]: the factor by which reported norms have been multiplied."""
    scale: Array = xp.empty(1, np.float32)
    launch("rows_scale", (1,), (THREADS,), scale, told, norms, long(told.size))
    return scale


def _entries_of(capacity: int) -> int:
    return int(capacity / LOAD) + 1


def _blocks(count: int) -> int:
    return -(-count // THREADS)


def or_null(x: Array | None) -> object:
    """An address for a function that asks whether there is one."""
    return long(0) if x is None else x
