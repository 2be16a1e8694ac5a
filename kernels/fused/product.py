"""Products of `expressions/product.py` inside functions that numba compiles."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.base import BaseContext
from numba.core.typing.context import Context
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

from oneflow.kernels.expressions.product import BLOCK, MOST_ROWS, Values, product

__all__ = ["BLOCK", "MOST_ROWS", "multiply", "product"]


@intrinsic
def _multiply(
    context: Context, code: types.Type, out: types.Type, a: types.Type, b: types.Type,
    starts: types.Type, rows: types.Type, a_steps: types.Type, b_steps: types.Type,
    out_row: types.Type, counts: types.Type, adds: types.Type,
) -> Any:  # fmt: skip
    """out[r, :BLOCK] <- sum over planes, segments and elements of a[r, ...] * b[..., :BLOCK].

    code: `product()`. out, a, b: flat arrays. starts: where each begins. rows: 1 to MOST_ROWS.
    a_steps: between rows, planes, segments and elements of a. b_steps: between those but rows.
    out_row: between rows. counts: of planes, segments and elements, each at least 1. adds: 1 to add
    to out. Nothing is checked.
    """

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Values
    ) -> ir.Value:
        lowering: Any = context  # whose methods numba gives no types

        def parts(number: int) -> Values:
            count = len(signature.args[number])
            return [builder.extract_value(args[number], i) for i in range(count)]

        arrays = [
            lowering.make_array(t)(context, builder, x)
            for t, x in zip(signature.args[1:4], args[1:4], strict=True)
        ]
        begins = [builder.gep(x.data, [s]) for x, s in zip(arrays, parts(4), strict=True)]
        given = [*begins, args[5], *parts(6), *parts(7), args[8], *parts(9), args[10]]
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in given])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), given)
        return lowering.get_dummy_value()

    tuple_of: Any = types.UniTuple
    three, four = tuple_of(types.intp, 3), tuple_of(types.intp, 4)
    signature = types.void(
        types.intp, out, a, b, three, types.intp, four, three, types.intp, three, types.intp
    )
    return signature, generate


multiply: Any = _multiply
