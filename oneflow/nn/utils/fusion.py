"""Batch norms folded into the layers before them, for evaluation."""

from __future__ import annotations

import copy
from typing import TypeVar

from oneflow.core.errors import OneFlowError
from oneflow.functional.creation import ones_like, zeros_like
from oneflow.nn.module import Module
from oneflow.nn.parameter import Parameter
from oneflow.tensor.tensor import Tensor

__all__ = [
    "fuse_conv_bn_eval",
    "fuse_conv_bn_weights",
    "fuse_linear_bn_eval",
    "fuse_linear_bn_weights",
]

M = TypeVar("M", bound=Module)


def fuse_conv_bn_eval(conv: M, bn: Module, transpose: bool = False) -> M:
    """A copy of a convolution that computes `bn(conv(x))`, both in evaluation.

    transpose: the convolution is a transposed one. Raises OneFlowError for modules in training.
    """
    fused = _copied(conv, bn)
    fused.weight, fused.bias = fuse_conv_bn_weights(
        conv.weight, conv.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias,
        transpose,
    )  # fmt: skip
    return fused


def fuse_conv_bn_weights(
    conv_w: Tensor,
    conv_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:
    """The weight and bias of a convolution followed by a batch norm of these statistics."""
    shape = [1] * conv_w.ndim
    shape[1 if transpose else 0] = -1
    return _fused(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, tuple(shape))


def fuse_linear_bn_eval(linear: M, bn: Module) -> M:
    """A copy of a linear layer that computes `bn(linear(x))`, both in evaluation.

    Raises OneFlowError for modules in training, or if bn has as many features as the layer has not.
    """
    fused = _copied(linear, bn)
    if linear.out_features != bn.num_features and bn.num_features != 1:
        raise OneFlowError(
            f"To fuse, linear.out_features == bn.num_features or bn.num_features == 1, got "
            f"{linear.out_features} and {bn.num_features}"
        )
    fused.weight, fused.bias = fuse_linear_bn_weights(
        linear.weight, linear.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias
    )
    return fused


def fuse_linear_bn_weights(
    linear_w: Tensor,
    linear_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
) -> tuple[Parameter, Parameter]:
    """The weight and bias of a linear layer followed by a batch norm of these statistics."""
    return _fused(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, (-1, 1))


def _copied(layer: M, bn: Module) -> M:
    if layer.training or bn.training:
        raise OneFlowError("Fusion only for eval! Call eval() of both modules first")
    return copy.deepcopy(layer)


def _fused(
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    eps: float,
    bn_weight: Tensor | None,
    bn_bias: Tensor | None,
    shape: tuple[int, ...],
) -> tuple[Parameter, Parameter]:
    """shape: that in which the scale of each channel broadcasts against the weight."""
    scale = (ones_like(mean) if bn_weight is None else bn_weight) * (var + eps).rsqrt()
    shift = zeros_like(mean) if bn_bias is None else bn_bias
    moved = (zeros_like(mean) if bias is None else bias) - mean
    new_bias = (moved * scale + shift).to(weight.dtype if bias is None else bias.dtype)
    new_weight = (weight * scale.reshape(shape)).to(weight.dtype)
    return (
        Parameter(new_weight.detach(), weight.requires_grad),
        Parameter(new_bias.detach(), weight.requires_grad if bias is None else bias.requires_grad),
    )
