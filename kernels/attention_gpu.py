"""Attention on a GPU in tiles: scores live in registers and shared memory and are never written.

Forward (Dao et al., "FlashAttention", 2022): a block of threads owns TILE rows of one head and goes
over the tiles of columns that they see. It keeps the largest score of each row so far, the sum of
exponentials below it and the output that belongs to that sum; a larger score shrinks both.

Backward: weights follow from q, k and the saved statistic lse. Two launches, so that no sum needs
atomics and results repeat to the bit: a block per tile of rows gives d_q and the sum of d_out * out
of each row; then a block per tile of columns gives d_k and d_v, over all heads that share them.

Half floats without a mask go to cuDNN instead, where it is installed and takes them: its tiles are
multiplied by tensor cores.

Products go through shared memory, DEPTH elements of the inner dim at a time; a thread holds EACH by
EACH results. Outputs wider than WIDTH are made in slices, each by blocks of its own.
"""

from __future__ import annotations

from functools import partial
from math import prod

from oneflow.core.dtype import float32
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels import cudnn
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.cuda_launch import THREADS, cuda_source, launch, long, whole
from oneflow.kernels.registry import Kernel, KernelFunction, add_kernel, taking

FLOATS = ("float32", "float64", "float16", "bfloat16")
TILES = {"float64": 32}
"""Rows and columns of a tile, 64 elsewhere: three of them must fit into 48 KiB."""
WIDTH = 128

