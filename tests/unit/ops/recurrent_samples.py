"""Samples of recurrent layers: one row and one step after the other in float64 NumPy, gradients by
complex steps, which are exact to rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .sample import Sample, normal

Array = np.ndarray[Any, Any]
GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
PACKED = (3, 3, 2, 1)
TINY = 1e-150


def sigmoid(x: Array) -> Array:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def _lstm(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
    """(gates, c', h') of one row; a, b: the shares of the input and of h."""
    i, f, g, o = np.split(a + b, 4)
    gates = np.concatenate([sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)])
    i, f, g, o = np.split(gates, 4)
    c = f * c + i * g
    return gates, c, o * np.tanh(c)


def _gru(a: Array, b: Array, h: Array) -> tuple[Array, ...]:
    (xr, xz, xn), (hr, hz, hn) = np.split(a, 3), np.split(b, 3)
    r, z = sigmoid(xr + hr), sigmoid(xz + hz)
    n = np.tanh(xn + r * hn)
    return np.concatenate([r, z, n, hn]), (1 - z) * n + z * h


def recurrent(
    x: Array,
    h: Array,
    weight: Array,
    *rest: Array,
    mode: str,
    sizes: Any = (),
    reverse: Any = False,
) -> tuple[Array, ...]:
    """Every row by itself, as long as it lasts."""
    lead = x.shape[:-1]
    counts = sizes or (lead[1],) * lead[0]
    starts = np.cumsum((0, *counts))
    x = x.reshape(-1, x.shape[-1])
    kind = np.result_type(x, h, weight, *rest)
    hidden = weight.shape[0] // GATES[mode]
    out = np.zeros((len(x), h.shape[1]), kind)
    gates = np.zeros((len(x), (4 if mode in ("LSTM", "GRU") else 0) * hidden), kind)
    cells = np.zeros((len(x), hidden), kind)
    h = h.astype(kind)
    c = rest[0].astype(kind) if mode == "LSTM" else None
    for row in range(len(h)):
        steps = [t for t, count in enumerate(counts) if row < count]
        for t in steps[::-1] if reverse else steps:
            at = starts[t] + row
            share = weight @ h[row]
            if mode == "LSTM":
                gates[at], cells[at], new = _lstm(x[at], share, c[row])
                c[row] = cells[at]
                new = rest[1] @ new if len(rest) > 1 else new
            elif mode == "GRU":
                gates[at], new = _gru(x[at], share + (rest[0] if rest else 0), h[row])
            else:
                total = x[at] + share
                new = np.tanh(total) if mode == "RNN_TANH" else total * (total.real > 0)
            out[at] = h[row] = new
    outs = [out.reshape(*lead, -1), h]
    if mode == "LSTM":
        outs += [c, gates.reshape(*lead, -1), cells.reshape(*lead, -1)]
    elif mode == "GRU":
        outs.append(gates.reshape(*lead, -1))
    return tuple(outs)


def slopes(function: Callable[..., Any], inputs: tuple[Array, ...], weights: Any) -> list[Array]:
    """Gradients of the weighted sum of the results of `function`."""
    made = []
    for i, x in enumerate(inputs):
        d = np.zeros(x.shape)
        for at in np.ndindex(x.shape):
            moved = x.astype(complex)
            moved[at] += TINY * 1j
            outs = function(*inputs[:i], moved, *inputs[i + 1 :])
            d[at] = sum((w * y).sum() for w, y in zip(weights, outs, strict=False)).imag / TINY
        made.append(d)
    return made


def recurrent_grad(
    d_out: Array, d_h: Array, h: Array, weight: Array, out: Array, *rest: Array, **attrs: Any
) -> tuple[Array, ...]:
    """The gates' inputs are found from the gates; all else follows from `recurrent`."""
    mode, more = attrs["mode"], rest[3:] if attrs["mode"] == "LSTM" else rest[1:]
    weights = [d_out, d_h, *(rest[2:3] if mode == "LSTM" else ())]
    x = INPUTS[mode, attrs.get("sizes", ()), attrs.get("reverse", False), len(more)]
    return tuple(slopes(lambda *ins: recurrent(*ins, **attrs), (x, h, weight, *more), weights))


INPUTS: dict[tuple[Any, ...], Array] = {}
"""The input of each call whose gradient is a sample of its own."""


