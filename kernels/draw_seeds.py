"""Seeds of the draws of a recorded act, made on the GPU from where the generators are.

A CUDA graph repeats the arguments that its kernels had when it was recorded. So kernels in it read
their seeds from GPU memory, and one launch before the graph fills it: `mix_seed` of core/rng.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np

from oneflow.core.draws import DrawnSeed, Randomness
from oneflow.kernels.array import Array
from oneflow.kernels.expressions.cuda_form import cuda_function

SOURCE = r"""
typedef long long i64;
typedef unsigned long long u64;

__device__ u64 mixed(u64 state, u64 part) {
  state = (state ^ part) + 0x9E3779B97F4A7C15ull;
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBull;
  return state ^ (state >> 31);
}

// table: for each seed the micro-batch (-1: that of the act) and the number of the draw.
extern "C" __global__ void draw_seeds(u64* out, const i64* table, i64 n, u64 seed, i64 calls,
                                      i64 each, i64 piece) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    i64 source = table[2 * i] < 0 ? piece : table[2 * i];
    i64 call = calls + source * each + table[2 * i + 1];
    out[i] = mixed(mixed(0x9E3779B97F4A7C15ull, seed), (u64)call);
  }
}
"""
_THREADS = 128


class Clock(Protocol):
    """A rank's clock: micro-batches per step, and where the generators are before the step."""

    num_pieces: int
    randomness: Randomness


class DrawSeeds:
    """Memory for the seeds of `wanted`, and the launches that fill it.

    arrays: one uint64 each, in that order.
    """

    def __init__(self, wanted: Sequence[DrawnSeed], clock: Clock) -> None:
        import cupy

        self._clock = clock
        memory = cupy.zeros(len(wanted), np.uint64)
        by_generator: dict[tuple[int, int], list[int]] = {}
        for i, seed in enumerate(wanted):
            by_generator.setdefault((seed.generator, seed.rank), []).append(i)
        self.arrays: list[Array] = [memory[:0]] * len(wanted)
        self._launches: list[tuple[int, int, Array, Array]] = []
        first = 0
        for (generator, rank), members in by_generator.items():
            part = memory[first : first + len(members)]
            first += len(members)
            rows = [wanted[i].row(clock.num_pieces) for i in members]
            self._launches.append((generator, rank, part, cupy.asarray(np.array(rows, np.int64))))
            for k, i in enumerate(members):
                self.arrays[i] = part[k : k + 1]

    def make(self, piece: int) -> None:
        """Launch the kernels that make the seeds of an act of this step. piece: its micro-batch."""
        randomness = self._clock.randomness
        for generator, rank, out, table in self._launches:
            at = randomness.of(generator, rank)
            blocks = -(-out.size // _THREADS)
            where = np.uint64(at.seed & (1 << 64) - 1), np.int64(at.calls)
            sizes = np.int64(at.each), np.int64(piece)
            _function()((blocks,), (_THREADS,), (out, table, np.int64(out.size), *where, *sizes))


@cache
def _function() -> Any:
    return cuda_function(SOURCE, "draw_seeds")
