"""Recurrent layers as functions of their weights, as `torch.lstm` and `flow._C.lstm` are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from oneflow.core.errors import CallError
from oneflow.nn.modules.rnn import RNNBase
from oneflow.nn.utils import rnn as packing
from oneflow.tensor.tensor import Tensor

Sized = Tensor | Sequence[Tensor]


def _called(name: str, mode: str, states: int) -> Callable[..., tuple[Tensor, ...]]:
    def layers(input: Tensor, *args: object, **keywords: object) -> tuple[Tensor, ...]:
        order = ["hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional"]
        packed = "batch_sizes" in keywords or (len(args) > 2 and not isinstance(args[2], bool))
        order = ["batch_sizes", *order] if packed else [*order, "batch_first"]
        given: dict[str, Any] = {**dict(zip(order, args, strict=False)), **keywords}
        if len(args) > len(order) or given.keys() - set(order) or set(order) - given.keys():
            raise CallError(f"{name}: the arguments are (input, {', '.join(order)})")
        return _run(name, mode, input, given)

    layers.__name__ = layers.__qualname__ = name
    layers.__doc__ = (
        f"Layers of nn.{mode.partition('_')[0]} with the weights `params`, as `layer.parameters()` "
        f"gives them: (outputs, {', '.join(('h', 'c')[:states])}).\n\n"
        "(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first), "
        "or, for packed rows, (data, batch_sizes, hx, params, ..., bidirectional)."
    )
    return layers


def _run(name: str, mode: str, input: Tensor, given: dict[str, Any]) -> tuple[Tensor, ...]:
    hx, params = given["hx"], list(given["params"])
    hidden = hx[1] if mode == "LSTM" else hx
    size = hidden.shape[-1]
    outputs = (hx[0] if mode == "LSTM" else hx).shape[-1]
    layer = RNNBase(
        mode,
        input.shape[-1],
        size,
        given["num_layers"],
        given["has_biases"],
        given.get("batch_first", False),
        float(given["dropout"]),
        given["bidirectional"],
        0 if outputs == size else outputs,
        device="meta",
    )
    if len(params) != len(layer._parameters):
        raise CallError(f"{name}: {len(layer._parameters)} weights are needed, got {len(params)}")
    layer.training = bool(given["train"])
    layer._parameters.update(zip(layer._parameters, params, strict=True))
    state = tuple(hx) if mode == "LSTM" else hx
    if "batch_sizes" in given:
        out, last = layer(packing.PackedSequence(input, given["batch_sizes"]), state)
        out = out.data
    else:
        out, last = layer(input, state)
    return (out, *last) if mode == "LSTM" else (out, last)


lstm = _called("lstm", "LSTM", 2)
gru = _called("gru", "GRU", 1)
rnn_tanh = _called("rnn_tanh", "RNN_TANH", 1)
rnn_relu = _called("rnn_relu", "RNN_RELU", 1)


def pack_padded_sequence(
    input: Tensor, lengths: Tensor, batch_first: bool
) -> tuple[Tensor, Tensor]:
    """Rows of the sequences, step by step, and how many rows each step has; lengths must fall."""
    packed = packing.pack_padded_sequence(input, lengths, batch_first)
    return packed.data, packed.batch_sizes
