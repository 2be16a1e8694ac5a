"""Products of bfloat16 matrices: out <- a @ b (+ bias), added up in float32 and rounded once.

Two neighbours along the inner dim are one number of 32 bits for the loops of gemm.py, whose
multiplication is the processor's instruction for pairs (AVX512_BF16, twice the pace of float32) or
two of float32. Where the inner dim is the innermost one, pairs lie in memory as they are; otherwise
they are made by a copy that puts two rows together.
"""

from __future__ import annotations

from math import prod

import numpy as np

from oneflow.kernels.array import Array, data_address
from oneflow.kernels.native.gemm import (
    COPY_WORK,
    Operand,
    Part,
    Scratch,
    batches,
    do,
    multiplied,
)
from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.operands import HALF_NBYTES, Form
from oneflow.kernels.native.product import LANES
from oneflow.kernels.native.program import FLOAT_NBYTES, Program, Values, at, function_of

_DEEPEST = 8192
"""Inner dim up to which a product is one pass, whose sums are rounded in registers."""
_FORM = Form(is_paired=True, is_half=True)


# ---- pairs ---------------------------------------------------------------------------------------

_NAMES = ("rows", "inner", "n", "k", "outer_step", "inner_step", "row_step", "begin", "end", "x",
          "pairs")  # fmt: skip


def _write_pairs() -> Program:
    """pairs[item][row][column] <- x[item][2 * row][column], x[item][2 * row + 1][column], the
    latter 0 behind the last row. Pieces are rows of pairs."""
    p = Program(_NAMES)
    n = p["n"]

    def of_piece(piece: Value, _: Values) -> None:
        item, row = piece // p["rows"], piece % p["rows"] * 2
        outer, inner = item // p["inner"], item % p["inner"]
        start = outer * p["outer_step"] + inner * p["inner_step"] + row * p["row_step"]
        first = p["x"] + start * HALF_NBYTES
        has_second = (row + 1).compare("lt", p["k"])
        second = first + has_second.choose(p["row_step"] * HALF_NBYTES, p.number(0))
        kept = has_second.choose(p.code.constant(-1, "i32"), p.code.constant(0, "i32"))
        target = at(p["pairs"], piece * n)

        def some(j: Value, lanes: int) -> None:
            low, high = (
                p.integers(line + j * HALF_NBYTES, "i16", lanes).to("i32", signed=False)
                for line in (first, second)
            )
            both = low | ((high << 16) & kept.splat(lanes))
            p.store(both.bits("float"), at(target, j))

        def vectors() -> None:
            last = n - LANES

            def of_vector(j: Value, _: Values) -> None:
                some(p.least(j, last), LANES)

            p.loop(0, n, of_vector, step=LANES)

        p.either(n.compare("ge", LANES), vectors, lambda: p.each(n, lambda j: some(j, 1)))

    p.loop(p["begin"], p["end"], of_piece)
    return p


def _in_place(x: Array, dim: int) -> Operand | None:
    """x as pairs along `dim` where it lies."""
    others = [step for i, step in enumerate(x.strides) if i != x.ndim + dim and x.shape[i] > 1]
    is_even = x.shape[dim] % 2 == 0 and all(step % FLOAT_NBYTES == 0 for step in others)
    if x.strides[dim] != HALF_NBYTES or not is_even or data_address(x) % FLOAT_NBYTES:
        return None
    shape, nbytes = list(x.shape), list(x.strides)
    shape[dim], nbytes[dim] = shape[dim] // 2, FLOAT_NBYTES
    nbytes = [step if size > 1 else 0 for size, step in zip(shape, nbytes, strict=True)]
    nbytes[dim] = FLOAT_NBYTES
    return Operand(tuple(shape), tuple(nbytes), data_address(x), x)


def _padded(x: Array, dim: int) -> Operand:
    """A copy of x with an even inner dim, which is the innermost one of the memory."""
    turned = np.moveaxis(x, dim, -1)
    memory: Array = np.zeros((*turned.shape[:-1], -(-x.shape[dim] // 2) * 2), x.dtype)
    memory[..., : x.shape[dim]] = turned
    found = _in_place(np.moveaxis(memory, -1, dim), dim)
    assert found is not None
    return found


def _put_together(x: Array, dim: int, scratch: Scratch, *, one_thread: bool) -> Operand | None:
    """x as pairs along `dim`, copied; None if its other dim is not the innermost one."""
    other = -3 - dim
    n, k = x.shape[other], x.shape[dim]
    lead = tuple(0 if size == 1 else step for size, step in zip(x.shape, x.strides, strict=True))
    steps = [step // HALF_NBYTES for step in lead[:-2]]
    found = batches(x.shape[:-2], [tuple(steps)])
    if found is None or (n > 1 and x.strides[other] != HALF_NBYTES):
        return None
    (outer, of_outer), (inner, of_inner) = found
    rows = (k + 1) // 2
    numbers = (rows, inner, n, k, *of_outer, *of_inner, x.strides[dim] // HALF_NBYTES)
    count = outer * inner * rows
    address = scratch.of(count * n)
    work = count * n * COPY_WORK
    do(Part(function_of(_write_pairs), numbers, count, work), one_thread, data_address(x), address)
    shape, nbytes = list(x.shape), [0] * x.ndim
    shape[dim] = rows
    nbytes[other], nbytes[dim] = FLOAT_NBYTES, n * FLOAT_NBYTES
    for i in reversed(range(x.ndim - 2)):
        nbytes[i] = FLOAT_NBYTES * n * rows * prod(shape[i + 1 : -2])
    return Operand(tuple(shape), tuple(nbytes), address, scratch.memory)


_left, _right = Scratch(), Scratch()


def _pairs(x: Array, dim: int, scratch: Scratch, *, one_thread: bool) -> Operand:
    return (
        _in_place(x, dim)
        or _put_together(x, dim, scratch, one_thread=one_thread)
        or _padded(x, dim)
    )


# ---- calls ---------------------------------------------------------------------------------------


def multiply(
    a: Array, b: Array, out: Array, bias: Array | None = None, *, one_thread: bool = False
) -> bool:
    """out <- a @ b, with `bias` added to every row; whether it was done. Matrices of bfloat16 or
    stacks of them, as `np.matmul` takes them, at least two dims each; `out` is neither of them.
    """
    if a.shape[-1] > _DEEPEST:
        return False
    left = _pairs(a, -1, _left, one_thread=one_thread)
    right = _pairs(b, -2, _right, one_thread=one_thread)
    doubled = tuple(2 * step for step in out.strides)
    target = Operand(out.shape, doubled, data_address(out), out)
    added = None if bias is None else np.ascontiguousarray(bias, np.float32)
    return multiplied(left, right, target, added, _FORM, one_thread=one_thread)