cuda_source(
    "attention_gpu",
    r"""
constexpr int TILE = sizeof(T) == 8 ? 32 : 64, EACH = TILE / 16, DEPTH = 32, WIDTH = 128;
constexpr int SPOTS = WIDTH / 16;
typedef T Scores[EACH][EACH];
typedef T Sums[EACH][SPOTS];
typedef T Part[TILE][DEPTH + 1];
typedef T Weights[TILE][TILE + 1];

// A matrix of one head, as it lies: elements from a row to the next.
struct Matrix { const S* at; i64 next, rows, columns; };

// Rows of a tensor's head: batch, head and row strides.
#define STRIDES(name) i64 name##_batch, i64 name##_head, i64 name##_row
#define HEAD(name, batch, head) (name + (batch) * name##_batch + (head) * name##_head)
#define OVER(i, n) _Pragma("unroll") for (int i = 0; i < (n); ++i)  // so arrays are registers
#define X (threadIdx.x % 16)
#define Y (threadIdx.x / 16)

// part <- rows [row, row + TILE) and columns [column, column + DEPTH) of m, zeros beyond its ends.
__device__ void fetch(Part& part, const Matrix& m, i64 row, i64 column) {
  for (int i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
    i64 r = row + i / DEPTH, c = column + i % DEPTH;
    part[i / DEPTH][i % DEPTH] = r < m.rows && c < m.columns ? read(m.at[r * m.next + c]) : T(0);
  }
}

// s <- a[row + ..] @ b[column + ..]^T
__device__ void score(Scores& s, Part& left, Part& right, const Matrix& a, i64 row, const Matrix& b,
                      i64 column) {
  OVER(i, EACH)
    OVER(j, EACH) s[i][j] = 0;
  for (i64 depth = 0; depth < a.columns; depth += DEPTH) {
    __syncthreads();
    fetch(left, a, row, depth);
    fetch(right, b, column, depth);
    __syncthreads();
#pragma unroll 4
    for (int k = 0; k < DEPTH; ++k) {
      T x[EACH], y[EACH];
      OVER(i, EACH) x[i] = left[Y + 16 * i][k], y[i] = right[X + 16 * i][k];
      OVER(i, EACH)
        OVER(j, EACH) s[i][j] += x[i] * y[j];
    }
  }
}

// sums += weights @ b[row + ..], columns [from, from + WIDTH) of b.
__device__ void gather(Sums& sums, const Weights& weights, Part& part, const Matrix& b, i64 row,
                       i64 from) {
#pragma unroll
  for (int spot = 0; spot < SPOTS; spot += DEPTH / 16) {
    if (from + spot * 16 < b.columns) {  // the same for all threads
      __syncthreads();
      fetch(part, b, row, from + spot * 16);
      __syncthreads();
#pragma unroll 4
      for (int k = 0; k < TILE; ++k) {
        T x[EACH], y[DEPTH / 16];
        OVER(i, EACH) x[i] = weights[Y + 16 * i][k];
        OVER(j, DEPTH / 16) y[j] = part[k][X + 16 * j];
        OVER(i, EACH)
          OVER(j, DEPTH / 16) sums[i][spot + j] += x[i] * y[j];
      }
    }
  }
}

__device__ void clear(Sums& sums) {
  OVER(i, EACH)
    OVER(j, SPOTS) sums[i][j] = 0;
}

// to[row + .., from + ..] <- sums
__device__ void put(S* to, const Sums& sums, i64 row, i64 rows, i64 from, i64 columns) {
  OVER(i, EACH)
    OVER(j, SPOTS) {
      i64 r = row + Y + 16 * i, c = from + X + 16 * j;
      if (r < rows && c < columns) to[r * columns + c] = written(sums[i][j]);
    }
}

// Over the 16 threads that hold a row.
__device__ T row_max(T value) {
  for (int o = 8; o > 0; o >>= 1) value = larger(value, __shfl_xor_sync(0xffffffffu, value, o));
  return value;
}
__device__ T row_sum(T value) {
  for (int o = 8; o > 0; o >>= 1) value += __shfl_xor_sync(0xffffffffu, value, o);
  return value;
}

// What may be seen. kind: 0 all, 1 columns up to the row, 2 bools, 3 summands.
struct Mask { const void* at; i64 row, column; int kind; };
#define MASK const void* mask, i64 mask_batch, i64 mask_head, i64 mask_row, i64 mask_column, \
    i64 kind
__device__ Mask mask_of(MASK, i64 batch, i64 head) {
  i64 first = batch * mask_batch + head * mask_head;
  const char* at = (const char*)mask + first * (kind == 3 ? sizeof(S) : 1);
  return {at, mask_row, mask_column, (int)kind};
}
#define MASK_OF(batch, head) \
  mask_of(mask, mask_batch, mask_head, mask_row, mask_column, kind, batch, head)

// The score of one place, -inf where nothing is to be seen.
__device__ T masked(T score, const Mask& mask, i64 row, i64 column, i64 rows, i64 columns) {
  if (row >= rows || column >= columns) return lowest();
  i64 at = row * mask.row + column * mask.column;
  if (mask.kind == 1) return column <= row ? score : lowest();
  if (mask.kind == 2) return ((const unsigned char*)mask.at)[at] ? score : lowest();
  return mask.kind == 3 ? score + read(((const S*)mask.at)[at]) : score;
}

// __launch_bounds__(THREADS, 2): two blocks share a processor, with 128 registers a thread. That is
// too few for attention_d_kv, whose two sums are 64 of them.

// What a block works on: blockIdx.x head of a batch, y tile, z slice of the output's columns. Under
// a causal mask the last rows see most, so they go first.
#define TILE_OF_ROWS                                                                    \
  i64 batch = blockIdx.x / heads, head = blockIdx.x % heads, shared = head / times;     \
  i64 row = (gridDim.y - 1 - blockIdx.y) * (i64)TILE, from = blockIdx.z * (i64)WIDTH;   \
  Matrix queries = {HEAD(q, batch, head), q_row, rows, d};                              \
  Matrix keys = {HEAD(k, batch, shared), k_row, columns, d};                            \
  Matrix values = {HEAD(v, batch, shared), v_row, columns, e};
#define SHAPE i64 heads, i64 times, i64 rows, i64 columns, i64 d, i64 e, T scale

extern "C" __global__ void __launch_bounds__(THREADS, 2)
attention_forward(S* out, T* lse, const S* q, const S* k, const S* v, STRIDES(q), STRIDES(k),
                  STRIDES(v), MASK, SHAPE) {
  __shared__ Part left, right;
  __shared__ Weights weights;
  TILE_OF_ROWS
  Mask seen = MASK_OF(batch, head);
  Sums sums;
  clear(sums);
  T best[EACH], total[EACH];
  OVER(i, EACH) best[i] = lowest(), total[i] = 0;
  i64 end = kind == 1 && row + TILE < columns ? row + TILE : columns;
  for (i64 column = 0; column < end; column += TILE) {
    Scores s;
    score(s, left, right, queries, row, keys, column);
    OVER(i, EACH) {
      T top = best[i], own = 0;
      OVER(j, EACH) {
        i64 r = row + Y + 16 * i, c = column + X + 16 * j;
        s[i][j] = masked(s[i][j] * scale, seen, r, c, rows, columns);
        top = larger(top, s[i][j]);
      }
      top = row_max(top);
      T base = top == lowest() ? T(0) : top;  // nothing seen yet: exp(-inf - 0) is 0
      OVER(j, EACH) {
        T weight = exp(s[i][j] - base);
        weights[Y + 16 * i][X + 16 * j] = weight;
        own += weight;
      }
      T shrink = exp(best[i] - base);
      total[i] = total[i] * shrink + row_sum(own);
      best[i] = top;
      OVER(j, SPOTS) sums[i][j] *= shrink;
    }
    gather(sums, weights, right, values, column, from);
  }
  OVER(i, EACH) {
    i64 r = row + Y + 16 * i;
    OVER(j, SPOTS) sums[i][j] /= total[i] == 0 ? T(1) : total[i];
    if (r < rows && X == 0 && from == 0)
      lse[(i64)blockIdx.x * rows + r] = total[i] == 0 ? lowest() : best[i] + log(total[i]);
  }
  put(out + (i64)blockIdx.x * rows * e, sums, row, rows, from, e);
}

// The weight of one score, given the statistic of its row.
__device__ T weight_of(T score, T lse) { return score == lowest() ? T(0) : exp(score - lse); }

#define GRADIENT const S* d_out, STRIDES(d_out), const S* q, STRIDES(q), const S* k, STRIDES(k), \
    const S* v, STRIDES(v), const T* lse, MASK, SHAPE

extern "C" __global__ void __launch_bounds__(THREADS, 2)
attention_d_q(S* d_q, T* dots, const S* out, STRIDES(out), GRADIENT) {
  __shared__ Part left, right;
  __shared__ Weights weights;
  TILE_OF_ROWS
  Matrix given = {HEAD(d_out, batch, head), d_out_row, rows, e};
  const S* made = HEAD(out, batch, head);
  Mask seen = MASK_OF(batch, head);
  T dot[EACH], statistic[EACH];
  OVER(i, EACH) {
    i64 r = row + Y + 16 * i;
    dot[i] = 0, statistic[i] = 0;
    if (r < rows) {
      statistic[i] = lse[(i64)blockIdx.x * rows + r];
      for (i64 c = X; c < e; c += 16)
        dot[i] += read(given.at[r * given.next + c]) * read(made[r * out_row + c]);
    }
    dot[i] = row_sum(dot[i]);
    if (r < rows && X == 0 && from == 0) dots[(i64)blockIdx.x * rows + r] = dot[i];
  }
  Sums sums;
  clear(sums);
  i64 end = kind == 1 && row + TILE < columns ? row + TILE : columns;
  for (i64 column = 0; column < end; column += TILE) {
    Scores s, d_weights;
    score(s, left, right, queries, row, keys, column);
    score(d_weights, left, right, given, row, values, column);
    OVER(i, EACH)
      OVER(j, EACH) {
        i64 r = row + Y + 16 * i, c = column + X + 16 * j;
        T weight = weight_of(masked(s[i][j] * scale, seen, r, c, rows, columns), statistic[i]);
        weights[Y + 16 * i][X + 16 * j] = weight * (d_weights[i][j] - dot[i]) * scale;
      }
    gather(sums, weights, right, keys, column, from);
  }
  put(d_q + (i64)blockIdx.x * rows * d, sums, row, rows, from, d);
}

extern "C" __global__ void attention_d_kv(S* d_k, S* d_v, const T* dots, GRADIENT) {
  __shared__ Part left, right;
  __shared__ Weights weights;
  i64 both = heads / times, batch = blockIdx.x / both, shared = blockIdx.x % both;
  i64 column = blockIdx.y * (i64)TILE, from = blockIdx.z * (i64)WIDTH;
  Matrix keys = {HEAD(k, batch, shared), k_row, columns, d};
  Matrix values = {HEAD(v, batch, shared), v_row, columns, e};
  Sums key_sums, value_sums;
  clear(key_sums);
  clear(value_sums);
  for (i64 head = shared * times; head < (shared + 1) * times; ++head) {
    Matrix queries = {HEAD(q, batch, head), q_row, rows, d};
    Matrix given = {HEAD(d_out, batch, head), d_out_row, rows, e};
    Mask seen = MASK_OF(batch, head);
    i64 first = (batch * heads + head) * rows;
    for (i64 row = kind == 1 ? column : 0; row < rows; row += TILE) {
      Scores s, d_weights;  // transposed: a thread's rows are columns of the scores
      score(s, left, right, keys, column, queries, row);
      score(d_weights, left, right, values, column, given, row);
      OVER(j, EACH) {
        i64 r = row + X + 16 * j;
        T statistic = r < rows ? lse[first + r] : T(0), dot = r < rows ? dots[first + r] : T(0);
        OVER(i, EACH) {
          i64 c = column + Y + 16 * i;
          s[i][j] = weight_of(masked(s[i][j] * scale, seen, r, c, rows, columns), statistic);
          d_weights[i][j] = s[i][j] * (d_weights[i][j] - dot) * scale;
          weights[Y + 16 * i][X + 16 * j] = s[i][j];
        }
      }
      gather(value_sums, weights, right, given, row, from);
      __syncthreads();
      OVER(i, EACH)
        OVER(j, EACH) weights[Y + 16 * i][X + 16 * j] = d_weights[i][j];
      __syncthreads();
      gather(key_sums, weights, right, queries, row, from);
    }
  }
  put(d_k + (i64)blockIdx.x * columns * d, key_sums, column, columns, from, d);
  put(d_v + (i64)blockIdx.x * columns * e, value_sums, column, columns, from, e);
}
""",
)