def _call(mode: str, sizes: Any, reverse: bool, *, is_full: bool) -> list[Sample]:
    """The sample of a call and that of its gradient. is_full: with a projection, or a bias."""
    hidden, size = 3, 2 if mode == "LSTM" and is_full else 3
    columns = GATES[mode] * hidden
    lead = (sum(sizes),) if sizes else (4, 3)
    x, h = normal(*lead, columns, seed=1), normal(3, size, seed=2)
    weight = normal(columns, size, seed=3) * 0.5
    rest = [normal(3, hidden, seed=4)] if mode == "LSTM" else []
    if is_full:
        rest.append(normal(size, hidden, seed=5) if mode == "LSTM" else normal(columns, seed=5))
    attrs = {"mode": mode, "sizes": sizes, "reverse": reverse}
    outs = recurrent(x, h, weight, *rest, **attrs)
    INPUTS[mode, sizes, reverse, len(rest)] = x
    states = 3 if mode == "LSTM" else 2
    d = [normal(*y.shape, seed=7 + i) for i, y in enumerate(outs[:states])]
    kept = [*outs[states:], *d[2:], *rest]
    whole = Sample("recurrent", (x, h, weight, *rest), attrs, recurrent, wrt=())
    compared = tuple(range(states))
    differentiated = Sample("recurrent", (x, h, weight, *rest), attrs, recurrent, compared=compared)
    d_inputs = (d[0], d[1], h, weight, outs[0], *kept)
    return [
        whole,
        differentiated,
        Sample("recurrent_grad", d_inputs, attrs, recurrent_grad, wrt=()),
    ]


def _sequences() -> list[Sample]:
    made = []
    for mode in GATES:
        fulls = (False, True) if mode in ("LSTM", "GRU") else (False,)
        for sizes, reverse in (((), False), ((), True), (PACKED, False), (PACKED, True)):
            for is_full in fulls:
                made += _call(mode, sizes, reverse, is_full=is_full)
    return made


# ---- one step ------------------------------------------------------------------------------------


def _lstm_step(*operands: Array) -> tuple[Array, ...]:
    gates, c, h = _lstm(np.concatenate(operands[:4]), np.concatenate(operands[4:8]), operands[8])
    return (*np.split(gates, 4), c, h)


def _gru_step(*operands: Array) -> tuple[Array, ...]:
    given = np.concatenate(operands[3:6]) + np.concatenate(operands[6:9])
    gates, h = _gru(np.concatenate(operands[:3]), given, operands[9])
    return (*np.split(gates, 4), h)


def _rnn_step(x: Array, h: Array, relu: bool) -> Array:
    return np.where((x + h).real > 0, x + h, 0) if relu else np.tanh(x + h)


def _slope(function: Callable[..., Any], operands: list[Array], i: int, weights: Any) -> Array:
    """Gradient of the weighted outputs by operand i, where every element stands for itself."""
    moved = [x + TINY * 1j if k == i else x for k, x in enumerate(operands)]
    total = sum(w * y for w, y in zip(weights, function(*moved), strict=True))
    return np.asarray(total).imag / TINY


def _steps() -> list[Sample]:
    def operands(count: int) -> list[Array]:
        return [normal(5, 3, seed=11 + i) for i in range(count)]

    def lstm_grad(d_out: Array, d_h: Array, d_c: Array, *_: Array) -> tuple[Array, ...]:
        weights = (0, 0, 0, 0, d_c, d_out + d_h)
        return tuple(_slope(_lstm_step, lstm, i, weights) for i in (0, 1, 2, 3, 8))

    def gru_grad(d_out: Array, d_h: Array, *_: Array) -> tuple[Array, ...]:
        weights = (0, 0, 0, 0, d_out + d_h)
        return tuple(_slope(_gru_step, gru, i, weights) for i in (0, 1, 2, 3, 4, 5, 9))

    def rnn_grad(d_out: Array, d_h: Array, out: Array, relu: bool) -> Array:
        return _slope(lambda x, h: [_rnn_step(x, h, relu)], rnn, 0, [d_out + d_h])

    lstm, gru, rnn = operands(9), operands(10), operands(2)
    *gates, c, _ = _lstm_step(*lstm)
    *kept, _ = _gru_step(*gru)
    d = [normal(5, 3, seed=31 + i) for i in range(3)]
    made = [
        Sample("lstm_step", tuple(lstm), {}, _lstm_step),
        Sample("lstm_step_grad", (*d, *gates, c, lstm[8]), {}, lstm_grad),
        Sample("gru_step", tuple(gru), {}, _gru_step),
        Sample("gru_step_grad", (*d[:2], *kept, gru[9]), {}, gru_grad),
    ]
    for relu in (False, True):
        attrs, out = {"relu": relu}, _rnn_step(rnn[0], rnn[1], relu)
        made.append(Sample("rnn_step", tuple(rnn), attrs, _rnn_step))
        made.append(Sample("rnn_step_grad", (*d[:2], out), attrs, rnn_grad))
    return made


RECURRENT_SAMPLES = [*_sequences(), *_steps()]
