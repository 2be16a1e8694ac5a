"""Trained layers of rounded numbers as layers that compute with the integers."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

from oneflow.compat.upstream.qat.conv import QatConv2d
from oneflow.compat.upstream.qat.linear import QatLinear
from oneflow.compat.upstream.qat.rounding import Rounded
from oneflow.compat.upstream.quantization import Integers
from oneflow.core.dtype import int8, int32
from oneflow.core.errors import ArgumentError
from oneflow.nn.module import Module
from oneflow.nn.quantized.integer import IntegerConv2d, IntegerLinear, Scales
from oneflow.nn.quantized.quantize import replace_
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

_LARGEST_SUM = 2**31 - 1


def convert(
    model: Module,
    filter_fn: Callable[[Module, str], bool] | None = None,
    *,
    inplace: bool = False,
) -> Module:
    """Replace layers for quantization-aware training by layers of 8-bit integers.

    Args:
        model: `nn.QatLinear` and `nn.QatConv2d` in it are replaced, or it is one itself.
        filter_fn: Of a Qat layer and its name in the model: whether to replace it. Without one,
            all are.
        inplace: Whether to change the model itself; else a copy is.

    Returns:
        The model, for inference: its integer layers have no gradients.

    Raises:
        ArgumentError: If a layer to replace has seen no inputs in training, has more than 8 bits,
            or has no form with integers; filter_fn can leave it out.

    Example:
        >>> import oneflow as flow
        >>> model = flow.nn.Sequential(flow.nn.QatLinear(4, 2), flow.nn.ReLU())
        >>> _ = model(flow.ones(1, 4))
        >>> flow.nn.qat.convert(model.eval())
        Sequential(
          (0): IntegerLinear(in_features=4, out_features=2, bias=True)
          (1): ReLU()
        )
    """
    if not inplace:
        model = deepcopy(model)

    def change(module: Module, name: str) -> Module | None:
        if not isinstance(module, Rounded):
            return None
        return _converted(module, name) if filter_fn is None or filter_fn(module, name) else None

    own = change(model, "")
    if own is not None:
        return own.train(model.training)
    replace_(model, change)
    return model


def _converted(layer: Rounded, name: str) -> Module:
    who = f"convert: {name or 'the model'}, a {type(layer).__name__},"
    with no_grad():
        if isinstance(layer, QatLinear):
            return IntegerLinear.from_levels(layer, *_levels(layer, who))
        if isinstance(layer, QatConv2d):
            ends = layer._padded_ends()
            if any(before != after for before, after in ends):
                raise ArgumentError(f"{who} pads {ends}, more on one side; pad by nn.ZeroPad2d")
            return IntegerConv2d.from_levels(layer, *_levels(layer, who))
    raise ArgumentError(f"{who} has no form with integers; leave it out by filter_fn")


def _levels(layer: Rounded, who: str) -> tuple[Tensor, Scales]:
    """The integers of a weight, as int8, and the scales and zero points around them."""
    kind = Integers(*layer.input_observer._kind)
    if kind.bits > 8:
        raise ArgumentError(f"{who} has {kind.bits} bits; integers of at most 8 are multiplied")
    low, high = kind.limits
    seen = layer.input_observer.moving_min, layer.input_observer.moving_max
    if not any(end.any() for end in seen):
        raise ArgumentError(f"{who} has seen no inputs: run it in training mode first")
    unit, zero = kind.of_range(*seen)
    scales, zeros = layer.weight_observer(layer.weight)
    outs = layer.weight.shape[0]
    steps = kind.unit(scales)
    levels = kind.round(layer.weight, *(_by_output(layer, v) for v in (scales, zeros)))[0]
    middle = 128 if low == 0 else 0
    top = [_top(low, high, z) for z in (zero, zeros)]
    count = layer.weight.numel() // outs
    if max(top) > high - low:
        raise ArgumentError(
            f"{who} has inputs or weights of one sign, whose zero point is none of the integers; "
            "leave it out by filter_fn"
        )
    if top[0] * top[1] * count > _LARGEST_SUM:
        raise ArgumentError(
            f"{who} adds up {count} products of integers up to {top[0]} and {top[1]}, which 32 "
            "bits do not hold; leave it out by filter_fn"
        )
    given = Scales(
        steps.expand(outs).contiguous(), (zeros - middle).to(int32).expand(outs).contiguous(),
        kind.unit(unit), zero.to(int32), low, high, top[0] * top[1] * count,
    )  # fmt: skip
    return (levels - middle).to(int8), given


def _by_output(layer: Rounded, value: Tensor) -> Tensor:
    return value.reshape(-1, *(1,) * (layer.weight.ndim - 1))


def _top(low: int, high: int, zeros: Tensor) -> int:
    """The largest magnitude of an integer less its zero point."""
    return int(max((zeros - low).abs().amax().item(), (zeros - high).abs().amax().item()))
