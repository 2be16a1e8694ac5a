"""Every op of the registry adds up half floats in float32, and so does its gradient.

Each sample is made longer, one size at a time, wherever `infer` lets it, until it adds
up thousands of numbers: a bfloat16 sum of ones stops growing at 256, a float16 one at 2048. The
answer is the op's own in float64, for the same rounded inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, product
from math import prod
from typing import Any
from zlib import crc32

import ml_dtypes
import numpy as np
import pytest

from oneflow.core.dtype import dtype_of, float16
from oneflow.core.op import Attrs, Op, find_op, infer_types, signatures
from oneflow.core.sbp import Split
from oneflow.core.tensor_type import TensorType
from oneflow.kernels import registry
from oneflow.kernels.expressions.formula import formula_of

from .numpy_mode import Array, gradients, run_whole, type_of
from .sample import Sample, named
from .samples import SAMPLES

LONG = 3000
MOST_ELEMENTS = 300_000
OWN = ("one_embedding", "batch_moments", "batch_norm_average", "batch_norm_track")
"""Ops that add up rows of open tables in float32, or take the float64 sums of another op."""
TOLERANCE = {"bfloat16": 2.0**-6, "float16": 2.0**-9}
LARGEST = {"bfloat16": 1e38, "float16": 6e4}
INSIDE: dict[str, Callable[..., int]] = {
    "attention": lambda q, k, *_: prod(q[:-2]) * (30 + q[-2] * k[-2]),  # weights, and a matrix each
}
"""Elements that an op makes besides those of its outputs, or the time that it takes for as many."""

Place = tuple[int, int]


def _is_asked(sample: Sample) -> bool:
    """Does the op, or its gradient, add up? Ops that are the gradient of another, whose operands
    have to fit each other, are asked through that.
    """
    op = find_op(sample.op)
    if op.is_random or op.mutates or sample.op.startswith(OWN) or "_grad" in sample.op:
        return False
    if op.formula is not None:
        types = tuple(map(type_of, sample.inputs))
        return formula_of(op, types, op.defaults | sample.attrs).is_row
    return any(x.dtype == np.float64 for x in sample.inputs)


def _places(sample: Sample) -> set[tuple[Place, ...]]:
    """Sets of (input, dim) that may be one size: all dims that are, and those at one position."""
    alike: dict[tuple[int, int | None], list[Place]] = {}
    for i, x in enumerate(sample.inputs):
        for dim, n in enumerate(x.shape):
            if n:
                alike.setdefault((n, None), []).append((i, dim))
                alike.setdefault((n, dim), []).append((i, dim))
    return {
        some
        for (_, dim), places in alike.items()
        for count in range(len(places) if dim is None else 1, len(places) + 1)
        for some in combinations(places, count)
    }


def _forms(sample: Sample) -> Iterator[tuple[int, dict[str, Any]]]:
    """A size and attributes: the sample's own, and those with a window of nearly that size, which
    kernels go through one by one."""
    yield LONG, sample.attrs
    for key, value in sample.attrs.items():
        if isinstance(value, tuple) and all(type(v) is int for v in value):
            for i in range(len(value)):
                yield 400, sample.attrs | {key: (*value[:i], 380, *value[i + 1 :])}


def _is_apart(
    op: type[Op], types: tuple[TensorType, ...], attrs: Attrs, places: tuple[Place, ...]
) -> bool:
    """Do ranks that split all operands at these places need no sums, for gradients neither?"""
    parts = tuple(Split(dim) for _, dim in places)
    return len({i for i, _ in places}) == len(places) == len(types) and any(
        s.inputs == parts and all(isinstance(y, Split) for y in s.outputs)
        for s in signatures(op, types, attrs)
    )


def _lengthened(sample: Sample) -> Iterator[tuple[tuple[Array, ...], dict[str, Any]]]:
    op = find_op(sample.op)
    for places, (size, attrs) in product(sorted(_places(sample)), _forms(sample)):
        shapes = [
            tuple(size if (i, dim) in places else n for dim, n in enumerate(x.shape))
            for i, x in enumerate(sample.inputs)
        ]
        most = MOST_ELEMENTS if size == LONG else MOST_ELEMENTS // 10
        inside = INSIDE.get(sample.op, lambda *_: 0)(*shapes)
        if max(sum(map(prod, shapes)), inside) > most:
            continue
        types = tuple(
            TensorType(shape, float16 if x.dtype == np.float64 else dtype_of(x.dtype))
            for x, shape in zip(sample.inputs, shapes, strict=True)
        )
        try:
            outs = infer_types(op, types, op.defaults | attrs)
        except (ValueError, RuntimeError, LookupError, TypeError):
            continue  # the op refuses these shapes
        if _is_apart(op, types, op.defaults | attrs, places):
            continue
        if sum(t.numel for t in outs) <= most:
            pairs = zip(sample.inputs, shapes, strict=True)
            yield tuple(_repeated(x, shape) for x, shape in pairs), attrs


def _repeated(x: Array, shape: tuple[int, ...]) -> Array:
    """x over and over: indices stay in their range."""
    for dim, n in enumerate(shape):
        x = np.take(x, np.arange(n) % x.shape[dim], axis=dim)
    return x


def _with_a_mean(x: Array) -> Array:
    return np.minimum(np.abs(x) + 0.5, 1.5)


def _narrowed(inputs: tuple[Array, ...], half: Any, values: Any) -> tuple[Array, ...]:
    return tuple(np.asarray(values(x), half) if x.dtype == np.float64 else x for x in inputs)


def _exact(arrays: Any) -> tuple[Array, ...]:
    return tuple(x.astype(np.float64) if dtype_of(x.dtype).bytes == 2 else x for x in arrays)


def _assert_close(got: Array, want: Array, what: str, roundings: int = 1) -> None:
    """Within some roundings, where the answer is a number of the dtype."""
    name = got.dtype.name
    if not dtype_of(got.dtype).is_floating_point:
        return
    scale = np.abs(want[np.isfinite(want)]).max(initial=0)
    if scale > LARGEST.get(name, np.inf):
        return
    seen = np.isfinite(want)
    tolerance = roundings * TOLERANCE.get(name, 1e-4)
    least = tolerance * max(scale, 0.02)
    np.testing.assert_allclose(
        got.astype(np.float64)[seen], want[seen], rtol=tolerance, atol=least, err_msg=what
    )


KINDS = [(ml_dtypes.bfloat16, _with_a_mean), (np.float16, np.ones_like)]
ASKED = [s for s in SAMPLES if _is_asked(s)]


def _kernels(name: str) -> list[registry.Kernel | None]:
    """The one that `select` takes; of a formula every form there is."""
    if find_op(name).formula is None:
        return [None]
    return list(registry.variants(name, "cpu"))


@pytest.mark.parametrize("sample", named(ASKED))
def test_long_sums_of_half_floats(sample: Sample) -> None:
    """Each longer form in one of the two dtypes, in turn."""
    _ask(sample, lambda number: KINDS[(crc32(sample.op.encode()) + number) % 2 :][:1])


@pytest.mark.slow
def test_long_sums_of_both_half_floats() -> None:
    for sample in ASKED:
        _ask(sample, lambda _: KINDS)


def _ask(sample: Sample, kinds: Callable[[int], list[Any]]) -> None:
    for number, (inputs, attrs) in enumerate(_lengthened(sample)):
        for half, values in kinds(number):
            narrow = _narrowed(inputs, half, values)
            try:
                want = run_whole(sample.op, _exact(narrow), attrs)
            except (ValueError, RuntimeError, LookupError):
                continue  # values that the op refuses
            for kernel in _kernels(sample.op):
                got = run_whole(sample.op, narrow, attrs, kernel)
                for i in sample.compared or range(len(want)):
                    _assert_close(got[i], want[i], f"{[x.shape for x in inputs]} {attrs}")


def _has_gradient(sample: Sample) -> bool:
    return find_op(sample.op).has_gradient and sample.wrt != ()


@pytest.mark.parametrize("sample", named([s for s in ASKED if _has_gradient(s)]))
def test_gradients_add_up_half_floats(sample: Sample) -> None:
    """Gradients of outputs rounded alike; the ops that a gradient is made of round once each."""
    rng = np.random.default_rng(0)
    for inputs, attrs in _lengthened(sample):
        narrow = _narrowed(inputs, ml_dtypes.bfloat16, _with_a_mean)
        try:
            outs = run_whole(sample.op, narrow, attrs)
        except (ValueError, RuntimeError, LookupError):
            continue  # values that the op refuses
        counted = [i in (sample.compared or range(len(outs))) for i in range(len(outs))]
        ds = [
            np.asarray(rng.uniform(0.5, 1.5, y.shape), y.dtype)
            if is_counted and dtype_of(y.dtype).is_floating_point
            else None
            for y, is_counted in zip(outs, counted, strict=True)
        ]
        exact = [None if d is None else d.astype(np.float64) for d in ds]
        got = gradients(sample.op, ds, narrow, outs, attrs, sample.refused)
        want = gradients(sample.op, exact, _exact(narrow), _exact(outs), attrs, sample.refused)
        for i, (one, other) in enumerate(zip(got, want, strict=True)):
            if one is not None and other is not None:
                what = f"{[x.shape for x in inputs]} {attrs}, input {i}"
                _assert_close(one, other, what, roundings=4)
