"""The transpose of a float32 matrix by tiles of 8 x 8 that stay in vector registers.

LLVM makes single loads and stores of a loop over a tile; loads of whole rows, three rounds of
interleaving and stores of whole rows are three to five times as fast.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import prange, types
from numba.extending import intrinsic

from oneflow.kernels.array import Array
from oneflow.kernels.fused.math import vectorized

_SIDE = 8
_LOW = [(k // 2) + _SIDE * (k % 2) for k in range(_SIDE)]
_HIGH = [lane + _SIDE // 2 for lane in _LOW]
_VECTOR = ir.VectorType(ir.FloatType(), _SIDE)


def _row(context: Any, builder: Any, array: Any, index: Any) -> Any:
    """Pointer to 8 floats from a flat index on."""
    start = builder.gep(array.data, [index])
    return builder.bitcast(start, _VECTOR.as_pointer())


@intrinsic
def _move_tile(
    context: Any, out: Any, x: Any, to: Any, origin: Any, rows: Any, columns: Any
) -> Any:
    """Transpose one tile.

    out, x: flat arrays of `columns` rows of `rows`, and of `rows` rows of `columns`. to, origin:
    where the tile begins in each. Nothing is checked.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        arrays = [
            context.make_array(t)(context, builder, a)
            for t, a in zip(signature.args[:2], args[:2], strict=True)
        ]
        target, source, pitch_out, pitch_in = args[2:]
        lines = []
        for _ in range(_SIDE):
            line = builder.load(_row(context, builder, arrays[1], source))
            line.align = 4
            lines.append(line)
            source = builder.add(source, pitch_in)
        low, high = (ir.Constant(ir.VectorType(ir.IntType(32), _SIDE), m) for m in (_LOW, _HIGH))
        for _ in range(3):  # log2 of the side
            pairs = [(lines[r], lines[r + _SIDE // 2]) for r in range(_SIDE // 2)]
            lines = [builder.shuffle_vector(a, b, m) for a, b in pairs for m in (low, high)]
        for line in lines:
            stored = builder.store(line, _row(context, builder, arrays[0], target))
            stored.align = 4
            target = builder.add(target, pitch_out)
        return context.get_dummy_value()

    signature = types.void(out, x, types.intp, types.intp, types.intp, types.intp)
    return signature, generate


move: Any = _move_tile


@vectorized
def transpose(out: Array, x: Array) -> None:
    """out (columns, rows) <- x (rows, columns), both contiguous float32."""
    rows, columns = x.shape
    flat_out, flat_x = out.reshape(-1), x.reshape(-1)
    whole_rows, whole_columns = rows // 8 * 8, columns // 8 * 8
    # Lines of the cache hold 16 floats, which long rows of x use at once. Long rows of out must do
    # with 8: 16 of them, a power of two apart, do not fit the cache together.
    width = 16 if columns >= rows else 8
    for block in prange((columns + width - 1) // width):
        first = block * width
        last = min(first + width, columns)
        whole = min(last, whole_columns)
        for i in range(0, whole_rows, 8):
            for j in range(first, whole, 8):
                move(flat_out, flat_x, j * rows + i, i * columns + j, rows, columns)
        for j in range(first, last):
            for i in range(whole_rows if j < whole else 0, rows):
                out[j, i] = x[i, j]
