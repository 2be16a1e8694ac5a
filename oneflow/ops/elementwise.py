"""Ops declared by a formula: layouts and gradients follow from the expression.

    class Silu(Elementwise):
        name = "silu"
        @staticmethod
        def infer(x: Operand) -> TensorType: ...
        @staticmethod
        def formula(x: TensorType) -> Expression: return X * sigmoid(X)

An operand of the formula has the name that it has in `infer`. A gradient is emitted as one op:
the declared op whose formula it is, if there is one, else `map`, whose attribute is the expression.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from string import ascii_lowercase
from typing import Any

from oneflow.core.dtype import DType, bool_
from oneflow.core.errors import DTypeError
from oneflow.core.expression import (
    CONSTANT,
    INPUT,
    SCALAR,
    Expression,
    constant,
    dtypes_of,
    gradients,
    is_linear,
    leaves,
    parse,
    scalar,
    simplify,
    substitute,
    symbol,
    to_text,
    walk,
)
from oneflow.core.op import REGISTRY, Attr, Op, declare, elementwise_signatures, operand_names
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import BROADCAST, PARTIAL, SbpSignature
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import broadcast

_MOST_JOINT = 4  # inputs of which every subset is tried for partial sums


class Elementwise(Op):
    """Base of ops with one output and a formula."""

    @classmethod
    def sbp(cls, *types: TensorType, **attrs: Attr) -> list[SbpSignature]:
        return formula_signatures(cls, types, attrs)

    @classmethod
    def grad(cls, d_out: Tensor, *tensors: Tensor, **attrs: Attr) -> Gradients:
        return formula_gradients(cls, d_out, tensors[:-1], tensors[-1], attrs)


def formula_signatures(
    op: type[Op], types: tuple[TensorType, ...], attrs: dict[str, Attr]
) -> list[SbpSignature]:
    """Every dim may be split; sets of inputs that the formula is linear in may be partial sums."""
    assert op.formula is not None
    root: Expression = op.formula(*types, **attrs)
    names = operand_names(op, len(types))
    dtypes = {n: t.dtype for n, t in zip(names, types, strict=True)}
    numbers = [i for i, t in enumerate(types) if t.dtype is not bool_]
    result = elementwise_signatures(*types)
    for count in range(1, min(len(numbers), _MOST_JOINT) + 1):
        for chosen in combinations(numbers, count):
            if is_linear(root, {names[i] for i in chosen}, dtypes):
                sbps = tuple(PARTIAL if i in chosen else BROADCAST for i in range(len(types)))
                result.append(SbpSignature(sbps, (PARTIAL,)))
    return result


def formula_gradients(
    op: type[Op], d_out: Any, inputs: tuple[Any, ...], out: Any, attrs: dict[str, Attr]
) -> Gradients:
    """One function per input, which makes the derivative and sums it to the input's shape."""
    assert op.formula is not None
    names = operand_names(op, len(inputs))
    root: Expression = op.formula(*(x.type for x in inputs), **attrs)
    wanted = tuple(i for i, x in enumerate(inputs) if x.type.dtype.is_floating_point)
    parts = _derivatives(root, tuple(names[i] for i in wanted))
    values = {**dict(zip(names, inputs, strict=True)), "adjoint": d_out, "result": out}
    result: list[Any] = [None] * len(inputs)
    for i, part in zip(wanted, parts, strict=True):
        result[i] = _Derivative(part, values, attrs, inputs[i])
    return tuple(result)


@cache
def _derivatives(root: Expression, names: tuple[str, ...]) -> tuple[Expression, ...]:
    """Derive `root` times the adjoint; what is computed already is read from the output."""
    found = gradients({root: symbol("adjoint")}, tuple(map(symbol, names)))
    if root.function in (INPUT, CONSTANT):
        return found
    return tuple(substitute(part, {root: symbol("result")}) for part in found)


