"""Samples of the updates of optimizers, each with the textbook's form in float64 NumPy."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np

from .sample import Sample, between, normal

Array = np.ndarray[Any, Any]


def _gradient(p: Array, g: Array, weight_decay: float, maximize: bool) -> Array:
    return (-g if maximize else g) + weight_decay * p


def _sgd(p: Array, g: Array, lr: Array, weight_decay: float, maximize: bool) -> Array:
    return p - lr * _gradient(p, g, weight_decay, maximize)


def _momentum(p: Array, g: Array, b: Array, lr: Array, **a: Any) -> tuple[Array, Array]:
    g = _gradient(p, g, a["weight_decay"], a["maximize"])
    b = a["momentum"] * b + (1 - a["dampening"]) * g
    return p - lr * (g + a["momentum"] * b if a["nesterov"] else b), b


def _cycled(name: str, update: Any, *arrays: Array, **a: Any) -> Any:
    """An update whose attribute `name` is its last operand."""
    return update(*arrays[:-1], **a, **{name: arrays[-1]})


def _adam_parts(
    p: Array, g: Array, m: Array, v: Array, *rest: Array, **a: Any
) -> tuple[Array, ...]:
    """(step before lr, new states)."""
    *top, _lr, step = rest
    decay = 0.0 if a["decoupled"] else a["weight_decay"]
    g = _gradient(p, g, decay, a["maximize"])
    m, v = a["beta1"] * m + (1 - a["beta1"]) * g, a["beta2"] * v + (1 - a["beta2"]) * g * g
    states = [m, v, *(np.maximum(t, v) for t in top)]
    corrected = [1.0, 1.0]
    if a["do_bias_correction"]:
        corrected = [1 - a["beta1"] ** step, 1 - a["beta2"] ** step]
    denominator = np.sqrt(states[-1] / corrected[1]) + a["eps"]
    return m / corrected[0] / denominator, *states


def _adam(p: Array, *rest: Array, **a: Any) -> tuple[Array, ...]:
    step, *states = _adam_parts(p, *rest, **a)
    decayed = step + a["weight_decay"] * p if a["decoupled"] else step
    return p - rest[-2] * decayed, *states


def _lamb(p: Array, *rest: Array, **a: Any) -> tuple[Array, ...]:
    step, *states = _adam_parts(p, *rest, **a)
    trust = np.linalg.norm(p) / np.linalg.norm(step)
    step = step + a["weight_decay"] * p if a["decoupled"] else step
    return p - rest[-2] * trust * step, *states


def _adagrad(p: Array, g: Array, s: Array, lr: Array, step: Array, **a: Any) -> tuple[Array, Array]:
    g = _gradient(p, g, a["weight_decay"], a["maximize"])
    s = s + g * g
    return p - lr / (1 + (step - 1) * a["lr_decay"]) * g / (np.sqrt(s) + a["eps"]), s


def _rmsprop(
    p: Array, g: Array, s: Array, mean: Array, buf: Array, lr: Array, **a: Any
) -> tuple[Array, ...]:
    g = _gradient(p, g, a["weight_decay"], a["maximize"])
    s = a["alpha"] * s + (1 - a["alpha"]) * g * g
    spread = s
    if a["centered"]:
        mean = a["alpha"] * mean + (1 - a["alpha"]) * g
        spread = s - mean * mean
    if a["eps_in_root"]:
        before, after, step = lr, 1.0, g / np.sqrt(spread + a["eps"])
    else:
        before, after, step = 1.0, lr, g / (np.sqrt(spread) + a["eps"])
    step = before * step
    if a["momentum"]:
        step = buf = a["momentum"] * buf + step
    return p - after * step, s, mean, buf


def _adadelta(p: Array, g: Array, sq: Array, acc: Array, lr: Array, **a: Any) -> tuple[Array, ...]:
    g = _gradient(p, g, a["weight_decay"], a["maximize"])
    sq = a["rho"] * sq + (1 - a["rho"]) * g * g
    d = g * np.sqrt((acc + a["eps"]) / (sq + a["eps"]))
    return p - lr * d, sq, a["rho"] * acc + (1 - a["rho"]) * d * d


def _dampened(p: Array, g: Array, b: Array, lr: Array, step: Array, **a: Any) -> Any:
    first = {**a, "dampening": 0.0} if step == 1 else a
    return _momentum(p, g, b, lr, **first)


def _adamax(p: Array, g: Array, m: Array, u: Array, lr: Array, step: Array, **a: Any) -> Any:
    g = _gradient(p, g, a["weight_decay"], a["maximize"])
    m = a["beta1"] * m + (1 - a["beta1"]) * g
    u = np.maximum(a["beta2"] * u, np.abs(g) + a["eps"])
    return p - lr / (1 - a["beta1"] ** step) * m / u, m, u


def _nadam_product(product: Array, step: Array, **a: Any) -> Array:
    return product * a["beta1"] * (1 - 0.5 * 0.96 ** (step * a["momentum_decay"]))


def _nadam(p: Array, g: Array, m: Array, v: Array, *rest: Array, **a: Any) -> Any:
    product, lr, step = rest
    start = p
    if a["decoupled"]:
        start = p * (1 - lr * a["weight_decay"])
    else:
        g = g + a["weight_decay"] * p
    m, v = a["beta1"] * m + (1 - a["beta1"]) * g, a["beta2"] * v + (1 - a["beta2"]) * g * g
    mu, after = (
        a["beta1"] * (1 - 0.5 * 0.96 ** (t * a["momentum_decay"])) for t in (step, step + 1)
    )
    below = np.sqrt(v / (1 - a["beta2"] ** step)) + a["eps"]
    move = (1 - mu) / (1 - product) * g + after / (1 - product * after) * m
    return start - lr * move / below, m, v


def _radam(p: Array, g: Array, m: Array, v: Array, lr: Array, step: Array, **a: Any) -> Any:
    start = p
    if a["decoupled"]:
        start = p * (1 - lr * a["weight_decay"])
    else:
        g = g + a["weight_decay"] * p
    m, v = a["beta1"] * m + (1 - a["beta1"]) * g, a["beta2"] * v + (1 - a["beta2"]) * g * g
    move = m / (1 - a["beta1"] ** step)
    decay, longest = a["beta2"] ** step, 2 / (1 - a["beta2"]) - 1
    n = longest - 2 * step * decay / (1 - decay)
    if n > 5:
        share = (n - 4) * (n - 2) * longest / ((longest - 4) * (longest - 2) * n)
        move = move * np.sqrt(share) * np.sqrt(1 - decay) / (np.sqrt(v) + a["eps"])
    return start - lr * move, m, v


def _asgd(p: Array, g: Array, ax: Array, eta: Array, mu: Array, **a: Any) -> Any:
    g = _gradient(p, g, a["weight_decay"], a["maximize"])
    p = p * (1 - a["lambd"] * eta) - eta * g
    return p, ax + mu * (p - ax)


def _asgd_rates(eta: Array, mu: Array, lr: Array, step: Array, **a: Any) -> Any:
    return (
        np.asarray(lr / (1 + a["lambd"] * lr * step) ** a["alpha"]),
        np.asarray(1 / max(1, step - a["t0"])),
    )


def _rprop(p: Array, g: Array, prev: Array, size: Array, **a: Any) -> Any:
    g = -g if a["maximize"] else g
    factor = np.select([g * prev > 0, g * prev < 0], [a["etaplus"], a["etaminus"]], 1.0)
    size = np.clip(size * factor, a["size_min"], a["size_max"])
    g = np.where(g * prev < 0, 0.0, g)
    return p - np.sign(g) * size, g, size


def _ftrl(p: Array, g: Array, n: Array, z: Array, lr: Array, **a: Any) -> tuple[Array, ...]:
    g = _gradient(p, g, a["weight_decay"], a["maximize"])
    power = a["lr_power"]
    z = z + g - ((n + g * g) ** power - n**power) / lr * p
    n = n + g * g
    scale = (a["beta"] + n**power) / lr + a["l2"]
    return np.where(np.abs(z) <= a["l1"], 0.0, (np.sign(z) * a["l1"] - z) / scale), n, z


CASTING = ("sgd_update", "momentum_update", "adam_update", "amsgrad_update")
"""Updates of which there is a form that casts, too."""


def _with_copy(sample: Sample, is_wanted: bool | None = None) -> Sample:
    """The sample of an update that also writes the parameter elsewhere."""
    arrays = sum(x.ndim > 0 for x in sample.inputs)
    given = [*sample.inputs[:arrays], np.zeros((5, 4)), *sample.inputs[arrays:]]
    if is_wanted is not None:
        given.append(np.array(int(is_wanted)))

    def reference(*inputs: Any, **attrs: Any) -> tuple[Array, ...]:
        own = [*inputs[:arrays], *inputs[arrays + 1 : len(sample.inputs) + 1]]
        assert sample.reference is not None
        new = sample.reference(*own, **attrs)
        listed = new if isinstance(new, tuple) else (new,)
        if is_wanted is False:
            listed = (own[0], *own[2:arrays])
        return (*listed, listed[0])

    return Sample(f"{sample.op}_and_cast", tuple(given), sample.attrs, reference)


def update_samples() -> list[Sample]:
    p, g = normal(5, 4), normal(5, 4, seed=1)
    m, v = normal(5, 4, seed=2), between(2.0, 3.0, 5, 4, seed=3)
    lr, step = np.array(0.1), np.array(3)
    common = {"weight_decay": 0.2, "maximize": False}
    adam = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-6, **common}
    result = []
    result.append(Sample("assign", (p, g), {}, lambda x, new: new))
    for maximize in (False, True):
        attrs = {"weight_decay": 0.1, "maximize": maximize}
        result.append(Sample("sgd_update", (p, g, lr), attrs, _sgd))
    for nesterov in (False, True):
        attrs = {"momentum": 0.9, "dampening": 0.3, "nesterov": nesterov, **common}
        result.append(Sample("momentum_update", (p, g, m, lr), attrs, _momentum))
        own = {k: v for k, v in attrs.items() if k != "momentum"}
        given, fed = (p, g, m, lr, np.array(0.9)), partial(_cycled, "momentum", _momentum)
        result.append(Sample("cycled_momentum_update", given, own, fed))
    for decoupled, corrected in product((False, True), repeat=2):
        attrs = {**adam, "decoupled": decoupled, "do_bias_correction": corrected}
        result.append(Sample("adam_update", (p, g, m, v, lr, step), attrs, _adam))
        top = between(1.0, 4.0, 5, 4, seed=4)
        result.append(Sample("amsgrad_update", (p, g, m, v, top, lr, step), attrs, _adam))
        own = {k: v for k, v in attrs.items() if k != "beta1"}
        given, fed = (p, g, m, v, lr, step, np.array(0.9)), partial(_cycled, "beta1", _adam)
        result.append(Sample("cycled_adam_update", given, own, fed))
        result.append(Sample("lamb_update", (p, g, m, v, lr, step), attrs, _lamb))
    attrs = {"lr_decay": 0.1, "eps": 1e-6, **common}
    result.append(Sample("adagrad_update", (p, g, v, lr, step), attrs, _adagrad))
    for centered, momentum, in_root in ((False, 0.0, True), (True, 0.5, True), (True, 0.5, False)):
        attrs = {"alpha": 0.9, "eps": 1e-2, "momentum": momentum, "centered": centered, **common}
        attrs["eps_in_root"] = in_root
        small = m * 0.1
        result.append(Sample("rmsprop_update", (p, g, v, small, g * 0.5, lr), attrs, _rmsprop))
    attrs = {"rho": 0.9, "eps": 1e-6, **common}
    result.append(Sample("adadelta_update", (p, g, v, v * 0.5, lr), attrs, _adadelta))
    result += [_with_copy(s) for s in result if s.op in CASTING]
    one = next(s for s in result if s.op == "adam_update")
    result += [_with_copy(one, wanted) for wanted in (True, False)]
    result += _kin_samples(p, g, m, v)
    for power in (-0.5, 0.5, 0.3):
        attrs = {"lr_power": power, "l1": 0.7, "l2": 0.1, "beta": 1.0, **common}
        result.append(Sample("ftrl_update", (p, g, v, m, lr), attrs, _ftrl))
    result.append(Sample("square_sum", (p,), {}, lambda x: np.square(x).sum()))
    result.append(Sample("square_sum", (normal(3, 5, 2),), {}, lambda x: np.square(x).sum()))
    return result


def _kin_samples(p: Array, g: Array, m: Array, v: Array) -> list[Sample]:
    """Samples of the updates that PyTorch has and OneFlow has not."""
    lr, steps = np.array(0.1), (np.array(1), np.array(9))
    common = {"weight_decay": 0.2, "maximize": False}
    adam = {"beta1": 0.9, "beta2": 0.9, "eps": 1e-6, **common}
    betas = {"beta1": 0.9, "momentum_decay": 4e-3}
    product = np.array(0.4)
    result = []
    for step, decoupled in zip(steps, (False, True), strict=True):
        attrs = {"momentum": 0.9, "dampening": 0.3, "nesterov": decoupled, **common}
        result.append(Sample("dampened_update", (p, g, m, lr, step), attrs, _dampened))
        result.append(Sample("adamax_update", (p, g, m, v * 0.1, lr, step), adam, _adamax))
        result.append(Sample("nadam_product", (product, step), betas, _nadam_product))
        attrs = {**adam, "decoupled": decoupled, "momentum_decay": 4e-3}
        result.append(Sample("nadam_update", (p, g, m, v, product, lr, step), attrs, _nadam))
        attrs = {**adam, "decoupled": decoupled}
        result.append(Sample("radam_update", (p, g, m, v, lr, step), attrs, _radam))
        attrs = {"lambd": 0.1, "alpha": 0.75, "t0": 4.0}
        numbers = (np.array(0.3), np.array(0.5))
        result.append(Sample("asgd_rates", (*numbers, lr, step), attrs, _asgd_rates))
    attrs = {"lambd": 0.1, **common}
    result.append(Sample("asgd_update", (p, g, m, *numbers), attrs, _asgd))
    for maximize in (False, True):
        attrs = {"etaminus": 0.5, "etaplus": 1.2, "size_min": 0.2, "size_max": 2.6}
        attrs["maximize"] = maximize
        result.append(Sample("rprop_update", (p, g, m, v), attrs, _rprop))
    return result
