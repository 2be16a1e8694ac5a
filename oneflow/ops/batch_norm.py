"""Batch norm, made of ops so that its statistics are those of the whole batch under every SBP.

`batch_norm` is a function of ops. Sums over the batch (P if the batch is split) are the only thing
that crosses ranks: two numbers per channel each way. So data parallel training gives the numbers of
one device.
"""

from __future__ import annotations

from oneflow.core.dtype import float32, float64
from oneflow.core.errors import ShapeError
from oneflow.core.op import Op, declare
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import BROADCAST, PARTIAL, Sbp, SbpSignature, Split, signature
from oneflow.core.tensor_type import TensorType
from oneflow.ops import binary, unary
from oneflow.ops.cast import cast
from oneflow.ops.checks import require_float, require_shape
from oneflow.ops.reduce import reduce_sum
from oneflow.ops.scalar import scalar_add, scalar_mul
from oneflow.ops.shape import reshape
from oneflow.ops.unary import rsqrt

_CHANNEL = 1


def _check(who: str, x: Operand, *per_channel: Operand) -> None:
    require_float(who, x)
    if x.ndim < 2:
        raise ShapeError(f"{who}: needs (N, C, ...), got {x}")
    for t in per_channel:
        if t.shape != x.shape[1:2]:
            raise ShapeError(f"{who}: {t} does not fit the {x.shape[1]} channels of {x}")


def _check_count(who: str, per_channel: tuple[Operand, ...], known: tuple[int, int]) -> None:
    if len(per_channel) not in known:
        raise ShapeError(f"{who}: needs {known} numbers per channel, got {len(per_channel)}")


def _channel_signatures(
    ndim: int, num_full: int, num_channel: int, outputs: str, batch: Sbp
) -> list[SbpSignature]:
    """Inputs: num_full like x, then num_channel of shape (C,). outputs: X like x, C of shape (C,).

    batch: the SBP of a (C,) output when the batch is split.
    """
    result = []
    for i in range(ndim):
        small, made = (Split(0), Split(0)) if i == _CHANNEL else (BROADCAST, batch)
        result.append(
            SbpSignature(
                (Split(i),) * num_full + (small,) * num_channel,
                tuple(Split(i) if letter == "X" else made for letter in outputs),
            )
        )
    return result


class BatchSums(Op):
    """(sum of x, sum of x^2) per channel, float64 (C,).   x: (N, C, ...).

    No gradient: batch_norm_apply's gradient goes through the statistics by itself.
    """

    name = "batch_sums"
    precision = "keep"
    reads_half = range(1)
    is_flat = True

    @staticmethod
    def infer(x: Operand) -> tuple[TensorType, TensorType]:
        _check("batch_sums", x)
        sums = TensorType(x.shape[1:2], float64)
        return sums, sums

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return _channel_signatures(x.ndim, 1, 0, "CC", PARTIAL)


batch_sums = declare(BatchSums)


class BatchMoments(Op):
    """(mean, 1 / sqrt(biased variance + eps)) of the sums of `count` elements per channel.

    wide: the outputs are float64, not float32.
    """

    name = "batch_moments"
    precision = "keep"
    is_flat = True

    @staticmethod
    def infer(
        total: Operand, squares: Operand, *, count: int, eps: float, wide: bool = False
    ) -> tuple[TensorType, TensorType]:
        require_shape("batch_moments", total.shape, squares=squares)
        out = total.meta.with_dtype(float64 if wide else float32)
        return out, out

    @staticmethod
    def sbp(total: TensorType, squares: TensorType, **_: object) -> list[SbpSignature]:
        return [SbpSignature((Split(0),) * 2, (Split(0),) * 2)]


batch_moments = declare(BatchMoments)


class BatchNormTrack(Op):
    """Moving averages: running <- (1 - momentum) * running + momentum * (mean, unbiased variance),
    in place.

    Inputs: running mean, running variance, and the two sums of `count` elements per channel.
    """

    name = "batch_norm_track"
    mutates = {0: 0, 1: 1}
    has_effect = True

    @staticmethod
    def infer(
        mean: Operand,
        variance: Operand,
        total: Operand,
        squares: Operand,
        *,
        count: int,
        momentum: float,
    ) -> tuple[TensorType, TensorType]:
        require_shape(
            "batch_norm_track", mean.shape, variance=variance, total=total, squares=squares
        )
        return mean.meta, variance.meta

    @staticmethod
    def sbp(*types: TensorType, **_: object) -> list[SbpSignature]:
        return [SbpSignature((Split(0),) * 4, (Split(0),) * 2)]