def _accumulator(q: TensorType) -> TensorType:
    """The type of the sum of d_out * out of each row."""
    return TensorType(q.shape[:-1], q.dtype if q.dtype.bytes >= 4 else float32)


def _by_head(x: Array) -> Array:
    """x as (batch, heads, rows, elements), its rows without gaps."""
    if x.shape[-1] > 1 and x.strides[-1] != x.itemsize:
        x = whole(x)
    return x.reshape(-1, *x.shape[-3:]) if x.ndim > 2 else x[None, None]


def _strides(x: Array, dims: int = 3) -> list[object]:
    return [long(s // x.itemsize) for s in x.strides[:dims]]


def _numbers(x: Array) -> list[object]:
    """An array of one head after the other, and its strides."""
    heads = _by_head(x)
    return [heads, *_strides(heads)]


def _mask(
    xp: ArrayModule, mask: tuple[Array, ...], q: Array, k: Array, causal: bool
) -> list[object]:
    """The MASK of the launched functions."""
    if not mask:
        return [q, *map(long, (0, 0, 0, 0, int(causal)))]
    wide = xp.broadcast_to(mask[0], (*q.shape[:-1], k.shape[-2]))
    heads = wide.reshape(-1, *wide.shape[-3:]) if wide.ndim > 2 else wide[None, None]
    return [heads, *_strides(heads, 4), long(2 if mask[0].dtype == bool else 3)]


def _shape(q: Array, k: Array, v: Array, scale: float, statistic: Array) -> list[object]:
    """The SHAPE of the launched functions."""
    heads, shared = (x.shape[-3] if x.ndim > 2 else 1 for x in (q, k))
    sizes = (heads, heads // shared, q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1])
    return [*map(long, sizes), statistic.dtype.type(scale)]


def _grid(x: Array, width: int) -> tuple[int, int, int]:
    """Blocks over the heads, tiles of rows and slices of columns of x; width: of the output."""
    tile = TILES.get(x.dtype.name, 64)
    return prod(x.shape[:-2]), -(-x.shape[-2] // tile), max(1, -(-width // WIDTH))


def attention(
    xp: ArrayModule,
    out: Array,
    lse: Array,
    q: Array,
    k: Array,
    v: Array,
    *mask: Array,
    scale: float,
    is_causal: bool,
) -> None:
    if not lse.size:
        return
    inputs = [_numbers(x) for x in (q, k, v)]
    launch(
        "attention_forward", _grid(q, v.shape[-1]), (THREADS,), out, lse,
        *(x[0] for x in inputs), *(stride for x in inputs for stride in x[1:]),
        *_mask(xp, mask, q, k, is_causal), *_shape(q, k, v, scale, lse),
    )  # fmt: skip


def attention_grad(
    xp: ArrayModule,
    d_q: Array,
    d_k: Array,
    d_v: Array,
    d_out: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *rest: Array,
    scale: float,
    is_causal: bool,
) -> None:
    *mask, dots = rest
    if not (lse.size and k.size):
        for x in (d_q, d_k, d_v):
            x.fill(0)
        return
    common = [
        *(number for x in (d_out, q, k, v) for number in _numbers(x)), whole(lse),
        *_mask(xp, tuple(mask), q, k, is_causal), *_shape(q, k, v, scale, lse),
    ]  # fmt: skip
    d, e = q.shape[-1], v.shape[-1]
    launch("attention_d_q", _grid(q, d), (THREADS,), d_q, dots, *_numbers(out), *common)
    launch("attention_d_kv", _grid(k, max(d, e)), (THREADS,), d_k, d_v, dots, *common)


# ---- by cuDNN ------------------------------------------------------------------------------------


def _layout(t: TensorType) -> cudnn.Layout:
    """The heads of an array without gaps."""
    lead = (1,) * max(0, 3 - t.ndim) + t.shape[:-2]
    return cudnn.packed((prod(lead[:-1]), lead[-1], *t.shape[-2:]))


def _plan(ins: tuple[TensorType, ...], attrs: Attrs) -> cudnn.Plan | str:
    """The plan for arrays without gaps; a text: the reason for the tiles above."""
    if len(ins) > 3:
        return "a mask"
    if not all(t.numel for t in ins):
        return "no elements"
    layouts = map(_layout, ins)
    return cudnn.planned(
        cudnn.attention, ins[0].dtype.name, *layouts, attrs["scale"], attrs["is_causal"]
    )


def _grad_plan(ins: tuple[TensorType, ...], attrs: Attrs) -> cudnn.Plan | str:
    d_out, q, k, v, out, *_ = ins
    if len(ins) > 6:
        return "a mask"
    if not all(t.numel for t in ins):
        return "no elements"
    layouts = map(_layout, (d_out, q, k, v, out))
    return cudnn.planned(
        cudnn.attention_grad, q.dtype.name, *layouts, attrs["scale"], attrs["is_causal"]
    )


def _workspace(ins: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    return cudnn.workspace(_plan(ins, attrs))


def _grad_workspace(ins: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """The sums of d_out * out of rows, and that of cuDNN."""
    return _accumulator(ins[1]), *cudnn.workspace(_grad_plan(ins, attrs))


def _bind(ins: tuple[TensorType, ...], attrs: Attrs) -> KernelFunction:
    if isinstance(_plan(ins, attrs), str):
        return partial(attention, **attrs)

    def run(
        xp: ArrayModule, out: Array, lse: Array, q: Array, k: Array, v: Array, work: Array
    ) -> None:
        heads = [_by_head(x) for x in (q, k, v)]
        plan = cudnn.planned(
            cudnn.attention, q.dtype.name, *map(cudnn.layout_of, heads),
            attrs["scale"], attrs["is_causal"],
        )  # fmt: skip
        arrays = dict(zip((cudnn.Q, cudnn.K, cudnn.V), heads, strict=True))
        arrays |= {cudnn.OUT: out, cudnn.STATISTICS: lse}
        if not cudnn.ran(plan, arrays, work):
            attention(xp, out, lse, q, k, v, **attrs)

    return taking(run, "cuDNN")


def _bind_grad(ins: tuple[TensorType, ...], attrs: Attrs) -> KernelFunction:
    if isinstance(_grad_plan(ins, attrs), str):
        return partial(attention_grad, **attrs)

    def run(xp: ArrayModule, d_q: Array, d_k: Array, d_v: Array, *rest: Array) -> None:
        *inputs, lse, dots, work = rest
        heads = [_by_head(x) for x in inputs]
        plan = cudnn.planned(
            cudnn.attention_grad, d_q.dtype.name, *map(cudnn.layout_of, heads),
            attrs["scale"], attrs["is_causal"],
        )  # fmt: skip
        places = (cudnn.D_OUT, cudnn.Q, cudnn.K, cudnn.V, cudnn.OUT)
        arrays = dict(zip(places, heads, strict=True))
        arrays |= {cudnn.STATISTICS: whole(lse)}
        arrays |= {cudnn.D_Q: d_q, cudnn.D_K: d_k, cudnn.D_V: d_v}
        if not cudnn.ran(plan, arrays, work):
            attention_grad(xp, d_q, d_k, d_v, *inputs, lse, dots, **attrs)

    return taking(run, "cuDNN")


add_kernel("attention", "cuda", Kernel(attention, _workspace, dtypes=FLOATS, bind=_bind))
add_kernel(
    "attention_grad",
    "cuda",
    Kernel(attention_grad, _grad_workspace, dtypes=FLOATS, bind=_bind_grad),
)
