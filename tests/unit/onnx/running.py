"""Models run by onnxruntime, or by the reference that the onnx package has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

import oneflow as flow
from oneflow.graph.tree import tensors_of

Array = np.ndarray[Any, Any]


def run(model: onnx.ModelProto, inputs: Sequence[Array]) -> list[Array]:
    """Results of a model in onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [i.name for i in session.get_inputs()]
    return list(session.run(None, dict(zip(names, map(np.asarray, inputs), strict=True))))


def run_by_reference(model: onnx.ModelProto, inputs: Sequence[Array]) -> list[Array]:
    """Results of a model by the reference implementation, in NumPy."""
    names = [i.name for i in model.graph.input]
    with np.errstate(all="ignore"):
        made = ReferenceEvaluator(model).run(
            None, dict(zip(names, map(np.asarray, inputs), strict=True))
        )
    return list(made)


def assert_same(
    model: Any, args: Any, *, tolerance: float = 1e-5, others: Sequence[Any] = (), **options: Any
) -> onnx.ModelProto:
    """Export a module and compare onnxruntime with it, on the example and on other arguments."""
    model.eval()
    made = flow.onnx.export(model, args, **options)
    for given in (args, *others):
        given = given if isinstance(given, tuple) else (given,)
        with flow.no_grad():
            want = tensors_of(model(*given))
        got = run(made, [x.numpy() for x in tensors_of(given)])
        for y, w in zip(got, want, strict=True):
            array = w.numpy()
            assert y.shape == array.shape
            scale = max(1.0, float(np.abs(array).max(initial=0)))
            np.testing.assert_allclose(y, array, rtol=tolerance, atol=tolerance * scale)
    return made
