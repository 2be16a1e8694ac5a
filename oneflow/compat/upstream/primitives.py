"""Functions that upstream's Python code calls under names of their own: `flow._C.reduce_sum` and
the like, pieces of gradients, windows with all arguments spelt out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from oneflow.core.device import DeviceLike
from oneflow.core.dtype import DTypeLike, float32
from oneflow.core.errors import ArgumentError, DTypeError
from oneflow.core.operand import Index, Number
from oneflow.core.placement import Placement
from oneflow.core.sbp import SbpLike
from oneflow.functional import (
    arithmetic,
    creation,
    gather_scatter,
    index_update,
    reduction,
    shaping,
)
from oneflow.functional.arithmetic import add, div, mul, sub
from oneflow.functional.elementwise import masked_fill, pick
from oneflow.functional.elementwise import round as rounded
from oneflow.functional.from_data import beside
from oneflow.functional.linalg import products
from oneflow.functional.nn import convolution_and_pool as nn_windows
from oneflow.functional.nn import loss as nn_loss
from oneflow.functional.nn import resize as nn_resizing
from oneflow.functional.strides import unfold_dim
from oneflow.ops import unary
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

Axes = int | Sequence[int] | None

# ---- reductions ----------------------------------------------------------------------------------


def _axes(axis: Axes) -> int | tuple[int, ...] | None:
    """Dims of a reduction, none of them meaning all."""
    if axis is None or isinstance(axis, int):
        return axis
    return tuple(axis) or None


def _extreme(of: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reduce(x: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
        """The extreme over some dims, or over all."""
        return of(x, _axes(axis) or (), keepdim)

    return reduce


reduce_max, reduce_min = _extreme(reduction.amax), _extreme(reduction.amin)


def reduce_sum(
    x: Tensor, dim: Axes = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Tensor:
    """The sum over some dims, or over all."""
    return reduction.sum(x, _axes(dim), keepdim, dtype=dtype)


def reduce_nansum(
    x: Tensor, dim: Axes = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Tensor:
    """Sum over some dims, or over all, of the elements that are numbers."""
    return reduction.nansum(x, _axes(dim), keepdim, dtype=dtype)


def reduce_mean(x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """The mean over some dims, or over all."""
    return reduction.mean(x, _axes(dim), keepdim)


def _one_by_one(
    x: Tensor, dim: Axes, keepdim: bool, of: Callable[[Tensor, int, bool], Tensor]
) -> Tensor:
    """A reduction of one dim, over several of them."""
    chosen = _axes(dim)
    dims = range(x.ndim) if chosen is None else (chosen,) if isinstance(chosen, int) else chosen
    for d in sorted((d % x.ndim for d in dims), reverse=True):
        x = of(x, d, keepdim)
    return x


def reduce_prod(
    x: Tensor, dim: Axes = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Tensor:
    """The product over some dims, or over all."""
    return _one_by_one(x, dim, keepdim, lambda y, d, k: reduction.prod(y, d, k, dtype=dtype))


def reduce_all(x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """Whether all along some dims are true."""
    return _one_by_one(x, dim, keepdim, reduction.all)


def reduce_any(x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """Whether any along some dims is true."""
    return _one_by_one(x, dim, keepdim, reduction.any)


def _device_stage(of: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    def reduce(x: Tensor, axis: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """The extreme of a rank's part, where it stands, and how often."""
        best = of(x, _axes(axis) or (), True)
        mask = arithmetic.eq(x, best)
        return best, mask, reduction.sum(mask, _axes(axis), True)

    return reduce


reduce_max_device_stage = _device_stage(reduction.amax)
reduce_min_device_stage = _device_stage(reduction.amin)