class _Derivative:
    """Makes one input's gradient when called."""

    __slots__ = ("_attrs", "_part", "_values", "_x")

    def __init__(
        self, part: Expression, values: dict[str, Any], attrs: dict[str, Attr], x: Any
    ) -> None:
        self._part, self._values, self._attrs, self._x = part, values, attrs, x

    def __call__(self) -> Any:
        from oneflow.ops.reduce import sum_to_shape

        made = emit(self._part, self._values, self._attrs, self._x)
        return sum_to_shape(made, self._x.type.shape)


def emit(root: Expression, values: dict[str, Any], attrs: dict[str, Attr], like: Any) -> Any:
    """`root` as a value: an operand itself, or one op. like: what a constant is spread over."""
    if root.function == INPUT:
        return values[root.value]
    if root.function == CONSTANT:
        from oneflow.ops.unary import full_like

        return full_like(like, value=root.value)
    names = tuple(dict.fromkeys(leaves(INPUT, root)))
    known, order, numbers = _declared_as(root, names)
    operands = [values[names[i]] for i in order]
    if known is not None:
        return known(*operands, **{new: attrs[old] for new, old in numbers})
    fixed = {scalar(n): constant(attrs[n]) for n in leaves(SCALAR, root)}
    letters = {symbol(n): symbol(letter) for n, letter in zip(names, ascii_lowercase, strict=False)}
    text = to_text(simplify(substitute(root, {**fixed, **letters})))
    return map_(*(values[n] for n in names), expression=text)


@cache
def _declared_as(
    root: Expression, names: tuple[str, ...]
) -> tuple[Any, tuple[int, ...], tuple[tuple[str, str], ...]]:
    """(op or None, order of the operands, (its attr, our attr) pairs) whose formula root is."""
    if not _by_formula:
        _collect()
    found = _by_formula.get(_canonical(root, names))
    if found is None:
        return None, tuple(range(len(names))), ()
    op, order, attrs = found
    own = tuple(dict.fromkeys(leaves(SCALAR, root)))
    return op, order, tuple(zip(attrs, own, strict=True))


_by_formula: dict[Expression, tuple[Any, tuple[int, ...], tuple[str, ...]]] = {}


def _collect() -> None:
    """The declared formulas that need no attr to be written down, or scalars only."""
    for op in REGISTRY.values():
        if op.formula is None or op.num_outputs != 1 or not op.is_named_formula:
            continue
        root = op.formula()
        names = tuple(dict.fromkeys(leaves(INPUT, root)))
        attrs = tuple(dict.fromkeys(leaves(SCALAR, root)))
        order = tuple(names.index(n) for n in op.operands)
        _by_formula.setdefault(_canonical(root, names), (op, order, attrs))


def _canonical(root: Expression, names: tuple[str, ...]) -> Expression:
    """Name operands and scalars by their order of appearance."""
    new = {symbol(n): symbol(f"operand{i}") for i, n in enumerate(names)}
    scalars = dict.fromkeys(leaves(SCALAR, root))
    new |= {scalar(n): scalar(f"number{i}") for i, n in enumerate(scalars)}
    return substitute(root, new)


class Map(Elementwise):
    """An expression of the operands a, b, c ..., element by element, with broadcasting."""

    name = "map"

    @staticmethod
    def infer(*operands: Operand, expression: str) -> TensorType:
        root = parse(expression)
        names = operand_names(Map, len(operands))
        unknown = set(leaves(INPUT, root)) - set(names)
        if unknown or leaves(SCALAR, root):
            raise DTypeError(f"map: {expression} has other operands than {', '.join(names)}")
        types = [x.type for x in operands]
        kinds = dtypes_of((root,), {n: t.dtype for n, t in zip(names, types, strict=True)})
        dtype = kinds[root]
        if not isinstance(dtype, DType) or any(n.function == "total" for n in walk(root)):
            raise DTypeError(f"map: {expression} is not an array's element by element")
        return TensorType(broadcast("map", *types), dtype)

    @staticmethod
    def formula(*_: TensorType, expression: str) -> Expression:
        return parse(expression)


map_ = declare(Map)
