"""Hand-written GPU kernels: CUDA C beside the topic's other kernels, compiled at the first launch.

A topic gives its functions as one text (`cuda_source`) and launches them by name. It is written for
numbers S as they are stored, which `read` makes a T = float or double, and `written` an S again.
Rows: one block of THREADS threads works on one row, with reductions through warp shuffles. Flat
arrays: grid-stride loops. The functions are extern "C" and get their sizes as long long.

This module imports CuPy only to compile and launch, so that registering costs no GPU.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from oneflow.kernels.array import Array
from oneflow.kernels.expressions.cuda_form import HALVES, cuda_function

THREADS = 256
MAX_BLOCKS = 4096  # of a flat kernel: enough for every GPU; the loops stride over the rest

PRELUDE = r"""
typedef long long i64;
typedef unsigned int u32;
typedef unsigned long long u64;
#define THREADS 256
#define FIRST (blockIdx.x * (i64)blockDim.x + threadIdx.x)
#define FLAT(i, n) for (i64 i = FIRST; i < (n); i += (i64)gridDim.x * blockDim.x)
#define ROW(j, n) for (i64 j = threadIdx.x; j < (n); j += THREADS)

__device__ T lowest() { return -INFINITY_T; }
__device__ T larger(T a, T b) { return (a > b || a != a) ? a : b; }

// Reduction over the block; every thread gets the result. Leads and ends with a barrier, so calls
// may follow each other.
#define BLOCK_REDUCE(name, combine, empty)                                          \
  __device__ T name(T value) {                                                      \
    __shared__ T part[32];                                                          \
    for (int o = 16; o > 0; o >>= 1) {                                              \
      T other = __shfl_xor_sync(0xffffffffu, value, o);                             \
      value = combine(value, other);                                                \
    }                                                                               \
    __syncthreads();                                                                \
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;                      \
    __syncthreads();                                                                \
    value = empty;                                                                  \
    for (int w = 0; w < THREADS / 32; ++w) value = combine(value, part[w]);         \
    return value;                                                                   \
  }
__device__ T plus(T a, T b) { return a + b; }
BLOCK_REDUCE(block_sum, plus, T(0))
BLOCK_REDUCE(block_max, larger, lowest())
"""

_SINGLE = "typedef float T;\n#define INFINITY_T __int_as_float(0x7f800000)\n"
_DOUBLE = "typedef double T;\n#define INFINITY_T __longlong_as_double(0x7ff0000000000000ll)\n"
_AS_IT_IS = """typedef T S;
__device__ T read(S x) { return x; }
__device__ S written(T x) { return x; }
"""
_HALF = """typedef unsigned short S;
__device__ T read(S x) { return from_FORMAT(x); }
__device__ S written(T x) { return to_FORMAT(x); }
"""
C_TYPES = {
    "float32": _SINGLE + _AS_IT_IS,
    "float64": _DOUBLE + _AS_IT_IS,
    "float16": HALVES + _SINGLE + _HALF.replace("FORMAT", "float16"),
    "bfloat16": HALVES + _SINGLE + _HALF.replace("FORMAT", "bfloat16"),
}
"""The types T and S of each dtype, and how to go from one to the other."""

SOURCES: dict[str, str] = {}
"""Topic -> its CUDA C."""

_NAME = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(.*?\)\s+)?(\w+)\(')


def cuda_source(topic: str, text: str) -> None:
    """Make the functions of `text` known to `launch`."""
    SOURCES[topic] = text


def source_of(topic: str, dtype: str) -> str:
    """The whole text of one topic for numbers of `dtype`."""
    return C_TYPES[dtype] + PRELUDE + SOURCES[topic]


def functions_of(topic: str) -> list[str]:
    """Names of the functions that can be launched."""
    return _NAME.findall(SOURCES[topic])


def by_row(name: str, rows: int, out: Array, *args: object) -> None:
    """Launch one block per row. The dtype of `out` is T."""
    if rows:
        launch(name, (rows,), (THREADS,), out, *args)


def flat(name: str, out: Array, *args: object) -> None:
    """Launch as many threads as help with the elements of `out`, whose dtype is S."""
    if out.size:
        blocks = min(MAX_BLOCKS, -(-out.size // THREADS))
        launch(name, (blocks,), (THREADS,), out, *args)


def by_item(name: str, count: int, *args: object, said: str = "") -> None:
    """Launch as many threads as help with `count` items. T and S are always float.

    said: the text that replaces SAID in the topic.
    """
    if count:
        blocks = min(MAX_BLOCKS, -(-count // THREADS))
        _function(name, "float32", said)((blocks,), (THREADS,), args)


def by_block(name: str, count: int, *args: object) -> None:
    """Launch a thread for each of `count` items, in blocks that know which they are. T and S are
    always float."""
    if count:
        _function(name, "float32")((-(-count // THREADS),), (THREADS,), args)


def launch(
    name: str, grid: tuple[int, ...], block: tuple[int, ...], out: Array, *args: object
) -> None:
    """Launch a function; the dtype of its first argument `out` is T."""
    _function(name, out.dtype.name)(grid, block, (out, *args))


def whole(x: Array) -> Array:
    """x without gaps."""
    import cupy

    made: Array = cupy.ascontiguousarray(x)
    return made


def count_rows(x: Array) -> int:
    """Rows of the last dim; 0 if they have no elements."""
    return prod(x.shape[:-1]) if x.size else 0


def long(value: int) -> object:
    """A size, as the functions take it."""
    return np.int64(value)


@lru_cache(maxsize=256)
def _function(name: str, dtype: str, said: str = "") -> Any:
    topic = next(t for t in SOURCES if name in functions_of(t))
    return cuda_function(source_of(topic, dtype).replace("SAID", said), name)
