"""The expression language: text, sharing, dtypes, derivatives, linearity."""

from __future__ import annotations

import pytest

from oneflow.core import dtype as dtypes
from oneflow.core.errors import DTypeError, GraphError
from oneflow.core.expression import (
    FUNCTIONS,
    apply,
    cast,
    constant,
    dtypes_of,
    exp,
    gradients,
    is_linear,
    parse,
    scalar,
    sigmoid,
    symbols,
    tanh,
    to_text,
    total,
    where,
    word,
)

X, Y, D = symbols("x y d")
TEXTS = [
    "x + y * 2", "(x - 1) * s.scale", "where(x > 0, x, (-1.5))", "cast(x + y, float32) ** 0.5",
    "where(word() >= s.threshold, x * s.scale, 0)", "-(x / total(exp(x - largest(x))))",
    "x - (y - 1)", "maximum(x, (-inf))", "neg(2) * x",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_text_parses_back_to_the_same_object(text: str) -> None:
    expression = parse(text)
    assert parse(to_text(expression)) is expression


def test_equal_parts_are_one_object() -> None:
    assert exp(X) * Y is exp(X) * Y
    assert constant(1) is not constant(1.0)
    assert constant(0.0) is not constant(-0.0)


@pytest.mark.parametrize("text", ["x +", "foo(x)", "exp(x, y)", "x.y", "x if y else z", "'x'"])
def test_text_that_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(GraphError):
        parse(text)


def test_numbers_take_the_dtype_of_what_they_meet() -> None:
    root = X * (1 - scalar("rate") ** scalar("step"))
    assert dtypes_of((root,), {"x": dtypes.float32})[root] is dtypes.float32
    assert dtypes_of((X + 1,), {"x": dtypes.int8})[X + 1] is dtypes.int8
    assert dtypes_of((X > 0.5,), {"x": dtypes.int8})[X > 0.5] is dtypes.bool_


def test_integers_take_no_float() -> None:
    with pytest.raises(DTypeError, match="cannot take a float"):
        dtypes_of((X * 0.5,), {"x": dtypes.int32})
    with pytest.raises(DTypeError, match="floating-point"):
        dtypes_of((exp(X),), {"x": dtypes.int32})


@pytest.mark.parametrize(
    ("root", "gradient"),
    [
        (X * Y, "d * y"),
        (X + Y, "d"),
        (Y - X, "-d"),
        (tanh(X), "d * (1 - tanh(x) * tanh(x))"),
        (where(X > 0, X, 0), "where(x > 0, d, 0)"),
        (X * 3.0 + 1, "d * 3.0"),
        (exp(Y), "0"),
        (apply("floor", X) * Y, "0"),
    ],
)
def test_derivatives_are_simple(root: object, gradient: str) -> None:
    assert gradients({root: D}, (X,))[0] is parse(gradient)  # type: ignore[dict-item]


def test_what_has_no_derivative_says_so() -> None:
    with pytest.raises(GraphError, match="no gradient"):
        gradients({apply("gcd", X, Y): D}, (X,))


FLOATS = {"x": dtypes.float32, "y": dtypes.float32}


@pytest.mark.parametrize(
    ("text", "names", "linear"),
    [
        ("x + y", "xy", True), ("x + y", "x", False), ("x * y", "x", True),
        ("x * y", "xy", False), ("x / y", "x", True), ("x / y", "y", False),
        ("where(y > 0, x, 0)", "x", True), ("where(x > 0, x, 0)", "x", False),
        ("where(y > 0, x, 1)", "x", False), ("exp(x)", "x", False), ("y * 2", "x", False),
        ("cast(x, int32)", "x", False), ("cast(x, float64)", "x", True), ("total(x)", "x", True),
    ],
)  # fmt: skip
def test_linearity(text: str, names: str, linear: bool) -> None:
    assert is_linear(parse(text), set(names), FLOATS) is linear


def test_every_function_prints_and_parses() -> None:
    for name, rule in FUNCTIONS.items():
        root = apply(name, *(X, Y, D)[: rule.arity])
        assert parse(to_text(root)) is root


def test_leaves_of_every_kind_print() -> None:
    root = cast(where(word() >= scalar("least"), sigmoid(X), 0), dtypes.float16) + total(Y)
    assert to_text(root) == "cast(where(word() >= s.least, sigmoid(x), 0), float16) + total(y)"
