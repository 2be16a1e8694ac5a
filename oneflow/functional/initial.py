"""First values of parameters. Each function writes into a tensor and returns it.

Random values are a function of seed and global element index: a parameter starts with the same
values for any placement, SBP and number of ranks, and each rank makes only its own shard.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from oneflow.core.device import META
from oneflow.core.dispatch import current_mode
from oneflow.core.dtype import float64
from oneflow.core.errors import ArgumentError, SbpError, ShapeError
from oneflow.core.operand import Attr, Attrs
from oneflow.core.sbp import all_broadcast
from oneflow.functional.creation import source
from oneflow.functional.random_state import Generator, next_seed
from oneflow.kernels.hardware import module_of
from oneflow.ops.linalg import qr
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor, wrap

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


Array = np.ndarray[Any, Any]


def _write(x: Tensor, values: Array | Tensor | float) -> Tensor:
    """Replaces the values of `x`, by those of this rank's part, or while a graph is traced by a
    tensor or a number; autograd does not see it.
    """
    if x.is_global and any(sbp.is_partial for sbp in x.sbp):
        raise SbpError(f"nn.init: cannot fill partial sums, {x.meta} has sbp {x.sbp}; use S or B")
    if not current_mode().has_memory:
        with no_grad():
            if isinstance(values, Tensor):
                return x.copy_(values)
            return x.fill_(values.item() if isinstance(values, np.ndarray) else values)
    current_mode().before_writing(x._array)
    if x._array.size and x._device.type != META:
        x._array[...] = values
    x._version[0] += 1
    return x


def _random(x: Tensor, op: str, generator: Generator | None, **attrs: Attr) -> Any:
    """This rank's part of a random tensor of the type and layout of `x`, as an array; while a graph
    is traced the tensor.
    """
    full = {"shape": x.meta.shape, **attrs, "seed": next_seed(generator)}
    drawn = source(op, full, **layout_of(x))
    return drawn._array if current_mode().has_memory else drawn


def uniform_(
    tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Uniform in [a, b)."""
    shard = _random(tensor, "uniform", generator, low=float(a), high=float(b), dtype=tensor.dtype)
    return _write(tensor, shard)


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Normal with this mean and standard deviation."""
    shard = _random(
        tensor, "normal", generator, mean=float(mean), std=float(std), dtype=tensor.dtype
    )
    return _write(tensor, shard)


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Normal, limited to [a, b]: the inverse of its distribution function, of uniform numbers."""
    normal = NormalDist(mean, std)
    attrs: Attrs = {"low": normal.cdf(a), "high": normal.cdf(b), "dtype": float64}
    shard = _random(tensor, "uniform", generator, **attrs)
    values = mean + std * _inverse_normal(shard)
    return _write(tensor, values.clip(a, b))


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Every element is `val`."""
    return _write(tensor, val)


def ones_(tensor: Tensor) -> Tensor:
    """Every element is 1."""
    return _write(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """Every element is 0."""
    return _write(tensor, 0.0)


def _write_whole(x: Tensor, whole: Array) -> Tensor:
    assign(x, whole.astype(x.dtype.np))
    return x


def eye_(tensor: Tensor) -> Tensor:
    """The identity matrix. Raises ShapeError unless there are 2 dims."""
    if tensor.ndim != 2:
        raise ShapeError(f"eye_: only tensors with 2 dimensions are supported, got {tensor.meta}")
    return _write_whole(tensor, np.eye(*tensor.shape))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Convolution weights that pass their input channels through. Raises ShapeError unless there
    are 3 to 5 dims.
    """
    shape = tensor.shape
    if not 3 <= len(shape) <= 5 or shape[0] % groups:
        raise ShapeError(
            f"dirac_: needs 3 to 5 dims, and a first dim divisible by groups={groups}, got "
            f"{tensor.meta}"
        )
    whole = np.zeros(shape)
    per_group = shape[0] // groups
    centre = tuple(size // 2 for size in shape[2:])
    for out in range(shape[0]):
        if out % per_group < shape[1]:
            position = (out, out % per_group, *centre)
            whole[position] = 1.0
    return _write_whole(tensor, whole)


def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Rows (the first dim) or columns orthonormal, times gain: the Q of a normal matrix's QR (Saxe
    et al., 2014).
    """
    if tensor.ndim < 2:
        raise ShapeError(f"orthogonal_: needs at least 2 dims, got {tensor.meta}")
    rows = tensor.shape[0]
    columns = tensor.meta.numel // max(rows, 1)
    shape = (max(rows, columns), min(rows, columns))
    attrs: Attrs = {"shape": shape, "mean": 0.0, "std": 1.0, "dtype": float64}
    with no_grad():
        whole = layout_of(tensor)
        if tensor.is_global:
            whole["sbp"] = all_broadcast(tensor.placement.ndim)
        q, r = qr(source("normal", {**attrs, "seed": next_seed(generator)}, **whole))
        q = q * (2.0 * (r.diagonal() >= 0) - 1.0)  # without this Q would not be uniform
        q = gain * (q.t() if rows < columns else q).reshape(tensor.shape)
        return tensor.copy_(q.to(tensor.dtype))


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the factor by which weights before a nonlinearity are scaled to keep the variance.
    param: slope of leaky_relu.
    """
    if nonlinearity in ("relu", "leaky_relu"):
        slope = 0.0 if nonlinearity == "relu" else 0.01 if param is None else float(param)
        return math.sqrt(2.0 / (1.0 + slope**2))
    gains = {"tanh": 5.0 / 3, "selu": 3.0 / 4, "linear": 1.0, "sigmoid": 1.0}
    if nonlinearity.startswith("conv"):
        return 1.0
    if nonlinearity not in gains:
        raise ArgumentError(f"Unsupported nonlinearity {nonlinearity}")
    return gains[nonlinearity]


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """Inputs per output, outputs per input of weights (out, in, window...). Raises ShapeError."""
    if len(shape) < 2:
        raise ShapeError(
            "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions, "
            f"got shape {list(shape)}"
        )
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    return fans(tensor.shape)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, **_: object) -> Tensor:
    """Uniform, with variance gain² · 2 / (fan_in + fan_out) (Glorot and Bengio, AISTATS 2010)."""
    bound = gain * math.sqrt(6.0 / sum(fans(tensor.shape)))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, **_: object) -> Tensor:
    """Normal, with variance gain² · 2 / (fan_in + fan_out) (Glorot and Bengio, AISTATS 2010)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(fans(tensor.shape))))


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    fan_in, fan_out = fans(tensor.shape)
    choice = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}
    if mode not in choice:
        raise ArgumentError(f"Mode {mode} not supported, please use one of {list(choice)}")
    return calculate_gain(nonlinearity, a) / math.sqrt(max(choice[mode], 1))


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    **_: object,
) -> Tensor:
    """Uniform, with variance gain² / fan (He et al., ICCV 2015). a: slope of leaky_relu for the
    gain.
    """
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    **_: object,
) -> Tensor:
    """Normal, with variance gain² / fan (He et al., ICCV 2015). a: slope of leaky_relu for the
    gain.
    """
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity))


# Coefficients of algorithm AS 241, highest power first: Wichura, Appl. Stat. 37(3), 1988.
_CENTRE = (
    (
        2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4,
        4.5921953931549871457e4, 1.3731693765509461125e4, 1.9715909503065514427e3,
        1.3314166789178437745e2, 3.3871328727963666080e0,
    ),
    (
        5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4,
        2.1213794301586595867e4, 5.3941960214247511077e3, 6.8718700749205790830e2,
        4.2313330701600911252e1, 1.0,
    ),
)  # fmt: skip
_TAIL = (
    (
        7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
        1.27045825245236838258e0, 3.64784832476320460504e0, 5.76949722146069140550e0,
        4.63033784615654529590e0, 1.42343711074968357734e0,
    ),
    (
        1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2,
        1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940e0,
        2.05319162663775882187e0, 1.0,
    ),
)  # fmt: skip


def _ratio(polynomials: tuple[tuple[float, ...], tuple[float, ...]], x: Array) -> Array:
    top, bottom = x * 0.0, x * 0.0
    for up, down in zip(*polynomials, strict=True):
        top, bottom = top * x + up, bottom * x + down
    return top / bottom


def _inverse_normal(p: Array) -> Array:
    """x with P(normal < x) = p, for 1.4e-11 < p < 1 - 1.4e-11; beyond, the value there. NumPy or
    CuPy arrays, or tensors.
    """
    q = p - 0.5
    centre = q * _ratio(_CENTRE, 0.180625 - (q * q).clip(0.0, 0.180625))
    edge = (p * (q <= 0) + (1.0 - p) * (q > 0)).clip(1.4e-11, 0.075)
    tail = _ratio(_TAIL, (-_log(edge)) ** 0.5 - 1.6)
    is_tail = abs(q) > 0.425
    x: Array = centre * ~is_tail + tail * is_tail * ((q > 0) * 2.0 - 1.0)
    return x


def _log(x: Array | Tensor) -> Any:
    if isinstance(x, np.ndarray | np.generic):
        logs: Array = np.log(x)
        return logs
    if isinstance(x, Tensor):
        return x.log()
    return module_of(x).log(x)


def assign(own: Tensor, value: ArrayLike) -> None:
    """Copy `value` into the memory of `own`, for any layout, dtype and device of either.

    value: a tensor, or an array of the whole; a local value for a global `own` is the whole, the
    same on every rank.
    """
    source = value.detach() if isinstance(value, Tensor) else wrap(np.asarray(value))
    with no_grad():
        own.copy_(_in_layout_of(own, source))


def _in_layout_of(own: Tensor, source: Tensor) -> Tensor:
    if own.is_local and source.is_global:
        whole = source.to_global(
            placement=source.placement, sbp=all_broadcast(source.placement.ndim)
        )
        local: Tensor = whole.to_local()
        return local
    if own.is_local:
        return source
    if source.is_local:
        source = source.to_global(own.placement, all_broadcast(own.placement.ndim))
    moved: Tensor = source.to_global(placement=own.placement, sbp=own.sbp)
    return moved
