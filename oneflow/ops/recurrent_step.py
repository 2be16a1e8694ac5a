"""The steps of recurrent layers, from whose formulas kernels, gradients and layouts follow."""

from __future__ import annotations

from dataclasses import dataclass

from oneflow.core.expression import Expression, apply, sigmoid, symbols, tanh, where
from oneflow.core.op import Op, declare, find_op
from oneflow.core.operand import Attrs, Operand
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import require_same
from oneflow.ops.formulated import Formulated


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


def step_of(mode: str, suffix: str = "") -> tuple[type[Op], Attrs]:
    """The op of one step of a layer, or with "_grad" of its gradient, and its attrs."""
    if mode in ("LSTM", "GRU"):
        return find_op(f"{mode.lower()}_step{suffix}"), {}
    return find_op(f"rnn_step{suffix}"), {"relu": mode == "RNN_RELU"}


_XI, _XF, _XG, _XO, _HI, _HF, _HG, _HO = symbols("xi xf xg xo hi hf hg ho")
_XR, _XZ, _XN, _HR, _HZ, _HN, _BR, _BZ, _BN = symbols("xr xz xn hr hz hn br bz bn")
_I, _F, _G, _O, _C, _BEFORE = symbols("i f g o c before")
_R, _Z, _N, _H, _X, _OUT = symbols("r z n h x out")
_D_OUT, _D_H, _D_C = symbols("d_out d_h d_c")


# ---- one step ------------------------------------------------------------------------------------


class LstmStep(Formulated):
    """Gates and states of one step: (i, f, g, o, c', h').

    xi..xo, hi..ho: the shares of the input and of the last h in each gate.
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
        require_same("lstm_step", xi, xf, xg, xo, hi, hf, hg, ho, c)
        return (c.meta,) * 6

    @staticmethod
    def formula(*_: TensorType) -> tuple[Expression, ...]:
        i, f, o = sigmoid(_XI + _HI), sigmoid(_XF + _HF), sigmoid(_XO + _HO)
        g = tanh(_XG + _HG)
        c = f * _C + i * g
        return i, f, g, o, c, o * tanh(c)


lstm_step = declare(LstmStep)


class LstmStepGrad(Formulated):
    """Gradients of the sums that enter the gates, and of the cell before the step, in the memory of
    d_c.

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
        require_same("lstm_step_grad", d_out, d_h, d_c, i, f, g, o, c, before)
        return (c.meta,) * 5

    @staticmethod
    def formula(*_: TensorType) -> tuple[Expression, ...]:
        d_h, out = _D_OUT + _D_H, tanh(_C)
        d_c = _D_C + d_h * _O * (1 - out * out)
        d_i, d_f = d_c * _G * _I * (1 - _I), d_c * _BEFORE * _F * (1 - _F)
        return d_i, d_f, d_c * _I * (1 - _G * _G), d_h * out * _O * (1 - _O), d_c * _F


lstm_step_grad = declare(LstmStepGrad)


class GruStep(Formulated):
    """Gates and state of one step: (r, z, n, hn + bn, h').

    xr..xn, hr..hn: the shares of the input and of the last h in each gate; br..bn: the bias of the
    latter.
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
        require_same("gru_step", xr, xz, xn, hr, hz, hn, br, bz, bn, h)
        return (h.meta,) * 5

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
        require_same("gru_step_grad", d_out, d_h, r, z, n, hn, h)
        return (h.meta,) * 7

    @staticmethod
    def formula(*_: TensorType) -> tuple[Expression, ...]:
        d_h = _D_OUT + _D_H
        d_n = d_h * (1 - _Z) * (1 - _N * _N)
        d_r, d_z = d_n * _HN * _R * (1 - _R), d_h * (_H - _N) * _Z * (1 - _Z)
        return d_r, d_z, d_n, d_r, d_z, d_n * _R, d_h * _Z


gru_step_grad = declare(GruStepGrad)


class RnnStep(Formulated):
    """h' = tanh(x + h), or its positive part with `relu`; h: the share of the last h in it."""

    name = "rnn_step"

    @staticmethod
    def infer(x: Operand, h: Operand, *, relu: bool) -> TensorType:
        require_same("rnn_step", x, h)
        return h.meta

    @staticmethod
    def formula(*_: TensorType, relu: bool) -> Expression:
        return apply("relu", _X + _H) if relu else tanh(_X + _H)


rnn_step = declare(RnnStep)


class RnnStepGrad(Formulated):
    """Gradient of the sum in `rnn_step`; d_out, d_h: the two parts of the gradient of `out`."""

    name = "rnn_step_grad"

    @staticmethod
    def infer(d_out: Operand, d_h: Operand, out: Operand, *, relu: bool) -> TensorType:
        require_same("rnn_step_grad", d_out, d_h, out)
        return out.meta

    @staticmethod
    def formula(*_: TensorType, relu: bool) -> Expression:
        d = _D_OUT + _D_H
        return where(_OUT > 0, d, 0) if relu else d * (1 - _OUT * _OUT)


rnn_step_grad = declare(RnnStepGrad)
