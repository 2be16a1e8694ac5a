"""Python values come out of their bytes as they went in; values that cannot travel are named."""

from __future__ import annotations

import enum
from collections import OrderedDict, namedtuple
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oneflow as flow
from oneflow.core.errors import DTypeError, TransportError
from oneflow.distributed.encoding import MAX_DEPTH, decode, encode
from tests.support.properties import STEADY

KEYS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.binary()
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | st.characters()
)  # characters: also lone surrogates
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=20,
)
Point = namedtuple("Point", "x y")


class Colour(enum.IntEnum):
    RED = 3


def travelled(value: Any) -> Any:
    return decode(encode(value))


@STEADY
@given(VALUES)
def test_values_keep_their_types(value: Any) -> None:
    assert repr(travelled(value)) == repr(value)  # tells 1, 1.0 and True apart, and shows nan


@pytest.mark.parametrize(
    "value", [0, -1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1]
)
@pytest.mark.parametrize("factor", [1, 2**200])
def test_integers_of_any_size(value: int, factor: int) -> None:
    assert travelled([value * factor, {value * factor: 0}]) == [value * factor, {value * factor: 0}]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Point(1, (2,)), (1, (2,))),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        ([Colour.RED], [3]),
    ],
)
def test_subclasses_come_out_as_the_plain_type(value: Any, plain: Any) -> None:
    found = travelled(value)
    assert repr(found) == repr(plain)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3).T,
        np.array(3, np.int8),
        np.zeros((2, 0), np.complex64),
        np.array([True, False]),
        np.array([1, 2], ">i4"),
        np.array(["a", "üb"]),
        np.array(["2026-11-21"], "M8[D]"),
        np.array([1.5, 2], ml_dtypes.bfloat16),
    ],
    ids=str,
)
def test_arrays(array: np.ndarray[Any, Any]) -> None:
    found = travelled({"x": (array,)})["x"][0]
    assert type(found) is np.ndarray and found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    found[...] = found  # can be written
    scalar = array.reshape(-1)[:1].tolist() and array.reshape(-1)[0]
    if isinstance(scalar, np.generic):
        assert type(travelled(scalar)) is type(scalar) and travelled(scalar) == scalar


def test_local_tensors() -> None:
    given = flow.tensor([[1.0, 2.0]], requires_grad=True)
    found = travelled([given, flow.ones(3, dtype=flow.bfloat16)[::2]])
    assert found[0].tolist() == [[1.0, 2.0]] and not found[0].requires_grad
    assert found[1].dtype is flow.bfloat16 and found[1].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({1, 2}, r"^the value is of type set; only None, booleans"),
        ([0, {"a": (1, print)}], r"the value\[1\]\['a'\]\[1\] is of type builtin"),
        ([{frozenset(): 1}], r"the value\[0\] has the key frozenset\(\) of type frozenset"),
        ({(1, print): 1}, r"the value\[\(1, .*\)\]\[1\] is of type builtin"),
        (np.array([None]), "the value is of type ndarray of object"),
        (np.zeros(2, "i4,f4"), "the value is of type ndarray of "),
        (np.ma.array([1]), "the value is of type MaskedArray"),
        (bytearray(b"x"), "is of type bytearray"),
        (1j, "is of type complex"),
    ],
)
def test_what_cannot_travel_is_named(value: Any, text: str) -> None:
    with pytest.raises(DTypeError, match=text):
        encode(value)


def test_a_global_tensor_is_told_apart() -> None:
    alone = flow.placement("cpu", [0])
    with pytest.raises(DTypeError, match=r"the value\[0\] is a global tensor.*to_global"):
        encode([flow.ones(2, placement=alone, sbp=flow.sbp.broadcast)])


def test_nesting_and_size_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    deep: Any = 1
    for i in range(MAX_DEPTH + 1):
        deep = (deep,) if i % 2 else {2**70: deep}
    assert travelled(deep) == deep
    with pytest.raises(DTypeError, match="in more than 100 containers"):
        encode([deep])
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(DTypeError, match=r"the value\[0\]\[0\].*\.\.\.\[0\].* is in more than 100"):
        encode(endless)
    monkeypatch.setattr("oneflow.distributed.encoding.MAX_NBYTES", 1000)
    with pytest.raises(DTypeError, match=r"takes \d+ bytes, but at most 1000 travel"):
        encode(b"x" * 1000)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        encode([1])[:-1],
        encode(np.ones(3)).replace(b"<f8", b"|O8"),
        encode(np.ones(3)).replace(b"<f8", b"<f9"),
        encode((1,)).replace(b"\x01\x91", b"\x63\x91"),
    ],
    ids=str,
)
def test_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(TransportError, match="no encoded value"):
        decode(data)
