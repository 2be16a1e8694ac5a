"""Philox2x32-10 as machine code: the words of `oneflow.core.rng.philox`, bit for bit, much faster.

Imported by `oneflow.core.rng` for large tensors only, because LLVM takes a moment to import.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.program import INT_NBYTES, Program, at, function_of

_ROUNDS = 10
_MULTIPLIER = 0xD256D193
_WEYL = 0x9E3779B9 - (1 << 32)  # as a signed number of 32 bits


def _words(index: Value, keys: Sequence[Value], fold: Value) -> tuple[Value, Value]:
    """The high and the low words of indices (int64)."""
    left, right = index.to("i32"), (index >> 32).to("i32") ^ fold
    for key in keys:
        product = left.to("i64", signed=False) * _MULTIPLIER
        left, right = (product >> 32).to("i32") ^ key ^ right, product.to("i32")
    return left, right


def _write_fill() -> Program:
    p = Program(("high", "low", "firsts", "rows", "length", "key", "fold"), "i32")
    lanes, length, fold = p.lanes, p["length"], p["fold"].to("i32")
    keys = [p["key"].to("i32")]
    while len(keys) < _ROUNDS:
        keys.append(keys[-1] + _WEYL)
    wide_keys, wide_fold = [key.splat(lanes) for key in keys], fold.splat(lanes)
    places = Value(p.code, f"<{', '.join(f'i64 {i}' for i in range(lanes))}>", "i64", lanes)
    whole = length & -lanes

    def row(r: Value) -> None:
        first = p.integer(p["firsts"] + r * INT_NBYTES)

        def put(i: Value, words: tuple[Value, Value]) -> None:
            for name, word in zip(("high", "low"), words, strict=True):
                p.store(word, at(p[name], r * length + i))

        p.loop(
            0,
            whole,
            lambda i, _: put(i, _words((first + i).splat(lanes) + places, wide_keys, wide_fold)),
            step=lanes,
        )
        p.loop(whole, length, lambda i, _: put(i, _words(first + i, keys, fold)))

    p.each(p["rows"], row)
    return p


def fill_words(words: np.ndarray[Any, Any], firsts: np.ndarray[Any, Any], seed: int) -> None:
    """Write the words of the indices `firsts[r]`, `firsts[r]` + 1, ... to row r.

    words: uint32[2, rows, length], high and low ones.  firsts: uint64[rows].
    """
    starts = np.ascontiguousarray(firsts)
    high, low = (half.ctypes.data for half in words)
    key, fold = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    numbers = (high, low, starts.ctypes.data, *words.shape[1:], key, fold)
    function_of(_write_fill)((ctypes.c_int64 * len(numbers))(*numbers))
