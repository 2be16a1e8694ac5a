"""Normalisation of each sample over its last dims: layer norm and RMS norm."""

from __future__ import annotations

import math

from oneflow.core import dtype as dtypes
from oneflow.core.errors import ShapeError
from oneflow.core.expression import Expression, apply, column_total, scalar, symbols, total
from oneflow.core.op import declare
from oneflow.core.operand import Attr, Gradients, Operand, Tensor
from oneflow.core.tensor_type import TensorType
from oneflow.ops import binary, unary
from oneflow.ops.cast import cast
from oneflow.ops.checks import require_float, require_shape
from oneflow.ops.formulated import Formulated
from oneflow.ops.reduce import reduce_sum
from oneflow.ops.scalar import scalar_add, scalar_mul

_X, _GAMMA, _BETA, _D_Y = symbols("x gamma beta d_y")
_MEAN, _INV_STD, _INV_RMS = symbols("mean inv_std inv_rms")


class _Norm(Formulated):
    """The common part of norms over the dims from begin_axis on."""

    @staticmethod
    def row_dims(x: TensorType, *_: TensorType, begin_axis: int, **attrs: Attr) -> int:
        return x.ndim - begin_axis


def _mean(x: Expression) -> Expression:
    return total(x) * (1 / scalar("columns"))


def _inverse_root(square: Expression) -> Expression:
    return apply("rsqrt", _mean(square) + scalar("eps"))


def _given(*operands: Operand | None) -> tuple[Operand, ...]:
    return tuple(t for t in operands if t is not None)


def _check(who: str, x: Operand, affine: tuple[Operand, ...], begin_axis: int) -> None:
    require_float(who, x, *affine)
    if not 0 <= begin_axis < x.ndim:
        raise ShapeError(f"{who}: begin_axis {begin_axis} is no dim of {x}")
    for t in affine:
        if t.shape != x.shape[begin_axis:]:
            raise ShapeError(
                f"{who}: weight and bias of {x} need shape {list(x.shape[begin_axis:])}, got {t}"
            )


def _statistics(x: Operand, begin_axis: int) -> TensorType:
    """One number per sample, at least float32."""
    dtype = x.dtype if x.dtype.bytes >= 4 else dtypes.float32
    return TensorType(x.shape[:begin_axis], dtype)


def _wide(x: Tensor) -> Tensor:
    out: Tensor = cast(x, dtype=_statistics(x, 0).dtype)
    return out


def _mean_of(x: Tensor, begin_axis: int) -> Tensor:
    """The mean over the dims from begin_axis on, which stay with the size 1."""
    dims = tuple(range(begin_axis, x.ndim))
    count = math.prod(x.meta.shape[begin_axis:])
    out: Tensor = scalar_mul(reduce_sum(x, dims=dims, keepdim=True), value=1 / max(count, 1))
    return out


def _scaled(
    x: Tensor, centred: Tensor, affine: tuple[Tensor, ...], begin_axis: int, eps: float
) -> Tensor:
    """`centred` over the root of its mean square, times gamma, plus beta, in the dtype of x."""
    square = _mean_of(unary.square(centred), begin_axis)
    y = binary.mul(centred, unary.rsqrt(scalar_add(square, value=eps)))
    for t, op in zip(affine, (binary.mul, binary.add), strict=False):
        y = op(y, cast(t, dtype=y.meta.dtype))
    out: Tensor = cast(y, dtype=x.meta.dtype)
    return out


class LayerNorm(_Norm):
    """y = (x - mean) / sqrt(variance + eps) [* gamma [+ beta]] over the dims from begin_axis on.

    Inputs: x, optionally gamma, optionally beta, both of shape x.shape[begin_axis:]. The variance
    is the biased one.
    Outputs: y, mean and inv_std = 1 / sqrt(variance + eps), both of shape x.shape[:begin_axis];
    only y has a gradient.
    """

    name = "layer_norm"
    precision = "follow"
    widens = ("cuda",)

    @staticmethod
    def infer(
        x: Operand,
        gamma: Operand | None = None,
        beta: Operand | None = None,
        *,
        begin_axis: int,
        eps: float = 1e-5,
    ) -> tuple[TensorType, TensorType, TensorType]:
        _check("layer_norm", x, _given(gamma, beta), begin_axis)
        statistics = _statistics(x, begin_axis)
        return x.meta, statistics, statistics

    @staticmethod
    def formula(*types: TensorType, **_: Attr) -> tuple[Expression, ...]:
        mean = _mean(_X)
        centred = _X - mean
        inv_std = _inverse_root(centred * centred)
        y = centred * inv_std
        if len(types) > 1:
            y = y * _GAMMA
        return (y + _BETA if len(types) > 2 else y), mean, inv_std

    @staticmethod
    def written(x: Tensor, *affine: Tensor, begin_axis: int, eps: float) -> Tensor:
        wide = _wide(x)
        centred = binary.sub(wide, _mean_of(wide, begin_axis))
        return _scaled(x, centred, affine, begin_axis, eps)

    @staticmethod
    def grad(
        d_y: Tensor | None,
        d_mean: Tensor | None,
        d_inv_std: Tensor | None,
        *tensors: Tensor,
        begin_axis: int,
        **_: object,
    ) -> Gradients:
        *inputs, _y, mean, inv_std = tensors
        if d_y is None:
            return (None,) * len(inputs)
        made = layer_norm_grad(d_y, inputs[0], mean, inv_std, *inputs[1:2], begin_axis=begin_axis)
        return made[: len(inputs)]


