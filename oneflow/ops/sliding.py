"""Windows that slide along a dim, and views by strides: parts of a tensor that may overlap."""

from __future__ import annotations

from oneflow.core.dtype import bool_
from oneflow.core.errors import ShapeError
from oneflow.core.op import Op, declare
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import SbpSignature, signature
from oneflow.core.tensor_type import TensorType
from oneflow.ops import unary
from oneflow.ops.checks import require_dim, require_same_dtype

Dims = tuple[int, ...]


def _signatures(x: TensorType, dim: int, ndim: int) -> list[SbpSignature]:
    """Other dims may be split, and windows are linear. ndim: without the dim of places in them."""
    sums = [] if x.dtype is bool_ else [signature("P -> P")]
    return [signature(f"S{i} -> S{i}") for i in range(ndim) if i != dim] + sums


class Unfold(Op):
    """The windows x[..., i * step : i * step + size, ...] along `dim`; their places are a new last
    dim."""

    name = "unfold"
    is_view = True

    @staticmethod
    def infer(x: Operand, *, dim: int, size: int, step: int) -> TensorType:
        require_dim("unfold", x, dim)
        if not 0 <= size <= x.shape[dim] or step < 1:
            raise ShapeError(
                f"unfold: windows of size {size} with step {step} do not lie in dim {dim} of {x}"
            )
        count = (x.shape[dim] - size) // step + 1
        return x.meta.with_shape((*x.shape[:dim], count, *x.shape[dim + 1 :], size))

    @staticmethod
    def sbp(x: TensorType, *, dim: int, **_: object) -> list[SbpSignature]:
        return _signatures(x, dim, x.ndim)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, *, dim: int, size: int, step: int) -> Gradients:
        return (unfold_grad(d, dim=dim, step=step, length=x.meta.shape[dim]),)


unfold = declare(Unfold)


class UnfoldGrad(Op):
    """The windows d added up where they lie in a dim of that length: the gradient of `unfold`."""

    name = "unfold_grad"

    @staticmethod
    def infer(d: Operand, *, dim: int, step: int, length: int) -> TensorType:
        require_dim("unfold_grad", d, dim)
        if d.shape[dim] and (d.shape[dim] - 1) * step + d.shape[-1] > length:
            raise ShapeError(f"unfold_grad: the windows {d} do not fit into length {length}")
        return d.meta.with_shape((*d.shape[:dim], length, *d.shape[dim + 1 : -1]))

    @staticmethod
    def sbp(d: TensorType, *, dim: int, **_: object) -> list[SbpSignature]:
        return _signatures(d, dim, d.ndim - 1)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, *, dim: int, step: int, **_: object) -> Gradients:
        return (unfold(d, dim=dim, size=x.meta.shape[-1], step=step),)


unfold_grad = declare(UnfoldGrad)


# ---- by strides ----------------------------------------------------------------------------------


def _check_strides(name: str, x: Operand, size: Dims, stride: Dims, offset: int) -> None:
    if len(size) != len(stride) or offset < 0 or any(n < 0 for n in (*size, *stride)):
        raise ShapeError(f"{name}: size {size}, stride {stride} and offset {offset} do not match")
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if 0 not in size and last >= x.meta.numel:
        raise ShapeError(
            f"{name}: size {size} with stride {stride} and offset {offset} reaches element {last}, "
            f"but {x} has {x.meta.numel}; the memory is out of bounds"
        )


class AsStrided(Op):
    """out[i, j, ...] = element offset + i * stride[0] + j * stride[1] + ... of x in row-major
    order."""

    name = "as_strided"
    is_view = True

    @staticmethod
    def infer(x: Operand, *, size: Dims, stride: Dims, offset: int) -> TensorType:
        _check_strides("as_strided", x, size, stride, offset)
        return x.meta.with_shape(size)

    @staticmethod
    def sbp(x: TensorType, **_: object) -> list[SbpSignature]:
        return [] if x.dtype is bool_ else [signature("P -> P")]

    @staticmethod
    def undo(x: Tensor, part: Tensor, *, size: Dims, stride: Dims, offset: int) -> Tensor:
        return as_strided_update(x, part, stride=stride, offset=offset)

    @staticmethod
    def grad(
        d: Tensor, x: Tensor, out: Tensor, *, size: Dims, stride: Dims, offset: int
    ) -> Gradients:
        return (as_strided_grad(d, shape=x.meta.shape, stride=stride, offset=offset),)


as_strided = declare(AsStrided)


class AsStridedGrad(Op):
    """Zeros of `shape` to which the elements of d are added where `as_strided` reads them."""

    name = "as_strided_grad"

    @staticmethod
    def infer(d: Operand, *, shape: Dims, stride: Dims, offset: int) -> TensorType:
        out = d.meta.with_shape(shape)
        _check_strides("as_strided_grad", out, d.shape, stride, offset)
        return out

    @staticmethod
    def sbp(d: TensorType, **_: object) -> list[SbpSignature]:
        return [] if d.dtype is bool_ else [signature("P -> P")]

    @staticmethod
    def grad(
        d: Tensor, x: Tensor, out: Tensor, *, shape: Dims, stride: Dims, offset: int
    ) -> Gradients:
        return (as_strided(d, size=x.meta.shape, stride=stride, offset=offset),)


as_strided_grad = declare(AsStridedGrad)


class AsStridedUpdate(Op):
    """A copy of x with `part` written where `as_strided` reads; the last of equal places wins."""

    name = "as_strided_update"
    precision = "either"

    @staticmethod
    def infer(x: Operand, part: Operand, *, stride: Dims, offset: int) -> TensorType:
        require_same_dtype("as_strided_update", x, part)
        _check_strides("as_strided_update", x, part.shape, stride, offset)
        return x.meta

    @staticmethod
    def sbp(x: TensorType, part: TensorType, **_: object) -> list[SbpSignature]:
        return [] if x.dtype is bool_ else [signature("P P -> P")]

    @staticmethod
    def grad(
        d: Tensor, x: Tensor, part: Tensor, out: Tensor, *, stride: Dims, offset: int
    ) -> Gradients:
        def d_x() -> Tensor:
            hole = unary.full_like(part, value=0)
            return as_strided_update(d, hole, stride=stride, offset=offset)

        size = part.meta.shape
        return d_x, lambda: as_strided(d, size=size, stride=stride, offset=offset)


as_strided_update = declare(AsStridedUpdate)
