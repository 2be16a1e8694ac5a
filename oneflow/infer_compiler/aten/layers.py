"""Aten's convolutions, pools, embeddings and attention, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from oneflow.infer_compiler.aten.table import Size, back, chosen, f, takes
from oneflow.ops.attention import attention, attention_grad
from oneflow.tensor.tensor import Tensor


def _convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Size,
    padding: Size,
    dilation: Size,
    transposed: bool,
    output_padding: Size,
    groups: int,
) -> Tensor:
    dims = weight.ndim - 2
    if transposed:
        turned: Tensor = f(f"conv_transpose{dims}d")(
            x, weight, bias, stride, padding, output_padding, groups, dilation
        )
        return turned
    made: Tensor = f(f"conv{dims}d")(x, weight, bias, stride, padding, dilation, groups)
    return made


takes("convolution")(_convolved)


@takes("convolution_backward")
def _convolution_backward(
    d_y: Tensor,
    x: Tensor,
    weight: Tensor,
    _sizes: Size | None,
    stride: Size,
    padding: Size,
    dilation: Size,
    transposed: bool,
    output_padding: Size,
    groups: int,
    mask: Sequence[bool],
) -> list[Tensor | None]:

    def product(*given: Tensor) -> Tensor:
        both = iter(given)
        a = next(both) if mask[0] else x
        w = next(both) if mask[1] else weight
        return _convolved(a, w, None, stride, padding, dilation, transposed, output_padding, groups)

    wanted = [t for t, is_wanted in zip((x, weight), mask, strict=False) if is_wanted]
    made = chosen(mask[:2], back(product, d_y, *wanted) if wanted else ())
    dims = [dim for dim in range(d_y.ndim) if dim != 1]
    return [*made, d_y.sum(dims) if mask[2] else None]


@takes("_scaled_dot_product_flash_attention_for_cpu")
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    _dropout: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    masks = () if attn_mask is None else (attn_mask,)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    out, lse = attention(q, k, v, *masks, scale=factor, is_causal=is_causal)
    return out, lse


def attention_alone(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    _dropout: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor]:
    """Attention without the statistics of a backward pass."""
    return (f("scaled_dot_product_attention")(q, k, v, attn_mask, 0.0, is_causal, scale),)


@takes("_scaled_dot_product_flash_attention_for_cpu_backward")
def _attention_backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    _dropout: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    masks = () if attn_mask is None else (attn_mask,)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    made = attention_grad(d_out, q, k, v, out, lse, *masks, scale=factor, is_causal=is_causal)
    return tuple(made[:3])


@takes("max_pool2d_with_indices")
def _max_pool(
    x: Tensor,
    kernel: Size,
    stride: Size = (),
    padding: Size = (0,),
    dilation: Size = (1,),
    ceil_mode: bool = False,
) -> Any:
    options = _pool_options(kernel, stride, padding, dilation, ceil_mode)
    return f("max_pool2d")(x, return_indices=True, **options)


def _pool_options(
    kernel: Size, stride: Size, padding: Size, dilation: Size, ceil_mode: bool
) -> dict[str, Any]:
    return {
        "kernel_size": list(kernel),
        "stride": list(stride) or list(kernel),
        "padding": list(padding),
        "dilation": list(dilation),
        "ceil_mode": ceil_mode,
    }


@takes("max_pool2d_with_indices_backward")
def _max_pool_backward(
    d_y: Tensor,
    x: Tensor,
    kernel: Size,
    stride: Size,
    padding: Size,
    dilation: Size,
    ceil_mode: bool,
    _places: Tensor,
) -> Tensor:
    given = _pool_options(kernel, stride, padding, dilation, ceil_mode)
    return back(lambda a: f("max_pool2d")(a, **given), d_y, x)[0]


@takes("avg_pool2d_backward")
def _avg_pool_backward(
    d_y: Tensor, x: Tensor, kernel: Size, stride: Size, *options: object
) -> Tensor:
    return back(lambda a: f("avg_pool2d")(a, kernel, stride or kernel, *options), d_y, x)[0]


@takes("avg_pool2d")
def _avg_pool(x: Tensor, kernel: Size, stride: Size = (), *options: object, **named: object) -> Any:
    return f("avg_pool2d")(x, kernel, stride or kernel, *options, **named)


@takes("_adaptive_avg_pool2d_backward")
def _adaptive_backward(d_y: Tensor, x: Tensor) -> Tensor:
    return back(lambda a: f("adaptive_avg_pool2d")(a, d_y.shape[-2:]), d_y, x)[0]


@takes("embedding")
def _embedding(weight: Tensor, index: Tensor, *_: object) -> Any:
    return f("embedding")(index, weight)


@takes("embedding_dense_backward")
def _embedding_backward(
    d_y: Tensor, index: Tensor, rows: int, padding: int, by_frequency: bool
) -> Tensor:
    if by_frequency:
        raise NotImplementedError("scale_grad_by_freq")
    table = f("zeros")(rows, d_y.shape[-1], dtype=d_y.dtype)
    none = padding if padding >= 0 else None
    return back(lambda w: f("embedding")(index, w, padding_idx=none), d_y, table)[0]
