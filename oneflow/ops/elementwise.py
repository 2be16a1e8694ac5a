"""Ops declared by a formula, element by element or row by row: layouts and gradients follow.

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

from dataclasses import dataclass, field
from functools import cache, lru_cache
from string import ascii_lowercase
from typing import Any

from oneflow.core.dispatch import call
from oneflow.core.dtype import DType
from oneflow.core.errors import DTypeError
from oneflow.core.expression import (
    COLUMN_TOTAL,
    CONSTANT,
    INPUT,
    SCALAR,
    Expression,
    constant,
    dtypes_of,
    gradients,
    leaves,
    parse,
    row_values,
    scalar,
    simplify,
    substitute,
    symbol,
    to_text,
)
from oneflow.core.op import REGISTRY, Op, declare, operand_names
from oneflow.core.operand import Attr, Attrs, Gradients, Operand, Tensor
from oneflow.core.tensor_type import TensorType
from oneflow.ops import reduce, unary
from oneflow.ops.checks import broadcast
from oneflow.ops.formulated import Formulated


class Elementwise(Formulated):
    """Base of ops with one output whose gradient follows from the formula."""

    @classmethod
    def grad(cls, d_out: Tensor, *tensors: Tensor, **attrs: Attr) -> Gradients:
        return formula_gradients(cls, d_out, tensors[:-1], tensors[-1], attrs)


def formula_gradients(
    op: type[Op], d_out: Tensor, inputs: tuple[Tensor, ...], out: Tensor, attrs: Attrs
) -> Gradients:
    """One function per input, which makes the derivative and sums it to the input's shape."""
    recipes = _recipes_of(op, tuple([x.meta for x in inputs]), attrs)
    values = dict(zip(operand_names(op, len(inputs)), inputs, strict=True))
    values["adjoint"], values["result"] = d_out, out
    return tuple(
        [
            None if recipe is None else _Derivative(recipe, values, x)
            for recipe, x in zip(recipes, inputs, strict=True)
        ]
    )


@dataclass(frozen=True, slots=True)
class _Recipe:
    """One input's gradient, ready to be made: a call of `op`; without one, an operand or a number.

    operands: names of the values that the op takes, or of the one that is the gradient.
    """

    op: type[Op] | None
    operands: tuple[str, ...] = ()
    attrs: Attrs = field(default_factory=dict)
    number: Any = None


_recipes: dict[tuple[object, ...], tuple[_Recipe | None, ...]] = {}
_MOST_RECIPES = 4096


def _recipes_of(
    op: type[Op], types: tuple[TensorType, ...], attrs: Attrs
) -> tuple[_Recipe | None, ...]:
    """One recipe per input, None for those without a gradient. They are remembered: to derive and
    to write down an expression takes longer than the gradient of a small tensor."""
    key = (op, types, *[part for k, v in attrs.items() for part in (k, v, v.__class__)])
    found = _recipes.get(key)
    if found is None:
        if len(_recipes) >= _MOST_RECIPES:
            _recipes.clear()
        found = _recipes[key] = _derive(op, types, attrs)
    return found


def _derive(
    op: type[Op], types: tuple[TensorType, ...], attrs: Attrs
) -> tuple[_Recipe | None, ...]:
    assert op.formula is not None
    names = operand_names(op, len(types))
    wanted = [
        name
        for name, t in zip(names, types, strict=True)
        if t.dtype.is_floating_point or t.dtype.is_complex
    ]
    if op.derivative is not None:
        parts: tuple[Expression, ...] = (op.derivative(*types, **attrs),)
    else:
        parts = _derivatives(op.formula(*types, **attrs), tuple(wanted))
    made = {name: _recipe(part, attrs) for name, part in zip(wanted, parts, strict=True)}
    return tuple(made.get(name) for name in names)


@cache
def _derivatives(root: Expression, names: tuple[str, ...]) -> tuple[Expression, ...]:
    """Derive `root` times the adjoint; the output stands for the value computed already, but for
    quotients and remainders, which programs may go on to overwrite, as in PyTorch.
    """
    found = gradients({root: symbol("adjoint")}, tuple(map(symbol, names)))
    if root.function in (INPUT, CONSTANT, "div", "fmod"):
        return found
    return tuple(substitute(part, {root: symbol("result")}) for part in found)


class _Derivative:
    """Makes one input's gradient when called."""

    __slots__ = ("_recipe", "_values", "_x")

    def __init__(self, recipe: _Recipe, values: dict[str, Tensor], x: Tensor) -> None:
        self._recipe, self._values, self._x = recipe, values, x

    def __call__(self) -> Tensor:
        recipe, values = self._recipe, self._values
        if recipe.op is not None:
            operands = [values[name] for name in recipe.operands]
            made: Tensor = call(recipe.op, *operands, **recipe.attrs)
        elif recipe.operands:
            made = values[recipe.operands[0]]
        else:
            made = unary.full_like(self._x, value=recipe.number)
        return reduce.sum_to_shape(made, self._x.meta.shape)


