"""Reductions and norms."""

from __future__ import annotations

from typing import Any

from oneflow.onnx.reader.step import Step, flow, layer, runs
from oneflow.tensor.tensor import Tensor


@runs(
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
)
def _reduce(step: Step) -> Any:
    x, axes, keep = step.x(), step.ints(1, "axes"), bool(step.get("keepdims", 1))
    if not axes:
        if step.get("noop_with_empty_axes", 0):
            return x
        axes = list(range(x.ndim))
    axes = sorted(axis % x.ndim for axis in axes) if x.ndim else []
    return _REDUCED[step.node.op_type](x, axes, keep) if axes else x


def _product(x: Tensor, axes: list[int], keep: bool) -> Any:
    for axis in reversed(axes):
        x = flow("prod")(x, axis, keep)
    return x


def _sum(x: Tensor, axes: list[int], keep: bool) -> Any:
    return flow("sum")(x, axes, keep).to(x.dtype)


_REDUCED: dict[str, Any] = {
    "ReduceSum": _sum,
    "ReduceMean": lambda x, axes, keep: flow("mean")(x, axes, keep),
    "ReduceMax": lambda x, axes, keep: flow("amax")(x, axes, keep),
    "ReduceMin": lambda x, axes, keep: flow("amin")(x, axes, keep),
    "ReduceProd": _product,
    "ReduceL1": lambda x, axes, keep: _sum(flow("abs")(x), axes, keep),
    "ReduceL2": lambda x, axes, keep: flow("sqrt")(_sum(x * x, axes, keep)),
    "ReduceLogSum": lambda x, axes, keep: flow("log")(_sum(x, axes, keep)),
    "ReduceLogSumExp": lambda x, axes, keep: flow("logsumexp")(x, axes, keep),
    "ReduceSumSquare": lambda x, axes, keep: _sum(x * x, axes, keep),
}


@runs("ArgMax", "ArgMin")
def _argument(step: Step) -> Any:
    x, axis, keep = step.x(), step.get("axis", 0), bool(step.get("keepdims", 1))
    name = "argmax" if step.node.op_type == "ArgMax" else "argmin"
    if not step.get("select_last_index", 0):
        return flow(name)(x, axis, keep)
    return x.shape[axis] - 1 - flow(name)(x.flip(axis), axis, keep)


@runs("Softmax", "LogSoftmax")
def _softmax(step: Step) -> Any:
    x = step.x()
    name = "softmax" if step.node.op_type == "Softmax" else "log_softmax"
    if step.opset >= 13:
        return layer(name)(x, step.get("axis", -1))
    axis = step.get("axis", 1) % x.ndim  # all dims from here on are one
    return layer(name)(x.flatten(axis), -1).reshape(*x.shape)


@runs("BatchNormalization")
def _batch_norm(step: Step) -> Any:
    if step.get("training_mode", 0):
        raise step.refuse("is in training mode, which is not read")
    x, weight, bias, mean, variance = (step.x(i) for i in range(5))
    return layer("batch_norm")(
        x, mean, variance, weight, bias, training=False, eps=step.get("epsilon", 1e-5)
    )


@runs("LayerNormalization", "RMSNormalization")
def _layer_norm(step: Step) -> Any:
    x, eps = step.x(), step.get("epsilon", 1e-5)
    axis = step.get("axis", -1) % x.ndim
    shape = tuple(x.shape[axis:])
    if len(step.node.output) > 1:
        raise step.refuse("has statistics among its results, which are not read")
    if step.node.op_type == "RMSNormalization":
        return layer("rms_norm")(x, shape, step.x(1).expand(*shape), eps)
    bias = step.x(2).expand(*shape) if step.has(2) else None
    return layer("layer_norm")(x, shape, step.x(1).expand(*shape), bias, eps)


@runs("InstanceNormalization", "GroupNormalization")
def _group_norm(step: Step) -> Any:
    x, weight, bias = step.x(0), step.x(1), step.x(2)
    channels = x.shape[1]
    groups = step.get("num_groups", channels)
    if weight.shape[0] != channels:  # one for each group, as in opset 18
        weight, bias = (p.repeat_interleave(channels // groups) for p in (weight, bias))
    return layer("group_norm")(x, groups, weight, bias, step.get("epsilon", 1e-5))


@runs("LpNormalization")
def _lp(step: Step) -> Any:
    x, axis = step.x(), step.get("axis", -1)
    return layer("normalize")(x, p=float(step.get("p", 2)), dim=axis)


@runs("LRN")
def _lrn(step: Step) -> Any:
    """x / (bias + alpha / size * sum of squares of neighbouring channels) ^ beta."""
    x, size = step.x(), step.get("size")
    before = (size - 1) // 2
    squares = layer("pad")(x * x, [0, 0] * (x.ndim - 2) + [before, size - 1 - before])
    channels = x.shape[1]
    total = sum((squares[:, i : i + channels] for i in range(1, size)), squares[:, :channels])
    scaled = total * (step.get("alpha", 1e-4) / size) + step.get("bias", 1.0)
    return x / scaled ** step.get("beta", 0.75)


@runs("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(step: Step) -> Any:
    x = step.x()
    name = "mean" if step.node.op_type == "GlobalAveragePool" else "amax"
    return flow(name)(x, list(range(2, x.ndim)), True)
