"""The work of one call of an op: the bytes that it reads and writes, and its arithmetic.

Profiles divide both by the time of a call. Bytes in a cache of the processor count like bytes
in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from oneflow.core.expression import CAST, CONSTANT, INPUT, SCALAR, Expression, walk
from oneflow.core.op import Op
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.expressions.formula import formula_of

Types = Sequence[TensorType]
_NO_ARITHMETIC = frozenset((INPUT, SCALAR, CONSTANT, CAST))


class Work(NamedTuple):
    """The work of a call. flops: floating-point operations, see `Op.flops`."""

    nbytes: int
    flops: int


def work_of(op: type[Op], types: Types, out_types: Types, attrs: Attrs) -> Work:
    """The work of a call on arrays of these types. attrs: all of them, defaults included."""
    return Work(_nbytes(op, types, out_types), _flops(op, types, out_types, attrs))


def _nbytes(op: type[Op], types: Types, out_types: Types) -> int:
    """Count an array that is overwritten twice: it is read as an input and written as an output."""
    written = sum(t.nbytes for t in out_types)
    read = [t.nbytes for t in types]
    if op.picks:
        read[0] = min(read[0], out_types[0].nbytes)
    return sum(read) + written


def _flops(op: type[Op], types: Types, out_types: Types, attrs: Attrs) -> int:
    if op.flops is not None:
        return int(op.flops(*types, **attrs))
    if op.formula is None or not types:
        return 0
    formula = formula_of(op, tuple(types), dict(attrs))
    return _functions(formula.outputs) * prod(formula.whole)


@lru_cache(1024)
def _functions(roots: tuple[Expression, ...]) -> int:
    """Functions that are computed for each element."""
    return sum(node.function not in _NO_ARITHMETIC for node in walk(*roots))
