"""Tensor buffers: tensors of which each element is a tensor of its own shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from oneflow.core.dtype import DType, DTypeLike, dtype_of, float32, tensor_buffer
from oneflow.core.errors import ShapeError
from oneflow.core.operand import Number
from oneflow.core.size import Size
from oneflow.functional.concat_split import stack
from oneflow.functional.creation import full
from oneflow.functional.shaping import reshape
from oneflow.tensor.tensor import Tensor

__all__ = [
    "BufferTensor",
    "gen_tensor_buffer",
    "tensor_buffer_to_list_of_tensors",
    "tensor_buffer_to_tensor",
    "tensor_to_tensor_buffer",
]


class BufferTensor:
    """Tensors in an array of a shape of its own; its dtype is `flow.tensor_buffer`."""

    dtype: DType = tensor_buffer
    place: object = None
    """The ranks that it is spread over, if a reader with a placement made it."""

    def __init__(self, shape: Sequence[int], parts: Sequence[Tensor]) -> None:
        self.shape, self.parts = Size(shape), tuple(parts)
        if int(np.prod(self.shape)) != len(self.parts):
            raise ShapeError(f"a buffer of shape {self.shape} cannot hold {len(parts)} tensors")

    def numpy(self) -> np.ndarray[Any, Any]:
        """The tensors as arrays, in an array of objects of the buffer's shape."""
        out = np.empty(len(self.parts), object)
        for i, part in enumerate(self.parts):
            out[i] = part.numpy()
        return out.reshape(self.shape)

    def numel(self) -> int:
        """Number of tensors that it holds."""
        return len(self.parts)

    def __repr__(self) -> str:
        sizes = ", ".join(str(tuple(p.shape)) for p in self.parts[:8])
        return f"tensor_buffer(shape={tuple(self.shape)}, of tensors of shapes {sizes})"


def gen_tensor_buffer(
    shape: Sequence[int],
    shape_list: Sequence[Sequence[int]],
    value_list: Sequence[Number],
    data_type: DTypeLike = float32,
    dynamic_out: bool = False,
) -> BufferTensor:
    """A buffer of constant tensors: their shapes and values, one for each element."""
    dtype = dtype_of(data_type)
    parts = [full(tuple(s), v, dtype=dtype) for s, v in zip(shape_list, value_list, strict=True)]
    return BufferTensor(shape, parts)


def tensor_to_tensor_buffer(input: Tensor, instance_dims: int) -> BufferTensor:
    """The slices of the last instance_dims dims, as a buffer of the dims before."""
    if not 0 <= instance_dims <= input.ndim:
        raise ShapeError(f"tensor_to_tensor_buffer: {input.meta} has no {instance_dims} last dims")
    lead, rest = (
        input.shape[: input.ndim - instance_dims],
        input.shape[input.ndim - instance_dims :],
    )
    return BufferTensor(lead, reshape(input, (-1, *rest)).unbind(0))


def tensor_buffer_to_tensor(
    input: BufferTensor, dtype: DTypeLike, instance_shape: Sequence[int]
) -> Tensor:
    """The tensors of a buffer, all of one shape and dtype, as one. Raises ShapeError."""
    wanted = dtype_of(dtype)
    for part in input.parts:
        if tuple(part.shape) != tuple(instance_shape) or part.dtype is not wanted:
            raise ShapeError(
                f"tensor_buffer_to_tensor: wanted {wanted} of {tuple(instance_shape)}, but the "
                f"buffer holds {part.meta}"
            )
    return reshape(stack(list(input.parts)), (*input.shape, *instance_shape))


def tensor_buffer_to_list_of_tensors(
    input: BufferTensor,
    out_shapes: Sequence[Sequence[int]] | Sequence[int] | None = None,
    out_dtypes: Sequence[DType] | DType | None = None,
    dynamic_out: bool = False,
) -> tuple[Tensor, ...]:
    """Return the tensors of a buffer. The other arguments are upstream's, and not needed."""
    return input.parts
