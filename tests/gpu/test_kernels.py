"""The GPU kernels of every op sample agree with the CPU's. Needs a CUDA device and CuPy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy", reason="no CuPy")

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "ops"))

from nn_samples import NN_SAMPLES  # noqa: E402
from numpy_mode import run_whole, type_of, whole_rng  # noqa: E402

from oneflow.core.op import find_op, infer_types  # noqa: E402
from oneflow.kernels import registry  # noqa: E402


def _device_count() -> int:
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


if not _device_count():
    pytest.skip("no CUDA device", allow_module_level=True)

import oneflow.kernels.cuda_kernels  # noqa: E402,F401


def _run_on_gpu(sample: Any, kernel: registry.Kernel, inputs: Any) -> list[np.ndarray[Any, Any]]:
    op = find_op(sample.op)
    types = tuple(map(type_of, inputs))
    out_types = infer_types(op, types, sample.attrs)
    arrays = [cupy.asarray(x) for x in inputs]
    outs = [cupy.full(t.shape, 1, t.dtype.np) for t in out_types]
    for out, source in op.mutates.items():
        outs[out] = arrays[source]
    spare = kernel.workspace(types, sample.attrs) if kernel.workspace else ()
    buffers = [cupy.full(t.shape, 1, t.dtype.np) for t in spare]
    extra = {"rng": whole_rng(op, out_types, sample.attrs)} if op.is_random else {}
    kernel.function(cupy, *outs, *arrays, *buffers, **sample.attrs, **extra)
    return [cupy.asnumpy(x) for x in outs]


@pytest.mark.parametrize("sample", NN_SAMPLES, ids=lambda s: s.op)
def test_gpu_agrees_with_cpu(sample: Any) -> None:
    for dtype in ("float32", "float64"):
        inputs = sample.inputs_as(dtype)
        want = run_whole(sample.op, sample.inputs, sample.attrs)
        tolerance = 1e-9 if dtype == "float64" else max(sample.tolerance, 1e-5)
        for kernel in registry.variants(sample.op, "cuda"):
            if kernel.dtypes and type_of(inputs[0]).dtype.name not in kernel.dtypes:
                continue
            got = _run_on_gpu(sample, kernel, inputs)
            for g, w in zip(got, want, strict=True):
                np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance)
