"""Functions that programs call under upstream's inner names: `flow._C.reduce_sum` and the like."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from oneflow.core.device import DeviceLike
from oneflow.core.dtype import DTypeLike, float32
from oneflow.core.errors import DTypeError
from oneflow.core.operand import Number
from oneflow.functional import creation, gather_scatter, reduction, shaping
from oneflow.functional.arithmetic import add, div, mul, sub
from oneflow.functional.dims import one_dim
from oneflow.functional.from_data import beside
from oneflow.functional.linalg import products
from oneflow.functional.nn import layers as nn_layers
from oneflow.functional.nn import loss as nn_loss
from oneflow.functional.strides import unfold_dim
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

Axes = int | Sequence[int] | None


def _axes(axis: Axes) -> int | tuple[int, ...] | None:
    """Dims of a reduction, none of them meaning all."""
    if axis is None or isinstance(axis, int):
        return axis
    return tuple(axis) or None


def reduce_sum(
    x: Tensor, dim: Axes = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Tensor:
    """The sum over some dims, or over all."""
    return reduction.sum(x, _axes(dim), keepdim, dtype=dtype)


def reduce_mean(x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """The mean over some dims, or over all."""
    return reduction.mean(x, _axes(dim), keepdim)


def copy(
    x: Tensor, device_type: str = "cpu", device_id: int = 0, pin_memory: bool = False
) -> Tensor:
    """A copy on a device."""
    return x.to(f"{device_type}:{device_id}", copy=True)


def noncontiguous_binary_op(
    lhs: Tensor, rhs: Tensor, op: str = "add", inplace: bool = False
) -> Tensor:
    """lhs op rhs; op: add, sub, mul or div."""
    kinds: dict[str, Callable[[Tensor, Tensor], Tensor]]
    kinds = {"add": add, "sub": sub, "mul": mul, "div": div}
    out = kinds[op](lhs, rhs)
    return lhs.copy_(out) if inplace else out


def constant(
    shape: Sequence[int],
    value: Number | Tensor,
    *,
    dtype: DTypeLike = float32,
    device: DeviceLike | None = None,
) -> Tensor:
    """A tensor filled with a number."""
    number = value.item() if isinstance(value, Tensor) else value
    return creation.full(tuple(shape), number, dtype=dtype, device=device)


def contiguous_(input: Tensor) -> Tensor:
    """Lay the elements of a tensor out in row-major order."""
    if not input.is_contiguous():
        with no_grad():
            input.data = input.clone()
    return input


def eye_(x: Tensor) -> Tensor:
    """Write ones on the diagonal of a matrix and zeros elsewhere."""
    rows, columns = x.meta.shape
    with no_grad():
        x.copy_(beside(x, np.eye(rows, columns, dtype=x.meta.dtype.np)))
    return x


def batch_matmul(
    a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False, alpha: float = 1.0
) -> Tensor:
    """alpha * a @ b for each matrix of a batch."""
    a = a.transpose(-1, -2) if transpose_a else a
    b = b.transpose(-1, -2) if transpose_b else b
    out = products.matmul(a, b)
    return out if alpha == 1 else mul(out, alpha)


def expand_dims(input: Tensor, dim: int) -> Tensor:
    """The tensor with a new dim of size 1."""
    return shaping.unsqueeze(input, dim)


def dim_gather(input: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    """The elements at the indices along a dim."""
    return gather_scatter.gather(input, dim, index)


def unfold_tensor(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows along a dim, in a new last dim."""
    return unfold_dim(x, dimension, size, step)


def softmax_cross_entropy_grad(dy: Tensor, label: Tensor, prob: Tensor) -> Tensor:
    """The gradient at the logits, given their softmax."""
    if len({dy.meta.dtype, label.meta.dtype, prob.meta.dtype}) > 1:
        raise DTypeError(
            "softmax_cross_entropy_grad: dy, label and prob must have one dtype, got "
            f"{dy.meta}, {label.meta} and {prob.meta}"
        )
    return mul(shaping.unsqueeze(dy, -1), sub(prob, label))


def binary_cross_entropy_with_logits_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`F.binary_cross_entropy_with_logits`."""
    return nn_loss.binary_cross_entropy_with_logits(
        input, target, weight, pos_weight=pos_weight, reduction=reduction
    )


def normalization(
    x: Tensor,
    moving_mean: Tensor | None = None,
    moving_variance: Tensor | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    axis: int = 1,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    is_training: bool = False,
) -> Tensor:
    """Batch norm with channels in dim `axis`."""
    axis = one_dim(axis, x.ndim, "normalization")
    turned = x if axis == 1 else shaping.movedim(x, axis, 1)
    out = nn_layers.batch_norm(
        turned, moving_mean, moving_variance, gamma, beta, is_training, momentum, epsilon
    )
    return out if axis == 1 else shaping.movedim(out, 1, axis)


def multi_tensor_yolov5_weight_update(
    model: Sequence[Tensor], model_update: Sequence[Tensor], d: float
) -> None:
    """Running means of models, in place: d * model + (1 - d) * model_update."""
    with no_grad():
        for x, new in zip(model, model_update, strict=True):
            x.copy_(add(mul(x, d), mul(new, 1 - d)))
