"""Optimizer updates in NumPy and CuPy. Outputs are the very arrays of the inputs they overwrite."""

from __future__ import annotations

from typing import Any

from oneflow.core.tensor_type import TensorType
from oneflow.kernels.registry import kernel


def _copies(count: int) -> Any:
    """Workspace: `count` arrays like the parameter."""

    def types(ins: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
        return (ins[0],) * count

    return types


def scalar(xp: Any, value: Any, like: Any) -> Any:
    """A 0-d value in the dtype of `like`: on the host a plain number, on a GPU still an array (no
    wait for the GPU).
    """
    return value.astype(like.dtype) if hasattr(value, "get") else like.dtype.type(value)


def _decayed(xp: Any, g: Any, grad: Any, param: Any, weight_decay: float, maximize: bool) -> None:
    """g <- grad (negated if maximize) + weight_decay * param."""
    if weight_decay:
        xp.multiply(param, weight_decay, out=g)
        (xp.subtract if maximize else xp.add)(g, grad, out=g)
    elif maximize:
        xp.negative(grad, out=g)
    else:
        g[...] = grad


def _average(xp: Any, state: Any, value: Any, spare: Any, decay: float) -> None:
    """state <- decay * state + (1 - decay) * value."""
    xp.multiply(state, decay, out=state)
    xp.multiply(value, 1.0 - decay, out=spare)
    xp.add(state, spare, out=state)


@kernel("sgd_update", workspace=_copies(1))
def sgd_update(
    xp: Any,
    out: Any,
    param: Any,
    grad: Any,
    lr: Any,
    g: Any,
    *,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> None:
    _decayed(xp, g, grad, param, weight_decay, maximize)
    xp.multiply(g, scalar(xp, lr, g), out=g)
    xp.subtract(param, g, out=out)


@kernel("momentum_update", workspace=_copies(2))
def momentum_update(
    xp: Any,
    out: Any,
    out_buf: Any,
    param: Any,
    grad: Any,
    buf: Any,
    lr: Any,
    g: Any,
    spare: Any,
    *,
    momentum: float,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> None:
    _decayed(xp, g, grad, param, weight_decay, maximize)
    xp.multiply(buf, momentum, out=out_buf)
    xp.multiply(g, 1.0 - dampening, out=spare)
    xp.add(out_buf, spare, out=out_buf)
    if nesterov:
        xp.multiply(out_buf, momentum, out=spare)
        xp.add(g, spare, out=g)
    xp.multiply(g if nesterov else out_buf, scalar(xp, lr, g), out=g)
    xp.subtract(param, g, out=out)


def _adam_step(
    xp: Any,
    m: Any,
    v: Any,
    denominator_of: Any,
    step: Any,
    g: Any,
    spare: Any,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    do_bias_correction: bool,
) -> None:
    """Updates m and v with g, then g <- m' / (sqrt(v') + eps), not yet times lr."""
    _average(xp, m, g, spare, beta1)
    xp.multiply(g, g, out=g)
    _average(xp, v, g, spare, beta2)
    if denominator_of is not v:
        xp.maximum(denominator_of, v, out=denominator_of)
    xp.sqrt(denominator_of, out=spare)
    if do_bias_correction:
        count = step.astype(xp.float64)
        xp.divide(spare, scalar(xp, xp.sqrt(1.0 - beta2**count), g), out=spare)
        xp.divide(m, scalar(xp, 1.0 - beta1**count, g), out=g)
    else:
        g[...] = m
    xp.add(spare, eps, out=spare)
    xp.divide(g, spare, out=g)


@kernel("adam_update", workspace=_copies(2))
def adam_update(
    xp: Any,
    out: Any,
    out_m: Any,
    out_v: Any,
    param: Any,
    grad: Any,
    m: Any,
    v: Any,
    lr: Any,
    step: Any,
    g: Any,
    spare: Any,
    *,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    maximize: bool = False,
    **adam: Any,
) -> None:
    _decayed(xp, g, grad, param, 0.0 if decoupled else weight_decay, maximize)
    _adam_step(xp, out_m, out_v, out_v, step, g, spare, **adam)
    _descend(xp, out, g, spare, lr, weight_decay if decoupled else 0.0)


@kernel("amsgrad_update", workspace=_copies(2))
def amsgrad_update(
    xp: Any,
    out: Any,
    out_m: Any,
    out_v: Any,
    out_max: Any,
    param: Any,
    grad: Any,
    m: Any,
    v: Any,
    v_max: Any,
    lr: Any,
    step: Any,
    g: Any,
    spare: Any,
    *,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    maximize: bool = False,
    **adam: Any,
) -> None:
    _decayed(xp, g, grad, param, 0.0 if decoupled else weight_decay, maximize)
    _adam_step(xp, out_m, out_v, out_max, step, g, spare, **adam)
    _descend(xp, out, g, spare, lr, weight_decay if decoupled else 0.0)


def _descend(xp: Any, param: Any, g: Any, spare: Any, lr: Any, weight_decay: float) -> None:
    """param -= lr * (g + weight_decay * param)."""
    if weight_decay:
        xp.multiply(param, weight_decay, out=spare)
        xp.add(g, spare, out=g)
    xp.multiply(g, scalar(xp, lr, g), out=g)
    xp.subtract(param, g, out=param)


@kernel("adagrad_update", workspace=_copies(2))
def adagrad_update(
    xp: Any,
    out: Any,
    out_sum: Any,
    param: Any,
    grad: Any,
    sum: Any,
    lr: Any,
    step: Any,
    g: Any,
    spare: Any,
    *,
    lr_decay: float = 0.0,
    eps: float = 1e-10,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> None:
    _decayed(xp, g, grad, param, weight_decay, maximize)
    xp.multiply(g, g, out=spare)
    xp.add(sum, spare, out=out_sum)
    xp.sqrt(out_sum, out=spare)
    xp.add(spare, eps, out=spare)
    xp.divide(g, spare, out=g)
    rate = lr / (1.0 + (step.astype(xp.float64) - 1.0) * lr_decay)
    xp.multiply(g, scalar(xp, rate, g), out=g)
    xp.subtract(param, g, out=out)


@kernel("rmsprop_update", workspace=_copies(2))
def rmsprop_update(
    xp: Any,
    out: Any,
    out_ms: Any,
    out_mean: Any,
    out_buf: Any,
    param: Any,
    grad: Any,
    ms: Any,
    mean: Any,
    buf: Any,
    lr: Any,
    g: Any,
    spare: Any,
    *,
    alpha: float = 0.99,
    eps: float = 1e-8,
    momentum: float = 0.0,
    centered: bool = False,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> None:
    _decayed(xp, g, grad, param, weight_decay, maximize)
    xp.multiply(ms, alpha, out=out_ms)
    xp.multiply(g, g, out=spare)
    xp.multiply(spare, 1.0 - alpha, out=spare)
    xp.add(out_ms, spare, out=out_ms)
    if centered:
        _average(xp, out_mean, g, spare, alpha)
        xp.multiply(out_mean, out_mean, out=spare)
        xp.subtract(out_ms, spare, out=spare)
    else:
        spare[...] = out_ms
    xp.add(spare, eps, out=spare)
    xp.sqrt(spare, out=spare)
    xp.divide(g, spare, out=g)
    xp.multiply(g, scalar(xp, lr, g), out=g)
    if momentum:
        xp.multiply(buf, momentum, out=out_buf)
        xp.add(out_buf, g, out=out_buf)
        g = out_buf
    xp.subtract(param, g, out=out)


@kernel("adadelta_update", workspace=_copies(2))
def adadelta_update(
    xp: Any,
    out: Any,
    out_sq: Any,
    out_acc: Any,
    param: Any,
    grad: Any,
    sq: Any,
    acc: Any,
    lr: Any,
    g: Any,
    spare: Any,
    *,
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> None:
    _decayed(xp, g, grad, param, weight_decay, maximize)
    xp.multiply(sq, rho, out=out_sq)
    xp.multiply(g, g, out=spare)
    xp.multiply(spare, 1.0 - rho, out=spare)
    xp.add(out_sq, spare, out=out_sq)
    xp.add(out_sq, eps, out=spare)
    xp.sqrt(spare, out=spare)
    xp.divide(g, spare, out=g)
    xp.add(acc, eps, out=spare)
    xp.sqrt(spare, out=spare)
    xp.multiply(g, spare, out=g)
    xp.multiply(g, scalar(xp, lr, g), out=spare)
    xp.subtract(param, spare, out=out)
    xp.multiply(g, g, out=g)
    _average(xp, out_acc, g, spare, rho)


@kernel("lamb_update", workspace=_copies(2))
def lamb_update(
    xp: Any,
    out: Any,
    out_m: Any,
    out_v: Any,
    param: Any,
    grad: Any,
    m: Any,
    v: Any,
    lr: Any,
    step: Any,
    g: Any,
    spare: Any,
    *,
    weight_decay: float = 0.0,
    decoupled: bool = True,
    maximize: bool = False,
    **adam: Any,
) -> None:
    _decayed(xp, g, grad, param, 0.0 if decoupled else weight_decay, maximize)
    _adam_step(xp, out_m, out_v, out_v, step, g, spare, **adam)
    if decoupled and weight_decay:
        xp.multiply(param, weight_decay, out=spare)
        xp.add(g, spare, out=g)
    weight_norm, step_norm = _norm(xp, param, spare), _norm(xp, g, spare)
    both = (weight_norm > 0) & (step_norm > 0)
    trust = xp.where(both, weight_norm / xp.where(both, step_norm, 1.0), 1.0)
    xp.multiply(g, scalar(xp, trust * lr, g), out=g)
    xp.subtract(param, g, out=out)


def _norm(xp: Any, x: Any, spare: Any) -> Any:
    xp.multiply(x, x, out=spare)
    return xp.sqrt(xp.sum(spare, dtype=xp.float64))


@kernel("ftrl_update", workspace=_copies(3))
def ftrl_update(
    xp: Any,
    out: Any,
    out_accumulator: Any,
    out_z: Any,
    param: Any,
    grad: Any,
    accumulator: Any,
    z: Any,
    lr: Any,
    g: Any,
    root: Any,
    spare: Any,
    *,
    lr_power: float = -0.5,
    l1: float = 0.0,
    l2: float = 0.0,
    beta: float = 0.0,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> None:
    _decayed(xp, g, grad, param, weight_decay, maximize)
    rate = scalar(xp, lr, g)
    xp.power(accumulator, -lr_power, out=spare)
    xp.add(z, g, out=out_z)
    xp.multiply(g, g, out=g)
    xp.add(accumulator, g, out=out_accumulator)
    xp.power(out_accumulator, -lr_power, out=root)
    xp.subtract(root, spare, out=spare)
    xp.divide(spare, rate, out=spare)
    xp.multiply(spare, param, out=spare)
    xp.subtract(out_z, spare, out=out_z)
    # param = -(z - clip(z, -l1, l1)) / ((beta + root) / lr + l2): 0 exactly where |z| <= l1.
    xp.add(root, beta, out=root)
    xp.divide(root, rate, out=root)
    xp.add(root, l2, out=root)
    xp.clip(out_z, -l1, l1, out=spare)
    xp.subtract(spare, out_z, out=spare)
    xp.divide(spare, root, out=out)


@kernel("square_sum")
def square_sum(xp: Any, out: Any, x: Any) -> None:
    flat = xp.ascontiguousarray(x, dtype=out.dtype).reshape(-1)
    out[...] = xp.dot(flat, flat)
