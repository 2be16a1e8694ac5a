"""The gradient of a recurrent layer step by step, in ops that have gradients themselves.

It is taken where the backward pass is recorded, to be differentiated once more.
"""

from __future__ import annotations

from functools import cache
from string import ascii_lowercase

from oneflow.core.expression import INPUT, Expression, leaves, substitute, symbol, to_text
from oneflow.core.operand import Gradients, Tensor
from oneflow.ops.binary import add
from oneflow.ops.concat import concat, split
from oneflow.ops.elementwise import map_
from oneflow.ops.matmul import matmul
from oneflow.ops.recurrent_step import CELLS, step_of
from oneflow.ops.reduce import reduce_sum
from oneflow.ops.shape import reshape
from oneflow.ops.unary import full_like

Tensors = list[Tensor]


@cache
def _texts(mode: str, suffix: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The expression of each output of a step, and the operands that it reads."""
    op, attrs = step_of(mode, suffix)
    assert op.formula is not None
    formulas = op.formula(**attrs)
    roots: tuple[Expression, ...] = formulas if isinstance(formulas, tuple) else (formulas,)
    found = []
    for root in roots:
        names = tuple(dict.fromkeys(leaves(INPUT, root)))
        letters = {
            symbol(n): symbol(letter) for n, letter in zip(names, ascii_lowercase, strict=False)
        }
        text = to_text(substitute(root, letters))
        found.append((text, tuple(op.operands.index(n) for n in names)))
    return tuple(found)


def _run(mode: str, suffix: str, operands: Tensors) -> Tensors:
    """The outputs of a step, one op each, whose gradients follow from their formulas."""
    return [
        map_(*(operands[i] for i in read), expression=text) for text, read in _texts(mode, suffix)
    ]


def _cut(x: Tensor, rows: int, dim: int = 0) -> tuple[Tensor, Tensor | None]:
    """The first rows, and the others if there are any."""
    whole = x.meta.shape[dim]
    if rows == whole:
        return x, None
    first, rest = split(x, sizes=(rows, whole - rows), dim=dim)
    return first, rest


def _joined(first: Tensor, rest: Tensor | None) -> Tensor:
    return first if rest is None else concat(first, rest, dim=0)


def _gates(x: Tensor, count: int) -> Tensors:
    """The columns of each gate."""
    return list(split(x, sizes=(x.meta.shape[1] // count,) * count, dim=1))


def _steps(
    mode: str,
    order: range,
    sizes: tuple[int, ...],
    shares: Tensors,
    states: Tensors,
    weight: Tensor,
    projection: Tensor | None,
    bias: Tensor | None,
) -> tuple[dict[int, Tensors], dict[int, Tensors]]:
    """Go forward: for each step, return the states before it and the outputs of its op.

    shares: of the input in the gates, for each step.
    """
    cell = CELLS[mode]
    before: dict[int, Tensors] = {}
    made: dict[int, Tensors] = {}
    for t in order:
        parts = [_cut(s, sizes[t]) for s in states]
        before[t] = [first for first, _ in parts]
        share = matmul(before[t][0], weight, transpose_b=True)
        operands = [*_gates(shares[t], cell.gates), *_gates(share, cell.gates)]
        if mode == "GRU":
            zeros = [full_like(b, value=0) for b in operands[3:]]
            operands += zeros if bias is None else _rows_of(bias, zeros)
        operands += before[t][1:] if cell.has_cell else before[t][: cell.saved]
        made[t] = _run(mode, "", operands)
        new = [made[t][-1]]
        if projection is not None:
            new = [matmul(new[0], projection, transpose_b=True)]
        new += made[t][-2:-1] if cell.has_cell else []
        states = [_joined(s, other) for s, (_, other) in zip(new, parts, strict=True)]
    return before, made


def written_gradients(
    d_out: Tensor,
    d_states: Tensors,
    given: tuple[Tensor, ...],
    mode: str,
    sizes: tuple[int, ...],
    reverse: bool,
) -> Gradients:
    """Gradients of the inputs of `recurrent`.

    d_states: of the last h, and of the last c of an LSTM. given: the inputs.
    """
    cell = CELLS[mode]
    x, h, weight, *rest = given
    lead = x.meta.shape[:-1]
    sizes = sizes or (lead[1],) * lead[0]
    order = range(len(sizes))[:: -1 if reverse else 1]
    shares = list(split(_matrix(x), sizes=sizes, dim=0))
    d_outs = list(split(_matrix(d_out), sizes=sizes, dim=0))
    states = [h, *rest[:1]] if cell.has_cell else [h]
    projection = rest[1] if cell.has_cell and len(rest) > 1 else None
    bias = rest[0] if rest and not cell.has_cell else None

    before, made = _steps(mode, order, sizes, shares, states, weight, projection, bias)
    d_x: dict[int, Tensor] = {}
    d_shares: dict[int, Tensor] = {}
    d_projected: dict[int, Tensor] = {}
    for t in reversed(order):
        parts = [_cut(s, sizes[t]) for s in d_states]
        d, d_h = d_outs[t], parts[0][0]
        if projection is not None:
            d_projected[t] = add(d, d_h)
            d = matmul(d_projected[t], projection)
            d_h = full_like(d, value=0)
        if cell.has_cell:
            operands = [d, d_h, parts[1][0], *made[t][:5], before[t][1]]
        elif cell.saved:
            operands = [d, d_h, *made[t][:4], before[t][0]]
        else:
            operands = [d, d_h, made[t][0]]
        found = _run(mode, "_grad", operands)
        d_x[t] = d_shares[t] = concat(*found[: cell.gates], dim=1)
        if mode == "GRU":
            d_shares[t] = concat(*found[3:6], dim=1)
        back = [matmul(d_shares[t], weight)]
        if cell.has_cell:
            back.append(found[4])
        elif cell.saved:
            back[0] = add(back[0], found[6])
        d_states = [_joined(s, other) for s, (_, other) in zip(back, parts, strict=True)]

    steps = range(len(sizes))
    every_share = concat(*(d_shares[t] for t in steps), dim=0)
    befores = concat(*(before[t][0] for t in steps), dim=0)
    d_weight = matmul(every_share, befores, transpose_a=True)
    every_x = reshape(concat(*(d_x[t] for t in steps), dim=0), shape=x.meta.shape)
    result = [every_x, d_states[0], d_weight, *d_states[1:]]
    if projection is not None:
        d_all = concat(*(d_projected[t] for t in steps), dim=0)
        hidden = concat(*(made[t][-1] for t in steps), dim=0)
        result.append(matmul(d_all, hidden, transpose_a=True))
    if bias is not None:
        result.append(reduce_sum(every_share, dims=(0,)))
    return tuple(result)


def _matrix(x: Tensor) -> Tensor:
    rows = 1
    for size in x.meta.shape[:-1]:
        rows *= size
    return reshape(x, shape=(rows, x.meta.shape[-1]))


def _rows_of(bias: Tensor, like: Tensors) -> Tensors:
    """The gates of a bias, for every row."""
    size = bias.meta.shape[0] // 3
    return [add(z, b) for z, b in zip(like, split(bias, sizes=(size,) * 3, dim=0), strict=True)]
