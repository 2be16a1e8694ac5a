"""Every sample of every op is written, and gives the op's values in a runtime; or is refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from oneflow.core.op import REGISTRY, find_op, infer_types
from oneflow.core.tensor_type import TensorType
from oneflow.onnx.errors import OnnxExportError
from oneflow.onnx.writer.builder import Builder, Call, onnx_dtype
from oneflow.onnx.writer.expressions import UNWRITTEN, WRITERS
from oneflow.onnx.writer.refusals import REFUSED
from oneflow.onnx.writer.rows import ROWS, write_call
from tests.unit.ops.numpy_mode import type_of
from tests.unit.ops.sample import Sample, named
from tests.unit.ops.samples import SAMPLES

from .running import run, run_by_reference

OPSET = 18
"""BitwiseAnd and its kin are of this version."""

NEXT = {"gcd", "lcm", "nextafter", "erfcx"}
"""Ops whose formula is one function that ONNX has not."""

BY_REFERENCE = {
    "adam_update_and_cast", "amsgrad_update_and_cast", "digamma", "erfc", "erfinv",
}  # fmt: skip
"""Ops that onnxruntime lacks kernels for, in float64 or half floats."""


def model_of(sample: Sample) -> onnx.ModelProto:
    """One call as a model. Raises OnnxExportError."""
    inputs = sample.inputs_as(np.float32)
    types, op = tuple(map(type_of, inputs)), find_op(sample.op)
    attrs = op.defaults | sample.attrs
    results = infer_types(op, types, attrs)
    names = tuple(f"x{i}" for i in range(len(inputs)))
    read = [sample.compared is None or i in sample.compared for i in range(len(results))]
    b = Builder(OPSET)
    made = write_call(b, Call(sample.op, names, attrs, types, results, tuple(read)))
    outs = [(f"y{i}", name, results[i]) for i, name in enumerate(made) if read[i]]
    for out, name, _ in outs:
        b.nodes.append(helper.make_node("Identity", [name], [out]))

    def told(name: str, type_: TensorType) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, onnx_dtype(type_.dtype), type_.shape)

    graph = helper.make_graph(
        b.nodes, "sample", [told(n, t) for n, t in zip(names, types, strict=True)],
        [told(out, t) for out, _, t in outs], list(b.initializers.values()),
    )  # fmt: skip
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def _written() -> list[Sample]:
    return [s for s in SAMPLES if s.op not in REFUSED and s.op not in NEXT]


@pytest.mark.filterwarnings("ignore::RuntimeWarning:onnx.*")
@pytest.mark.parametrize("sample", named(_written()))
def test_models_of_samples_give_their_values(sample: Sample) -> None:
    model, inputs = model_of(sample), sample.inputs_as(np.float32)
    run_it = run_by_reference if sample.op in BY_REFERENCE or not inputs else run
    got = run_it(model, inputs)
    if sample.reference is None:  # random: of the right type, and not all alike
        return _assert_drawn(sample, got)
    exact = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in inputs]
    want = sample.reference(*exact, **sample.attrs)
    wanted = want if isinstance(want, tuple) else (want,)
    kept = range(len(wanted)) if sample.compared is None else sample.compared
    tolerance = max(sample.tolerance, 2e-5)
    for y, i in zip(got, kept, strict=True):
        value = np.asarray(wanted[i])
        assert y.shape == value.shape
        if value.dtype.kind == "f":
            y = y.astype(np.float64)
            np.testing.assert_allclose(y, value, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(y, value)


def _assert_drawn(sample: Sample, got: list[np.ndarray]) -> None:
    (y,) = got
    op, types = find_op(sample.op), tuple(map(type_of, sample.inputs_as(np.float32)))
    (result,) = infer_types(op, types, op.defaults | sample.attrs)
    assert (y.shape, y.dtype) == (result.shape, result.dtype.np)
    assert y.size < 4 or len(np.unique(y)) > 1


@pytest.mark.parametrize("op", sorted([*REFUSED, *NEXT]))
def test_refusals_name_the_op_and_the_reason(op: str) -> None:
    samples = [s for s in SAMPLES if s.op == op]
    for sample in samples:
        with pytest.raises(OnnxExportError, match=rf"^onnx.export: {op} \w+") as caught:
            model_of(sample)
        reason = REFUSED.get(op) or UNWRITTEN[op]
        assert reason in str(caught.value)


def test_each_op_is_written_or_refused() -> None:
    by_formula = {name for name, op in REGISTRY.items() if op.formula is not None}
    assert set(REGISTRY) == by_formula | set(ROWS) | set(REFUSED)
    assert not set(ROWS) & set(REFUSED)


def test_each_function_of_expressions_is_written_or_refused() -> None:
    from oneflow.core.expression import COLUMN_TOTAL, FUNCTIONS

    reductions = {"total", "largest", COLUMN_TOTAL}
    assert set(FUNCTIONS) == (set(WRITERS) | set(UNWRITTEN) | reductions) - {"word"}
