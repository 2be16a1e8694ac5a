"""Several ops as one: what a rank makes of a chain of ops with formulas (actors/fusing.py)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from oneflow.core.dtype import DType
from oneflow.core.errors import DTypeError
from oneflow.core.expression import (
    COLUMN_TOTAL,
    INPUT,
    Expression,
    leaves,
    parse,
    row_values,
    substitute,
    symbol,
)
from oneflow.core.op import declare, operand_names
from oneflow.core.operand import Attr, Attrs, Operand
from oneflow.core.tensor_type import TensorType
from oneflow.ops.formulated import Formulated


@lru_cache(1024)
def program(steps: tuple[str, ...]) -> tuple[Expression, ...]:
    """The steps as expressions of the operands alone."""
    made: dict[Expression, Expression] = {}
    for i, text in enumerate(steps):
        made[symbol(f"v{i}")] = substitute(parse(text), made)
    return tuple(made.values())


class _Program(Formulated):
    """Base of what computes the steps of a program."""

    @classmethod
    def rows(cls, attrs: Attrs) -> frozenset[str]:
        return frozenset(attrs["per_row"])

    @staticmethod
    def formula(
        *_: TensorType, steps: tuple[str, ...], results: tuple[int, ...], **attrs: Attr
    ) -> tuple[Expression, ...]:
        return tuple(program(steps)[i] for i in results)


class Fused(_Program):
    """Expressions of the operands a, b, c ..., computed in one pass over the elements.

    steps: expressions that may name the results of earlier ones: v0, v1 ...  results: numbers of
    the steps that are outputs; a result with one value per row lacks the last dim, over which
    reductions run, and a sum over rows has that dim alone.  dtypes: of the outputs.  per_row: names
    of operands that have one value per row, and lack the last dim.
    """

    name = "fused"

    @staticmethod
    def infer(
        *operands: Operand,
        steps: tuple[str, ...],
        results: tuple[int, ...],
        dtypes: tuple[DType, ...],
        per_row: tuple[str, ...] = (),
    ) -> tuple[TensorType, ...]:
        roots = [program(steps)[i] for i in results]
        names = operand_names(Fused, len(operands))
        unknown = set(leaves(INPUT, *roots)) - set(names)
        if unknown:
            raise DTypeError(f"fused: {sorted(unknown)[0]} is neither an operand nor a step")
        named = zip(names, operands, strict=True)
        shapes = [(*x.shape, 1) if n in per_row else x.shape for n, x in named]
        whole = np.broadcast_shapes(*shapes)
        single = row_values(per_row, *roots)
        result = []
        for root, dtype in zip(roots, dtypes, strict=True):
            shape = whole[:-1] if root in single else whole
            result.append(TensorType(whole[-1:] if root.function == COLUMN_TOTAL else shape, dtype))
        return tuple(result)


fused = declare(Fused)


class FusedRandom(_Program):
    """The same with random words, drawn for the elements of the first output."""

    name = "fused_random"
    is_random = True

    @staticmethod
    def infer(
        *operands: Operand,
        steps: tuple[str, ...],
        results: tuple[int, ...],
        dtypes: tuple[DType, ...],
        seed: int,
        per_row: tuple[str, ...] = (),
    ) -> tuple[TensorType, ...]:
        return Fused.infer(*operands, steps=steps, results=results, dtypes=dtypes, per_row=per_row)


fused_random = declare(FusedRandom)
