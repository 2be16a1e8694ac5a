"""Operators that work element by element."""

from __future__ import annotations

from functools import reduce
from typing import Any

from oneflow.core.dtype import bool_, int64
from oneflow.onnx.reader.step import OPERATORS, Operator, Step, dtype_numbered, flow, layer, runs
from oneflow.tensor.tensor import Tensor

_UNARY = (
    *("Neg", "Abs", "Exp", "Log", "Sqrt", "Reciprocal", "Sin", "Cos", "Tan", "Asin", "Acos"),
    *("Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh", "Erf", "Sigmoid", "Sign"),
    *("Floor", "Ceil", "Round", "Relu"),
)
_NAMED = {
    "Not": "logical_not", "IsNaN": "isnan", "BitwiseNot": "bitwise_not", "Softplus": "softplus",
    "Softsign": "softsign", "Mish": "mish", "HardSwish": "hardswish", "Det": "det",
}  # fmt: skip
_BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "And": "logical_and", "Or": "logical_or",
    "Xor": "logical_xor", "Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt",
    "GreaterOrEqual": "ge", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor", "MatMul": "matmul",
}  # fmt: skip
_LAYERS = ("softplus", "softsign", "mish", "hardswish")


def _unary(name: str) -> Operator:
    return lambda step: (layer if name in _LAYERS else flow)(name)(step.x())


def _binary(name: str) -> Operator:
    return lambda step: flow(name)(step.x(0), step.x(1))


OPERATORS.update({kind: _unary(kind.lower()) for kind in _UNARY})
OPERATORS.update({kind: _unary(name) for kind, name in _NAMED.items()})
OPERATORS.update({kind: _binary(name) for kind, name in _BINARY.items()})


@runs("Identity", "Dropout")
def _identity(step: Step) -> Any:
    """A dropout of inference changes nothing; its second result is the mask."""
    x = step.x()
    return (x, flow("ones_like")(x).to(bool_)) if len(step.node.output) > 1 else x


@runs("Max", "Min", "Sum", "Mean")
def _many(step: Step) -> Any:
    name = {"Max": "maximum", "Min": "minimum"}.get(step.node.op_type, "add")
    total = reduce(flow(name), step.tensors)
    return flow("div")(total, len(step.inputs)) if step.node.op_type == "Mean" else total


@runs("Div")
def _div(step: Step) -> Any:
    a, b = step.x(0), step.x(1)
    return flow("div")(a, b, rounding_mode="trunc" if a.dtype.is_integer else None)


@runs("Pow")
def _pow(step: Step) -> Any:
    return flow("pow")(step.x(0), step.x(1)).to(step.x(0).dtype)


@runs("Mod")
def _mod(step: Step) -> Any:
    return flow("fmod" if step.get("fmod", 0) else "remainder")(step.x(0), step.x(1))


@runs("BitShift")
def _shift(step: Step) -> Any:
    is_left = step.get("direction") in ("LEFT", b"LEFT")
    name = "bitwise_left_shift" if is_left else "bitwise_right_shift"
    return flow(name)(step.x(0), step.x(1))


@runs("Where")
def _where(step: Step) -> Any:
    return flow("where")(step.x(0), step.x(1), step.x(2))


@runs("IsInf")
def _isinf(step: Step) -> Any:
    x, found = step.x(), flow("isinf")(step.x())
    for sign, name in (("detect_positive", "lt"), ("detect_negative", "gt")):
        if not step.get(sign, 1):
            found = flow("logical_and")(found, flow(name)(x, 0))
    return found


@runs("Cast", "CastLike")
def _cast(step: Step) -> Any:
    if step.node.op_type == "CastLike":
        return step.x(0).to(step.x(1).dtype)
    return step.x().to(dtype_numbered(step.get("to")))


@runs("Clip")
def _clip(step: Step) -> Any:
    x = step.x()
    if step.opset < 11:
        return flow("clamp")(x, step.get("min"), step.get("max"))
    for index, name in ((1, "maximum"), (2, "minimum")):
        if step.has(index):
            x = flow(name)(x, step.x(index))
    return x


