"""Expressions: the arithmetic of elementwise ops, row reductions and optimizer updates, as data.

One expression per output gives an op's NumPy form, its compiled CPU loop, its CUDA source
(kernels/expressions), its gradient and its SBP signatures. An expression is an immutable tree whose
equal parts are one object, made with Python operators and the functions below:

    x, t = symbols("x t")
    sigmoid(x) * x                        # SiLU
    x - total(x) / scalar("columns")      # a reduction over the last dim ends a loop of its own
    where(word() >= scalar("threshold"), x * scalar("scale"), 0)      # dropout

Leaves are inputs (arrays), scalars (numbers that a call brings along, printed `s.lr`), constants,
`word()`, the random word of an element's global index, `column()`, its place in its row, and
`row()`, that of its row. An expression of scalars and constants alone is computed once per call in
float64; a number takes the dtype of the array that it meets. The scalar `columns` is the length of
a row, `rows` that of the dim before.
`str(e)` is Python syntax, and `parse(str(e)) is e`.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, Union
from weakref import WeakValueDictionary

from oneflow.core.dtype import DType, bool_, dtype_of, float64, int64, promote
from oneflow.core.errors import DTypeError, GraphError

Operand = Union["Expression", float, int, bool]

INPUT, SCALAR, CONSTANT, CAST = "input", "scalar", "constant", "cast"
WORD, COLUMN, ROW = "word", "column", "row"
REDUCTIONS = ("total", "largest")
"""Functions over the last dim; every element of a row sees the result."""
COLUMN_TOTAL = "column_total"
ROW_FUNCTIONS = (*REDUCTIONS, COLUMN, ROW, COLUMN_TOTAL)
"""Functions that need a whole row."""


class Expression:
    """One node. function: a leaf's kind, or a name of FUNCTIONS.  value: a leaf's name or number,
    or the dtype's name of a cast. Equal nodes are the same object.
    """

    __slots__ = ("__weakref__", "args", "function", "value")
    function: str
    args: tuple[Expression, ...]
    value: Any

    def __repr__(self) -> str:
        return to_text(self)

    def __neg__(self) -> Expression:
        return apply("neg", self)

    def __add__(self, other: Operand) -> Expression:
        return apply("add", self, other)

    def __radd__(self, other: Operand) -> Expression:
        return apply("add", other, self)

    def __sub__(self, other: Operand) -> Expression:
        return apply("sub", self, other)

    def __rsub__(self, other: Operand) -> Expression:
        return apply("sub", other, self)

    def __mul__(self, other: Operand) -> Expression:
        return apply("mul", self, other)

    def __rmul__(self, other: Operand) -> Expression:
        return apply("mul", other, self)

    def __truediv__(self, other: Operand) -> Expression:
        return apply("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expression:
        return apply("div", other, self)

    def __pow__(self, other: Operand) -> Expression:
        return apply("pow", self, other)

    def __rpow__(self, other: Operand) -> Expression:
        return apply("pow", other, self)

    def __lt__(self, other: Operand) -> Expression:
        return apply("lt", self, other)

    def __le__(self, other: Operand) -> Expression:
        return apply("le", self, other)

    def __gt__(self, other: Operand) -> Expression:
        return apply("gt", self, other)

    def __ge__(self, other: Operand) -> Expression:
        return apply("ge", self, other)


# Equal nodes are one object, so `==` and `hash` are those of objects: a comparison that makes an
# expression is written `eq(a, b)`.
_known: WeakValueDictionary[Any, Expression] = WeakValueDictionary()


def _node(function: str, args: tuple[Expression, ...] = (), value: Any = None) -> Expression:
    key = (function, args, type(value), repr(value) if isinstance(value, float) else value)
    found = _known.get(key)
    if found is None:
        found = Expression()
        found.function, found.args, found.value = function, args, value
        _known[key] = found
    return found


def symbol(name: str) -> Expression:
    """The input named `name`."""
    return _node(INPUT, (), name)


def symbols(names: str) -> tuple[Expression, ...]:
    """Inputs named by the words of `names`."""
    return tuple(symbol(name) for name in names.split())


def scalar(name: str) -> Expression:
    """The number that a call passes under `name`."""
    return _node(SCALAR, (), name)


def constant(value: float | int | bool) -> Expression:
    plain = getattr(value, "item", None)  # of NumPy, whose repr is no number
    return _node(CONSTANT, (), value if plain is None else plain())


def word() -> Expression:
    """A random uint32, uniform: the first Philox word of the element's global index under the
    call's seed (oneflow/core/rng.py), as int64, so that it compares with thresholds up to 2^32."""
    return _node(WORD)


