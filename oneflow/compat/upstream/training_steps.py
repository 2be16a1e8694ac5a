"""Pieces of training that upstream's Python code calls as `flow._C.f`: parts of batch norm, steps
of recurrent layers, updates of several parameters.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence

from oneflow.functional import reduction, shaping
from oneflow.functional.arithmetic import add, div, mul, sub
from oneflow.functional.concat_split import stack
from oneflow.functional.dims import one_dim
from oneflow.functional.nn import layers as nn_layers
from oneflow.functional.promotion import as_type
from oneflow.ops import unary
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

# ---- parts of batch norm, which SyncBatchNorm calls one after another ----------------------------


def _per_channel(x: Tensor, values: Tensor, axis: int) -> Tensor:
    return shaping.reshape(values, tuple(-1 if i == axis else 1 for i in range(x.ndim)))


def _others(x: Tensor, axis: int) -> tuple[int, ...]:
    return tuple(i for i in range(x.ndim) if i != axis)


def batch_norm_stats(input: Tensor, axis: int, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1 / sqrt(variance + eps) of each channel."""
    with no_grad():
        dims = _others(input, axis)
        mean = reduction.mean(input, dims)
        spread = reduction.var(input, dims, unbiased=False)
        return mean, unary.rsqrt(add(spread, eps))


