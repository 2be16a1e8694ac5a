"""Indices and labels outside of their dim are errors, whole and on every shard."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oneflow.core.op import find_op, infer_types, signatures
from oneflow.kernels import elementwise

from .numpy_mode import bind_whole, run_bound, run_ranks, run_whole, type_of
from .sample import Sample, named
from .samples import SAMPLES

X = np.arange(12.0).reshape(4, 3)

CHECKED = {"ctc_loss": 1, "ldl_solve": 1}
"""Ops whose kernels check: not all elements of the operand hold positions."""

NO_POSITIONS = {
    "integers to compute with": {
        *("reduce_sum", "reduce_max", "sort", "topk", "unfold", "batch_norm_average"),
        *("bitwise_not", "neg", "abs", "relu", "floor", "isnan", "clamp", "add", "sub", "mul"),
        *("pow", "maximum", "minimum", "fmod", "floor_divide", "eq", "ne", "lt", "le", "gt"),
        *("ge", "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or"),
        *("bitwise_xor", "scalar_add", "scalar_mul", "scalar_fmod", "scalar_floor_divide"),
        *("scalar_pow", "scalar_compare", "where", "cast", "hardtanh", "relu6", "adam_update"),
        *("amsgrad_update", "cycled_adam_update", "lamb_update", "adagrad_update"),
        *("adam_update_and_cast", "amsgrad_update_and_cast", "dampened_update", "adamax_update"),
        *("nadam_product", "nadam_update", "radam_update", "asgd_rates", "gcd", "lcm"),
        *("bitwise_left_shift", "bitwise_right_shift", "dequantize", "quantized_linear"),
        *("integer_conv", "integer_linear"),
    },
    "positions that another op has made or checked": {
        *("gather_grad", "nll_loss_grad", "sparse_softmax_cross_entropy_grad", "ctc_loss_grad"),
        *("max_pool_grad", "exchange_rows", "pack_rows"),
    },
    "ids of tables that grow, checked by the tables": {
        *("one_embedding_fused_lookup", "one_embedding_fused_lookup_grad"),
        *("one_embedding_update", "one_embedding_unique", "one_embedding_lookup"),
        *("one_embedding_gather", "one_embedding_sums", "one_embedding_keep"),
        *("one_embedding_recall", "one_embedding_prefetch"),
    },
}


def _positions(sample: Sample) -> dict[int, range]:
    op, types = find_op(sample.op), tuple(map(type_of, sample.inputs))
    if sample.op in CHECKED:
        return {CHECKED[sample.op]: range(-(1 << 20), 1 << 20)}
    return op.positions(*types, **(op.defaults | sample.attrs)) if op.positions else {}


def _with_position(sample: Sample, at: int, value: int) -> tuple[Any, ...]:
    inputs = list(sample.inputs)
    inputs[at] = np.array(inputs[at])
    inputs[at].reshape(-1)[0] = value
    return tuple(inputs)


HOLDING = [s for s in SAMPLES if _positions(s)]


def test_every_op_with_integer_operands_says_what_they_are() -> None:
    known = {name for names in NO_POSITIONS.values() for name in names}
    held = {s.op for s in HOLDING}
    given = {s.op for s in SAMPLES if any(x.dtype.kind in "iu" for x in s.inputs)}
    assert given == known | held
    assert not known & held


@pytest.mark.parametrize("sample", named(HOLDING))
def test_positions_outside_are_errors(sample: Sample) -> None:
    for at, allowed in _positions(sample).items():
        for value in (allowed.start - 1, allowed.stop):
            with pytest.raises(IndexError, match=r"out of bounds|must be"):
                run_whole(sample.op, _with_position(sample, at, value), sample.attrs)


@pytest.mark.parametrize("sample", named(HOLDING))
def test_positions_outside_are_errors_in_every_layout(sample: Sample) -> None:
    op, types = find_op(sample.op), tuple(map(type_of, sample.inputs))
    attrs = op.defaults | sample.attrs
    out_types = infer_types(op, types, attrs)
    for sbp in signatures(op, types, attrs, 2):
        split = [*zip(types, sbp.inputs, strict=True), *zip(out_types, sbp.outputs, strict=True)]
        if any(s.is_split and t.shape[s.dim] < 2 for t, s in split):
            continue
        for at, allowed in _positions(sample).items():
            for value in (allowed.start - 1, allowed.stop):
                with pytest.raises(IndexError):
                    inputs = _with_position(sample, at, value)
                    run_ranks(sample.op, inputs, attrs, sbp, 2)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_checked_ops_become_no_part_of_larger_kernels(device: str) -> None:
    for sample in HOLDING:
        op, types = find_op(sample.op), tuple(map(type_of, sample.inputs))
        if op.formula is not None:
            assert not elementwise.can_fuse(op, types, op.defaults | sample.attrs, device)


def test_ignored_labels_are_no_errors() -> None:
    labels = np.array([2, -100, 0, 1])
    assert run_whole("nll_loss", (X, labels), {})[0].tolist() == [-2.0, 0.0, -6.0, -10.0]


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8"])
def test_labels_of_every_dtype_are_checked(dtype: str) -> None:
    wide = np.zeros((1, 200 if dtype != "int8" else 100))
    for label in (wide.shape[1], np.iinfo(dtype).min):
        if label:
            with pytest.raises(IndexError, match=f"Target {label} is out of bounds"):
                run_whole("nll_loss", (wide, np.array([label], dtype)), {})


def test_rows_of_other_shards_are_zero() -> None:
    inputs = X, np.array([1, 3, 2, 0])
    whole = bind_whole("gather", inputs, {"dim": 0})
    (got,) = run_bound(replace(whole, keywords=whole.keywords | {"offset": 2}), inputs)
    np.testing.assert_array_equal(got, [[0, 0, 0], X[1], X[0], [0, 0, 0]])
