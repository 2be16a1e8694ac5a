"""Samples of the ops of neural networks, each with a formula in float64 NumPy that is written
differently from the kernels: sums over explicit windows, one-hot targets."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np

from oneflow.core import dtype as dt
from oneflow.ops.matmul import Product

from .sample import Sample, between, distinct, normal
from .update_samples import update_samples

Array = np.ndarray[Any, Any]

# ---- products ------------------------------------------------------------------------------------


def _matmul(a: Array, b: Array, transpose_a: bool = False, transpose_b: bool = False) -> Array:
    a = a.swapaxes(-1, -2) if transpose_a else a
    b = b.swapaxes(-1, -2) if transpose_b else b
    return np.einsum("...ij,...jk->...ik", a, b)


def _matmul_samples() -> list[Sample]:
    result = []
    for ta, tb in product((False, True), repeat=2):
        a = normal(*((3, 5) if ta else (5, 3)))
        b = normal(*((4, 3) if tb else (3, 4)), seed=1)
        result.append(Sample("matmul", (a, b), {"transpose_a": ta, "transpose_b": tb}, _matmul))
    batched = [((4, 5, 3), (3, 6)), ((4, 1, 5, 3), (3, 3, 6)), ((5, 3), (4, 3, 6))]
    for left, right in batched:
        result.append(Sample("matmul", (normal(*left), normal(*right, seed=1)), {}, _matmul))
    return result


def _weight_grad(a: Array, d: Array, transpose: bool = False) -> Array:
    out = sum(np.outer(r, c) for r, c in zip(a.reshape(-1, 5), d.reshape(-1, 6), strict=True))
    return out.T if transpose else out


def _gelu_of(x: Array) -> Array:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _product(*operands: Array, epilogue: tuple[str, ...], **attrs: Any) -> tuple[Array, ...]:
    a, b = (x.reshape(-1, x.shape[-1]) for x in operands[:2])
    others = dict(zip([e for e in epilogue if e in Product.NEEDED], operands[2:], strict=True))
    a, b = a.T if attrs.get("transpose_a") else a, b.T if attrs.get("transpose_b") else b
    lead = () if attrs.get("transpose_a") else operands[0].shape[:-2]
    z = (a @ b).reshape(*lead, -1, b.shape[1]) * attrs.get("scale", 1.0)
    z = z + others.get("bias", 0) + others.get("added", 0)
    out = np.maximum(z, 0) if "relu" in epilogue else _gelu_of(z) if "gelu" in epilogue else z
    if "gelu_grad" in others:
        x, step = others["gelu_grad"], 1e-3
        ends = (_gelu_of(x + k * step) * w for k, w in ((-2, 1), (-1, -8), (1, 8), (2, -1)))
        out = z * sum(ends) / (12 * step)
    sums = {"sum_out": out.reshape(-1, out.shape[-1]).sum(0), "sum_a": a.sum(1), "sum_b": b.sum(0)}
    given = {"saved": z, **sums}
    return (out, *(given[e] for e in epilogue if e in Product.GIVEN))


def _products_with_epilogues() -> list[Sample]:
    """Samples in sizes that every library takes: multiples of 16."""
    x, w, d = normal(2, 8, 16), normal(32, 16, seed=1), normal(2, 8, 32, seed=2)
    b, z = normal(32, seed=3), normal(2, 8, 32, seed=4)
    calls: list[tuple[tuple[Array, ...], tuple[str, ...], dict[str, Any]]] = [
        ((x, w, b), ("bias",), {"transpose_b": True}),
        ((x, w, b), ("bias", "relu"), {"transpose_b": True}),
        ((x, w, b, z), ("bias", "added"), {"transpose_b": True}),
        ((x, w, z), ("added",), {"transpose_b": True, "scale": 0.25}),
        ((x, w, b), ("bias", "gelu", "saved"), {"transpose_b": True}),
        ((x, w), ("gelu",), {"transpose_b": True}),
        ((x, w.T.copy(), b, z), ("bias", "added", "gelu", "saved"), {}),
        ((x, w, z), ("gelu_grad", "sum_out"), {"transpose_b": True}),
        ((x, w, z), ("gelu_grad",), {"transpose_b": True}),
        ((d, x), ("sum_a",), {"transpose_a": True}),
        ((x, d), ("sum_b",), {"transpose_a": True}),
        ((x, w[:7], b[:7]), ("bias",), {"transpose_b": True}),
    ]
    return [Sample("product", ins, {**attrs, "epilogue": e}, _product) for ins, e, attrs in calls]


def _product_samples() -> list[Sample]:
    a, d = normal(3, 4, 5), normal(3, 4, 6, seed=1)
    w, b = normal(6, 5, seed=2), normal(6, seed=3)
    return [
        *_matmul_samples(),
        *_products_with_epilogues(),
        Sample("matmul_weight_grad", (a, d), {}, _weight_grad),
        Sample("matmul_weight_grad", (a, d), {"transpose": True}, _weight_grad),
        Sample("linear", (a, w, b), {}, lambda x, w, b: np.einsum("...i,oi->...o", x, w) + b),
        Sample("linear", (normal(5), w, b), {}, lambda x, w, b: w @ x + b),
        Sample("sum_rows", (a,), {}, lambda x: x.reshape(-1, x.shape[-1]).sum(axis=0)),
    ]


# ---- softmax and losses over classes -------------------------------------------------------------


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _softmax_grad(d: Array, y: Array, scale: float = 1.0) -> Array:
    jacobian = np.einsum("...i,ij->...ij", y, np.eye(y.shape[-1])) - y[..., None] * y[..., None, :]
    return scale * np.einsum("...i,...ij->...j", d, jacobian)


def _causal(x: Array, scale: float = 1.0) -> Array:
    rows, columns = x.shape[-2:]
    return _softmax(np.where(np.tri(rows, columns, columns - rows) > 0, x * scale, -np.inf))


def _target(
    labels: Array, classes: int, ignore_index: int, smoothing: float
) -> tuple[Array, Array]:
    kept = labels != ignore_index
    one_hot = np.eye(classes)[np.where(kept, labels, 0)]
    return kept, (1 - smoothing) * one_hot + smoothing / classes


def _cross_entropy(
    x: Array, labels: Array, ignore_index: int = -100, label_smoothing: float = 0.0
) -> tuple[Array, Array]:
    kept, target = _target(labels, x.shape[1], ignore_index, label_smoothing)
    lse = np.log(np.exp(x).sum(axis=1))
    return np.where(kept, -(target * (x - lse[:, None])).sum(axis=1), 0.0), lse


def _cross_entropy_grad(
    d: Array,
    x: Array,
    labels: Array,
    lse: Array,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Array:
    kept, target = _target(labels, x.shape[1], ignore_index, label_smoothing)
    return (d * kept)[:, None] * (_softmax(x) - target)


def _class_samples() -> list[Sample]:
    x, d = normal(5, 3, 4), normal(5, 3, 4, seed=1)
    y, log_y = _softmax(x), np.log(_softmax(x))
    scores = normal(2, 3, 4, 6) * 2
    logits, d_loss = normal(7, 5) * 2, normal(7, seed=1)
    labels = np.array([0, 4, -100, 2, 1, -100, 3])
    lse = np.log(np.exp(logits).sum(axis=1))
    smooth = {"ignore_index": -100, "label_smoothing": 0.2}
    plain = {"ignore_index": -100, "label_smoothing": 0.0}
    nll_grad = {"num_classes": 5, "ignore_index": -100}
    return [
        Sample("softmax", (x,), {}, _softmax),
        Sample("softmax_grad", (d, y), {"scale": 0.5}, _softmax_grad),
        Sample("log_softmax", (x,), {}, lambda x: np.log(_softmax(x))),
        Sample(
            "log_softmax_grad",
            (d, log_y),
            {},
            lambda d, y: d - np.exp(y) * d.sum(axis=-1, keepdims=True),
        ),
        Sample("causal_softmax", (scores,), {"scale": 0.7}, _causal),
        Sample("causal_softmax", (normal(3, 4, 4),), {"scale": 1.0}, _causal),
        *(
            Sample(
                "sparse_softmax_cross_entropy",
                (logits, labels.astype(kind)),
                attrs,
                _cross_entropy,
                compared=(0,),
            )
            for kind, attrs in ((np.int64, smooth), (np.int32, plain))
        ),
        Sample("sparse_softmax_cross_entropy", (logits, labels), plain, _cross_entropy, wrt=()),
        Sample(
            "sparse_softmax_cross_entropy_grad",
            (d_loss, logits, labels, lse),
            smooth,
            _cross_entropy_grad,
        ),
        Sample(
            "nll_loss",
            (np.log(_softmax(logits)), labels),
            {"ignore_index": -100},
            lambda x, t, ignore_index: -(np.eye(6)[t.clip(-1)][:, :5] * x).sum(axis=1),
        ),
        Sample(
            "nll_loss_grad",
            (d_loss, labels),
            nll_grad,
            lambda d, t, num_classes, ignore_index: -d[:, None] * np.eye(6)[t.clip(-1)][:, :5],
        ),
    ]


# ---- normalisation -------------------------------------------------------------------------------


def _layer_norm(x: Array, *affine: Array, begin_axis: int, eps: float) -> tuple[Array, ...]:
    dims = tuple(range(begin_axis, x.ndim))
    mean, std = x.mean(axis=dims, keepdims=True), np.sqrt(x.var(axis=dims, keepdims=True) + eps)
    y = (x - mean) / std
    y = y * affine[0] if affine else y
    y = y + affine[1] if len(affine) == 2 else y
    shape = x.shape[:begin_axis]
    return y, mean.reshape(shape), (1 / std).reshape(shape)


def _rms_norm(x: Array, *gamma: Array, begin_axis: int, eps: float) -> tuple[Array, Array]:
    dims = tuple(range(begin_axis, x.ndim))
    rms = np.sqrt((x * x).mean(axis=dims, keepdims=True) + eps)
    y = x / rms
    return y * gamma[0] if gamma else y, (1 / rms).reshape(x.shape[:begin_axis])


def _norm_grad(
    d: Array, hat: Array, scale: Array, gamma: tuple[Array, ...], axis: int, is_centred: bool
) -> tuple[Array, ...]:
    """The gradients of hat * gamma, where hat = scale * (x [- mean]): of x, gamma [and beta]."""
    rows, own = tuple(range(axis)), tuple(range(axis, d.ndim))
    g = d * gamma[0] if gamma else d
    d_x = g - hat * (g * hat).mean(axis=own, keepdims=True)
    if is_centred:
        d_x = d_x - g.mean(axis=own, keepdims=True)
    sums = ((d * hat).sum(axis=rows), *([d.sum(axis=rows)] if is_centred else []))
    return (d_x * scale, *(sums if gamma else ()))


def _layer_norm_grad(
    d: Array, x: Array, mean: Array, inv: Array, *gamma: Array, begin_axis: int
) -> tuple[Array, ...]:
    column = (*mean.shape, *(1,) * (x.ndim - begin_axis))
    hat = (x - mean.reshape(column)) * inv.reshape(column)
    return _norm_grad(d, hat, inv.reshape(column), gamma, begin_axis, True)


def _rms_norm_grad(
    d: Array, x: Array, inv: Array, *gamma: Array, begin_axis: int
) -> tuple[Array, ...]:
    scale = inv.reshape((*inv.shape, *(1,) * (x.ndim - begin_axis)))
    return _norm_grad(d, x * scale, scale, gamma, begin_axis, False)


def _norm_samples() -> list[Sample]:
    x, gamma, beta = normal(5, 3, 4) + 1, normal(3, 4, seed=1), normal(3, 4, seed=2)
    attrs = {"begin_axis": 1, "eps": 1e-3}
    result = [
        Sample("layer_norm", (x, *affine), attrs, _layer_norm, compared=(0,))
        for affine in ((), (gamma,), (gamma, beta))
    ]
    result.append(Sample("layer_norm", (x, gamma, beta), attrs, _layer_norm, wrt=()))
    last = {"begin_axis": 2, "eps": 1e-5}
    last_affine = normal(4, seed=3), normal(4, seed=4)
    result.append(Sample("layer_norm", (x, *last_affine), last, _layer_norm, compared=(0,)))
    result += [Sample("rms_norm", (x, *g), attrs, _rms_norm, compared=(0,)) for g in ((), (gamma,))]
    result.append(Sample("rms_norm", (x, gamma), attrs, _rms_norm, wrt=()))
    _, mean, inv_std = _layer_norm(x, begin_axis=1, eps=1e-3)
    inv_rms = _rms_norm(x, begin_axis=1, eps=1e-3)[1]
    d = normal(5, 3, 4, seed=5)
    for g in ((), (gamma,)):
        first: dict[str, Any] = {"begin_axis": 1}
        layer = (d, x, mean, inv_std, *g)
        result.append(Sample("layer_norm_grad", layer, first, _layer_norm_grad, wrt=()))
        result.append(Sample("rms_norm_grad", (d, x, inv_rms, *g), first, _rms_norm_grad, wrt=()))
    for axis, weight in ((0, x * 0.5), (2, normal(4, seed=3))):
        _, mean, inv_std = _layer_norm(x, begin_axis=axis, eps=1e-3)
        layer = (d, x, mean, inv_std, weight)
        result.append(
            Sample("layer_norm_grad", layer, {"begin_axis": axis}, _layer_norm_grad, wrt=())
        )
    return result


def _batch_apply(x: Array, mean: Array, inv: Array, *affine: Array, count: int = 0) -> Array:
    shape = (-1, *(1,) * (x.ndim - 2))
    y = (x - mean.reshape(shape)) * inv.reshape(shape)
    return y * affine[0].reshape(shape) + affine[1].reshape(shape) if affine else y


def _moments(s: Array, q: Array, count: int, eps: float, wide: bool) -> tuple[Array, Array]:
    return s / count, (q / count - (s / count) ** 2 + eps) ** -0.5


def _track(
    mean: Array, variance: Array, s: Array, q: Array, count: int, momentum: float
) -> tuple[Array, Array]:
    unbiased = (q - s * s / count) / (count - 1)
    return mean + momentum * (s / count - mean), variance + momentum * (unbiased - variance)


def _average(
    mean: Array, variance: Array, batches: Array, s: Array, q: Array, count: int
) -> tuple[Array, Array, Array]:
    return (*_track(mean, variance, s, q, count, 1 / (batches + 1)), batches + 1)


def _batch_grad_sums(d: Array, x: Array, mean: Array, inv: Array) -> tuple[Array, Array]:
    dims = (0, *range(2, x.ndim))
    return d.sum(axis=dims), (d * _batch_apply(x, mean, inv)).sum(axis=dims)


def _batch_norm_samples() -> list[Sample]:
    x, d = normal(5, 3, 2, 4) + 0.5, normal(5, 3, 2, 4, seed=1)
    mean, inv = normal(3, seed=2), between(0.5, 2.0, 3, seed=3)
    gamma, beta = normal(3, seed=4), normal(3, seed=5)
    sums = x.sum(axis=(0, 2, 3)), (x * x).sum(axis=(0, 2, 3))
    running = normal(3, seed=6), between(0.5, 2.0, 3, seed=7)
    d_sums = _batch_grad_sums(d, x, mean, inv)
    apply_grad = (d, x, mean, inv, *d_sums)
    return [
        Sample(
            "batch_sums",
            (x,),
            {},
            lambda x: (x.sum(axis=(0, 2, 3)), (x * x).sum(axis=(0, 2, 3))),
        ),
        Sample("batch_moments", sums, {"count": 40, "eps": 1e-3, "wide": True}, _moments),
        Sample("batch_norm_track", (*running, *sums), {"count": 40, "momentum": 0.3}, _track),
        Sample("batch_norm_average", (*running, np.array(3), *sums), {"count": 40}, _average),
        *(
            Sample("batch_norm_apply", (x, mean, inv, *a), {"count": 0}, _batch_apply, wrt=wrt)
            for a, wrt in (((), (0,)), ((gamma, beta), (0, 3, 4)))
        ),
        Sample("batch_norm_apply", (normal(5, 3), mean, inv), {"count": 0}, _batch_apply, wrt=(0,)),
        Sample("batch_norm_grad_sums", (d, x, mean, inv), {}, _batch_grad_sums),
        Sample("batch_norm_grad_apply", apply_grad, {"count": 40}),
        Sample("batch_norm_grad_apply", (*apply_grad, gamma), {"count": 40}),
    ]


# ---- activations and elementwise losses ----------------------------------------------------------

_PHI = np.vectorize(lambda v: 0.5 * math.erfc(-v / math.sqrt(2.0)), otypes=[np.float64])
_ROOT = math.sqrt(2.0 / math.pi)


def _gelu(x: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(_ROOT * (x + 0.044715 * x**3)))
    return x * _PHI(x)


def _gelu_grad(d: Array, x: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        t = np.tanh(_ROOT * (x + 0.044715 * x**3))
        slope = _ROOT * (1 + 3 * 0.044715 * x**2)
        return d * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)
    return d * (_PHI(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi))


def _smooth_l1(x: Array, t: Array, beta: float = 1.0) -> Array:
    e = np.abs(x - t)
    return e if beta == 0 else np.where(e < beta, e * e / (2 * beta), e - beta / 2)


def _smooth_l1_grad(d: Array, x: Array, t: Array, beta: float = 1.0) -> Array:
    e = x - t
    return d * (np.sign(e) if beta == 0 else np.where(np.abs(e) < beta, e / beta, np.sign(e)))


def _bce(x: Array, t: Array, pos_weight: float = 1.0) -> Array:
    p = 1 / (1 + np.exp(-x))
    return -(pos_weight * t * np.log(p) + (1 - t) * np.log(1 - p))


def _fused_samples() -> list[Sample]:
    x, y, weight = normal(4, 6), normal(4, 6, seed=1), normal(6, seed=2)
    steps = ("a + b", "v0 - total(v0) / s.columns", "total(v1 * v1)", "tanh(v1) * c / d")
    dtypes = (dt.float64,) * 3
    attrs = {"steps": steps, "results": (3, 0, 2), "dtypes": dtypes, "per_row": ("d",)}
    drawn = {"steps": ("a * b", "where(word() >= 1000000000, v0, 0)"), "results": (1, 0)}
    drawn |= {"dtypes": dtypes[:2], "per_row": (), "seed": (3 << 40) + 1}
    row = between(1.0, 2.0, 4, seed=3)
    return [
        Sample("fused", (x, y, weight, row), attrs, _fused, ("float64",)),
        Sample("fused_random", (x, y), drawn, None, ("float64",)),
    ]


def _fused(x: Array, y: Array, weight: Array, row: Array, **_: Any) -> tuple[Array, ...]:
    whole = x + y
    centred = whole - whole.mean(-1, keepdims=True)
    return np.tanh(centred) * weight / row[:, None], whole, (centred**2).sum(-1)


def _mapped(a: Array, b: Array, *, expression: str) -> Array:
    return np.where(a > b, np.exp(a) * b, a / (b * b + 1.0))


def _bce_of_probabilities(p: Array, t: Array) -> Array:
    return -(t * np.log(p) + (1 - t) * np.log(1 - p))


def _bce_grad(d: Array, x: Array, t: Array, pos_weight: float = 1.0) -> Array:
    p = 1 / (1 + np.exp(-x))
    return d * ((1 - t) * p - pos_weight * t * (1 - p))


def _elementwise_samples() -> list[Sample]:
    x, d, t = normal(5, 4) * 3, normal(5, 4, seed=1), between(0.0, 1.0, 5, 4, seed=2)
    result = []
    for form in ("none", "tanh"):
        attrs = {"approximate": form}
        result.append(Sample("gelu", (x,), attrs, _gelu))
        result.append(Sample("gelu_grad", (d, x), attrs, _gelu_grad))
    for beta in (0.0, 0.5, 1.0):
        attrs = {"beta": beta}
        result.append(Sample("smooth_l1_loss", (x, t), attrs, _smooth_l1))
        result.append(Sample("smooth_l1_loss_grad", (d, x, t), attrs, _smooth_l1_grad))
    for weight in (1.0, 2.5):
        attrs = {"pos_weight": weight}
        result.append(Sample("bce_with_logits_loss", (x, t), attrs, _bce))
        result.append(Sample("bce_with_logits_loss_grad", (d, x, t), attrs, _bce_grad))
    likely = between(0.05, 0.95, 5, 4, seed=3)
    result.append(Sample("bce_loss", (likely, t), {}, _bce_of_probabilities))
    result.append(
        Sample("bce_loss_grad", (d, likely, t), {}, lambda d, p, t: d * (p - t) / (p * (1 - p)))
    )
    text = "where(a > b, exp(a) * b, a / (b * b + 1.0))"
    row = normal(4, seed=7)
    result.append(Sample("map", (likely, row), {"expression": text}, _mapped))
    result += _fused_samples()
    for p in (0.0, 0.3, 1.0):
        result.append(Sample("dropout", (normal(5, 3, 4),), {"p": p, "seed": (7 << 40) + 3}))
    return result


# ---- convolution and pooling ---------------------------------------------------------------------


def _conv(x: Array, w: Array, stride: Any, padding: Any, dilation: Any, groups: int = 1) -> Array:
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, w.shape[2:], strict=True)]
    positions = [(n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, stride, strict=True)]
    out = np.zeros((x.shape[0], w.shape[0], *positions))
    ins, outs = w.shape[1], w.shape[0] // groups
    for at in product(*map(range, positions)):
        cuts = tuple(
            slice(i * s, i * s + r, d)
            for i, s, r, d in zip(at, stride, reach, dilation, strict=True)
        )
        for g in range(groups):
            patch = x[(slice(None), slice(g * ins, (g + 1) * ins), *cuts)]
            part = w[g * outs : (g + 1) * outs]
            out[(slice(None), slice(g * outs, (g + 1) * outs), *at)] = np.tensordot(
                patch, part, axes=(list(range(1, x.ndim)), list(range(1, x.ndim)))
            )
    return out


def _conv_attrs(ndim: int, **other: Any) -> dict[str, Any]:
    ones = (1,) * ndim
    return {"stride": ones, "padding": (0,) * ndim, "dilation": ones, "groups": 1, **other}


def _conv_samples() -> list[Sample]:
    cases = [
        ((4, 3, 7), (5, 3, 3), _conv_attrs(1, stride=(2,), padding=(1,))),
        ((4, 3, 6, 5), (5, 3, 3, 2), _conv_attrs(2, padding=(1, 0))),
        (
            (4, 4, 6, 7),
            (6, 2, 2, 3),
            _conv_attrs(2, stride=(2, 1), dilation=(1, 2), padding=(1, 2), groups=2),
        ),
        ((3, 3, 3, 4, 3), (4, 3, 2, 2, 2), _conv_attrs(3, padding=(1, 0, 1))),
    ]
    result = []
    for x_shape, w_shape, attrs in cases:
        x, w = normal(*x_shape), normal(*w_shape, seed=1)
        d = normal(*_conv(x, w, **attrs).shape, seed=2)
        result.append(Sample("conv", (x, w), attrs, _conv, tolerance=3e-5))
        # The gradients' values are checked by finite differences of conv, and their gradients here.
        result.append(Sample("conv_data_grad", (d, w), {"spatial": x_shape[2:], **attrs}))
        result.append(Sample("conv_filter_grad", (d, x), {"kernel": w_shape[2:], **attrs}))
    return result


def _pool_windows(x: Array, kernel: Any, stride: Any, padding: Any, dilation: Any, out: Any) -> Any:
    """(position, coordinates of its elements that are inside x)."""
    for at in product(*map(range, out)):
        inside = []
        for offset in product(*map(range, kernel)):
            where = tuple(
                i * s + o * d - p
                for i, s, o, d, p in zip(at, stride, offset, dilation, padding, strict=True)
            )
            if all(0 <= c < n for c, n in zip(where, x.shape[2:], strict=True)):
                inside.append(where)
        yield at, inside


def _max_pool(positions: Any) -> Any:
    def reference(
        x: Array, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
    ) -> tuple[Array, Array]:
        out = np.zeros((*x.shape[:2], *positions))
        index = np.zeros(out.shape, np.int64)
        for at, inside in _pool_windows(x, kernel, stride, padding, dilation, positions):
            values = np.stack([x[(..., *where)] for where in inside], axis=-1)
            flat = np.array([np.ravel_multi_index(where, x.shape[2:]) for where in inside])
            out[(..., *at)] = values.max(axis=-1)
            index[(..., *at)] = flat[values.argmax(axis=-1)]
        return out, index

    return reference


def _avg_pool(positions: Any) -> Any:
    def reference(x: Array, kernel: Any, stride: Any, padding: Any, **rest: Any) -> Array:
        """A reference for count_include_pad=False or a divisor; padding counts elsewhere are left
        to finite differences.
        """
        out = np.zeros((*x.shape[:2], *positions))
        ones = (1,) * len(kernel)
        for at, inside in _pool_windows(x, kernel, stride, padding, ones, positions):
            total = sum(x[(..., *where)] for where in inside)
            out[(..., *at)] = total / (rest["divisor_override"] or len(inside))
        return out

    return reference


def _pool_samples() -> list[Sample]:
    x = distinct(5, 3, 7, 6)
    plain = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}
    tight = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 1)}
    result = []
    for geometry, dilation, ceil_mode, positions in (
        (plain, (1, 1), False, (3, 3)),
        (tight, (1, 2), False, (4, 6)),
        (plain, (1, 1), True, (4, 3)),
    ):
        attrs = {**geometry, "dilation": dilation}
        whole = {**attrs, "ceil_mode": ceil_mode}
        reference = _max_pool(positions)
        _, index = reference(x, **whole)
        d = normal(*index.shape)
        result.append(Sample("max_pool", (x,), whole, reference, compared=(0,)))
        result.append(Sample("max_pool", (x,), whole, reference, wrt=()))
        result.append(Sample("max_pool_grad", (d, index), {"spatial": (7, 6), **attrs}))
    for geometry, ceil_mode, positions in (
        (plain, False, (3, 3)),
        (plain, True, (4, 3)),
        (tight, False, (4, 7)),
    ):
        for include, divisor in ((False, 0), (False, 5), (True, 0)):
            attrs = {
                **geometry,
                "ceil_mode": ceil_mode,
                "count_include_pad": include,
                "divisor_override": divisor,
            }
            pooled = None if include else _avg_pool(positions)
            result.append(Sample("avg_pool", (x,), attrs, pooled))
            d = normal(5, 3, *positions, seed=1)
            result.append(Sample("avg_pool_grad", (d,), {"spatial": (7, 6), **attrs}))
    ones = {"kernel": (2,), "stride": (3,), "padding": (0,), "dilation": (1,), "ceil_mode": False}
    result.append(Sample("max_pool", (distinct(5, 3, 8),), ones, _max_pool((3,)), compared=(0,)))
    for size in ((1, 1), (3, 4), (9, 2)):
        attrs = {"output_size": size}
        result.append(Sample("adaptive_avg_pool", (x,), attrs, _adaptive))
        d = normal(5, 3, *size, seed=2)
        result.append(Sample("adaptive_avg_pool_grad", (d,), {"spatial": (7, 6)}))
    return result


def _resize_samples() -> list[Sample]:
    result = []
    for mode, corners, dim, size in (
        ("nearest", False, 2, 3), ("linear", True, 1, 9), ("linear", False, 2, 11),
    ):  # fmt: skip
        way = {"mode": mode, "factor": 0.0, "align_corners": corners, "antialias": False}
        x = normal(4, 5, 6)
        result.append(Sample("resize", (x,), {"dim": dim, "size": size, **way}, _resized))
        d = normal(4, *(9, 6) if dim == 1 else (5, size), seed=1)
        attrs = {"dim": dim, "size": x.shape[dim], **way}
        result.append(Sample("resize_grad", (d,), attrs, _resized_back))
    return result


def _resized(x: Array, *, dim: int, size: int, mode: str, align_corners: bool, **_: Any) -> Array:
    """Lines between the places of a dim, or the nearest places."""
    old = x.shape[dim]
    if mode == "nearest":
        return x.take([i * old // size for i in range(size)], dim)
    spots = np.linspace(0, old - 1, size)
    if not align_corners:
        spots = (np.arange(size) + 0.5) * old / size - 0.5
    return np.apply_along_axis(lambda line: np.interp(spots, range(old), line), dim, x)


def _resized_back(d: Array, *, dim: int, size: int, **way: Any) -> Array:
    """The transpose of `_resized`, by the results of unit vectors."""
    table = _resized(np.eye(size), dim=1, size=d.shape[dim], **way)
    return np.moveaxis(np.tensordot(d, table, (dim, 1)), -1, dim)


def _adaptive(x: Array, output_size: Any) -> Array:
    out = np.zeros((*x.shape[:2], *output_size))
    for at in product(*map(range, output_size)):
        cuts = tuple(
            slice(math.floor(i * n / m), math.ceil((i + 1) * n / m))
            for i, n, m in zip(at, x.shape[2:], output_size, strict=True)
        )
        out[(..., *at)] = x[(..., *cuts)].mean(axis=(2, 3))
    return out


NN_SAMPLES: list[Sample] = [
    *_product_samples(),
    *_class_samples(),
    *_norm_samples(),
    *_batch_norm_samples(),
    *_elementwise_samples(),
    *_conv_samples(),
    *_pool_samples(),
    *_resize_samples(),
    *update_samples(),
]
