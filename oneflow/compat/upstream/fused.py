"""Fused functions of upstream, as compositions: the compiler of graphs, and the ops
themselves, fuse where it pays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from oneflow.compat.upstream.functions import fused_scale_mask_softmax_dropout
from oneflow.core.dtype import uint8
from oneflow.core.errors import ArgumentError
from oneflow.functional.arithmetic import add, div, mul, sub
from oneflow.functional.concat_split import cat
from oneflow.functional.elementwise import clamp, masked_fill
from oneflow.functional.from_data import beside
from oneflow.functional.gather_scatter import index_select
from oneflow.functional.linalg.products import matmul
from oneflow.functional.nn import layers as nn_layers
from oneflow.functional.nn.activation import dropout, fast_gelu, softmax
from oneflow.functional.nn.layers import linear
from oneflow.functional.promotion import as_type
from oneflow.functional.random_state import Generator
from oneflow.functional.reduction import sum as total
from oneflow.functional.reduction import widened
from oneflow.functional.shaping import permute, repeat_interleave, reshape, tril, unsqueeze
from oneflow.ops import activation, unary
from oneflow.ops.binary import maximum, minimum
from oneflow.tensor.tensor import Tensor

# ---- dense layers --------------------------------------------------------------------------------


def fused_matmul_bias(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    _add_to_output: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Tensor:
    """alpha * x @ weight.T + bias, and beta * _add_to_output besides."""
    y = matmul(x, weight.t())
    y = y if alpha == 1 else mul(y, alpha)
    y = y if bias is None else add(y, bias)
    return y if _add_to_output is None else add(y, mul(_add_to_output, beta))


def _check_layers(who: str, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
    if not len(weights) or len(weights) != len(biases):
        raise ArgumentError(
            f"{who}: needs a bias for each weight, got {len(weights)} weights and "
            f"{len(biases)} biases"
        )


def fused_mlp(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    skip_final_activation: bool = False,
) -> Tensor:
    """Dense layers with ReLU behind each; skip_final_activation: not behind the last."""
    _check_layers("fused_mlp", weights, biases)
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = linear(x, weight, bias)
        if not skip_final_activation or i + 1 < len(weights):
            x = unary.relu(x)
    return x


def fused_matmul_bias_add_relu_dropout(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    *,
    skip_final_activation: bool = False,
    dropout_rate_list: Sequence[float],
    generator: Generator | None = None,
) -> Tensor:
    """`fused_mlp` with dropout behind each layer, of a rate each; of a layer without ReLU as well.

    No mask is kept: the gradient draws the same numbers again.  Raises ArgumentError.
    """
    if len(dropout_rate_list) != len(weights):
        raise ArgumentError(
            f"fused_matmul_bias_add_relu_dropout: {len(weights)} layers need as many dropout "
            f"rates, got {list(dropout_rate_list)}"
        )
    _check_layers("fused_matmul_bias_add_relu_dropout", weights, biases)
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = linear(x, weight, bias)
        if not skip_final_activation or i + 1 < len(weights):
            x = unary.relu(x)
        if dropout_rate_list[i]:
            x = dropout(x, dropout_rate_list[i], generator=generator)
    return x


_GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "sigmoid": unary.sigmoid,
    "relu": unary.relu,
    "gelu": activation.gelu,
    "fast_gelu": fast_gelu,
    "silu": unary.silu,
}


def fused_glu(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    v: Tensor | None = None,
    c: Tensor | None = None,
    activation: str = "none",
) -> Tensor:
    """(x @ w.T + b) * activation(x @ v.T + c); without v, w and b hold both in a row."""
    if activation not in _GATES:
        raise ArgumentError(f"fused_glu: activation must be one of {[*_GATES]}, got {activation!r}")
    if v is None:
        both = linear(x, w, b)
        half = both.meta.shape[-1] // 2
        value, gate = both.narrow(-1, 0, half), both.narrow(-1, half, half)
    else:
        value, gate = linear(x, w, b), linear(x, v, c)
    return mul(value, _GATES[activation](gate))


def grouped_matmul(xs: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """x @ weight.T of each pair."""
    return tuple(matmul(x, w.t()) for x, w in zip(xs, weights, strict=True))


def grouped_matmul_bias(
    xs: Sequence[Tensor], weights: Sequence[Tensor], biases: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """x @ weight.T + bias of each triple."""
    return tuple(linear(x, w, b) for x, w, b in zip(xs, weights, biases, strict=True))


def fused_weighted_sum(
    inputs: Sequence[Tensor], weights: Sequence[float], alpha: float = 1.0
) -> Tensor:
    """alpha times the sum of each input times its weight."""
    found = mul(inputs[0], alpha * weights[0])
    for x, weight in zip(inputs[1:], weights[1:], strict=True):
        found = add(found, mul(x, alpha * weight))
    return found


# ---- normalization -------------------------------------------------------------------------------


def _skipped(x: Tensor, bias: Tensor | None, skip: Tensor | None, alpha: float) -> Tensor:
    x = x if bias is None else add(x, bias)
    return x if skip is None else add(x, mul(skip, alpha))


def skip_layer_norm(
    x: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
    skip: Tensor | None = None,
    epsilon: float = 1e-5,
    alpha: float = 1.0,
) -> Tensor:
    """Layer norm over the last dim of x + bias + alpha * skip."""
    y = _skipped(x, bias, skip, alpha)
    return nn_layers.layer_norm(y, y.meta.shape[-1:], gamma, beta, epsilon)


def skip_rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    skip: Tensor | None = None,
    epsilon: float = 1e-5,
    alpha: float = 1.0,
) -> Tensor:
    """RMS norm over the last dim of x + bias + alpha * skip."""
    y = _skipped(x, bias, skip, alpha)
    return nn_layers.rms_norm(y, y.meta.shape[-1:], weight, epsilon)


def rms_layer_norm(hidden_states: Tensor, weight: Tensor, variance_epsilon: float) -> Tensor:
    """RMS norm over the last dim."""
    return nn_layers.rms_norm(hidden_states, weight.meta.shape, weight, variance_epsilon)


# ---- attention -----------------------------------------------------------------------------------


def fused_scale_tril(
    x: Tensor, diagonal: int = 0, fill_value: float = 0, scale: float = 1
) -> Tensor:
    """scale * x on and below a diagonal of the last two dims, fill_value above."""
    below = tril(beside(x, np.ones(x.meta.shape[-2:], dtype=np.int8)), diagonal)
    return masked_fill(mul(x, scale), unary.logical_not(below), fill_value)


def fused_scale_mask_bias_softmax(
    x: Tensor,
    mask: Tensor,
    bias: Tensor | None = None,
    scale: float = 1.0,
    inplace: bool = False,
) -> Tensor:
    """softmax over the last dim of scale * x + mask + bias."""
    scores = add(mul(x, scale), mask)
    return softmax(scores if bias is None else add(scores, bias), -1)


def fused_bias_add_scale_mask_softmax_dropout(
    x: Tensor,
    bias: Tensor,
    mask: Tensor,
    *,
    fill_value: float = 0.0,
    scale: float = 1.0,
    p: float = 0.5,
    training: bool = True,
    generator: Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """(dropout(y), y) with y the softmax over the last dim of scale * (x + bias) where mask is
    true, of fill_value elsewhere.
    """
    return fused_scale_mask_softmax_dropout(
        add(x, bias),
        mask,
        fill_value=fill_value,
        scale=scale,
        p=p,
        training=training,
        generator=generator,
    )


def fused_self_attention(
    hidden_states: Tensor, head_size: int = 8, alpha: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Products of queries and keys (batch, heads, s, s) times alpha, and values (batch, heads, s,
    head_size), of hidden_states (s, batch, heads * 3 * head_size).
    """
    s, batch, width = hidden_states.meta.shape
    heads = reshape(hidden_states, (s, batch, width // (3 * head_size), 3, head_size))
    query, key, value = permute(heads, (3, 1, 2, 0, 4)).unbind(0)
    return mul(matmul(query, key.transpose(-1, -2)), alpha), value


def fused_codegeex_qkv_reshape(
    query: Tensor, key: Tensor, value: Tensor, num_attention_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Each (..., heads * size) as (..., heads, size)."""

    def parts(x: Tensor) -> Tensor:
        return reshape(x, (*x.meta.shape[:-1], num_attention_heads, -1))

    return parts(query), parts(key), parts(value)


# ---- features of recommenders --------------------------------------------------------------------


def fused_dot_feature_interaction(
    features: Sequence[Tensor],
    output_concat: Tensor | None = None,
    self_interaction: bool = False,
    output_padding: int = 0,
    pooling: str | None = None,
) -> Tensor:
    """Dot products of each pair of feature vectors, behind output_concat; zeros at the end.

    features: (batch, size) or (batch, n, size) each.  output_concat: (batch, any).
    self_interaction: of each vector with itself as well.  output_padding: the number of zeros.
    pooling "sum": the sum of all products instead, (batch, 1).  Raises ArgumentError.
    """
    if pooling not in (None, "none", "sum"):
        raise ArgumentError(
            f"fused_dot_feature_interaction: pooling is 'none' or 'sum', not {pooling!r}"
        )
    if output_padding < 0:
        raise ArgumentError(
            f"fused_dot_feature_interaction: output_padding is {output_padding}, must be at least 0"
        )
    rows = cat([unsqueeze(f, 1) if f.ndim == 2 else f for f in features], 1)
    if pooling == "sum":
        if output_concat is not None or self_interaction or output_padding:
            raise ArgumentError(
                "fused_dot_feature_interaction: pooling 'sum' gives one number; it takes neither "
                "output_concat nor self_interaction nor output_padding"
            )
        wide = widened(rows)  # differences of sums of squares, rounded once
        every = sub(unary.square(total(wide, 1)), total(unary.square(wide), 1))
        return as_type(mul(total(every, 1, keepdim=True), 0.5), rows.meta.dtype)
    batch, count, _ = rows.meta.shape
    first, second = np.tril_indices(count, 0 if self_interaction else -1)
    places = beside(rows, first * count + second)
    products = reshape(matmul(rows, rows.transpose(1, 2)), (batch, count * count))
    parts = [] if output_concat is None else [output_concat]
    parts.append(index_select(products, 1, places))
    if output_padding:
        zeros = np.zeros((batch, output_padding), dtype=rows.meta.dtype.np)
        parts.append(beside(rows, zeros))
    return cat(parts, 1) if len(parts) > 1 else parts[0]


def fused_cross_feature_interaction(
    x: Tensor, weight: Tensor, x0: Tensor, bias: Tensor, interaction_mode: str = "vector"
) -> Tensor:
    """A layer of a cross network: x0 * (x @ weight.T) + bias + x, or, in mode "matrix",
    x0 * (x @ weight.T + bias) + x.
    """
    product = matmul(x, weight.t())
    if interaction_mode == "vector":
        return add(add(mul(product, x0), bias), x)
    if interaction_mode == "matrix":
        return add(mul(add(product, bias), x0), x)
    raise ArgumentError(f"interaction_mode must be 'vector' or 'matrix', got {interaction_mode!r}")


# ---- boxes of detectors --------------------------------------------------------------------------


def fused_get_boundding_boxes_coord(
    x1: Tensor,
    y1: Tensor,
    w1: Tensor,
    h1: Tensor,
    x2: Tensor,
    y2: Tensor,
    w2: Tensor,
    h2: Tensor,
) -> tuple[Tensor, ...]:
    """Edges (left, right, top, bottom) of two boxes given by centre, width and height."""
    return tuple(
        edge
        for centre, size in ((x1, w1), (y1, h1), (x2, w2), (y2, h2))
        for edge in (sub(centre, div(size, 2)), add(centre, div(size, 2)))
    )


def fused_get_intersection_area(
    b1_x1: Tensor,
    b1_x2: Tensor,
    b2_x1: Tensor,
    b2_x2: Tensor,
    b1_y1: Tensor,
    b1_y2: Tensor,
    b2_y1: Tensor,
    b2_y2: Tensor,
) -> Tensor:
    """The area that two boxes share."""
    width = sub(minimum(b1_x2, b2_x2), maximum(b1_x1, b2_x1))
    height = sub(minimum(b1_y2, b2_y2), maximum(b1_y1, b2_y1))
    return mul(clamp(width, min=0), clamp(height, min=0))


def fused_get_iou(
    w1: Tensor, h1: Tensor, w2: Tensor, h2: Tensor, inter: Tensor, eps: float
) -> Tensor:
    """The shared area over the area of both boxes together."""
    return div(inter, add(sub(add(mul(w1, h1), mul(w2, h2)), inter), eps))


def fused_get_convex_diagonal_squared(
    b1_x1: Tensor,
    b1_x2: Tensor,
    b2_x1: Tensor,
    b2_x2: Tensor,
    b1_y1: Tensor,
    b1_y2: Tensor,
    b2_y1: Tensor,
    b2_y2: Tensor,
    eps: float,
) -> Tensor:
    """The squared diagonal of the smallest box around both, plus eps."""
    width = sub(maximum(b1_x2, b2_x2), minimum(b1_x1, b2_x1))
    height = sub(maximum(b1_y2, b2_y2), minimum(b1_y1, b2_y1))
    return add(add(unary.square(width), unary.square(height)), eps)


def fused_get_center_dist(
    b1_x1: Tensor,
    b1_x2: Tensor,
    b2_x1: Tensor,
    b2_x2: Tensor,
    b1_y1: Tensor,
    b1_y2: Tensor,
    b2_y1: Tensor,
    b2_y2: Tensor,
) -> Tensor:
    """The squared distance of the centres of two boxes."""
    across = sub(add(b2_x1, b2_x2), add(b1_x1, b1_x2))
    down = sub(add(b2_y1, b2_y2), add(b1_y1, b1_y2))
    return div(add(unary.square(across), unary.square(down)), 4)


def fused_get_ciou_diagonal_angle(
    w1: Tensor, h1: Tensor, w2: Tensor, h2: Tensor, eps: float
) -> Tensor:
    """The difference in shape of two boxes: 4 / pi^2 times that of their angles, squared."""
    gap = sub(unary.atan(div(w2, add(h2, eps))), unary.atan(div(w1, add(h1, eps))))
    return mul(unary.square(gap), 4 / math.pi**2)


def fused_get_ciou_result(
    v: Tensor, iou: Tensor, rho2: Tensor, c2: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The complete IoU, and the weight of the difference in shape in it, a constant to gradients
    (Zheng et al., AAAI 2020).
    """
    alpha = div(v.detach(), add(sub(v.detach(), iou.detach()), 1.0 + eps))
    return sub(iou, add(div(rho2, c2), mul(v, alpha))), alpha


# ---- weights of few bits -------------------------------------------------------------------------


def _unpacked(x: Tensor, num_bits: int) -> Tensor:
    """Integers of 4 bits, two of them in each byte: the high half comes first."""
    if num_bits == 8:
        return x
    if num_bits != 4:
        raise ArgumentError(f"groups are quantized to 4 or 8 bits, got {num_bits}")
    array = x.numpy()
    halves = np.stack([array >> 4, (array << 4).astype(array.dtype) >> 4], -1)
    return beside(x, halves.reshape(*array.shape[:-1], -1))


def groupwise_dequantize(
    input: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    num_bits: int = 8,
    symmetric: bool = True,
    group_dim: int = -1,
    group_size: int | None = None,
) -> Tensor:
    """input * scale, or input * scale + zero, where each `group_size` elements along group_dim have
    one scale and one zero. The zero of symmetric unsigned numbers is 2^(num_bits - 1) - 1.
    """
    values = as_type(_unpacked(input, num_bits), scale.meta.dtype)
    if symmetric and input.meta.dtype is uint8:
        values = sub(values, float(2 ** (num_bits - 1) - 1))
    dim = group_dim % values.ndim
    size = group_size or values.meta.shape[dim]
    found = mul(values, repeat_interleave(scale, size, dim))
    if symmetric or zero is None:
        return found
    return add(found, repeat_interleave(zero, size, dim))


def fused_linear_with_groupwise_quantized_weight(
    x: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor | None = None,
    b: Tensor | None = None,
    num_bits: int = 8,
    symmetric: bool = True,
    group_dim: int = -1,
    group_size: int | None = None,
) -> Tensor:
    """A dense layer with the weight of `groupwise_dequantize`."""
    weight = groupwise_dequantize(w, w_scale, w_zero, num_bits, symmetric, group_dim, group_size)
    return linear(x, weight, b)