batch_norm_track = declare(BatchNormTrack)


class BatchNormAverage(Op):
    """batch_norm_track with the momentum 1 / batches, after counting this batch: running statistics
    are the mean of all batches.

    Inputs: running mean, running variance, batches int64[], and the two sums.
    """

    name = "batch_norm_average"
    mutates = {0: 0, 1: 1, 2: 2}
    has_effect = True

    @staticmethod
    def infer(
        mean: Operand,
        variance: Operand,
        batches: Operand,
        total: Operand,
        squares: Operand,
        *,
        count: int,
    ) -> tuple[TensorType, TensorType, TensorType]:
        sums = {"total": total, "squares": squares}
        require_shape("batch_norm_average", mean.shape, variance=variance, **sums)
        require_shape("batch_norm_average", (), batches=batches)
        return mean.meta, variance.meta, batches.meta

    @staticmethod
    def sbp(*types: TensorType, **_: object) -> list[SbpSignature]:
        part = (Split(0), Split(0))
        return [SbpSignature((*part, BROADCAST, *part), (*part, BROADCAST))]


batch_norm_average = declare(BatchNormAverage)


class BatchNormApply(Op):
    """y = (x - mean) * inv_std [* gamma + beta], per channel.

    Inputs: x, mean, inv_std, optionally gamma and beta. count: 0 if the statistics are constants;
    else they are those of x itself over `count` elements per channel, and the gradient of x takes
    that into account.
    """

    name = "batch_norm_apply"
    precision = "follow"
    stays_wide = range(1, 5)

    @staticmethod
    def infer(x: Operand, *per_channel: Operand, count: int = 0) -> TensorType:
        _check_count("batch_norm_apply", per_channel, (2, 4))
        _check("batch_norm_apply", x, *per_channel)
        return x.meta

    @staticmethod
    def sbp(x: TensorType, *per_channel: TensorType, **_: object) -> list[SbpSignature]:
        return _channel_signatures(x.ndim, 1, len(per_channel), "X", PARTIAL)

    @staticmethod
    def written(x: Tensor, mean: Tensor, inv_std: Tensor, *affine: Tensor, count: int) -> Tensor:
        like = (1, x.meta.shape[1], *(1,) * (x.ndim - 2))
        if count:
            mean, inv_std = _statistics_of(x, inv_std, count)
        wide = cast(x, dtype=inv_std.meta.dtype)
        centred = binary.sub(wide, reshape(mean, shape=like))
        y = binary.mul(centred, reshape(inv_std, shape=like))
        if affine:
            gamma, beta = (reshape(cast(t, dtype=y.meta.dtype), shape=like) for t in affine)
            y = binary.add(binary.mul(y, gamma), beta)
        out: Tensor = cast(y, dtype=x.meta.dtype)
        return out

    @staticmethod
    def grad(
        d_y: Tensor, x: Tensor, mean: Tensor, inv_std: Tensor, *rest: Tensor, count: int
    ) -> Gradients:
        *affine, _y = rest
        d_beta, d_gamma = batch_norm_grad_sums(d_y, x, mean, inv_std)

        def d_x() -> Tensor:
            inputs = (d_y, x, mean, inv_std, d_beta, d_gamma, *affine[:1])
            return batch_norm_grad_apply(*inputs, count=count)

        def narrow(d: Tensor, like: Tensor) -> Tensor:
            out: Tensor = cast(d, dtype=like.meta.dtype)
            return out

        if not affine:
            return d_x, None, None
        gamma, beta = affine
        return d_x, None, None, lambda: narrow(d_gamma, gamma), lambda: narrow(d_beta, beta)


batch_norm_apply = declare(BatchNormApply)


