"""Recurrent layers RNN, LSTM and GRU, an op for each layer and direction; their single cells."""

from __future__ import annotations

import math
from typing import Any, ClassVar, cast

from oneflow.core.device import DeviceLike
from oneflow.core.dtype import DTypeLike
from oneflow.core.errors import ArgumentError, CallError, ShapeError
from oneflow.core.operand import Tensors
from oneflow.core.sbp import all_broadcast
from oneflow.functional.concat_split import cat, chunk, stack, unbind
from oneflow.functional.creation import empty, zeros
from oneflow.functional.gather_scatter import index_select
from oneflow.functional.shaping import transpose
from oneflow.nn import functional as F
from oneflow.nn import init
from oneflow.nn.module import Module
from oneflow.nn.parameter import Parameter
from oneflow.nn.utils.rnn import PackedSequence
from oneflow.ops.recurrent import recurrent
from oneflow.tensor.creation_like import Kind, layout_of
from oneflow.tensor.tensor import Tensor

State = tuple[Tensor, ...]
NUM_GATES = {"RNN_TANH": 1, "RNN_RELU": 1, "LSTM": 4, "GRU": 3}


def _rnn_step(kind: str, x: Tensor, h: Tensor, state: State) -> State:
    """Run one step of a cell.

    x: the share of the input in the gates. h: the share of the last state.
    """
    total = x + h
    return (F.relu(total) if kind == "RNN_RELU" else total.tanh(),)


def _lstm_step(kind: str, x: Tensor, h: Tensor, state: State) -> State:
    gates = x + h
    i, f, g, o = chunk(gates, 4, -1)
    cell = state[1] * f.sigmoid() + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _gru_step(kind: str, x: Tensor, h: Tensor, state: State) -> State:
    x_reset, x_update, x_new = chunk(x, 3, -1)
    h_reset, h_update, h_new = chunk(h, 3, -1)
    reset = (x_reset + h_reset).sigmoid()
    update = (x_update + h_update).sigmoid()
    new = (x_new + reset * h_new).tanh()
    return (new + update * (state[0] - new),)


STEPS = {"RNN_TANH": _rnn_step, "RNN_RELU": _rnn_step, "LSTM": _lstm_step, "GRU": _gru_step}


