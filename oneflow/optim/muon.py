"""Muon: steps along the orthogonal matrix that is nearest to the momentum."""

from __future__ import annotations

import math

from oneflow.core.dtype import bfloat16, float32
from oneflow.ops.binary import add, div, sub
from oneflow.ops.cast import cast
from oneflow.ops.matmul import matmul
from oneflow.ops.scalar import scalar_mul
from oneflow.ops.shape import transpose
from oneflow.ops.unary import clamp, full_like, sqrt
from oneflow.ops.update import sgd_update, square_sum
from oneflow.optim.optimizer import Optimizer, ParamGroup, Params, gradient_of
from oneflow.tensor.tensor import Tensor, device_type

_LARGEST = 100


class Muon(Optimizer):
    """buf += (1 - momentum) · (g - buf);  w -= lr · (ratio · orthogonal(buf) + weight_decay · w),
    for matrices (Jordan et al., 2024). nesterov: g + momentum · (buf - g) takes the place of buf.

    ns_coefficients, ns_steps: of the Newton-Schulz iteration, which runs in bfloat16.  eps: the
    least norm to divide by.  adjust_lr_fn: "original" (or None): ratio = √max(1, rows / columns);
    "match_rms_adamw": 0.2 · √max(rows, columns) (Liu et al., 2025).
    """

    state_names = ("momentum_buffer",)
    saves_steps = False

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        if len(ns_coefficients) != 3:
            raise ValueError("Coefficients must be a tuple of exactly 3 values")
        if ns_steps >= _LARGEST:
            raise ValueError(f"Number of steps must be less than {_LARGEST}, got {ns_steps}")
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(
                f"Adjust learning rate function {adjust_lr_fn} is not supported; use 'original' "
                "or 'match_rms_adamw'"
            )
        options = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        super().__init__(params, options)

    def check_options(self, group: ParamGroup) -> None:
        super().check_options(group)
        for param in group.parameters:
            if param.meta.ndim != 2:
                raise ValueError(
                    "Muon only supports 2D parameters whereas we found a parameter with size: "
                    f"{tuple(param.meta.shape)}; give the others to another optimizer"
                )

    def update_param(
        self, group: ParamGroup, param: Tensor, states: dict[str, Tensor], lr: Tensor, step: Tensor
    ) -> None:
        grad, buf = gradient_of(param), states["momentum_buffer"]
        sgd_update(buf, sub(buf, grad), full_like(lr, value=1.0 - group["momentum"]))
        along = buf
        if group["nesterov"]:
            along = add(grad, scalar_mul(sub(buf, grad), value=float(group["momentum"])))
        move = cast(_orthogonal(along, group), dtype=param.dtype)
        move = scalar_mul(move, value=_ratio(param.meta.shape, group["adjust_lr_fn"]))
        sgd_update(param, move, lr, weight_decay=group["weight_decay"])


def _ratio(shape: tuple[int, ...], adjust: str | None) -> float:
    rows, columns = shape
    if adjust == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / columns))


def _orthogonal(x: Tensor, group: ParamGroup) -> Tensor:
    """Singular values brought near 1 by polynomials a s + b s^3 + c s^5."""
    a, b, c = group["ns_coefficients"]
    is_tall = x.meta.shape[0] > x.meta.shape[1]
    x = _rounded(transpose(x, dims=(1, 0)) if is_tall else x)
    norm = clamp(_rounded(sqrt(square_sum(x))), min=float(group["eps"]), max=None)
    x = _rounded(div(x, norm))
    for _ in range(group["ns_steps"]):
        gram = _rounded(_product(x, x, transpose_b=True))
        step = _combined(gram, b, _product(gram, gram), c)
        x = _combined(x, a, _product(step, x), 1.0)
    return transpose(x, dims=(1, 0)) if is_tall else x


def _combined(x: Tensor, a: float, y: Tensor, b: float) -> Tensor:
    return _rounded(add(scalar_mul(x, value=float(a)), scalar_mul(y, value=float(b))))


def _product(a: Tensor, b: Tensor, transpose_b: bool = False) -> Tensor:
    """The float32 product of matrices of bfloat16 numbers; a GPU has units for these."""
    if device_type(a) == "cuda":
        a, b = cast(a, dtype=bfloat16), cast(b, dtype=bfloat16)
    return cast(matmul(a, b, transpose_b=transpose_b), dtype=float32)


def _rounded(x: Tensor) -> Tensor:
    """float32 numbers that bfloat16 has."""
    return cast(cast(x, dtype=bfloat16), dtype=float32)
