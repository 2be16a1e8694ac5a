"""Norms and losses."""

from __future__ import annotations

from collections.abc import Sequence

from oneflow.core.dtype import float64, int64
from oneflow.core.op import find_op
from oneflow.onnx.writer.builder import Builder, Call
from oneflow.onnx.writer.elementwise import filled, places
from oneflow.onnx.writer.expressions import write_formula
from oneflow.onnx.writer.table import writes


@writes("layer_norm")
def _layer_norm(b: Builder, call: Call) -> tuple[str, ...]:
    begin, (type_, *_) = call.attrs["begin_axis"], call.types
    if b.opset < 17 or call.is_read(1) or call.is_read(2):
        return write_formula(b, find_op("layer_norm"), call)
    affine = list(call.inputs[1:])
    if not affine:
        affine = [filled(b, type_.shape[begin:], 1, type_.dtype)]
    eps = float(call.attrs["eps"])
    y = b("LayerNormalization", call.inputs[0], *affine, axis=begin, epsilon=eps)
    return y, "", ""


def _channels(b: Builder, x: str, ndim: int) -> str:
    """One number for each channel, shaped for tensors of `ndim` dims."""
    return b.unsqueeze(x, list(range(1, ndim - 1)))


@writes("batch_norm_apply")
def _batch_norm_apply(b: Builder, call: Call) -> str:
    """BatchNormalization, where 1 / std was made of a variance; else a product and a sum."""
    x, mean, inv_std, *affine = call.inputs
    dtype, ndim = call.types[0].dtype, call.types[0].ndim
    known = _running_variance(b, call)
    if known is not None and affine and all(t.dtype is dtype for t in call.types):
        variance, eps = known
        return b("BatchNormalization", x, *affine, mean, variance, epsilon=eps)
    kinds = [t.dtype for t in call.types[1:]]
    mean, inv_std, *affine = (
        b.cast(p, dtype, k) for p, k in zip((mean, inv_std, *affine), kinds, strict=True)
    )
    factor = b("Mul", inv_std, affine[0]) if affine else inv_std
    shift = b("Neg", b("Mul", mean, factor))
    if affine:
        shift = b("Add", shift, affine[1])
    scaled = b("Mul", x, _channels(b, factor, ndim))
    return b("Add", scaled, _channels(b, shift, ndim))


def _running_variance(b: Builder, call: Call) -> tuple[str, float] | None:
    """(variance, eps), if the statistics are 1 / sqrt(variance + eps)."""
    if len(call.values) < 3 or call.attrs["count"]:
        return None
    root = call.values[2].node
    if root.op != "rsqrt" or root.inputs[0].node.op != "scalar_add":
        return None
    added = root.inputs[0].node
    name = b.names.get(added.inputs[0].id)
    return None if name is None else (name, float(added.attrs["value"]))


def _over(ndim: int) -> Sequence[int]:
    return [0, *range(2, ndim)]


@writes("batch_sums")
def _batch_sums(b: Builder, call: Call) -> tuple[str, ...]:
    (x,), (type_,) = call.inputs, call.types
    x = b.cast(x, float64, type_.dtype)
    total = b.reduce("ReduceSum", x, _over(type_.ndim))
    return total, b.reduce("ReduceSum", b("Mul", x, x), _over(type_.ndim))


def _moments(b: Builder, call: Call) -> tuple[str, str]:
    """(mean, biased variance), float64, of the two sums that are the last inputs."""
    pairs = zip(call.inputs[-2:], call.types[-2:], strict=True)
    total, squares = (b.cast(x, float64, t.dtype) for x, t in pairs)
    count = b.number(call.attrs["count"], float64)
    mean = b("Div", total, count)
    rest = b("Sub", b("Div", squares, count), b("Mul", mean, mean))
    return mean, b("Max", rest, b.number(0, float64))


