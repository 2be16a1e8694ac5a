"""Kernels of oneflow/ops/unary.py. NumPy and CuPy share them; the activations have fused CPU
variants for large arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from oneflow.core.dtype import bool_
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.registry import kernel

Array = Any

_UFUNCS = {
    "neg": "negative", "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log",
    "log1p": "log1p", "log2": "log2", "log10": "log10", "sqrt": "sqrt", "square": "square",
    "reciprocal": "reciprocal", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "arcsin",
    "acos": "arccos", "atan": "arctan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh", "abs": "absolute",
    "logical_not": "logical_not", "bitwise_not": "invert", "isnan": "isnan", "isinf": "isinf",
    "isfinite": "isfinite",
}  # fmt: skip


def _ufunc(name: str, function: str) -> Callable[..., None]:
    @kernel(name)
    def run(xp: Any, out: Array, x: Array) -> None:
        getattr(xp, function)(x, out=out)

    return run


@kernel("sign", workspace=lambda types, attrs: (types[0].with_dtype(bool_),))
def sign(xp: Any, out: Array, x: Array, is_nan: Array) -> None:
    if x.dtype.kind == "b":
        out[...] = x
        return
    xp.sign(x, out=out)
    if x.dtype.kind not in "iu":
        xp.not_equal(x, x, out=is_nan)
        xp.putmask(out, is_nan, 0)  # (x > 0) - (x < 0), as PyTorch and OneFlow have it


def _rounding(name: str, function: str) -> None:
    @kernel(name)
    def run(xp: Any, out: Array, x: Array) -> None:
        if x.dtype.kind in "iu":  # integers are round already; not every NumPy has the loops
            out[...] = x
        else:
            getattr(xp, function)(x, out=out)


_plain = {_name: _ufunc(_name, _function) for _name, _function in _UFUNCS.items()}
for _name, _function in {
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "round": "rint",
}.items():
    _rounding(_name, _function)


@kernel("copy")
def copy(xp: Any, out: Array, x: Array) -> None:
    out[...] = x


@kernel("full_like")
def full_like(xp: Any, out: Array, x: Array, *, value: Any) -> None:
    out.fill(value)


@kernel("rsqrt")
def rsqrt(xp: Any, out: Array, x: Array) -> None:
    xp.sqrt(x, out=out)
    xp.reciprocal(out, out=out)


@kernel("relu")
def relu(xp: Any, out: Array, x: Array) -> None:
    xp.maximum(x, x.dtype.type(0), out=out)


@kernel("sigmoid")
def sigmoid(xp: Any, out: Array, x: Array) -> None:
    # exp(-x) may overflow to infinity, whose reciprocal is the right 0; the form with tanh would
    # lose the tail.
    xp.negative(x, out=out)
    xp.exp(out, out=out)
    xp.add(out, x.dtype.type(1), out=out)
    xp.reciprocal(out, out=out)


@kernel("silu")
def silu(xp: Any, out: Array, x: Array) -> None:
    sigmoid(xp, out, x)
    xp.multiply(out, x, out=out)


def _bool_like_first(
    types: tuple[TensorType, ...], attrs: dict[str, Any]
) -> tuple[TensorType, ...]:
    return (types[0].with_dtype(bool_),)


def _like_first(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
    return (types[0],)


@kernel("relu_grad", workspace=_bool_like_first)
def relu_grad(xp: Any, out: Array, d: Array, y: Array, is_active: Array) -> None:
    xp.greater(y, y.dtype.type(0), out=is_active)
    xp.multiply(d, is_active, out=out)


@kernel("tanh_grad")
def tanh_grad(xp: Any, out: Array, d: Array, y: Array) -> None:
    xp.multiply(y, y, out=out)
    xp.subtract(y.dtype.type(1), out, out=out)
    xp.multiply(out, d, out=out)


@kernel("sigmoid_grad")
def sigmoid_grad(xp: Any, out: Array, d: Array, y: Array) -> None:
    xp.subtract(y.dtype.type(1), y, out=out)
    xp.multiply(out, y, out=out)
    xp.multiply(out, d, out=out)


@kernel("silu_grad", workspace=_like_first)
def silu_grad(xp: Any, out: Array, d: Array, x: Array, s: Array) -> None:
    # d * s * (1 + x * (1 - s))
    one = x.dtype.type(1)
    sigmoid(xp, s, x)
    xp.subtract(one, s, out=out)
    xp.multiply(out, x, out=out)
    xp.add(out, one, out=out)
    xp.multiply(out, s, out=out)
    xp.multiply(out, d, out=out)


@kernel("softplus", workspace=_bool_like_first)
def softplus(
    xp: Any, out: Array, x: Array, is_straight: Array, *, beta: float, threshold: float
) -> None:
    scalar = x.dtype.type
    xp.multiply(x, scalar(beta), out=out)
    xp.greater(out, scalar(threshold), out=is_straight)
    xp.exp(out, out=out)
    xp.log1p(out, out=out)
    xp.multiply(out, scalar(1.0 / beta), out=out)
    xp.copyto(out, x, where=is_straight)


@kernel("leaky_relu")
def leaky_relu(xp: Any, out: Array, x: Array, *, alpha: float) -> None:
    xp.multiply(x, x.dtype.type(alpha), out=out)
    (xp.maximum if alpha <= 1 else xp.minimum)(x, out, out=out)


@kernel("elu", workspace=_bool_like_first)
def elu(xp: Any, out: Array, x: Array, is_positive: Array, *, alpha: float) -> None:
    zero = x.dtype.type(0)
    xp.greater(x, zero, out=is_positive)
    xp.minimum(x, zero, out=out)
    xp.expm1(out, out=out)
    xp.multiply(out, x.dtype.type(alpha), out=out)
    xp.copyto(out, x, where=is_positive)


@kernel("clamp")
def clamp(xp: Any, out: Array, x: Array, *, min: Any, max: Any) -> None:
    source = x
    if min is not None:
        xp.maximum(source, x.dtype.type(min), out=out)
        source = out
    if max is not None:
        xp.minimum(source, x.dtype.type(max), out=out)


@kernel("erf", device="cpu")
def erf(xp: Any, out: Array, x: Array) -> None:
    flat = out.reshape(-1)
    for i, value in enumerate(x.flat):
        flat[i] = math.erf(value)


@kernel("erf", device="cuda")
def erf_cuda(xp: Any, out: Array, x: Array) -> None:
    from cupyx.scipy.special import erf as cuda_erf

    cuda_erf(x, out=out)


# ---- fused: one pass on all threads, for arrays large enough to be worth waking them ------------

_LARGE = 1 << 15


def _fused(
    name: str,
    plain: Callable[..., None],
    dtypes: tuple[str, ...] = ("float32", "float64"),
    *,
    workspace: Any = None,
    min_elements: int = _LARGE,
) -> None:
    """A CPU variant of `name`. plain and workspace: its kernel for inputs that are not
    contiguous."""

    @kernel(name, device="cpu", min_elements=min_elements, dtypes=dtypes, workspace=workspace)
    def run(xp: Any, out: Array, *arrays: Array) -> None:
        inputs = arrays[: len(arrays) - (workspace is not None)]
        if all(a.flags.c_contiguous for a in inputs):
            from oneflow.kernels.fused import elementwise

            getattr(elementwise, name)(out.reshape(-1), *(a.reshape(-1) for a in inputs))
        else:
            plain(xp, out, *arrays)


_fused("relu", relu)
_fused("relu_grad", relu_grad, workspace=_bool_like_first)
_fused("tanh_grad", tanh_grad)
_fused("sigmoid_grad", sigmoid_grad)
_fused("erf", erf, min_elements=1 << 11)
_fused("exp", _plain["exp"], ("float32",))
_fused("sigmoid", sigmoid, ("float32",))
_fused("silu", silu, ("float32",))
_fused("silu_grad", silu_grad, ("float32",), workspace=_like_first)
