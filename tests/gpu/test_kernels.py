"""Every GPU kernel of every op sample agrees with the sample's reference in NumPy float64, or with
the CPU's kernel where values have no formula. Needs a CUDA device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oneflow.boxing.bound_op import bind
from oneflow.core.op import find_op, infer_types
from oneflow.kernels import registry
from tests.unit.ops.numpy_mode import run_whole, type_of
from tests.unit.ops.sample import Sample, named
from tests.unit.ops.samples import SAMPLES

from .gpu_needed import need_gpu

pytestmark = pytest.mark.gpu
cupy = need_gpu()
registry.load()
TOLERANCE = {"float32": 1e-5, "float64": 1e-9}
HALF_TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1}


def _run_on_gpu(sample: Sample, kernel: registry.Kernel, inputs: Any) -> list[np.ndarray[Any, Any]]:
    op, types = find_op(sample.op), tuple(map(type_of, inputs))
    attrs = op.defaults | sample.attrs
    bound = bind(op, types, infer_types(op, types, attrs), attrs, "cuda", kernel=kernel)
    arrays = [cupy.asarray(x) for x in inputs]
    outs = bound.run(cupy, arrays, attrs.get("seed", 0), _ones)
    return [cupy.asnumpy(x) for x in outs]


def _ones(shape: tuple[int, ...], dtype: Any) -> Any:
    return cupy.full(shape, 1, dtype)


def _wanted(sample: Sample, inputs: Any) -> tuple[Any, ...]:
    """The reference in float64, of the very inputs the GPU gets."""
    exact = tuple(x.astype(np.float64) if type_of(x).dtype.is_floating_point else x for x in inputs)
    if sample.reference is None:
        return run_whole(sample.op, exact, sample.attrs)
    want = sample.reference(*exact, **sample.attrs)
    return want if isinstance(want, tuple) else (want,)


def _check(sample: Sample, dtype: str, tolerance: float) -> None:
    inputs = sample.inputs_as(dtype)
    want = _wanted(sample, inputs)
    for kernel in registry.variants(sample.op, "cuda"):
        if kernel.dtypes and type_of(inputs[0]).dtype.name not in kernel.dtypes:
            continue
        try:
            got = _run_on_gpu(sample, kernel, inputs)
        except ImportError as error:  # CuPy loads cuSOLVER and cuFFT when they are first called
            pytest.skip(f"no library of CUDA for {sample.op}: {str(error).splitlines()[0]}")
        for i in sample.compared or range(len(got)):
            expected = np.asarray(want[i])
            assert got[i].shape == expected.shape
            least = TOLERANCE["float32"] if got[i].dtype == np.float32 else 0.0
            close = max(tolerance, least)  # some ops give float32 whatever their inputs are
            wide = got[i].astype(expected.dtype)
            np.testing.assert_allclose(wide, expected, rtol=close, atol=close)


@pytest.mark.parametrize("sample", named(SAMPLES))
def test_kernels_match_the_reference(sample: Sample) -> None:
    for dtype, tolerance in TOLERANCE.items():
        _check(sample, dtype, max(tolerance, sample.tolerance if dtype == "float32" else 0))


HALF = [s for s in SAMPLES if s.reference and {"float16", "bfloat16"} & set(s.dtypes)]


@pytest.mark.parametrize("sample", named(HALF))
def test_half_precision_kernels_are_near_the_reference(sample: Sample) -> None:
    import ml_dtypes

    kinds = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
    for dtype, tolerance in HALF_TOLERANCE.items():
        if dtype in sample.dtypes:
            _check(sample, kinds[dtype], tolerance)  # type: ignore[arg-type]


def test_views_share_memory_as_on_the_cpu() -> None:
    whole = cupy.arange(24, dtype=cupy.float32).reshape(4, 6)
    for x, shape in (
        (whole, (3, 8)),
        (whole.T, (24,)),
        (whole[:, :4], (4, 2, 2)),
        (whole[::2], (12,)),
    ):
        host = cupy.asnumpy(whole)
        twin = {(4, 6): host, (6, 4): host.T, (4, 4): host[:, :4], (2, 6): host[::2]}[x.shape]
        view = registry.find_view("reshape")
        assert view is not None
        assert (view(x, shape=shape) is None) == (view(twin, shape=shape) is None)


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_concatenations_read_tensors_as_they_lie(dim: int, dtype: str) -> None:
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32
    rng = np.random.default_rng(dim)
    parts = []
    for size in (1, 3, 0, 2, 5, 1):  # more than a launch takes
        shape = [2, 4, 3, 6]
        shape[dim] = size
        whole = rng.standard_normal([shape[0], shape[2], shape[1], 2 * shape[3]]).astype(kind)
        parts.append(whole[..., ::2].transpose(0, 2, 1, 3))
    want = np.concatenate(parts, dim)
    (kernel,) = [k for k in registry.variants("concat", "cuda") if dtype in k.dtypes]
    on_gpu = [cupy.asarray(x.base if x.base is not None else x) for x in parts]
    on_gpu = [x[..., ::2].transpose(0, 2, 1, 3) for x in on_gpu]
    out = cupy.full(want.shape, 7, kind)
    kernel.function(cupy, out, *on_gpu, dim=dim)
    np.testing.assert_array_equal(out.get(), want)