@writes("batch_moments")
def _batch_moments(b: Builder, call: Call) -> tuple[str, ...]:
    mean, variance = _moments(b, call)
    shifted = b("Add", variance, b.number(call.attrs["eps"], float64))
    inv_std = b("Reciprocal", b("Sqrt", shifted))
    kinds = [t.dtype for t in call.results]
    return b.cast(mean, kinds[0], float64), b.cast(inv_std, kinds[1], float64)


@writes("batch_norm_track", "batch_norm_average")
def _batch_norm_track(b: Builder, call: Call) -> tuple[str, ...]:
    mean, variance = _moments(b, call)
    count = call.attrs["count"]
    unbiased = b("Mul", variance, b.number(count / max(count - 1, 1), float64))
    made = []
    if call.op == "batch_norm_track":
        share = b.number(call.attrs["momentum"], float64)
    else:
        batches = b("Add", call.inputs[2], b.number(1, int64))
        share = b("Reciprocal", b.cast(batches, float64, int64))
    for old, new, result in zip(call.inputs, (mean, unbiased), call.results, strict=False):
        wide = b.cast(old, float64, result.dtype)
        moved = b("Add", wide, b("Mul", b("Sub", new, wide), share))
        made.append(b.cast(moved, result.dtype, float64))
    return (*made, batches) if call.op == "batch_norm_average" else tuple(made)


@writes("batch_norm_grad_sums")
def _batch_norm_grad_sums(b: Builder, call: Call) -> tuple[str, ...]:
    d_y, x, mean, inv_std = (
        b.cast(v, float64, t.dtype) for v, t in zip(call.inputs, call.types, strict=True)
    )
    ndim = call.types[1].ndim
    hat = b("Mul", b("Sub", x, _channels(b, mean, ndim)), _channels(b, inv_std, ndim))
    d_beta = b.reduce("ReduceSum", d_y, _over(ndim))
    return d_beta, b.reduce("ReduceSum", b("Mul", d_y, hat), _over(ndim))


@writes("batch_norm_grad_apply")
def _batch_norm_grad_apply(b: Builder, call: Call) -> str:
    dtype, ndim = call.types[1].dtype, call.types[1].ndim
    d_y, x, *per_channel = (
        b.cast(v, dtype, t.dtype) for v, t in zip(call.inputs, call.types, strict=True)
    )
    mean, inv_std, d_beta, d_gamma, *gamma = (_channels(b, p, ndim) for p in per_channel)
    count = call.attrs["count"]
    if count:
        hat = b("Mul", b("Sub", x, mean), inv_std)
        drift = b("Div", b("Add", d_beta, b("Mul", hat, d_gamma)), b.number(count, dtype))
        d_y = b("Sub", d_y, drift)
    factor = b("Mul", inv_std, gamma[0]) if gamma else inv_std
    return b("Mul", factor, d_y)


# ---- losses --------------------------------------------------------------------------------------


@writes("nll_loss")
def _nll_loss(b: Builder, call: Call) -> str:
    (x, labels), (x_type, label_type) = call.inputs, call.types
    index = b.cast(labels, int64, label_type.dtype)
    ignored = b("Equal", index, b.number(call.attrs["ignore_index"], int64))
    index = b("Where", ignored, b.number(0, int64), index)
    taken = b("GatherElements", x, b.unsqueeze(index, [1]), axis=1)
    loss = b("Neg", b.squeeze(taken, [1]))
    return b("Where", ignored, b.number(0, x_type.dtype), loss)


@writes("nll_loss_grad")
def _nll_loss_grad(b: Builder, call: Call) -> str:
    (d_loss, labels), (type_, label_type) = call.inputs, call.types
    wide = b.cast(labels, int64, label_type.dtype)
    is_label = b("Equal", b.unsqueeze(wide, [1]), places(b, call.attrs["num_classes"]))
    kept = b("Not", b("Equal", wide, b.number(call.attrs["ignore_index"], int64)))
    is_label = b("And", is_label, b.unsqueeze(kept, [1]))
    down = b.unsqueeze(b("Neg", d_loss), [1])
    return b("Where", is_label, down, b.number(0, type_.dtype))