def _statistics_of(x: Tensor, inv_std: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(mean, 1 / sqrt(variance + eps)) per channel as functions of x, where only the value of the
    second was kept; eps is the difference of 1 / inv_std^2 and the variance.
    """
    dtype = inv_std.meta.dtype
    dims = tuple(i for i in range(x.ndim) if i != _CHANNEL)
    wide = cast(x, dtype=dtype)
    mean = scalar_mul(reduce_sum(wide, dims=dims, keepdim=True), value=1 / count)
    square = unary.square(binary.sub(wide, mean))
    variance = scalar_mul(reduce_sum(square, dims=dims), value=1 / count)
    total, squares = (scalar_mul(s, value=1 / count) for s in batch_sums(x))
    constant = binary.sub(squares, unary.square(total))  # no history: batch_sums ends it
    eps = binary.sub(unary.reciprocal(unary.square(inv_std)), cast(constant, dtype=dtype))
    flat = reshape(mean, shape=inv_std.meta.shape)
    return flat, rsqrt(binary.add(variance, eps))


class BatchNormGradSums(Op):
    """(sum of d_y, sum of d_y * (x - mean) * inv_std) per channel, float64: d_beta and d_gamma."""

    name = "batch_norm_grad_sums"
    stays_wide = range(2, 4)

    @staticmethod
    def infer(
        d_y: Operand, x: Operand, mean: Operand, inv_std: Operand
    ) -> tuple[TensorType, TensorType]:
        _check("batch_norm_grad_sums", x, mean, inv_std)
        require_shape("batch_norm_grad_sums", x.shape, d_y=d_y)
        sums = TensorType(x.shape[1:2], float64)
        return sums, sums

    @staticmethod
    def sbp(
        d_y: TensorType, x: TensorType, mean: TensorType, inv_std: TensorType
    ) -> list[SbpSignature]:
        return [*_channel_signatures(x.ndim, 2, 2, "CC", PARTIAL), signature("P B B B -> P P")]


batch_norm_grad_sums = declare(BatchNormGradSums)


class BatchNormGradApply(Op):
    """d_x = [gamma *] inv_std * (d_y - (d_beta + hat * d_gamma) / count), hat = (x - mean) *
    inv_std.

    Inputs: d_y, x, mean, inv_std, d_beta, d_gamma, optionally gamma. Without the bracketed sums if
    count is 0.
    """

    name = "batch_norm_grad_apply"
    stays_wide = range(2, 7)

    @staticmethod
    def infer(d_y: Operand, x: Operand, *per_channel: Operand, count: int) -> TensorType:
        _check_count("batch_norm_grad_apply", per_channel, (4, 5))
        _check("batch_norm_grad_apply", x, *per_channel)
        require_shape("batch_norm_grad_apply", x.shape, d_y=d_y)
        return x.meta

    @staticmethod
    def sbp(
        d_y: TensorType, x: TensorType, *per_channel: TensorType, **_: object
    ) -> list[SbpSignature]:
        return _channel_signatures(x.ndim, 2, len(per_channel), "X", PARTIAL)


batch_norm_grad_apply = declare(BatchNormGradApply)


def batch_norm(
    x: Tensor,
    running: tuple[Tensor, Tensor] | None,
    affine: tuple[Tensor, Tensor] | None,
    *,
    training: bool,
    momentum: float = 0.1,
    eps: float = 1e-5,
    batches: Tensor | None = None,
) -> Tensor:
    """Batch norm of x (N, C, ...), not an op but made of them.

    running: (mean, variance), updated in place when training; they are the statistics when not
    training. None: the statistics are always the batch's.  affine: (gamma, beta).  batches:
    int64[], how many there were; if given, it is counted on, and each of them weighs the same in
    `running`, regardless of the momentum.  Raises ShapeError for one value per channel in training.
    """
    if not training and running is not None:
        mean, variance = running
        return batch_norm_apply(x, mean, rsqrt(scalar_add(variance, value=eps)), *(affine or ()))
    count = x.meta.numel // max(x.meta.shape[1], 1)
    if training and count <= 1:
        raise ShapeError(
            f"Expected more than 1 value per channel when training, got input {x.meta}"
        )
    total, squares = batch_sums(x)
    wide = x.meta.dtype is float64
    mean, inv_std = batch_moments(total, squares, count=count, eps=eps, wide=wide)
    if training and running is not None and batches is not None:
        batch_norm_average(*running, batches, total, squares, count=count)
    elif training and running is not None:
        batch_norm_track(*running, total, squares, count=count, momentum=momentum)
    return batch_norm_apply(x, mean, inv_std, *(affine or ()), count=count)