def _recipe(root: Expression, attrs: Attrs) -> _Recipe:
    """`root` as one op: the declared one whose formula it is, else `map`."""
    if root.function == INPUT:
        return _Recipe(None, (root.value,))
    if root.function == CONSTANT:
        return _Recipe(None, number=root.value)
    names = tuple(dict.fromkeys(leaves(INPUT, root)))
    known, order, numbers = _declared_as(root, names)
    if known is not None:
        operands = tuple(names[i] for i in order)
        return _Recipe(known, operands, {new: attrs[old] for new, old in numbers})
    fixed = {scalar(n): constant(attrs[n]) for n in leaves(SCALAR, root)}
    letters = {symbol(n): symbol(letter) for n, letter in zip(names, ascii_lowercase, strict=False)}
    text = to_text(simplify(substitute(root, {**fixed, **letters})))
    return _Recipe(Map, names, {"expression": text})


@cache
def _declared_as(
    root: Expression, names: tuple[str, ...]
) -> tuple[type[Op] | None, tuple[int, ...], tuple[tuple[str, str], ...]]:
    """(op or None, order of the operands, (its attr, our attr) pairs) whose formula root is."""
    if not _by_formula:
        _collect()
    found = _by_formula.get(_canonical(root, names))
    if found is None:
        return None, tuple(range(len(names))), ()
    op, order, attrs = found
    own = tuple(dict.fromkeys(leaves(SCALAR, root)))
    return op, order, tuple(zip(attrs, own, strict=True))


_by_formula: dict[Expression, tuple[type[Op], tuple[int, ...], tuple[str, ...]]] = {}


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
    """An expression of the operands a, b, c ..., element by element, with broadcasting.

    Reductions run over the last dim.
    """

    name = "map"

    @staticmethod
    def infer(*operands: Operand, expression: str) -> TensorType:
        root = parse(expression)
        names = operand_names(Map, len(operands))
        unknown = set(leaves(INPUT, root)) - set(names)
        if unknown or leaves(SCALAR, root):
            raise DTypeError(f"map: {expression} has other operands than {', '.join(names)}")
        types = [x.meta for x in operands]
        kinds = dtypes_of((root,), {n: t.dtype for n, t in zip(names, types, strict=True)})
        dtype = kinds[root]
        if not isinstance(dtype, DType) or root in row_values((), root):
            raise DTypeError(f"map: {expression} is not an array's element by element")
        return TensorType(broadcast("map", *types), dtype)

    @staticmethod
    def formula(*_: TensorType, expression: str) -> Expression:
        return parse(expression)


map_ = declare(Map)


# ---- several ops as one: what a rank makes of chains of ops (actors/fusing.py) ---------------


@lru_cache(1024)
def program(steps: tuple[str, ...]) -> tuple[Expression, ...]:
    """The steps as expressions of the operands alone."""
    made: dict[Expression, Expression] = {}
    for i, text in enumerate(steps):
        made[symbol(f"v{i}")] = substitute(parse(text), made)
    return tuple(made.values())


class _Program(Formulated):
    """Base of the ops that compute the steps of a program."""

    @classmethod
    def rows(cls, attrs: Attrs) -> frozenset[str]:
        return frozenset(attrs["per_row"])

    @staticmethod
    def formula(
        *_: TensorType, steps: tuple[str, ...], results: tuple[int, ...], **attrs: Attr
    ) -> tuple[Expression, ...]:
        return tuple(program(steps)[i] for i in results)


class Fused(_Program):
    """Expressions of the operands a, b, c ..., computed in one pass over the elements.

    steps: expressions that may name the results of earlier ones: v0, v1 ...  results: numbers of
    the steps that are outputs; a result with one value per row lacks the last dim, over which
    reductions run, and a sum over rows has that dim alone.  dtypes: of the outputs.  per_row: names
    of operands that have one value per row, and lack the last dim.
    """

    name = "fused"

    @staticmethod
    def infer(
        *operands: Operand,
        steps: tuple[str, ...],
        results: tuple[int, ...],
        dtypes: tuple[DType, ...],
        per_row: tuple[str, ...] = (),
    ) -> tuple[TensorType, ...]:
        roots = [program(steps)[i] for i in results]
        names = operand_names(Fused, len(operands))
        unknown = set(leaves(INPUT, *roots)) - set(names)
        if unknown:
            raise DTypeError(f"fused: {sorted(unknown)[0]} is neither an operand nor a step")
        named = zip(names, operands, strict=True)
        whole = broadcast(
            "fused",
            *(x.meta.with_shape((*x.shape, 1)) if n in per_row else x.meta for n, x in named),
        )
        single = row_values(per_row, *roots)
        result = []
        for root, dtype in zip(roots, dtypes, strict=True):
            shape = whole[:-1] if root in single else whole
            result.append(TensorType(whole[-1:] if root.function == COLUMN_TOTAL else shape, dtype))
        return tuple(result)


fused = declare(Fused)


class FusedRandom(_Program):
    """The same with random words, drawn for the elements of the first output."""

    name = "fused_random"
    is_random = True

    @staticmethod
    def infer(
        *operands: Operand,
        steps: tuple[str, ...],
        results: tuple[int, ...],
        dtypes: tuple[DType, ...],
        seed: int,
        per_row: tuple[str, ...] = (),
    ) -> tuple[TensorType, ...]:
        return Fused.infer(*operands, steps=steps, results=results, dtypes=dtypes, per_row=per_row)


fused_random = declare(FusedRandom)