def column() -> Expression:
    """The element's position along the last dim, as int64."""
    return _node(COLUMN)


def row() -> Expression:
    """The position of the element's row along the last dim but one, as int64."""
    return _node(ROW)


def cast(x: Operand, dtype: DType) -> Expression:
    return _node(CAST, (as_expression(x),), dtype.name)


def as_expression(x: Operand) -> Expression:
    return x if isinstance(x, Expression) else constant(x)


def apply(function: str, *args: Operand) -> Expression:
    """`function` of FUNCTIONS applied. Raises GraphError for an unknown one or a wrong number of
    arguments."""
    rule = FUNCTIONS.get(function)
    if rule is None or rule.arity != len(args):
        raise GraphError(f"no function {function!r} of {len(args)} arguments in expressions")
    return _node(function, tuple(as_expression(a) for a in args))


# ---- functions -----------------------------------------------------------------------------------

Gradient = Callable[..., tuple[Any, ...]]


class Rule:
    """Facts about one function. kind: how its dtype follows from its arguments': "same" (all
    arguments meet in one dtype), "float" (the same, floating-point only), "bool" (arguments meet,
    the result is bool), "logic" (arguments are read as bool), "choice" (the first is bool).
    gradient: of (adjoint, result, *arguments), one entry per argument, None for no gradient.
    linear: arguments that the function is jointly linear in; "product" if in each alone.
    """

    __slots__ = ("arity", "gradient", "kind", "linear")

    def __init__(
        self,
        arity: int,
        gradient: Gradient | None = None,
        kind: str = "same",
        linear: tuple[tuple[int, ...], ...] = (),
    ) -> None:
        self.arity, self.gradient, self.kind, self.linear = arity, gradient, kind, linear


def exp(x: Operand) -> Expression:
    return apply("exp", x)


def exp_down(x: Operand) -> Expression:
    """exp of an operand never above 0, up to rounding: a machine needs fewer steps for that."""
    return apply("exp_down", x)


def log(x: Operand) -> Expression:
    return apply("log", x)


def log1p(x: Operand) -> Expression:
    return apply("log1p", x)


def expm1(x: Operand) -> Expression:
    return apply("expm1", x)


def sqrt(x: Operand) -> Expression:
    return apply("sqrt", x)


def tanh(x: Operand) -> Expression:
    return apply("tanh", x)


def erf(x: Operand) -> Expression:
    return apply("erf", x)


def erfc(x: Operand) -> Expression:
    return apply("erfc", x)


def erfcx(x: Operand) -> Expression:
    """erfc(x) e^(x^2), for x >= 0."""
    return apply("erfcx", x)


def gauss(x: Operand) -> Expression:
    """e^(-x^2 / 2)."""
    return apply("gauss", x)


def normal_tail(x: Operand) -> Expression:
    """(1 - Phi(x)) e^(x^2 / 2), Phi the standard normal distribution, for x >= 0."""
    return apply("normal_tail", x)


def sigmoid(x: Operand) -> Expression:
    """1 / (1 + e^-x)."""
    return apply("sigmoid", x)


def absolute(x: Operand) -> Expression:
    return apply("abs", x)


def sign(x: Operand) -> Expression:
    return apply("sign", x)


def maximum(a: Operand, b: Operand) -> Expression:
    """The larger; NaN if either is."""
    return apply("maximum", a, b)