def _global_stage(of: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def reduce(
        x: Tensor, device_count: Tensor, axis: Sequence[int], keepdims: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The extreme of the extremes of all ranks, and of which ranks it is."""
        best = of(x, _axes(axis) or (), True)
        out = best if keepdims else of(x, _axes(axis) or (), False)
        return out, arithmetic.eq(x, best)

    return reduce


reduce_max_global_stage = _global_stage(reduction.amax)
reduce_min_global_stage = _global_stage(reduction.amin)


def sqrt_square_sum(x: Tensor) -> Tensor:
    """The root of the sum of squares."""
    return unary.sqrt(reduction.sum(unary.square(x)))


# ---- elements ------------------------------------------------------------------------------------


def reciprocal_no_nan(x: Tensor) -> Tensor:
    """1 / x, and 0 where x is 0."""
    is_zero = arithmetic.eq(x, 0)
    return masked_fill(unary.reciprocal(masked_fill(x, is_zero, 1.0)), is_zero, 0.0)


def rint(x: Tensor) -> Tensor:
    """The nearest whole number, an even one halfway."""
    return rounded(x)


def tan_grad(x: Tensor, dy: Tensor) -> Tensor:
    """The gradient of `tan` at x."""
    return div(dy, unary.square(unary.cos(x)))


def tanh_grad(x: Tensor, dy: Tensor) -> Tensor:
    """The gradient of `tanh` at x."""
    return mul(dy, sub(1, unary.square(unary.tanh(x))))


def sigmoid_grad(y: Tensor, dy: Tensor) -> Tensor:
    """The gradient of `sigmoid` where its result is y."""
    return mul(dy, mul(y, sub(1, y)))


def cosh_grad(x: Tensor, dy: Tensor) -> Tensor:
    """The gradient of `cosh` at x."""
    return mul(dy, unary.sinh(x))


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


def assign_local_tensor(ref: Tensor, value: Tensor) -> None:
    """Write a value into a tensor."""
    with no_grad():
        ref.copy_(value)


def stream_touch(x: Sequence[Tensor]) -> None:
    """Return at once: nothing here runs on a stream that has to be told."""


def throw_error(x: Tensor) -> Tensor:
    """Raise RuntimeError, as programs that test errors want."""
    raise RuntimeError("throw_error: an error was asked for")


def select_top_n(inputs: Sequence[Tensor], n: int) -> tuple[Tensor, ...]:
    """The first n tensors."""
    return tuple(inputs[:n])


# ---- new tensors ---------------------------------------------------------------------------------


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


tensor_constant = constant


def global_constant(
    shape: Sequence[int],
    value: Number | Tensor,
    *,
    dtype: DTypeLike = float32,
    placement: Placement,
    sbp: SbpLike,
) -> Tensor:
    """A global tensor filled with a number."""
    number = value.item() if isinstance(value, Tensor) else value
    return creation.full(tuple(shape), number, dtype=dtype, placement=placement, sbp=sbp)


global_tensor_constant = global_constant


def global_empty(
    shape: Sequence[int], *, dtype: DTypeLike = float32, placement: Placement, sbp: SbpLike
) -> Tensor:
    """A global tensor with any values."""
    return creation.empty(tuple(shape), dtype=dtype, placement=placement, sbp=sbp)


def contiguous_(input: Tensor) -> Tensor:
    """Lay the elements of a tensor out in row-major order."""
    if not input.is_contiguous():
        with no_grad():
            input.data = input.clone()
    return input


def image_flip(x: Tensor, flip_code: Tensor) -> Tensor:
    """Images (N, H, W, C), of which each is turned around by its code: 0 not, 1 left to right, 2
    upside down, 3 both.
    """
    codes = shaping.reshape(flip_code, (-1, 1, 1, 1))
    up = pick(arithmetic.ge(codes, 2), shaping.flip(x, 1), x)
    return pick(arithmetic.eq(codes % 2, 1), shaping.flip(up, 2), up)


def avg_pool2d_nhwc(
    x: Tensor,
    kernel_size: Sequence[int] | int,
    stride: Sequence[int] | int | None = None,
    padding: Sequence[int] | int = 0,
    ceil_mode: bool = False,
) -> Tensor:
    """Means of windows of images (N, H, W, C)."""
    turned = shaping.permute(x, (0, 3, 1, 2))
    pooled = nn_windows.avg_pool2d(turned, kernel_size, stride, padding, ceil_mode)
    return shaping.permute(pooled, (0, 2, 3, 1))


def tensor_setitem(x: Tensor, index: Index, value: Tensor | Number) -> None:
    """Write a value at an index."""
    x[index] = value


def eye_(x: Tensor) -> Tensor:
    """Write ones on the diagonal of a matrix and zeros elsewhere."""
    rows, columns = x.meta.shape
    with no_grad():
        x.copy_(beside(x, np.eye(rows, columns, dtype=x.meta.dtype.np)))
    return x


# ---- products ------------------------------------------------------------------------------------


def batch_matmul(
    a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False, alpha: float = 1.0
) -> Tensor:
    """alpha * a @ b for each matrix of a batch."""
    a = a.transpose(-1, -2) if transpose_a else a
    b = b.transpose(-1, -2) if transpose_b else b
    out = products.matmul(a, b)
    return out if alpha == 1 else mul(out, alpha)


def matrix_vector_product(input: Tensor, vec: Tensor) -> Tensor:
    """A matrix times a vector."""
    return products.mv(input, vec)


def vector_matrix_product(vec: Tensor, input: Tensor) -> Tensor:
    """A vector times a matrix."""
    return products.matmul(vec, input)


# ---- positions -----------------------------------------------------------------------------------


def expand_dims(input: Tensor, dim: int) -> Tensor:
    """The tensor with a new dim of size 1."""
    return shaping.unsqueeze(input, dim)


def dim_gather(input: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    """The elements at the indices along a dim."""
    return gather_scatter.gather(input, dim, index)


def scatternd(indices: Tensor, updates: Tensor, shape: Sequence[int]) -> Tensor:
    """Zeros, to which updates are added at indices."""
    return index_update.scatter_nd(indices, updates, shape)


def scatterndlike(like: Tensor, updates: Tensor, indices: Tensor) -> Tensor:
    """Zeros of the shape of `like`, to which updates are added at indices."""
    return index_update.scatter_nd(indices, updates, like.meta.shape)


def unfold_tensor(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows along a dim, in a new last dim."""
    return unfold_dim(x, dimension, size, step)


def slice_view_1d_contiguous(x: Tensor, start: int, end: int) -> Tensor:
    """Elements [start, end) of a tensor of one dim."""
    return x.narrow(0, start, end - start)


def unsorted_segment_sum(
    x: Tensor, segment_ids: Tensor, axis: int = 0, num_segments: int = 1
) -> Tensor:
    """Sums of the slices along `axis` that have the same segment id."""
    axis %= x.ndim
    ids = shaping.reshape(segment_ids, (-1,))
    shape = (*x.meta.shape[:axis], num_segments, *x.meta.shape[axis + segment_ids.ndim :])
    rows = shaping.reshape(
        x, (*x.meta.shape[:axis], ids.meta.shape[0], *x.meta.shape[axis + segment_ids.ndim :])
    )
    zeros = beside(x, np.zeros(shape, dtype=x.meta.dtype.np))
    return gather_scatter.index_add(zeros, axis, ids, rows)


def unsorted_segment_sum_like(
    x: Tensor, segment_ids: Tensor, like: Tensor, axis: int = 0
) -> Tensor:
    """`unsorted_segment_sum` with as many segments as `like` has slices."""
    return unsorted_segment_sum(x, segment_ids, axis, like.meta.shape[axis])


def embedding_renorm_(
    input: Tensor, indices: Tensor, max_norm: float, norm_type: float = 2.0
) -> Tensor:
    """Scale the rows at the indices down to a norm of max_norm, in place."""
    with no_grad():
        norms = reduction.norm(input, norm_type, 1, True)
        used = beside(input, np.zeros(input.meta.shape[0], dtype=np.bool_))
        marks = beside(input, np.ones(indices.numel(), dtype=np.bool_))
        flat = shaping.reshape(indices, (-1,))
        is_used = index_update.index_put(used, (flat,), marks)
        is_long = arithmetic.gt(norms, max_norm) & shaping.unsqueeze(is_used, 1)
        input.copy_(mul(input, pick(is_long, div(max_norm, add(norms, 1e-7)), 1.0)))
    return input


# ---- losses --------------------------------------------------------------------------------------


def kl_div_loss(
    input: Tensor, target: Tensor, log_target: bool = False, reduction: str = "mean"
) -> Tensor:
    """`F.kl_div`."""
    return nn_loss.kl_div(input, target, log_target=log_target, reduction=reduction)


def binary_cross_entropy_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """`F.binary_cross_entropy`."""
    return nn_loss.binary_cross_entropy(input, target, weight, reduction=reduction)


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


def binary_cross_entropy_with_logits_loss_grad(
    dy: Tensor,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
) -> Tensor:
    """The gradient at the input of the loss of each element."""
    if pos_weight is None:
        found = mul(sub(unary.sigmoid(input), target), dy)
    else:
        scale = add(mul(target, sub(pos_weight, 1)), 1)
        found = mul(sub(sub(1, target), mul(scale, unary.sigmoid(unary.neg(input)))), dy)
    return found if weight is None else mul(found, weight)


def softmax_cross_entropy_grad(dy: Tensor, label: Tensor, prob: Tensor) -> Tensor:
    """The gradient at the logits, given their softmax."""
    if len({dy.meta.dtype, label.meta.dtype, prob.meta.dtype}) > 1:
        raise DTypeError(
            "softmax_cross_entropy_grad: dy, label and prob must have one dtype, got "
            f"{dy.meta}, {label.meta} and {prob.meta}"
        )
    return mul(shaping.unsqueeze(dy, -1), sub(prob, label))


def distributed_sparse_cross_entropy(prediction: Tensor, label: Tensor, depth: int = 0) -> Tensor:
    """-log(prediction[label]) over the last dim, whichever dim is split."""
    rows = shaping.reshape(prediction, (-1, prediction.meta.shape[-1]))
    wanted = gather_scatter.gather(rows, 1, shaping.reshape(label, (-1, 1)))
    return shaping.reshape(unary.neg(unary.log(wanted)), label.meta.shape)


# ---- windows -------------------------------------------------------------------------------------


def _transposed(convolve: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def deconvolve(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        filters: int = 0,
        padding: Sequence[int] | int = 0,
        data_format: str = "channels_first",
        kernel_size: Sequence[int] | int = 0,
        output_padding: Sequence[int] | int = 0,
        strides: Sequence[int] | int = 1,
        dilation: Sequence[int] | int = 1,
        groups: int = 1,
    ) -> Tensor:
        """The transpose of a convolution. filters, kernel_size: those of the weight."""
        if data_format != "channels_first":
            raise ArgumentError(
                f"deconv: data_format must be 'channels_first', got {data_format!r}"
            )
        return convolve(x, weight, bias, strides, padding, output_padding, groups, dilation)

    return deconvolve


deconv1d = _transposed(nn_windows.conv_transpose1d)
deconv2d = _transposed(nn_windows.conv_transpose2d)
deconv3d = _transposed(nn_windows.conv_transpose3d)


def _resized(mode: str, dims: int) -> Callable[..., Tensor]:
    def upsample(
        x: Tensor,
        *scales_and_corners: float | bool,
        output_size: Sequence[int] | None = None,
        align_corners: bool | None = None,
        data_format: str = "channels_first",
        **scales: float,
    ) -> Tensor:
        """A tensor (N, C, ...) resized to output_size, or by a scale for each spatial dim."""
        if data_format != "channels_first":
            raise ArgumentError(
                f"upsample: data_format must be 'channels_first', got {data_format!r}"
            )
        factors = [*scales.values()]
        for value in scales_and_corners:
            if isinstance(value, bool):
                align_corners = value
            else:
                factors.append(value)
        return nn_resizing.interpolate(
            x,
            size=None if output_size is None else tuple(output_size),
            scale_factor=None if output_size is not None else tuple(factors[:dims]),
            mode=mode,
            align_corners=None if mode == "nearest" else bool(align_corners),
        )

    return upsample


upsample_nearest_1d, upsample_nearest_2d, upsample_nearest_3d = (
    _resized("nearest", dims) for dims in (1, 2, 3)
)
upsample_linear_1d = _resized("linear", 1)
upsample_bilinear_2d = _resized("bilinear", 2)
upsample_bicubic_2d = _resized("bicubic", 2)
upsample_trilinear_3d = _resized("trilinear", 3)
