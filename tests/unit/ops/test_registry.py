"""Every op of the registry: its kernels against a reference, its gradient against finite
differences, and every SBP
signature against the whole. An op without a sample fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oneflow.core.errors import LinAlgError
from oneflow.core.op import REGISTRY, Box, find_op, infer_types, signatures
from oneflow.core.sbp import BROADCAST, PARTIAL
from oneflow.kernels import registry

from .numpy_mode import (
    gradients,
    run_ranks,
    run_whole,
    type_of,
)
from .sample import Sample, named
from .samples import SAMPLES

NUM_RANKS = (2, 3)


def _assert_close(got: Any, want: Any, tolerance: float) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    if want.dtype.kind in "fc":
        got = got.astype(want.dtype)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def test_every_op_has_a_sample() -> None:
    missing = sorted(set(REGISTRY) - {s.op for s in SAMPLES})
    assert not missing


CONSTANT = {"full_like", "constant", "one_embedding_update", "one_embedding_prefetch"}
"""Ops whose result is one number again and again: the one that is asked for, or a mark of order."""


def test_each_output_varies_in_a_sample() -> None:
    """A kernel that wrote zeros, or one number, would be seen."""
    alike, unlike = set(), set()
    for sample in SAMPLES:
        outs = run_whole(sample.op, sample.inputs, sample.attrs)
        for i in sample.compared or range(len(outs)):
            values = np.unique(outs[i])
            varies = values.size > 1 or (outs[i].size == 1 and values[0] not in (0, 1))
            (unlike if varies else alike).add((sample.op, i))
    assert {op for op, i in alike - unlike} == CONSTANT


@pytest.mark.parametrize("sample", named([s for s in SAMPLES if s.reference]))
def test_kernels_match_the_reference(sample: Sample) -> None:
    assert sample.reference is not None
    for dtype in sample.dtypes:
        inputs = sample.inputs_as(dtype)
        exact = tuple(
            x.astype(np.float64) if type_of(x).dtype.is_floating_point else x for x in inputs
        )
        want = sample.reference(*exact, **sample.attrs)
        want = want if isinstance(want, tuple) else (want,)
        tolerance = 1e-10 if dtype == "float64" else sample.tolerance
        for kernel in registry.variants(sample.op, "cpu"):
            if kernel.dtypes and type_of(inputs[0]).dtype.name not in kernel.dtypes:
                continue
            outs = run_whole(sample.op, inputs, sample.attrs, kernel)
            for i in sample.compared or range(len(outs)):
                _assert_close(outs[i], want[i], tolerance)


def _is_float(x: np.ndarray[Any, Any]) -> bool:
    return x.dtype == np.float64


def _has_gradient(sample: Sample) -> bool:
    differentiable = find_op(sample.op).has_gradient and sample.wrt != ()
    return differentiable and any(map(_is_float, sample.inputs))


@pytest.mark.parametrize("sample", named([s for s in SAMPLES if _has_gradient(s)]))
def test_gradients_match_finite_differences(sample: Sample) -> None:
    outs = run_whole(sample.op, sample.inputs, sample.attrs)
    rng = np.random.default_rng(1)
    counted = sample.compared or tuple(range(len(outs)))
    weights = [
        rng.normal(size=y.shape) if _is_float(y) and i in counted else None
        for i, y in enumerate(outs)
    ]

    def total(inputs: tuple[Any, ...]) -> float:
        ys = run_whole(sample.op, inputs, sample.attrs)
        return float(sum((w * y).sum() for w, y in zip(weights, ys, strict=True) if w is not None))

    found = gradients(sample.op, weights, sample.inputs, outs, sample.attrs, refused=sample.refused)
    wrt = sample.wrt
    if wrt is None:
        wrt = tuple(i for i, x in enumerate(sample.inputs) if _is_float(x))
    for i in wrt:
        x, step = sample.inputs[i], 1e-6
        gradient = found[i] if i < len(found) else None
        assert gradient is None or (gradient.shape, gradient.dtype) == (x.shape, x.dtype)
        for _ in range(3):
            v = rng.normal(size=x.shape)
            ends = [
                total((*sample.inputs[:i], np.asarray(x + s * v), *sample.inputs[i + 1 :]))
                for s in (step, -step)
            ]
            want = (ends[0] - ends[1]) / (2 * step)
            got = 0.0 if gradient is None else float((gradient * v).sum())
            scale = 1.0 + abs(want) + abs(ends[0]) * 1e-3
            assert abs(got - want) <= 2e-6 * scale, f"input {i}: {got} instead of {want}"


def _on_ranks() -> list[Any]:
    """Each sample on 2 or on 3 ranks, in turn; on the other number in `make slow`."""
    return [
        pytest.param(
            *param.values,
            num_ranks,
            id=f"{param.id}-{num_ranks}",
            marks=() if number % len(NUM_RANKS) == turn else pytest.mark.slow,
        )
        for number, param in enumerate(named(SAMPLES))
        for turn, num_ranks in enumerate(NUM_RANKS)
    ]


@pytest.mark.parametrize(("sample", "num_ranks"), _on_ranks())
def test_signatures_give_the_whole(sample: Sample, num_ranks: int) -> None:
    op = find_op(sample.op)
    inputs, attrs = sample.inputs, sample.attrs
    types = tuple(map(type_of, inputs))
    out_types = infer_types(op, types, attrs)
    want = run_whole(sample.op, inputs, attrs)
    for sbp in signatures(op, types, attrs, num_ranks):
        split = [*zip(types, sbp.inputs, strict=True), *zip(out_types, sbp.outputs, strict=True)]
        assert all(s.dim < t.ndim for t, s in split if s.is_split), str(sbp)
        if any(s.is_split and t.shape[s.dim] < num_ranks for t, s in split):
            continue
        got = run_ranks(sample.op, inputs, attrs, sbp, num_ranks)
        for i in sample.compared or range(len(want)):
            try:
                _assert_close(got[i], want[i], 1e-9)
            except AssertionError as error:
                raise AssertionError(f"{sample.op} {attrs}: {sbp}, output {i}: {error}") from None


def _is_linear(sample: Sample, i: int) -> bool:
    """f(2 u - 3 v) = 2 f(u) - 3 f(v), all other inputs as they are."""
    u, v = np.random.default_rng(3).normal(size=(2, *sample.inputs[i].shape))

    def of(x: Any) -> list[Any]:
        outs = run_whole(sample.op, (*sample.inputs[:i], x, *sample.inputs[i + 1 :]), sample.attrs)
        return [np.asarray(y, complex) if y.dtype.kind in "fc" else np.nan for y in outs]

    try:
        with np.errstate(all="ignore"):
            triples = zip(of(u), of(v), of(2 * u - 3 * v), strict=True)
            return all(np.allclose(2 * a - 3 * b, c, 1e-9, 1e-9) for a, b, c in triples)
    except LinAlgError:
        return False


LINEAR_BY_CHANCE = {
    ("batch_norm_grad_apply", 6), ("nextafter", 0), ("xlogy", 0), ("xlog1py", 0),
}  # fmt: skip
"""A weight, which is never partial; the last bits; finite logarithms."""


def test_what_is_linear_in_an_operand_takes_partial_sums_of_it() -> None:
    """Asked of operands in which all samples of an op are linear: a power of 1 is one, too."""
    silent: dict[tuple[str, int], bool] = {}
    for sample in SAMPLES:
        op, types = find_op(sample.op), tuple(map(type_of, sample.inputs))
        if op.is_random or op.mutates:
            continue
        listed = [s.inputs for s in signatures(op, types, sample.attrs, 2)]
        for i in filter(lambda i: _is_float(sample.inputs[i]), range(len(types))):
            says = tuple(PARTIAL if k == i else BROADCAST for k in range(len(types))) in listed
            if silent.get((sample.op, i), True):
                silent[sample.op, i] = not says and _is_linear(sample, i)
    assert {key for key, found in silent.items() if found} == LINEAR_BY_CHANCE


@pytest.mark.parametrize("sample", named([s for s in SAMPLES if find_op(s.op).factors]))
def test_products_are_of_the_factors_that_they_name(sample: Sample) -> None:
    op, types = find_op(sample.op), tuple(map(type_of, sample.inputs))
    made = op.factors and op.factors(*types, **op.defaults | sample.attrs)
    if not made:
        assert any(t.ndim > 2 for t in types)  # a product of many matrices
        return
    a, b = (
        (x.reshape(-1, x.shape[-1]).T if is_turned else x.reshape(-1, x.shape[-1]))
        for x, is_turned in zip((sample.inputs[i] for i in made.operands), made.turned, strict=True)
    )
    want = a @ b + (0 if made.bias is None else sample.inputs[made.bias])
    (out,) = run_whole(sample.op, sample.inputs, sample.attrs)
    np.testing.assert_allclose(out.reshape(want.shape), want, rtol=1e-10, atol=1e-10)


def _place(sample: Sample) -> Box | None:
    op = find_op(sample.op)
    types = map(type_of, sample.inputs)
    return None if op.place is None else op.place(*types, **op.defaults | sample.attrs)


@pytest.mark.parametrize("sample", named([s for s in SAMPLES if _place(s)]))
def test_what_is_put_among_zeros_lies_where_it_says(sample: Sample) -> None:
    box = _place(sample)
    assert box is not None
    (out,) = run_whole(sample.op, sample.inputs, sample.attrs)
    want = np.zeros_like(out)
    want[box.slices] = sample.inputs[0]
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("sample", named([s for s in SAMPLES if find_op(s.op).joins]))
def test_what_is_joined_lies_along_the_dim_that_it_says(sample: Sample) -> None:
    joins = find_op(sample.op).joins
    assert joins is not None
    dim = joins(*map(type_of, sample.inputs), **sample.attrs)
    (out,) = run_whole(sample.op, sample.inputs, sample.attrs)
    np.testing.assert_array_equal(out, np.concatenate(sample.inputs, axis=dim))


@pytest.mark.parametrize("name", [name for name, op in REGISTRY.items() if op.is_conversion])
def test_a_conversion_to_the_type_that_is_there_changes_nothing(name: str) -> None:
    x = np.arange(6, dtype=np.float64).reshape(2, 3)
    same = {"shape": x.shape, "dtype": type_of(x).dtype}
    attrs = {k: v for k, v in same.items() if k in (find_op(name).attrs or ())}
    (out,) = run_whole(name, [x], attrs)
    assert out.dtype == x.dtype
    np.testing.assert_array_equal(out, x)


def _added_up_in_float32() -> list[Sample]:
    registry.load()
    names = {name for name, device in registry.IN_FLOAT32 if device == "cpu"}
    return [s for s in SAMPLES if s.op in names and any(map(_is_float, s.inputs))]


@pytest.mark.parametrize("sample", named(_added_up_in_float32()))
def test_signatures_of_half_floats_give_the_whole(sample: Sample) -> None:
    op, attrs = find_op(sample.op), sample.attrs
    inputs = tuple(x.astype(np.float16) if _is_float(x) else x for x in sample.inputs)
    types = tuple(map(type_of, inputs))
    want = run_whole(sample.op, inputs, attrs)
    for sbp in signatures(op, types, attrs, 2):
        split = [*zip(types, sbp.inputs, strict=True)]
        split += zip(infer_types(op, types, attrs), sbp.outputs, strict=True)
        if any(s.is_split and t.shape[s.dim] < 2 for t, s in split):
            continue
        got = run_ranks(sample.op, inputs, attrs, sbp, 2)
        for i in sample.compared or range(len(want)):
            assert got[i].dtype == want[i].dtype
            scale = max(1.0, float(np.abs(want[i].astype(np.float64)).max(initial=0)))
            np.testing.assert_allclose(
                got[i].astype(np.float64), want[i].astype(np.float64), atol=0.02 * scale
            )


@pytest.mark.parametrize(
    "sample", named([s for s in SAMPLES if registry.find_view(s.op) is not None])
)
def test_views_equal_kernels(sample: Sample) -> None:
    view = registry.find_view(sample.op)
    assert view is not None
    want = run_whole(sample.op, sample.inputs, sample.attrs)[0]
    for x in (sample.inputs[0], np.asfortranarray(sample.inputs[0])):
        seen = view(x, **sample.attrs)
        if seen is not None:
            np.testing.assert_array_equal(seen, want)
            assert np.may_share_memory(seen, x) or not seen.size


def test_random_sources_have_no_partial_sums() -> None:
    for sample in SAMPLES:
        op = find_op(sample.op)
        if op.is_random and not sample.inputs:
            listed = signatures(op, (), sample.attrs, 2)
            assert not any(s.is_partial for sbp in listed for s in sbp.outputs)
