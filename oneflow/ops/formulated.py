"""Layouts of ops that have a formula: they follow from it."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations

import numpy as np

from oneflow.core.dtype import DType, bool_
from oneflow.core.expression import (
    COLUMN_TOTAL,
    ROW,
    ROW_FUNCTIONS,
    Expression,
    is_linear,
    walk,
)
from oneflow.core.op import Op, elementwise_signatures, operand_names
from oneflow.core.operand import Attr, Attrs
from oneflow.core.sbp import BROADCAST, PARTIAL, Sbp, SbpSignature, Split
from oneflow.core.tensor_type import TensorType

_MOST_JOINT = 4  # inputs of which every subset is tried for partial sums


class Formulated(Op):
    """Base of ops with a formula whose gradient, if there is one, is given."""

    @classmethod
    def sbp(cls, *types: TensorType, **attrs: Attr) -> list[SbpSignature]:
        return formula_signatures(cls, types, attrs)


def formula_signatures(
    op: type[Op], types: tuple[TensorType, ...], attrs: Attrs
) -> list[SbpSignature]:
    """Every dim may be split, but for those of a row; sets of inputs that the formula is linear in
    may be partial sums."""
    assert op.formula is not None
    formulas = op.formula(*types, **attrs)
    roots: tuple[Expression, ...] = formulas if isinstance(formulas, tuple) else (formulas,)
    names = operand_names(op, len(types))
    if op.rows(attrs) or _has_rows(roots):
        own = op.row_dims(*types, **attrs) + any(n.function == ROW for n in walk(*roots))
        short = [n in op.rows(attrs) for n in names]
        result = _row_signatures(types, own, roots, short)
    else:
        made = elementwise_signatures(*types)
        result = [SbpSignature(s.inputs, s.outputs * len(roots)) for s in made]
    dtypes = tuple([t.dtype for t in types])
    kinds = tuple([(n, v.__class__) for n, v in attrs.items()])
    return [*result, *_partial_signatures(roots, names, dtypes, kinds)]


@lru_cache(1024)
def _has_rows(roots: tuple[Expression, ...]) -> bool:
    return not {n.function for n in walk(*roots)}.isdisjoint(ROW_FUNCTIONS)


@lru_cache(4096)
def _partial_signatures(
    roots: tuple[Expression, ...],
    names: tuple[str, ...],
    dtypes: tuple[DType, ...],
    kinds: tuple[tuple[str, type], ...],
) -> tuple[SbpSignature, ...]:
    """Partial sums of each set of inputs that all formulas are linear in. Shapes do not matter, so
    they are found once: the walks take ten times as long as all else.
    """
    types, scalars = dict(zip(names, dtypes, strict=True)), dict(kinds)
    numbers = [i for i, dtype in enumerate(dtypes) if dtype is not bool_]
    result = []
    for count in range(1, min(len(numbers), _MOST_JOINT) + 1):
        for chosen in combinations(numbers, count):
            some = {names[i] for i in chosen}
            if all(is_linear(root, some, types, scalars) for root in roots):
                sbps = tuple(PARTIAL if i in chosen else BROADCAST for i in range(len(names)))
                result.append(SbpSignature(sbps, (PARTIAL,) * len(roots)))
    return tuple(result)


def _row_signatures(
    types: tuple[TensorType, ...], own: int, roots: tuple[Expression, ...], short: list[bool]
) -> list[SbpSignature]:
    """Split any dim before the `own` last ones; operands that have only a row's dims are whole, and
    sums over rows partial. short: of each operand, whether it lacks a row's dims.
    """
    pairs = zip(types, short, strict=True)
    leads = [t.shape[: t.ndim - own * (not is_short)] for t, is_short in pairs]
    whole = np.broadcast_shapes(*leads)
    return [
        SbpSignature(
            tuple(_split_of(lead, i - len(whole), size) for lead in leads),
            tuple(PARTIAL if r.function == COLUMN_TOTAL else Split(i) for r in roots),
        )
        for i, size in enumerate(whole)
    ]


def _split_of(shape: tuple[int, ...], dim: int, size: int) -> Sbp:
    """The layout of an operand where the dim that is `dim` of all, from the right, is split."""
    has_it = -dim <= len(shape) and shape[dim] == size
    return Split(len(shape) + dim) if has_it else BROADCAST
