"""Aten's activations and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from oneflow.infer_compiler.aten.table import back, f, takes
from oneflow.ops.softmax import log_softmax_grad, softmax_grad
from oneflow.tensor.tensor import Tensor


@takes("_softmax")
def _softmax(x: Tensor, dim: int, _half_to_float: bool) -> Any:
    return f("softmax")(x, dim)


@takes("_log_softmax")
def _log_softmax(x: Tensor, dim: int, _half_to_float: bool) -> Any:
    return f("log_softmax")(x, dim)


def _along(
    made: Callable[[Tensor, Tensor], Tensor], d_out: Tensor, out: Tensor, dim: int, _: object
) -> Tensor:
    """A gradient whose op works along the last dim."""
    if dim in (-1, out.ndim - 1):
        return made(d_out, out)
    turned = made(d_out.transpose(dim, -1), out.transpose(dim, -1))
    return turned.transpose(dim, -1)


takes("_softmax_backward_data")(partial(_along, softmax_grad))

takes("_log_softmax_backward_data")(partial(_along, log_softmax_grad))


@takes("gelu")
def _gelu(x: Tensor, *, approximate: str = "none") -> Any:
    return f("gelu")(x, approximate=approximate)


@takes("gelu_backward")
def _gelu_backward(d_y: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    return back(partial(f("gelu"), approximate=approximate), d_y, x)[0]


def _elementwise_backward(name: str) -> None:
    def made(d_y: Tensor, x: Tensor, *options: object) -> Tensor:
        return back(lambda a: f(name)(a, *options), d_y, x)[0]

    takes(f"{name}_backward")(made)


for _name in ("silu", "hardswish", "hardsigmoid", "hardtanh", "softplus", "mish"):
    _elementwise_backward(_name)


@takes("sigmoid_backward")
def _sigmoid_backward(d_y: Tensor, y: Tensor) -> Tensor:
    return d_y * y * (1 - y)


@takes("tanh_backward")
def _tanh_backward(d_y: Tensor, y: Tensor) -> Tensor:
    return d_y * (1 - y * y)


@takes("threshold_backward")
def _threshold_backward(d_y: Tensor, x: Tensor, threshold: float) -> Any:
    return f("where")(x > threshold, d_y, 0.0)


@takes("leaky_relu_backward")
def _leaky_backward(d_y: Tensor, x: Tensor, slope: float, _is_result: bool) -> Any:
    return f("where")(x > 0, d_y, d_y * slope)
