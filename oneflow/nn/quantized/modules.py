"""Layers whose weights are packed integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oneflow.core.device import DeviceLike
from oneflow.core.dtype import DTypeLike, uint8
from oneflow.functional.creation import zeros as zeros_of
from oneflow.functional.gather_scatter import index_select
from oneflow.nn.module import Module
from oneflow.nn.modules.linear import Linear as FloatLinear
from oneflow.nn.modules.sparse import Embedding as FloatEmbedding
from oneflow.nn.parameter import Parameter
from oneflow.nn.quantized.packing import Packed, check_groups
from oneflow.ops.quantized import dequantize, quantized_linear
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from oneflow.nn.quantized.quantize import Config


class _Quantized(Module):
    """A layer with a packed weight in its buffers qweight, scales, zeros and order.

    qweight: (rows, columns * bits / 8), uint8.  scales: (rows, groups).  zeros: the same shape,
    uint8, or None.  order: (columns,), int64, or None.
    """

    qweight: Tensor
    scales: Tensor
    zeros: Tensor | None
    order: Tensor | None

    def _allocate(
        self,
        shape: tuple[int, int],
        bits: int,
        group_size: int | None,
        has_zeros: bool,
        device: DeviceLike | None,
        dtype: DTypeLike | None,
    ) -> None:
        rows, columns = shape
        size = columns if group_size is None else group_size
        check_groups(type(self).__name__, columns, size, bits)
        groups = rows, columns // size
        self._keep(
            Packed(
                zeros_of(rows, columns * bits // 8, dtype=uint8, device=device),
                zeros_of(*groups, dtype=dtype, device=device),
                zeros_of(*groups, dtype=uint8, device=device) if has_zeros else None,
            ),
            bits,
        )

    def _keep(self, packed: Packed, bits: int) -> None:
        self.bits = bits
        self.register_buffer("qweight", packed.weight)
        self.register_buffer("scales", packed.scales)
        self.register_buffer("zeros", packed.zeros)
        self.register_buffer("order", packed.order)

    @property
    def group_size(self) -> int:
        """Neighbouring inputs with one scale."""
        return self.qweight.shape[1] * 8 // self.bits // self.scales.shape[1]

    def _parts(self) -> tuple[Tensor, ...]:
        parts = self.qweight, self.scales
        return parts if self.zeros is None else (*parts, self.zeros)

    def dequantize(self) -> Tensor:
        """The weight as floats, (rows, columns)."""
        weight: Tensor = dequantize(*self._parts(), bits=self.bits)
        if self.order is None:
            return weight
        return index_select(weight, 1, self.order.argsort())

    @property
    def weight(self) -> Tensor:
        """The weight as floats, made at each look, for layers that multiply by it themselves."""
        return self.dequantize()

    def _repr_of_weight(self) -> str:
        kind = "" if self.zeros is None else ", has_zeros=True"
        return f"bits={self.bits}, group_size={self.group_size}{kind}"


class Linear(_Quantized):
    """x (..., in_features) -> x @ dequantize().T + bias (..., out_features).

    Its gradients are those of x and of the bias; the weight stays as it is. The first values are
    zeros: make one of a trained layer by `from_float`, or load a state dict.

    Example:
        >>> import oneflow as flow
        >>> layer = flow.nn.Linear(64, 8)
        >>> config = flow.nn.quantized.Int8WeightOnlyConfig()
        >>> flow.nn.quantized.Linear.from_float(layer, config)
        Linear(in_features=64, out_features=8, bias=True, bits=8, group_size=64)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        bits: int = 8,
        group_size: int | None = None,
        has_zeros: bool = False,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self._allocate((out_features, in_features), bits, group_size, has_zeros, device, dtype)
        kept = Parameter(zeros_of(out_features, dtype=dtype, device=device)) if bias else None
        self.register_parameter("bias", kept)

    @classmethod
    def from_float(cls, layer: FloatLinear, config: Config) -> Linear:
        """Return a layer with the rounded weight of another, whose bias it shares."""
        return cls.from_packed(config.pack(layer.weight), config.bits, layer.bias)

    @classmethod
    def from_packed(cls, packed: Packed, bits: int, bias: Parameter | None) -> Linear:
        """Return a layer with a packed weight."""
        made = cls.__new__(cls)
        Module.__init__(made)
        made._keep(packed, bits)
        made.in_features = packed.weight.shape[1] * 8 // bits
        made.out_features = packed.weight.shape[0]
        made.register_parameter("bias", bias)
        return made

    def forward(self, input: Tensor) -> Tensor:
        if self.order is not None:
            input = index_select(input, input.ndim - 1, self.order)
        bias = () if self.bias is None else (self.bias,)
        out: Tensor = quantized_linear(input, *self._parts(), *bias, bits=self.bits)
        return out

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, {self._repr_of_weight()}"
        )


class Embedding(_Quantized):
    """Indices of any shape -> rows of dequantize() (num_embeddings, embedding_dim).

    The first values are zeros: make one of a trained layer by `from_float`, or load a state dict.

    Example:
        >>> import oneflow as flow
        >>> table = flow.nn.Embedding(100, 64)
        >>> config = flow.nn.quantized.Int4WeightOnlyConfig(group_size=32)
        >>> rows = flow.nn.quantized.Embedding.from_float(table, config)
        >>> rows(flow.tensor([[3, 5]])).shape
        oneflow.Size([1, 2, 64])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        bits: int = 8,
        group_size: int | None = None,
        has_zeros: bool = False,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        shape = num_embeddings, embedding_dim
        self._allocate(shape, bits, group_size, has_zeros, device, dtype)

    @classmethod
    def from_float(cls, layer: FloatEmbedding, config: Config) -> Embedding:
        """Return a layer with the rounded table of another."""
        made = cls.__new__(cls)
        Module.__init__(made)
        made._keep(config.pack(layer.weight), config.bits)
        made.num_embeddings, made.embedding_dim = layer.num_embeddings, layer.embedding_dim
        return made

    def forward(self, input: Tensor) -> Tensor:
        ids = input.reshape(-1)
        parts = [index_select(part, 0, ids) for part in self._parts()]
        rows: Tensor = dequantize(*parts, bits=self.bits)
        return rows.reshape(*input.shape, self.embedding_dim)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, {self._repr_of_weight()}"
