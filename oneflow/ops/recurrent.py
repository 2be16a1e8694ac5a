"""Recurrent layers over whole sequences: an op for a layer in one direction, one for its gradient.

The input's share in the gates is the same product for all steps, so it is an input here: `x` holds
x W_ih^T + bias for every step, and its gradient is one product, too. The work of a step on its rows
is in ops with a formula (`lstm_step`, ...), which the kernels of `recurrent` run between two matrix
products. A graph of a layer has one node for any length of the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from oneflow.core.errors import ShapeError
from oneflow.core.op import Op, declare
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import BROADCAST, PARTIAL, Sbp, SbpSignature, Split
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import require_float, require_shape
from oneflow.ops.recurrent_step import CELLS
from oneflow.ops.recurrent_written import written_gradients
from oneflow.ops.unary import full_like


class Recurrent(Op):
    """One layer over a sequence in one direction: (out, last h, the rest).

    x: (length, n, gates * hidden), the input's share in the gates.  h: (n, size), the first state.
    weight: (gates * hidden, size).  LSTM: then c (n, hidden) and, if outputs are projected, the
    projection (size, hidden); the rest is the last c, the gates and the cells of every step.  GRU:
    then, if there is one, the bias of h's share; the rest is the gates of every step.  Results for
    every step serve the gradient and have none of their own.

    sizes: number of rows of each step if x is packed, (rows, gates * hidden); never rising.
    reverse: from the last step to the first.
    """

    name = "recurrent"
    precision = "lower"

    @staticmethod
    def infer(
        x: Operand,
        h: Operand,
        weight: Operand,
        *rest: Operand,
        mode: str,
        sizes: tuple[int, ...] = (),
        reverse: bool = False,
    ) -> tuple[TensorType, ...]:
        cell, lead = CELLS[mode], x.shape[:-1]
        require_float("recurrent", x, h, weight, *rest)
        columns = x.shape[-1]
        if columns % cell.gates or weight.shape != (columns, *h.shape[1:]):
            raise ShapeError(f"recurrent: {x}, state {h} and weight {weight} do not fit")
        hidden = columns // cell.gates
        _check_sequence("recurrent", x, h, hidden, mode, sizes)
        count = int(cell.has_cell)
        if len(rest) < count:
            raise ShapeError(f"recurrent: {mode} needs a state c beside {h}")
        _check_rest("recurrent", h, hidden, mode, rest[0] if count else None, rest[count:])
        made = [x.meta.with_shape((*lead, h.shape[1])), h.meta]
        if cell.has_cell:
            made.append(rest[0].meta)
        if cell.saved:
            made.append(x.meta.with_shape((*lead, cell.saved * hidden)))
        if cell.has_cell:
            made.append(x.meta.with_shape((*lead, hidden)))
        return tuple(made)

    @staticmethod
    def flops(
        x: TensorType, h: TensorType, weight: TensorType, *_: TensorType, **__: object
    ) -> int:
        """Count the products of states with the weight."""
        return 2 * x.numel * h.shape[-1]

    @staticmethod
    def sbp(
        x: TensorType, *rest: TensorType, mode: str, sizes: tuple[int, ...], **_: object
    ) -> list[SbpSignature]:
        if sizes:
            return []
        steps, rows = Split(1), Split(0)
        if CELLS[mode].has_cell:
            more = (BROADCAST,) * (len(rest) - 3)
            ins = (steps, rows, BROADCAST, rows, *more)
            return [SbpSignature(ins, (steps, rows, rows, steps, steps))]
        weights = (BROADCAST,) * (len(rest) - 1)
        outs = (steps, rows, steps)[: 3 if CELLS[mode].saved else 2]
        return [SbpSignature((steps, rows, *weights), outs)]

    @staticmethod
    def grad(
        d_out: Tensor | None,
        d_h: Tensor | None,
        *tensors: Tensor,
        mode: str,
        sizes: tuple[int, ...],
        reverse: bool,
    ) -> Gradients:
        cell = CELLS[mode]
        count = 2 + (cell.saved > 0) + 2 * cell.has_cell  # outputs
        d_c, given, outs = tensors[0], tensors[count - 2 : -count], tensors[-count:]
        _x, h, weight, *rest = given
        out, kept = outs[0], outs[2 + cell.has_cell :]
        d_out = full_like(out, value=0) if d_out is None else d_out
        d_h = full_like(h, value=0) if d_h is None else d_h
        more: tuple[Tensor, ...] = (*kept, *rest)
        if cell.has_cell:
            more = (*kept, full_like(rest[0], value=0) if d_c is None else d_c, *rest)
        made: Gradients = recurrent_grad(
            d_out, d_h, h, weight, out, *more, mode=mode, sizes=sizes, reverse=reverse
        )
        return made

    @staticmethod
    def recorded_grad(
        d_out: Tensor | None,
        d_h: Tensor | None,
        *tensors: Tensor,
        mode: str,
        sizes: tuple[int, ...],
        reverse: bool,
    ) -> Gradients:
        cell = CELLS[mode]
        count = 2 + (cell.saved > 0) + 2 * cell.has_cell  # outputs
        given, out = tensors[count - 2 : -count], tensors[-count]
        d_states = [full_like(given[1], value=0) if d_h is None else d_h]
        if cell.has_cell:
            d_c = tensors[0]
            d_states.append(full_like(given[3], value=0) if d_c is None else d_c)
        d_out = full_like(out, value=0) if d_out is None else d_out
        return written_gradients(d_out, d_states, given, mode, sizes, reverse)


recurrent = declare(Recurrent)


def _check_sequence(
    name: str, x: Operand, h: Operand, hidden: int, mode: str, sizes: tuple[int, ...]
) -> None:
    """x: anything that has a row for every step of each of the sequences."""
    falls = all(a >= b for a, b in pairwise(sizes))
    if x.ndim != (2 if sizes else 3) or not x.shape[0]:
        raise ShapeError(
            f"{name}: expected a sequence of at least one step, (length, n, {x.shape[-1]}) or "
            f"packed rows with their sizes, got {x}"
        )
    if h.ndim != 2 or h.shape[0] != (sizes or x.shape[1:])[0]:
        raise ShapeError(f"{name}: {x} and the state {h} differ in the number of sequences")
    if sizes and (sum(sizes) != x.shape[0] or not falls):
        raise ShapeError(f"{name}: the sizes {sizes} do not fall, or are not those of {x}")
    if not CELLS[mode].has_cell and h.shape[1] != hidden:
        raise ShapeError(f"{name}: the state {h} must have {hidden} columns")


def _check_rest(
    name: str, h: Operand, hidden: int, mode: str, c: Operand | None, weights: Sequence[Operand]
) -> None:
    """weights: a projection of an LSTM, or the bias of a GRU, if there is one."""
    require_shape(name, (h.shape[0], hidden), c=c)
    is_plain = mode != "GRU" and h.shape[1] == hidden
    shape = (CELLS[mode].gates * hidden,) if mode == "GRU" else (h.shape[1], hidden)
    if len(weights) > (mode in ("GRU", "LSTM")) or not (weights or is_plain or mode == "GRU"):
        raise ShapeError(f"{name}: {len(weights)} weights more are not those of {mode}, state {h}")
    for weight in weights:
        require_shape(name, shape, weight=weight)


class RecurrentGrad(Op):
    """Gradients of the inputs of `recurrent`, in their order.

    Inputs: d_out, d_h (of the last state), h, weight, out. LSTM: then gates, cells, d_c, c and, if
    there is one, the projection. GRU: then gates and, if there is one, the bias.
    """

    name = "recurrent_grad"

    @staticmethod
    def infer(
        d_out: Operand,
        d_h: Operand,
        h: Operand,
        weight: Operand,
        out: Operand,
        *rest: Operand,
        mode: str,
        sizes: tuple[int, ...] = (),
        reverse: bool = False,
    ) -> tuple[TensorType, ...]:
        require_float("recurrent_grad", d_out, d_h, h, weight, out, *rest)
        cell = CELLS[mode]
        hidden = weight.shape[0] // cell.gates
        _check_sequence("recurrent_grad", out, h, hidden, mode, sizes)
        count = int(cell.saved > 0) + 3 * cell.has_cell
        if len(rest) < count:
            raise ShapeError(
                f"recurrent_grad: {mode} needs {5 + count} inputs, not {5 + len(rest)}"
            )
        lead, kept, more = out.shape[:-1], rest[: cell.saved > 0], rest[cell.saved > 0 :]
        require_shape("recurrent_grad", (*lead, h.shape[1]), d_out=d_out, out=out)
        require_shape("recurrent_grad", h.shape, d_h=d_h)
        require_shape("recurrent_grad", (cell.gates * hidden, h.shape[1]), weight=weight)
        gates = kept[0] if kept else None
        require_shape("recurrent_grad", (*lead, cell.saved * hidden), gates=gates)
        c = None
        if cell.has_cell:
            cells, d_c, c = more[:3]
            require_shape("recurrent_grad", (*lead, hidden), cells=cells)
            require_shape("recurrent_grad", c.shape, d_c=d_c)
        _check_rest("recurrent_grad", h, hidden, mode, c, more[3 * cell.has_cell :])
        d_x = out.meta.with_shape((*lead, weight.shape[0]))
        more = rest[3:] if cell.has_cell else rest[1:]
        return (d_x, h.meta, weight.meta, *(t.meta for t in more))

    @staticmethod
    def flops(
        d_out: TensorType,
        d_h: TensorType,
        h: TensorType,
        weight: TensorType,
        *_: object,
        **__: object,
    ) -> int:
        """Count the products for the states' gradients and for the weight's."""
        return 4 * prod(d_out.shape[:-1]) * weight.numel

    @staticmethod
    def sbp(
        d_out: TensorType, *others: TensorType, mode: str, sizes: tuple[int, ...], **_: object
    ) -> list[SbpSignature]:
        if sizes:
            return []
        steps, rows = Split(1), Split(0)
        ins: tuple[Sbp, ...] = (steps, rows, rows, BROADCAST, steps)
        outs: tuple[Sbp, ...] = (steps, rows, PARTIAL)
        if CELLS[mode].has_cell:
            more = len(others) - 8
            ins = (*ins, steps, steps, rows, rows, *(BROADCAST,) * more)
            return [SbpSignature(ins, (*outs, rows, *(PARTIAL,) * more))]
        more = max(len(others) - 5, 0)
        ins = (*ins, *(steps,) * (len(others) > 4), *(BROADCAST,) * more)
        return [SbpSignature(ins, (*outs, *(PARTIAL,) * more))]


recurrent_grad = declare(RecurrentGrad)
