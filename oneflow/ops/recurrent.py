"""Recurrent layers over whole sequences: an op for a layer in one direction, one for its gradient.

The input's share in the gates is the same product for all steps, so it is an input here: `x` holds
x W_ih^T + bias for every step, and its gradient is one product, too. What a step does to its rows
are ops with a formula (`lstm_step`, ...), which the kernels of `recurrent` run between two matrix
products. A graph of a layer has one node whatever the length of the sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

from oneflow.core.errors import AutogradError, ShapeError
from oneflow.core.expression import Expression, apply, sigmoid, symbols, tanh, where
from oneflow.core.op import Op, declare
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import BROADCAST, PARTIAL, Sbp, SbpSignature, Split
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import require_float
from oneflow.ops.elementwise import Formulated
from oneflow.ops.unary import full_like


@dataclass(frozen=True)
class Cell:
    """The sizes of one kind of recurrent layer.

    gates: of the layer's weights. saved: gates that the forward pass keeps for the gradient.
    has_cell: beside the output h there is a state c.
    """

    gates: int
    saved: int
    has_cell: bool = False


CELLS = {
    "RNN_TANH": Cell(1, 0),
    "RNN_RELU": Cell(1, 0),
    "LSTM": Cell(4, 4, has_cell=True),
    "GRU": Cell(3, 4),
}

_XI, _XF, _XG, _XO, _HI, _HF, _HG, _HO = symbols("xi xf xg xo hi hf hg ho")
_XR, _XZ, _XN, _HR, _HZ, _HN, _BR, _BZ, _BN = symbols("xr xz xn hr hz hn br bz bn")
_I, _F, _G, _O, _C, _BEFORE = symbols("i f g o c before")
_R, _Z, _N, _H, _X, _OUT = symbols("r z n h x out")
_D_OUT, _D_H, _D_C = symbols("d_out d_h d_c")


# ---- one step ------------------------------------------------------------------------------------


class LstmStep(Formulated):
    """Gates and states of one step: (i, f, g, o, c', h').

    xi..xo, hi..ho: what the input and the last h give to each gate.
    """

    name = "lstm_step"

    @staticmethod
    def infer(
        xi: Operand,
        xf: Operand,
        xg: Operand,
        xo: Operand,
        hi: Operand,
        hf: Operand,
        hg: Operand,
        ho: Operand,
        c: Operand,
    ) -> tuple[TensorType, ...]:
        require_float("lstm_step", xi, c)
        return (c.type,) * 6

    @staticmethod
    def formula(*_: TensorType) -> tuple[Expression, ...]:
        i, f, o = sigmoid(_XI + _HI), sigmoid(_XF + _HF), sigmoid(_XO + _HO)
        g = tanh(_XG + _HG)
        c = f * _C + i * g
        return i, f, g, o, c, o * tanh(c)


lstm_step = declare(LstmStep)


class LstmStepGrad(Formulated):
    """Gradients of what enters the gates, and of the cell before the step, in the memory of d_c.

    d_out, d_h: the two parts of the gradient of h'. c, before: the cell after and before the step.
    """

    name = "lstm_step_grad"
    mutates = {4: 2}

    @staticmethod
    def infer(
        d_out: Operand,
        d_h: Operand,
        d_c: Operand,
        i: Operand,
        f: Operand,
        g: Operand,
        o: Operand,
        c: Operand,
        before: Operand,
    ) -> tuple[TensorType, ...]:
        require_float("lstm_step_grad", d_out, c)
        return (c.type,) * 5

    @staticmethod
    def formula(*_: TensorType) -> tuple[Expression, ...]:
        d_h, out = _D_OUT + _D_H, tanh(_C)
        d_c = _D_C + d_h * _O * (1 - out * out)
        d_i, d_f = d_c * _G * _I * (1 - _I), d_c * _BEFORE * _F * (1 - _F)
        return d_i, d_f, d_c * _I * (1 - _G * _G), d_h * out * _O * (1 - _O), d_c * _F


lstm_step_grad = declare(LstmStepGrad)


class GruStep(Formulated):
    """Gates and state of one step: (r, z, n, hn + bn, h').

    xr..xn, hr..hn: what the input and the last h give to each gate; br..bn: the bias of the latter.
    """

    name = "gru_step"

    @staticmethod
    def infer(
        xr: Operand,
        xz: Operand,
        xn: Operand,
        hr: Operand,
        hz: Operand,
        hn: Operand,
        br: Operand,
        bz: Operand,
        bn: Operand,
        h: Operand,
    ) -> tuple[TensorType, ...]:
        require_float("gru_step", xr, h)
        return (h.type,) * 5

    @staticmethod
    def formula(*_: TensorType) -> tuple[Expression, ...]:
        r, z = sigmoid(_XR + (_HR + _BR)), sigmoid(_XZ + (_HZ + _BZ))
        given = _HN + _BN
        n = tanh(_XN + r * given)
        return r, z, n, given, n + z * (_H - n)


gru_step = declare(GruStep)


class GruStepGrad(Formulated):
    """Gradients of the input's share in the gates (3), of h's share (3), and of h before the step
    as far as it goes around the gates, in the memory of d_h.

    d_out, d_h: the two parts of the gradient of h'. hn: the last h's share in n. h: before the
    step.
    """

    name = "gru_step_grad"
    mutates = {6: 1}

    @staticmethod
    def infer(
        d_out: Operand,
        d_h: Operand,
        r: Operand,
        z: Operand,
        n: Operand,
        hn: Operand,
        h: Operand,
    ) -> tuple[TensorType, ...]:
        require_float("gru_step_grad", d_out, h)
        return (h.type,) * 7

    @staticmethod
    def formula(*_: TensorType) -> tuple[Expression, ...]:
        d_h = _D_OUT + _D_H
        d_n = d_h * (1 - _Z) * (1 - _N * _N)
        d_r, d_z = d_n * _HN * _R * (1 - _R), d_h * (_H - _N) * _Z * (1 - _Z)
        return d_r, d_z, d_n, d_r, d_z, d_n * _R, d_h * _Z


gru_step_grad = declare(GruStepGrad)


class RnnStep(Formulated):
    """h' = tanh(x + h), or its positive part with `relu`; h: what the last h gives to it."""

    name = "rnn_step"

    @staticmethod
    def infer(x: Operand, h: Operand, *, relu: bool) -> TensorType:
        require_float("rnn_step", x, h)
        return h.type

    @staticmethod
    def formula(*_: TensorType, relu: bool) -> Expression:
        return apply("relu", _X + _H) if relu else tanh(_X + _H)


rnn_step = declare(RnnStep)


class RnnStepGrad(Formulated):
    """Gradient of what `rnn_step` adds up; d_out, d_h: the two parts of the gradient of `out`."""

    name = "rnn_step_grad"

    @staticmethod
    def infer(d_out: Operand, d_h: Operand, out: Operand, *, relu: bool) -> TensorType:
        require_float("rnn_step_grad", d_out, out)
        return out.type

    @staticmethod
    def formula(*_: TensorType, relu: bool) -> Expression:
        d = _D_OUT + _D_H
        return where(_OUT > 0, d, 0) if relu else d * (1 - _OUT * _OUT)


rnn_step_grad = declare(RnnStepGrad)


# ---- sequences -----------------------------------------------------------------------------------


class Recurrent(Op):
    """One layer over a sequence in one direction: (out, last h, the rest).

    x: (length, n, gates * hidden), the input's share in the gates.  h: (n, size), the first state.
    weight: (gates * hidden, size).  LSTM: then c (n, hidden) and, if outputs are projected, the
    projection (size, hidden); the rest is the last c, the gates and the cells of every step.  GRU:
    then, if there is one, the bias of h's share; the rest is the gates of every step.  What is
    given for every step serves the gradient and has none of its own.

    sizes: number of rows of each step if x is packed, (rows, gates * hidden); never rising.
    reverse: from the last step to the first.
    """

    name = "recurrent"

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
        if x.ndim != (2 if sizes else 3) or not lead[0]:
            raise ShapeError(
                f"recurrent: expected a sequence of at least one step, (length, n, {columns}) or "
                f"packed rows with their sizes, got {x}"
            )
        if columns % cell.gates or weight.shape != (columns, *h.shape[1:]):
            raise ShapeError(f"recurrent: {x}, state {h} and weight {weight} do not fit")
        hidden = columns // cell.gates
        made = [x.type.with_shape((*lead, h.shape[1])), h.type]
        if cell.has_cell:
            made.append(rest[0].type)
        if cell.saved:
            made.append(x.type.with_shape((*lead, cell.saved * hidden)))
        if cell.has_cell:
            made.append(x.type.with_shape((*lead, hidden)))
        return tuple(made)

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


recurrent = declare(Recurrent)


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
        d_x = out.type.with_shape((*out.shape[:-1], weight.shape[0]))
        more = rest[3:] if CELLS[mode].has_cell else rest[1:]
        return (d_x, h.type, weight.type, *(t.type for t in more))

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

    @staticmethod
    def grad(*_: Tensor, **__: object) -> Gradients:
        raise AutogradError(
            "recurrent layers have no second derivative; write the steps out with nn.LSTMCell, "
            "nn.GRUCell or nn.RNNCell, which have"
        )


recurrent_grad = declare(RecurrentGrad)
