"""The part that an op plays in mixed precision, for `autocast` and for graphs alike.

    lower    runs in the half dtype: products and convolutions
    keep     runs in float32: losses, sums, exponentials, powers, factorizations
    follow   runs in the dtype of its inputs, the widest of them if they differ
    either   only moves or selects numbers, so any dtype gives the same

An op declares it (`Op.precision`), or it follows from the kind of op: views and ops that place
elements (`Op.parts`) take either. A formula that only selects takes either, too; one with a
function of `WIDE` keeps float32, because that function loses too much in half precision, unless a
bounded function is applied to its result; any other formula follows. So softcap, c * tanh(x / c),
follows without saying so.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from oneflow.core.expression import CAST, CONSTANT, INPUT, SCALAR, Expression, walk

if TYPE_CHECKING:
    import numpy as np

    from oneflow.core.op import Op
    from oneflow.core.operand import Attr, Attrs
    from oneflow.core.tensor_type import TensorType

Precision = Literal["lower", "keep", "follow", "either"]

WIDE = frozenset(
    (
        *("exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "pow", "square", "reciprocal"),
        *("rsqrt", "acos", "asin", "cosh", "sinh", "tan"),
    )
)
"""Functions that leave the range of float16, or whose result has fewer right digits than it."""
BOUNDED = frozenset(("tanh", "sigmoid", "erf", "erfc", "sin", "cos", "atan", "atan2", "sign", CAST))
"""Functions whose results lie in a small range for any argument, and casts: a formula has computed
their argument in a wider dtype by itself."""
_SELECTING = frozenset((INPUT, SCALAR, CONSTANT, "relu", "where", "maximum", "minimum"))

FLOAT16_MAX = 65504.0
FLOAT16_LEAST = 2.0**-25  # what is smaller is rounded to 0


def exceeds_float16(array: np.ndarray[Any, Any]) -> bool:
    """Whether float16 has no number near one of an array's, which would be infinite or zero."""
    size = abs(array)
    too_large = (size > FLOAT16_MAX) & (size < math.inf)
    return bool((too_large | ((size > 0) & (size < FLOAT16_LEAST))).any())


_derived: dict[tuple[type[Op], Attr], Precision] = {}


def precision_of(op: type[Op], types: tuple[TensorType, ...], attrs: Attrs) -> Precision:
    """The part that an op plays in a call. attrs: with those that have defaults."""
    if op.precision is not None:
        return op.precision
    key = op, attrs.get("expression")  # of an op whose calls bring their formulas
    found = _derived.get(key)
    if found is None:
        found = _derived[key] = _derive(op, types, attrs)
    return found


def _derive(op: type[Op], types: tuple[TensorType, ...], attrs: Attrs) -> Precision:
    if op.formula is not None:
        made = op.formula() if op.is_named_formula else op.formula(*types, **attrs)
        return of_expression(made[0] if isinstance(made, tuple) else made)
    return "either" if op.is_view or op.parts is not None else "keep"


def of_expression(root: Expression) -> Precision:
    """The part of an op whose first result is an expression."""
    if _selects(root):
        return "either"
    return "keep" if _is_wide(root) else "follow"


def _selects(root: Expression) -> bool:
    """Whether each result is an element of the one input or a number, as it is."""
    shown, reached = set[Expression](), [root]
    while reached:
        node = reached.pop()
        if node.function not in _SELECTING:
            return False
        if node.function == INPUT:
            shown.add(node)
        reached.extend(node.args[1:] if node.function == "where" else node.args)
    return len(shown) == 1


def _is_wide(root: Expression) -> bool:
    """Whether a wide function's values reach the result."""
    reached = {root}
    for node in reversed(list(walk(root))):  # users before arguments
        if node not in reached:
            continue
        if node.function in WIDE:
            return True
        if node.function in BOUNDED:
            continue
        reached.update(node.args[1:] if node.function == "where" else node.args)
    return False