def _blank_state(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Zeros where x is; whole on every rank, because a split of x may not fit a state."""
    where = layout_of(x)
    if x.is_global:
        where["sbp"] = all_broadcast(x.placement.ndim)
    return zeros(shape, dtype=x.dtype, **where)


def _reset(module: Module, hidden_size: int) -> None:
    bound = 1.0 / math.sqrt(hidden_size) if hidden_size > 0 else 0.0
    for parameter in module.parameters():
        init.uniform_(parameter, -bound, bound)


class RNNBase(Module):
    """num_layers recurrent layers, each reading the outputs of the one before it.

    x: (length, n, input_size), or (n, length, input_size) if batch_first, or without n.  Returns
    the outputs of the last layer and the last state of every layer and direction.  dropout: between
    layers, in training.  bidirectional: also from the end to the start; both outputs side by side.
    proj_size: LSTM outputs are projected to this size, 0 for not.
    """

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        if mode not in NUM_GATES:
            raise ArgumentError(
                f"Unrecognized RNN mode: {mode}; it is one of {', '.join(NUM_GATES)}"
            )
        if num_layers < 1:
            raise ArgumentError(f"num_layers must be greater than zero, got {num_layers}")
        if not 0 <= dropout <= 1:
            raise ArgumentError(f"dropout should be a number in range [0, 1], got {dropout}")
        if proj_size and (mode != "LSTM" or not 0 < proj_size < hidden_size):
            raise ArgumentError("proj_size needs an LSTM, and must be smaller than hidden_size")
        self.mode, self.input_size, self.hidden_size = mode, input_size, hidden_size
        self.num_layers, self.bias, self.batch_first = num_layers, bias, batch_first
        self.dropout, self.bidirectional, self.proj_size = dropout, bidirectional, proj_size
        for layer in range(num_layers):
            for suffix in self._suffixes(layer):
                self._add_weights(layer, suffix, {"device": device, "dtype": dtype})
        self.reset_parameters()

    @property
    def output_size(self) -> int:
        """Size of one direction's output."""
        return self.proj_size or self.hidden_size

    def _suffixes(self, layer: int) -> list[str]:
        return [f"l{layer}", f"l{layer}_reverse"][: 2 if self.bidirectional else 1]

    def _add_weights(self, layer: int, suffix: str, where: Kind) -> None:
        rows = NUM_GATES[self.mode] * self.hidden_size
        directions = 2 if self.bidirectional else 1
        columns = self.output_size * directions if layer else self.input_size
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, columns),
            "weight_hh": (rows, self.output_size),
        }
        if self.bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        if self.proj_size:
            shapes["weight_hr"] = (self.proj_size, self.hidden_size)
        for name, shape in shapes.items():
            self.register_parameter(f"{name}_{suffix}", Parameter(empty(shape, **where)))

    def reset_parameters(self) -> None:
        """All uniform within 1/√hidden_size."""
        _reset(self, self.hidden_size)

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each layer and direction: of the input, of the state, biases of both,
        and of the projection, as far as there are such.
        """
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        suffixes = [suffix for layer in range(self.num_layers) for suffix in self._suffixes(layer)]
        parts = [[self._part(kind, suffix) for kind in kinds] for suffix in suffixes]
        return [[part for part in of_one if part is not None] for of_one in parts]

    def flatten_parameters(self) -> None:
        """Accepted, as in PyTorch, and changes nothing: parameters need not lie side by side."""

    def forward(self, x: Tensor | PackedSequence, state: Tensors | None = None) -> Any:
        if isinstance(x, PackedSequence):
            return self._forward_packed(x, state)
        single = x.ndim == 2
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size:
            raise ShapeError(
                f"{type(self).__name__}: expected 2 or 3 dims, the last of size {self.input_size}, "
                f"got {x.meta}"
            )
        batch_dim = 0 if self.batch_first and not single else 1
        steps: Tensor = x.unsqueeze(1) if single else x
        # Copied: the products over all steps and their gradients go at BLAS's speed over whole rows
        # only. Two layers of 128, 20 rows of 50 steps: 16 ms a training step instead of 37.
        steps = transpose(steps, 0, 1).contiguous() if batch_dim == 0 else steps
        outputs, last = self._layers(steps, self._first_states(steps, state, single))
        if single:
            return outputs.squeeze(1), self._packed([s.squeeze(1) for s in last])
        return (transpose(outputs, 0, 1).contiguous() if batch_dim == 0 else outputs), self._packed(
            last
        )

    def _forward_packed(self, x: PackedSequence, state: Tensors | None) -> Any:
        """Outputs packed like x; states in the order in which the sequences were given."""
        given = [state] if isinstance(state, Tensor) else list(state or ())
        if x.sorted_indices is not None:
            given = [index_select(s, 1, x.sorted_indices) for s in given]
        sizes = tuple(x.batch_sizes.tolist())
        like = zeros((1, sizes[0], 1), dtype=x.data.dtype, **layout_of(x.data))
        first = self._first_states(like, None if state is None else tuple(given), False)
        data, last = self._layers(x.data, first, sizes)
        if x.unsorted_indices is not None:
            last = [index_select(s, 1, x.unsorted_indices) for s in last]
        return x._with(lambda _: data), self._packed(last)

    def _packed(self, states: list[Tensor]) -> Any:
        return tuple(states) if self.mode == "LSTM" else states[0]

    def _first_states(self, x: Tensor, state: Tensors | None, single: bool) -> list[list[Tensor]]:
        """Return, for each layer and direction, the states to start from, each (n, size)."""
        count = self.num_layers * (2 if self.bidirectional else 1)
        sizes = [self.output_size, self.hidden_size][: 2 if self.mode == "LSTM" else 1]
        if state is None:
            blank = [_blank_state(x, (x.shape[1], size)) for size in sizes]
            return [list(blank) for _ in range(count)]
        states = cast("list[Tensor]", list(state) if isinstance(state, tuple | list) else [state])
        if len(states) != len(sizes):
            raise CallError(
                f"{type(self).__name__}: the state must be "
                + ("a tuple of two Tensors (h_0, c_0)" if len(sizes) == 2 else "one Tensor, h_0")
                + f", got {len(states)} Tensor{'s' * (len(states) != 1)}"
            )
        given = [s.unsqueeze(1) if single else s for s in states]
        for tensor, size in zip(given, sizes, strict=True):
            wanted = (count, x.shape[1], size)
            if tuple(tensor.shape) != wanted:
                raise ShapeError(
                    f"{type(self).__name__}: expected a state {wanted}, got {tensor.meta}"
                )
        return [list(states) for states in zip(*(unbind(s, 0) for s in given), strict=True)]

    def _layers(
        self, x: Tensor, first: list[list[Tensor]], sizes: tuple[int, ...] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """All layers. sizes: number of rows of each step, if x is packed."""
        last: list[list[Tensor]] = []
        for layer in range(self.num_layers):
            outputs = []
            for suffix in self._suffixes(layer):
                out, state = self._run(x, suffix, first[len(last)], sizes)
                outputs.append(out)
                last.append(state)
            x = cat(outputs, -1) if len(outputs) > 1 else outputs[0]
            if self.dropout and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        return x, [stack(list(states), 0) for states in zip(*last, strict=True)]

    def _run(
        self, x: Tensor, suffix: str, state: list[Tensor], sizes: tuple[int, ...]
    ) -> tuple[Tensor, list[Tensor]]:
        """One layer in one direction. sizes: number of rows of each step, if x is packed."""
        bias, bias_of_h = self._part("bias_ih", suffix), self._part("bias_hh", suffix)
        rest = state[1:]
        if self.mode == "GRU":
            rest += [] if bias_of_h is None else [bias_of_h]
        elif bias is not None:
            bias = bias + bias_of_h
        if self.proj_size:
            rest.append(self._part("weight_hr", suffix))
        out, *made = recurrent(
            F.linear(x, self._part("weight_ih", suffix), bias),
            state[0],
            self._part("weight_hh", suffix),
            *rest,
            mode=self.mode,
            sizes=sizes,
            reverse=suffix.endswith("reverse"),
        )
        return out, made[: len(state)]

    def _part(self, name: str, suffix: str) -> Any:
        return self._parameters.get(f"{name}_{suffix}")

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        for name, default in (
            ("num_layers", 1),
            ("bias", True),
            ("batch_first", False),
            ("dropout", 0.0),
            ("bidirectional", False),
            ("proj_size", 0),
        ):
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        return text


class RNN(RNNBase):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh). nonlinearity: "tanh" or "relu". See RNNBase."""

    def __init__(self, *args: Any, nonlinearity: str = "tanh", **kwargs: Any) -> None:
        super().__init__(f"RNN_{nonlinearity.upper()}", *args, **kwargs)
        self.nonlinearity = nonlinearity