def minimum(a: Operand, b: Operand) -> Expression:
    return apply("minimum", a, b)


def where(condition: Operand, a: Operand, b: Operand) -> Expression:
    return apply("where", condition, a, b)


def eq(a: Operand, b: Operand) -> Expression:
    return apply("eq", a, b)


def total(x: Operand) -> Expression:
    """The sum of x over the last dim, at least in float32."""
    return apply("total", x)


def largest(x: Operand) -> Expression:
    """The maximum of x over the last dim; NaN if there is one."""
    return apply("largest", x)


def column_total(x: Operand) -> Expression:
    """The sum of x over all rows, at least in float32: an output of its own, with a row's dims."""
    return apply(COLUMN_TOTAL, x)


def _share(adjoint: Expression, a: Expression, b: Expression) -> Expression:
    """Return a's share as the larger of a and b: all, or half where they are equal. Where one is
    NaN both have decided, and get all.
    """
    return where(a < b, 0, where(eq(a, b), adjoint * 0.5, adjoint))


def _reciprocal_root(d: Expression, radicand: Expression) -> Expression:
    return d * apply("rsqrt", radicand)


_LN_2, _LN_10 = math.log(2.0), math.log(10.0)
_UNARY: dict[str, Callable[[Any, Any, Any], Any]] = {  # of (adjoint, result, x)
    "exp": lambda d, y, x: d * y,
    "exp_down": lambda d, y, x: d * y,
    "exp2": lambda d, y, x: d * y * _LN_2,
    "expm1": lambda d, y, x: d * (y + 1),
    "log": lambda d, y, x: d / x,
    "log1p": lambda d, y, x: d / (x + 1),
    "log2": lambda d, y, x: d / (x * _LN_2),
    "log10": lambda d, y, x: d / (x * _LN_10),
    "sqrt": lambda d, y, x: d / y * 0.5,
    "rsqrt": lambda d, y, x: d * (y / x) * -0.5,
    "sin": lambda d, y, x: d * apply("cos", x),
    "cos": lambda d, y, x: -(d * apply("sin", x)),
    "tan": lambda d, y, x: d * (y * y + 1),
    "asin": lambda d, y, x: _reciprocal_root(d, 1 - x * x),
    "acos": lambda d, y, x: -_reciprocal_root(d, 1 - x * x),
    "atan": lambda d, y, x: d / (x * x + 1),
    "sinh": lambda d, y, x: d * apply("cosh", x),
    "cosh": lambda d, y, x: d * apply("sinh", x),
    "tanh": lambda d, y, x: d * (1 - y * y),
    "asinh": lambda d, y, x: _reciprocal_root(d, x * x + 1),
    "acosh": lambda d, y, x: _reciprocal_root(d, x * x - 1),
    "atanh": lambda d, y, x: d / (1 - x * x),
    "erf": lambda d, y, x: d * exp(-(x * x)) * (2.0 / math.sqrt(math.pi)),
    "erfc": lambda d, y, x: d * exp(-(x * x)) * (-2.0 / math.sqrt(math.pi)),
    "erfcx": lambda d, y, x: d * (x * y * 2.0 - 2.0 / math.sqrt(math.pi)),
    "gauss": lambda d, y, x: -(d * y * x),
    "normal_tail": lambda d, y, x: d * (x * y - 1.0 / math.sqrt(2.0 * math.pi)),
    "sigmoid": lambda d, y, x: d * (y * (1 - y)),
}
_STEPS = ("sign", "floor", "ceil", "round", "trunc")  # slope zero wherever there is one


def _pow_gradient(d: Expression, y: Expression, a: Expression, b: Expression) -> tuple[Any, Any]:
    # An exponent of 0 gives slope 0 even at base 0, where the formula says 0 * inf.
    return (
        where(eq(b, 0), 0, d * (b * a ** (b - 1))),
        where(apply("logical_and", eq(a, 0), b >= 0), 0, d * (y * log(a))),
    )