def batch_norm_gather_stats_with_counts(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Mean and 1 / sqrt(variance + eps) of batches together, of which each row of `mean`, `invstd`
    and `counts` is one; running values are moved.
    """
    with no_grad():
        weights = shaping.reshape(as_type(counts, mean.meta.dtype), (-1, 1))
        count = reduction.sum(weights)
        whole = div(reduction.sum(mul(mean, weights), 0), count)
        own = sub(unary.reciprocal(unary.square(invstd)), eps)
        squares = mul(add(own, unary.square(sub(mean, whole))), weights)
        spread = div(reduction.sum(squares, 0), count)
        if running_mean is not None:
            running_mean.copy_(add(mul(running_mean, 1 - momentum), mul(whole, momentum)))
        if running_var is not None:
            unbiased = mul(spread, div(count, sub(count, 1)))
            running_var.copy_(add(mul(running_var, 1 - momentum), mul(unbiased, momentum)))
        return whole, unary.rsqrt(add(spread, eps))


def batch_norm_elemt(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    axis: int = 1,
    eps: float = 1e-5,
) -> Tensor:
    """(input - mean) * invstd * weight + bias, per channel."""
    y = mul(sub(input, _per_channel(input, mean, axis)), _per_channel(input, invstd, axis))
    y = y if weight is None else mul(y, _per_channel(input, weight, axis))
    return y if bias is None else add(y, _per_channel(input, bias, axis))


def batch_norm_backward_reduce(
    grad_out: Tensor, input: Tensor, mean: Tensor, invstd: Tensor, axis: int = 1
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums over each channel: of the gradient, of it times (input - mean), and the gradients of
    weight and bias.
    """
    dims = _others(input, axis)
    total = reduction.sum(grad_out, dims)
    moved = mul(grad_out, sub(input, _per_channel(input, mean, axis)))
    crossed = reduction.sum(moved, dims)
    return total, crossed, mul(crossed, invstd), total.clone()


def batch_norm_backward_elemt(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
    axis: int = 1,
) -> Tensor:
    """The gradient of the input, given the sums of all ranks together."""
    number = reduction.sum(as_type(count, sum_dy.meta.dtype))
    slope = mul(div(sum_dy_xmu, number), unary.square(invstd))
    centred = sub(input, _per_channel(input, mean, axis))
    rest = sub(grad_out, _per_channel(input, div(sum_dy, number), axis))
    rest = sub(rest, mul(centred, _per_channel(input, slope, axis)))
    scale = invstd if weight is None else mul(invstd, weight)
    return mul(rest, _per_channel(input, scale, axis))


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


def normalization_add_relu(
    x: Tensor,
    addend: Tensor | None = None,
    moving_mean: Tensor | None = None,
    moving_variance: Tensor | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    axis: int = 1,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    is_training: bool = False,
) -> Tensor:
    """relu(batch norm + addend)."""
    y = normalization(
        x, moving_mean, moving_variance, gamma, beta, axis, epsilon, momentum, is_training
    )
    return unary.relu(y if addend is None else add(y, addend))


# ---- steps of recurrent layers -------------------------------------------------------------------


def _gates(
    x: Tensor,
    h: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    count: int,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Summands of each gate: of the input, and of the state."""
    of_input = nn_layers.linear(x, w_ih, b_ih).chunk(count, 1)
    of_state = nn_layers.linear(h, w_hh, b_hh).chunk(count, 1)
    return of_input, of_state


def lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of an LSTM: (h, c) of the next position."""
    parts = _gates(input, hx[0], w_ih, w_hh, b_ih, b_hh, 4)
    i, f, g, o = (add(a, b) for a, b in zip(*parts, strict=True))
    cell = add(mul(unary.sigmoid(f), hx[1]), mul(unary.sigmoid(i), unary.tanh(g)))
    return mul(unary.sigmoid(o), unary.tanh(cell)), cell


def gru_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """One step of a GRU: h of the next position."""
    (r, z, n), (hr, hz, hn) = _gates(input, hx, w_ih, w_hh, b_ih, b_hh, 3)
    reset, update = unary.sigmoid(add(r, hr)), unary.sigmoid(add(z, hz))
    new = unary.tanh(add(n, mul(reset, hn)))
    return add(new, mul(update, sub(hx, new)))


def rnn_tanh_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """Compute one step of an RNN: tanh of the sum of both products."""
    return unary.tanh(add(nn_layers.linear(input, w_ih, b_ih), nn_layers.linear(hx, w_hh, b_hh)))


def rnn_relu_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """Compute one step of an RNN: relu of the sum of both products."""
    return unary.relu(add(nn_layers.linear(input, w_ih, b_ih), nn_layers.linear(hx, w_hh, b_hh)))


# ---- updates of several parameters ---------------------------------------------------------------


def _decayed(grad: Tensor, model: Tensor, scale: float, l1: float, l2: float) -> Tensor:
    grad = as_type(grad, model.meta.dtype)
    grad = grad if scale == 1 else mul(grad, scale)
    grad = add(grad, mul(unary.sign(model), l1)) if l1 else grad
    return add(grad, mul(model, l2)) if l2 else grad


def multi_tensor_sgd_update(
    model: Sequence[Tensor],
    model_diff: Sequence[Tensor],
    scale: float = 1.0,
    weight_decay: float = 0.0,
    learning_rate_val: float = 0.0,
) -> None:
    """Move each model against its gradient, in place."""
    with no_grad():
        for x, grad in zip(model, model_diff, strict=True):
            step = add(mul(grad, scale), mul(x, weight_decay))
            x.copy_(sub(x, mul(step, learning_rate_val)))


def multi_tensor_momentum_update(
    model: Sequence[Tensor],
    model_diff: Sequence[Tensor],
    momentum_buf: Sequence[Tensor],
    scale: float = 1.0,
    weight_decay: float = 0.0,
    learning_rate_val: float = 0.0,
    momentum: float = 0.9,
    dampening: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
) -> None:
    """Gradient descent with momentum, of each model in place."""
    with no_grad():
        for x, grad, buffer in zip(model, model_diff, momentum_buf, strict=True):
            own = _decayed(grad, x, -scale if maximize else scale, 0, weight_decay)
            buffer.copy_(add(mul(buffer, momentum), mul(own, 1 - dampening)))
            step = add(own, mul(buffer, momentum)) if nesterov else buffer
            x.copy_(sub(x, mul(step, learning_rate_val)))


def multi_tensor_adam_update(
    model: Sequence[Tensor],
    model_diff: Sequence[Tensor],
    m: Sequence[Tensor],
    v: Sequence[Tensor],
    learning_rate_val: float = 0.0,
    l2: float = 0.0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    bias_correction1_val: float = 1.0,
    bias_correction2_val: float = 1.0,
    do_bias_correction: bool = True,
    scale: float = 1.0,
    weight_decay: float = 0.0,
    epsilon: float = 1e-8,
) -> None:
    """Adam, of each model in place. weight_decay: apart from the gradient, as in AdamW."""
    first, second = (
        (bias_correction1_val, bias_correction2_val) if do_bias_correction else (1.0, 1.0)
    )
    with no_grad():
        for x, grad, mean, square in zip(model, model_diff, m, v, strict=True):
            own = _decayed(grad, x, scale, 0, l2)
            mean.copy_(add(mul(mean, beta1), mul(own, 1 - beta1)))
            square.copy_(add(mul(square, beta2), mul(unary.square(own), 1 - beta2)))
            root = add(div(unary.sqrt(square), builtins.float(second) ** 0.5), epsilon)
            step = add(div(div(mean, first), root), mul(x, weight_decay))
            x.copy_(sub(x, mul(step, learning_rate_val)))


def multi_tensor_yolov5_weight_update(
    model: Sequence[Tensor], model_update: Sequence[Tensor], d: float
) -> None:
    """Running means of models, in place: d * model + (1 - d) * model_update."""
    with no_grad():
        for x, new in zip(model, model_update, strict=True):
            x.copy_(add(mul(x, d), mul(new, 1 - d)))


def fused_clip_grad(
    model_diff: Sequence[Tensor], max_norm: float, norm_type: float = 2.0
) -> Tensor:
    """Scale gradients in place so that the norm of all together is at most max_norm; returns the
    norm that they had.
    """
    with no_grad():
        norms = [reduction.norm(g, norm_type) for g in model_diff]
        whole = norms[0] if len(norms) == 1 else reduction.norm(stack(norms), norm_type)
        factor = div(max_norm, add(whole, 1e-6)).clamp(max=1.0)
        for grad in model_diff:
            grad.copy_(mul(grad, factor))
    return whole