class LSTM(RNNBase):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997); state: (h, c). See RNNBase."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("LSTM", *args, **kwargs)


class GRU(RNNBase):
    """Gated recurrent unit (Cho et al., EMNLP 2014). See RNNBase."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("GRU", *args, **kwargs)


class RNNCellBase(Module):
    """One step of a recurrent layer. x: (n, input_size) or (input_size,)."""

    mode: ClassVar[str] = ""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        num_chunks: int,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = num_chunks * hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, input_size),
            "weight_hh": (rows, hidden_size),
            "bias_ih": (rows,),
            "bias_hh": (rows,),
        }
        for name, shape in shapes.items():
            wanted = bias or name.startswith("weight")
            made = Parameter(empty(shape, device=device, dtype=dtype)) if wanted else None
            self.register_parameter(name, made)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights and biases anew."""
        _reset(self, self.hidden_size)

    def _kind(self) -> str:
        return self.mode

    def forward(self, x: Tensor, state: Tensors | None = None) -> Any:
        if state is None:
            blank = _blank_state(x, (*x.shape[:-1], self.hidden_size))
            state = (blank, blank) if self._kind() == "LSTM" else blank
        states = tuple(state) if isinstance(state, tuple | list) else (state,)
        gates = F.linear(x, self.weight_ih, self.bias_ih)
        h = F.linear(states[0], self.weight_hh, self.bias_hh)
        new = STEPS[self._kind()](self._kind(), gates, h, states)
        return new if len(new) > 1 else new[0]

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class RNNCell(RNNCellBase):
    """One step of RNN: returns the new h."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ArgumentError(f"Unknown nonlinearity: {nonlinearity}; it is tanh or relu")
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def _kind(self) -> str:
        return f"RNN_{self.nonlinearity.upper()}"


class LSTMCell(RNNCellBase):
    """One step of LSTM: returns the new (h, c)."""

    mode = "LSTM"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)


class GRUCell(RNNCellBase):
    """One step of GRU: returns the new h."""

    mode = "GRU"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)