def _times(a: Expression, b: Expression) -> Expression:
    """Number of times that `fmod` takes b from a: not `trunc(a / b)`, which rounds 1 / (1 / 3) to 3
    where 1/3 was rounded up, so that only two of it fit.
    """
    return apply("round", (a - apply("fmod", a, b)) / b)


def _over_square(d: Expression, a: Expression, b: Expression) -> Expression:
    """d / (a^2 + b^2); 0 at the origin, which has no angle."""
    square = a * a + b * b
    return where(eq(square, 0), 0, d / square)


FUNCTIONS: dict[str, Rule] = {
    "neg": Rule(1, lambda d, y, x: (-d,), linear=((0,),)),
    "abs": Rule(1, lambda d, y, x: (d * sign(x),)),
    "relu": Rule(1, lambda d, y, x: (where(y <= 0, 0, d),)),
    "square": Rule(1, lambda d, y, x: (d * x * 2,)),
    "reciprocal": Rule(1, lambda d, y, x: (-(d * (y * y)),)),
    "add": Rule(2, lambda d, y, a, b: (d, d), linear=((0, 1),)),
    "sub": Rule(2, lambda d, y, a, b: (d, -d), linear=((0, 1),)),
    "mul": Rule(2, lambda d, y, a, b: (d * b, d * a), linear=((0,), (1,))),
    "div": Rule(2, lambda d, y, a, b: (d / b, -(d * y / b)), "float", linear=((0,),)),
    "pow": Rule(2, _pow_gradient),
    "maximum": Rule(2, lambda d, y, a, b: (_share(d, a, b), _share(d, b, a))),
    "minimum": Rule(2, lambda d, y, a, b: (_share(d, b, a), _share(d, a, b))),
    "fmod": Rule(2, lambda d, y, a, b: (d, -(d * _times(a, b)))),
    "floor_divide": Rule(2, lambda d, y, a, b: (constant(0), constant(0))),
    "atan2": Rule(
        2, lambda d, y, a, b: (_over_square(d, a, b) * b, -(_over_square(d, a, b) * a)), "float"
    ),
    "where": Rule(
        3, lambda d, y, c, a, b: (None, where(c, d, 0), where(c, 0, d)), "choice", ((1, 2),)
    ),
    "total": Rule(1, lambda d, y, x: (total(d),), linear=((0,),)),
    "largest": Rule(1),
    COLUMN_TOTAL: Rule(1, linear=((0,),)),
    **{name: Rule(2, kind="bool") for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: Rule(2, kind="logic") for name in ("logical_and", "logical_or", "logical_xor")},
    "logical_not": Rule(1, kind="logic"),
    **{name: Rule(1, kind="bool") for name in ("isnan", "isinf", "isfinite")},
    "hypot": Rule(2, lambda d, y, a, b: (d * (a / y), d * (b / y)), "float"),
    "copysign": Rule(2, lambda d, y, a, b: (where(eq(a, 0), 0, d * (y / a)), constant(0)), "float"),
    "nextafter": Rule(2, lambda d, y, a, b: (where(apply("ne", a, b), d, 0), constant(0)), "float"),
    **{name: Rule(2) for name in ("bitwise_left_shift", "bitwise_right_shift", "gcd", "lcm")},
    "bitwise_not": Rule(1),
    **{name: Rule(2) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    **{name: Rule(1, lambda d, y, x: (constant(0),)) for name in _STEPS},
}
for _name, _formula in _UNARY.items():
    FUNCTIONS[_name] = Rule(
        1, (lambda formula: lambda d, y, x: (formula(d, y, x),))(_formula), "float"
    )


# ---- walks ---------------------------------------------------------------------------------------


def walk(*roots: Expression) -> Iterator[Expression]:
    """Every node once, arguments before users."""
    seen: set[Expression] = set()
    stack: list[tuple[Expression, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, is_ready = stack.pop()
        if is_ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((arg, False) for arg in reversed(node.args) if arg not in seen)


def leaves(kind: str, *roots: Expression) -> tuple[str, ...]:
    """Names of the inputs (INPUT) or scalars (SCALAR) of expressions, in order of appearance."""
    return tuple(node.value for node in walk(*roots) if node.function == kind)


def substitute(root: Expression, new: Mapping[Expression, Expression]) -> Expression:
    """`root` with nodes replaced."""
    done: dict[Expression, Expression] = dict(new)
    # Parts of what is replaced are rebuilt in vain, which costs little and changes nothing.
    for node in walk(root):
        if node not in done:
            args = tuple(done[a] for a in node.args)
            done[node] = node if args == node.args else _node(node.function, args, node.value)
    return done[root]


def uniform_nodes(*roots: Expression) -> set[Expression]:
    """Nodes made of scalars and constants alone: one number per call."""
    found: set[Expression] = set()
    for node in walk(*roots):
        if node.function in (SCALAR, CONSTANT) or (
            node.args and all(a in found for a in node.args)
        ):
            found.add(node)
    return found


def row_values(names: Container[str], *roots: Expression) -> set[Expression]:
    """Nodes with one value per row, where the inputs `names` have one."""
    found = uniform_nodes(*roots)
    for node in walk(*roots):
        is_reduced = node.function in (*REDUCTIONS, ROW) or (
            node.args and all(a in found for a in node.args)
        )
        if is_reduced or (node.function == INPUT and node.value in names):
            found.add(node)
    return found


# ---- dtypes --------------------------------------------------------------------------------------


ElementType = DType | type
"""A dtype; `int` or `float` for a number, which takes the dtype of the array that it meets."""


def dtypes_of(
    roots: tuple[Expression, ...],
    inputs: Mapping[str, DType],
    scalars: Mapping[str, type] | None = None,
) -> dict[Expression, ElementType]:
    """The element type of every node. scalars: int or float, by name; default float.

    Raises DTypeError.
    """
    found: dict[Expression, ElementType] = {}
    kinds = scalars or {}
    numbers = uniform_nodes(*roots)
    for node in walk(*roots):
        if node.function == CAST:
            found[node] = dtype_of(node.value)
        elif node in numbers:
            found[node] = _number_type(node, kinds, found)
        elif node.function == INPUT:
            found[node] = inputs[node.value]
        elif node.function in (WORD, COLUMN, ROW):
            found[node] = int64
        else:
            found[node] = _result_dtype(node, [found[a] for a in node.args])
    return found


_WHOLE = ("neg", "add", "sub", "mul", "abs", "maximum", "minimum", "where")


def _number_type(
    node: Expression, kinds: Mapping[str, type], found: Mapping[Expression, ElementType]
) -> type:
    if node.function == SCALAR:
        return kinds.get(node.value, int if node.value in ("columns", "rows") else float)
    if node.function == CONSTANT:
        return float if isinstance(node.value, float) else int
    is_whole = node.function in _WHOLE and all(found[a] is int for a in node.args)
    return int if is_whole else float


def _result_dtype(node: Expression, args: list[ElementType]) -> DType:
    rule = FUNCTIONS[node.function]
    if rule.kind in ("bool", "logic"):
        return bool_
    if rule.kind == "choice":
        args = args[1:]
        if not any(isinstance(a, DType) for a in args):
            raise DTypeError(f"{node}: a choice between two numbers has no dtype; cast one")
    dtype = meet(args)
    if not dtype.is_floating_point and not dtype.is_complex and float in args:
        raise DTypeError(f"{node}: {dtype.name} cannot take a float; cast the input first")
    if rule.kind == "float" and not (dtype.is_floating_point or dtype.is_complex):
        raise DTypeError(f"{node}: {node.function} needs floating-point elements, got {dtype.name}")
    return dtype


def meet(args: list[ElementType]) -> DType:
    """The dtype in which arguments meet; numbers follow the others."""
    own = [a for a in args if isinstance(a, DType)]
    dtype = own[0]
    for other in own[1:]:
        dtype = promote(dtype, other)
    return dtype


def compared_dtype(args: list[ElementType]) -> DType:
    """The dtype in which the arguments of a comparison meet: an integer array and a float number
    meet in float64."""
    dtype = meet(args)
    if not (dtype.is_floating_point or dtype.is_complex) and float in args:
        return float64
    return int64 if dtype is bool_ and int in args else dtype


# ---- gradients -----------------------------------------------------------------------------------


def gradients(
    outputs: Mapping[Expression, Expression], wrt: tuple[Expression, ...]
) -> tuple[Expression, ...]:
    """Reverse-mode derivatives, simplified. outputs: output -> its adjoint.

    Raises GraphError where a function has none.
    """
    adjoints: dict[Expression, Expression] = {}
    for out, adjoint in outputs.items():
        _accumulate(adjoints, out, adjoint)
    needed = _depends_on(tuple(outputs), set(wrt))
    for node in reversed(list(walk(*outputs))):
        adjoint = adjoints.get(node)  # type: ignore[assignment]
        if adjoint is None or not node.args or node not in needed:
            continue
        if node.function == CAST:
            raise GraphError(f"{node}: the gradient of a cast depends on its input's dtype")
        rule = FUNCTIONS[node.function].gradient
        if rule is None:
            raise GraphError(f"{node.function} has no gradient")
        for arg, part in zip(node.args, rule(adjoint, node, *node.args), strict=True):
            if part is not None and arg in needed:
                _accumulate(adjoints, arg, part)
    return tuple(simplify(adjoints.get(x, constant(0))) for x in wrt)


def _accumulate(adjoints: dict[Expression, Expression], node: Expression, part: Expression) -> None:
    known = adjoints.get(node)
    adjoints[node] = part if known is None else known + part


def _depends_on(roots: tuple[Expression, ...], wanted: set[Expression]) -> set[Expression]:
    found = set(wanted)
    for node in walk(*roots):
        if any(a in found for a in node.args):
            found.add(node)
    return found


def simplify(root: Expression) -> Expression:
    """The same value with fewer functions. 0 * x is taken for 0, so this is for derivatives only:
    there a zero is a path that does not exist."""
    done: dict[Expression, Expression] = {}
    for node in walk(root):
        args = tuple(done[a] for a in node.args)
        done[node] = _simplified(node, args)
    return done[root]


def _number(x: Expression) -> Any:
    return x.value if x.function == CONSTANT else None


def _simplified(node: Expression, args: tuple[Expression, ...]) -> Expression:
    name = node.function
    first = _number(args[0]) if args else None
    second = _number(args[1]) if len(args) == 2 else None
    if name == "neg":
        if args[0].function == "neg":
            return args[0].args[0]
        if first is not None:
            return constant(-first)
    elif name == "add" and (first == 0 or second == 0):
        return args[1] if first == 0 else args[0]
    elif name == "sub" and second == 0:
        return args[0]
    elif name == "sub" and first == 0:
        return _simplified(apply("neg", args[1]), (args[1],))
    elif name == "mul":
        if first == 0 or second == 0:
            return constant(0)
        if first == 1 or second == 1:
            return args[1] if first == 1 else args[0]
        if second is not None and args[0].function == "mul":
            inner = _number(args[0].args[1])
            if inner is not None:
                return apply("mul", args[0].args[0], inner * second)
    elif name == "div" and (first == 0 or second == 1):
        return args[0]
    elif name == "where" and args[1] is args[2]:
        return args[1]
    elif name == "total" and first == 0:
        return args[0]
    return node if args == node.args else _node(name, args, node.value)


# ---- linearity -----------------------------------------------------------------------------------

_ZERO, _FIXED, _LINEAR, _OTHER = "zero", "fixed", "linear", "other"


def is_linear(
    root: Expression,
    names: set[str],
    dtypes: Mapping[str, DType],
    scalars: Mapping[str, type] | None = None,
) -> bool:
    """Is root a sum of terms that each hold exactly one of the inputs `names` as a factor?

    Then partial sums of these inputs give partial sums of root.
    """
    types = dtypes_of((root,), dtypes, scalars)
    found: dict[Expression, str] = {}
    for node in walk(root):
        if types[node] is bool_:
            depends = node.value in names if node.function == INPUT else False
            depends = depends or any(found[a] in (_LINEAR, _OTHER) for a in node.args)
            found[node] = _OTHER if depends else _FIXED
        else:
            found[node] = _class_of(node, [found[a] for a in node.args], names, types)
    return found[root] == _LINEAR


def _class_of(
    node: Expression, args: list[str], names: set[str], types: Mapping[Expression, ElementType]
) -> str:
    if node.function == INPUT:
        return _LINEAR if node.value in names else _FIXED
    if node.function == CONSTANT and node.value == 0:
        return _ZERO
    if all(a in (_FIXED, _ZERO) for a in args):
        return _FIXED
    if node.function == CAST:
        source, target = types[node.args[0]], types[node]
        if not isinstance(source, DType) or not isinstance(target, DType):
            return args[0]
        loses_fraction = target.is_integer and not source.is_integer
        return _OTHER if loses_fraction or source is bool_ else args[0]
    for group in FUNCTIONS[node.function].linear:
        own = [args[i] for i in group]
        rest = [a for i, a in enumerate(args) if i not in group]
        if all(a in (_LINEAR, _ZERO) for a in own) and all(a in (_FIXED, _ZERO) for a in rest):
            return _LINEAR
    return _OTHER


# ---- text ----------------------------------------------------------------------------------------

_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=",
}  # fmt: skip
_OPERATORS: dict[type, str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow", ast.Lt: "lt",
    ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
}  # fmt: skip


def to_text(root: Expression) -> str:
    """Python syntax; a part that occurs twice is written twice."""
    done: dict[Expression, str] = {}
    for node in walk(root):
        done[node] = _text_of(node, [done[a] for a in node.args])
    text = done[root]
    return text[1:-1] if root.function in _SIGNS else text


def _text_of(node: Expression, args: list[str]) -> str:
    match node.function:
        case "input":
            return str(node.value)
        case "scalar":
            return f"s.{node.value}"
        case "constant":
            return _number_text(node.value)
        case "cast":
            return f"cast({_bare(args[0])}, {node.value})"
        case "neg":
            return f"-{args[0]}" if node.args[0].function != CONSTANT else f"neg({args[0]})"
        case name if name in _SIGNS:
            return f"({args[0]} {_SIGNS[name]} {args[1]})"
        case name:
            return f"{name}({', '.join(_bare(a) for a in args)})"


def _bare(text: str) -> str:
    """Without the parentheses around all of it."""
    if not text.startswith("("):
        return text
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return text[1:-1] if i == len(text) - 1 else text
    return text


def _number_text(value: float | int | bool) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "(-inf)")
    return f"({value!r})" if not isinstance(value, bool) and value < 0 else repr(value)


def parse(text: str) -> Expression:
    """The inverse of `str(expression)`. Raises GraphError."""
    try:
        return _parsed(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise GraphError(f"not an expression: {text[:80]!r}: {error}") from None


def _parsed(node: ast.expr) -> Expression:
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return constant(value)
        case ast.Name(id="nan" | "inf" as name):
            return constant(float(name))
        case ast.Name(id=name):
            return symbol(name)
        case ast.Attribute(value=ast.Name(id="s"), attr=name):
            return scalar(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _parsed(operand)
            is_number = inner.function == CONSTANT
            return constant(-inner.value) if is_number else apply("neg", inner)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return apply(_OPERATORS[type(op)], _parsed(left), _parsed(right))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
            return apply(_OPERATORS[type(op)], _parsed(left), _parsed(right))
        case ast.Call(func=ast.Name(id="cast"), args=[x, ast.Name(id=dtype)], keywords=[]):
            return cast(_parsed(x), dtype_of(dtype))
        case ast.Call(func=ast.Name(id="word" | "column" | "row" as name), args=[], keywords=[]):
            return _node(name)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return apply(name, *map(_parsed, args))
        case _:
            raise GraphError(f"not part of an expression: {ast.unparse(node)[:80]!r}")