layer_norm = declare(LayerNorm)


class LayerNormGrad(_Norm):
    """(d_x, d_gamma, d_beta) of layer_norm in one pass over d_y and x; d_x alone if there is no
    gamma.

    Inputs: d_y, x, mean, inv_std and gamma.
    """

    name = "layer_norm_grad"
    stays_wide = range(2, 4)
    per_row = frozenset(("mean", "inv_std"))

    @staticmethod
    def infer(
        d_y: Operand,
        x: Operand,
        mean: Operand,
        inv_std: Operand,
        gamma: Operand | None = None,
        *,
        begin_axis: int,
    ) -> tuple[TensorType, ...]:
        _check("layer_norm_grad", x, _given(gamma), begin_axis)
        require_shape("layer_norm_grad", x.shape, d_y=d_y)
        require_shape("layer_norm_grad", x.shape[:begin_axis], mean=mean, inv_std=inv_std)
        return (x.meta,) if gamma is None else (x.meta, gamma.meta, gamma.meta)

    @staticmethod
    def formula(*types: TensorType, **_: Attr) -> tuple[Expression, ...]:
        """d_x = inv_std (g - mean(g) - h mean(g h)), with h = (x - mean) inv_std, g = d_y gamma."""
        hat = (_X - _MEAN) * _INV_STD
        g = _D_Y * _GAMMA if len(types) > 4 else _D_Y
        d_x = (g - _mean(g) - hat * _mean(g * hat)) * _INV_STD
        return (d_x, column_total(_D_Y * hat), column_total(_D_Y)) if len(types) > 4 else (d_x,)


layer_norm_grad = declare(LayerNormGrad)


class RmsNorm(_Norm):
    """y = x / sqrt(mean of x^2 + eps) [* gamma] over the dims from begin_axis on.

    Inputs: x, optionally gamma of shape x.shape[begin_axis:]. Outputs: y, and inv_rms of shape
    x.shape[:begin_axis], which has no gradient of its own.
    """

    name = "rms_norm"
    precision = "follow"
    widens = ("cuda",)

    @staticmethod
    def infer(
        x: Operand, gamma: Operand | None = None, *, begin_axis: int, eps: float = 1e-6
    ) -> tuple[TensorType, TensorType]:
        _check("rms_norm", x, _given(gamma), begin_axis)
        return x.meta, _statistics(x, begin_axis)

    @staticmethod
    def formula(*types: TensorType, **_: Attr) -> tuple[Expression, ...]:
        inv_rms = _inverse_root(_X * _X)
        y = _X * inv_rms
        return (y * _GAMMA if len(types) > 1 else y), inv_rms

    @staticmethod
    def written(x: Tensor, *affine: Tensor, begin_axis: int, eps: float) -> Tensor:
        return _scaled(x, _wide(x), affine, begin_axis, eps)

    @staticmethod
    def grad(
        d_y: Tensor | None,
        d_inv_rms: Tensor | None,
        *tensors: Tensor,
        begin_axis: int,
        **_: object,
    ) -> Gradients:
        *inputs, _y, inv_rms = tensors
        if d_y is None:
            return (None,) * len(inputs)
        made = rms_norm_grad(d_y, inputs[0], inv_rms, *inputs[1:], begin_axis=begin_axis)
        return made


rms_norm = declare(RmsNorm)


class RmsNormGrad(_Norm):
    """(d_x, d_gamma) of rms_norm; d_x alone if there is no gamma.   Inputs: d_y, x, inv_rms and
    gamma.
    """

    name = "rms_norm_grad"
    stays_wide = range(2, 3)
    per_row = frozenset(("inv_rms",))

    @staticmethod
    def infer(
        d_y: Operand, x: Operand, inv_rms: Operand, gamma: Operand | None = None, *, begin_axis: int
    ) -> tuple[TensorType, ...]:
        _check("rms_norm_grad", x, _given(gamma), begin_axis)
        require_shape("rms_norm_grad", x.shape, d_y=d_y)
        require_shape("rms_norm_grad", x.shape[:begin_axis], inv_rms=inv_rms)
        return (x.meta,) if gamma is None else (x.meta, gamma.meta)

    @staticmethod
    def formula(*types: TensorType, **_: Attr) -> tuple[Expression, ...]:
        """d_x = inv_rms (g - h mean(g h)), where h = x inv_rms and g = d_y gamma."""
        hat = _X * _INV_RMS
        g = _D_Y * _GAMMA if len(types) > 3 else _D_Y
        d_x = (g - hat * _mean(g * hat)) * _INV_RMS
        return (d_x, column_total(_D_Y * hat)) if len(types) > 3 else (d_x,)


rms_norm_grad = declare(RmsNormGrad)