@runs("LeakyRelu", "Elu", "Celu", "Gelu", "HardSigmoid", "Selu", "ThresholdedRelu", "Shrink")
def _activation(step: Step) -> Any:
    x, kind = step.x(), step.node.op_type
    alpha = step.get("alpha", {"LeakyRelu": 0.01, "HardSigmoid": 0.2}.get(kind, 1.0))
    if kind == "HardSigmoid":
        return flow("clamp")(x * alpha + step.get("beta", 0.5), 0.0, 1.0)
    if kind == "ThresholdedRelu":
        return flow("where")(x > alpha, x, flow("zeros_like")(x))
    if kind == "Shrink":
        return _shrunk(x, step.get("bias", 0.0), step.get("lambd", 0.5))
    if kind == "Gelu":
        return layer("gelu")(x, approximate=_text(step.get("approximate", "none")))
    if kind == "Selu":
        gamma, alpha = step.get("gamma", 1.0507009873554805), step.get("alpha", 1.6732632423543772)
        return flow("where")(x > 0, x, flow("expm1")(x) * alpha) * gamma
    name = {"LeakyRelu": "leaky_relu", "Elu": "elu", "Celu": "celu"}[kind]
    return layer(name)(x, alpha)


def _shrunk(x: Tensor, bias: float, limit: float) -> Any:
    outer = flow("where")(x < -limit, x + bias, flow("zeros_like")(x))
    return flow("where")(x > limit, x - bias, outer)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


@runs("PRelu")
def _prelu(step: Step) -> Any:
    x = step.x()
    return flow("where")(x < 0, x * step.x(1), x)


@runs("QuantizeLinear")
def _quantize(step: Step) -> Any:
    x, scale = step.x(0), _along(step, step.x(0), step.x(1))
    number = step.get("output_dtype", 0)
    dtype = step.x(2).dtype if step.has(2) else dtype_numbered(number or 2)
    low, high = (-128, 127) if dtype.is_signed else (0, 255)
    whole = flow("round")(flow("div")(x, scale))
    if step.has(2):
        whole = whole + _along(step, x, step.x(2)).to(x.dtype)
    return flow("clamp")(whole, low, high).to(dtype)


@runs("DequantizeLinear")
def _dequantize(step: Step) -> Any:
    x, scale = step.x(0), step.x(1)
    made = x.to(scale.dtype)
    if step.has(2):
        made = made - _along(step, x, step.x(2)).to(scale.dtype)
    return made * _along(step, x, scale)


def _along(step: Step, x: Tensor, numbers: Tensor) -> Tensor:
    """One number, or one for each place of the axis, shaped to meet x."""
    if step.get("block_size", 0):
        raise step.refuse("has blocks of their own scales, which are not read")
    if numbers.numel() == 1:
        return numbers.reshape(())
    axis = step.get("axis", 1) % x.ndim
    return numbers.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


@runs("RandomNormalLike", "RandomUniformLike", "RandomNormal", "RandomUniform", "Bernoulli")
def _random(step: Step) -> Any:
    kind = step.node.op_type
    if kind == "Bernoulli":
        return flow("bernoulli")(step.x())
    shape = step.x().shape if kind.endswith("Like") else step.get("shape")
    name = "randn" if "Normal" in kind else "rand"
    made = flow(name)(*shape) if step.like is None else flow(name)(*shape, device=step.like.device)
    if name == "randn":
        made = made * step.get("scale", 1.0) + step.get("mean", 0.0)
    else:
        low = step.get("low", 0.0)
        made = made * (step.get("high", 1.0) - low) + low
    number = step.get("dtype", 0)
    return made.to(dtype_numbered(number)) if number else made


@runs("CumSum")
def _cumsum(step: Step) -> Any:
    x, axis = step.x(), int(step.known(1))
    if step.get("reverse", 0):
        x = x.flip(axis)
    made = flow("cumsum")(x, axis).to(x.dtype)
    if step.get("exclusive", 0):
        made = made - x
    return made.flip(axis) if step.get("reverse", 0) else made


@runs("TopK")
def _topk(step: Step) -> Any:
    (count,) = step.ints(1, "k") or [1]
    values, index = flow("topk")(
        step.x(), count, dim=step.get("axis", -1), largest=bool(step.get("largest", 1))
    )
    return values, index.to(int64)


@runs("Einsum")
def _einsum(step: Step) -> Any:
    return flow("einsum")(_text(step.get("equation")), *step.tensors)
