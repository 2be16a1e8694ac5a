"""Products with epilogues by cuBLASLt: values beside float64 NumPy, in every precision; recorded in
CUDA graphs; joined in graphs that train. Needs a CUDA device.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import oneflow as flow
from oneflow.kernels import cublas_lt
from oneflow.kernels.array import address
from oneflow.kernels.cublas_lt import Addresses, Matrix, Request
from oneflow.kernels.cuda_products import product_with_epilogue
from tests.unit.ops.nn_samples import NN_SAMPLES
from tests.unit.ops.sample import Sample, named

from .gpu_needed import need_gpu

pytestmark = pytest.mark.gpu
cupy = need_gpu()
if cublas_lt.why_not():
    pytest.skip(f"no cuBLASLt: {cublas_lt.why_not()}", allow_module_level=True)

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
KINDS = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
PRODUCTS = [s for s in NN_SAMPLES if s.op == "product" and s.inputs[1].shape[0] % 8 == 0]


def _operands(sample: Sample, dtype: str) -> tuple[list[Any], list[Any], list[Any]]:
    """Arrays of the outputs and the inputs on the GPU, and the expected results."""
    inputs = [x.astype(KINDS[dtype]) for x in sample.inputs]
    assert sample.reference is not None
    wanted = sample.reference(*(x.astype(np.float64) for x in inputs), **sample.attrs)
    outs = [cupy.full(x.shape, 7, KINDS[dtype]) for x in wanted]
    return outs, [cupy.asarray(x) for x in inputs], list(wanted)


def _multiply(sample: Sample, outs: list[Any], ins: list[Any]) -> bool:
    attrs = {"transpose_a": False, "transpose_b": False, "scale": 1.0, **sample.attrs}
    turned = attrs["transpose_a"], attrs["transpose_b"]
    return product_with_epilogue(
        outs[0], [*outs[1:], *ins], turned, attrs["scale"], attrs["epilogue"]
    )


def _check(outs: list[Any], wanted: list[Any], dtype: str) -> None:
    for got, exact in zip(outs, wanted, strict=True):
        close = TOLERANCE[dtype] * max(1.0, np.abs(exact).max())
        np.testing.assert_allclose(cupy.asnumpy(got).astype(np.float64), exact, atol=close)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("sample", named(PRODUCTS))
def test_the_library_computes_what_numpy_does(sample: Sample, dtype: str) -> None:
    outs, ins, wanted = _operands(sample, dtype)
    assert _multiply(sample, outs, ins)
    _check(outs, wanted, dtype)


@pytest.mark.parametrize("sample", named(PRODUCTS[:5]))
def test_a_recorded_product_reads_what_lies_there(sample: Sample) -> None:
    outs, ins, wanted = _operands(sample, "float32")
    assert _multiply(sample, outs, ins)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        assert _multiply(sample, outs, ins)
        graph = stream.end_capture()
    for x in outs:
        x.fill(0)
    graph.launch()
    _check(outs, wanted, "float32")


def test_gaps_between_rows_are_read_as_they_lie() -> None:
    rng = np.random.default_rng(0)
    whole, w = (rng.standard_normal(s).astype(np.float32) for s in ((8, 48), (32, 16)))
    x, out = cupy.asarray(whole)[:, 16:32], cupy.empty((8, 32), np.float32)
    bias = cupy.arange(32, dtype=np.float32)
    pool = cupy.get_default_memory_pool()
    arrays = [x, cupy.asarray(w), bias]
    assert product_with_epilogue(out, arrays, (False, True), 1.0, ("bias",))
    used = pool.used_bytes()
    assert product_with_epilogue(out, arrays, (False, True), 1.0, ("bias",))
    assert pool.used_bytes() == used
    wanted = whole[:, 16:32] @ w.T + np.arange(32)
    np.testing.assert_allclose(out.get(), wanted, rtol=1e-5, atol=1e-5)


def test_a_row_that_stands_for_many_is_no_matrix() -> None:
    w, row = cupy.ones((8, 16), np.float32), cupy.arange(16, dtype=np.float32)
    x, out = cupy.broadcast_to(row, (4, 16)), cupy.zeros((4, 8), np.float32)
    bias = cupy.ones(8, np.float32)
    assert not product_with_epilogue(out, [x, w, bias], (False, True), 1.0, ("bias",))
    linear = flow.nn.functional.linear
    made = linear(*(flow.tensor(a.get(), device="cuda") for a in (x, w, bias)))
    np.testing.assert_array_equal(made.numpy(), np.full((4, 8), 121, np.float32))


def test_a_bias_may_lie_anywhere() -> None:
    rng = np.random.default_rng(5)
    x, w, whole = (rng.standard_normal(s).astype(np.float32) for s in ((4, 16), (8, 16), (11,)))
    out, bias = cupy.zeros((4, 8), np.float32), cupy.asarray(whole)[3:]
    arrays = [cupy.asarray(x), cupy.asarray(w), bias]
    assert product_with_epilogue(out, arrays, (False, True), 1.0, ("bias",))
    np.testing.assert_allclose(out.get(), x @ w.T + whole[3:], rtol=1e-5, atol=1e-5)


def test_products_over_nothing_are_their_bias() -> None:
    x, weight = (flow.zeros(n, 0, device="cuda", requires_grad=True) for n in (3, 7))
    bias = flow.arange(7, device="cuda", dtype=flow.float32).requires_grad_()
    out = flow.nn.functional.linear(x, weight, bias)
    out.sum().backward()
    np.testing.assert_array_equal(out.numpy(), np.tile(np.arange(7.0), (3, 1)))
    np.testing.assert_array_equal(bias.grad.numpy(), np.full(7, 3.0))
    assert x.grad.shape == (3, 0) and weight.grad.shape == (7, 0)


def test_what_the_library_cannot_do_is_left_to_others() -> None:
    """GELU keeps its input in columns of a multiple of 8 numbers."""
    x, w = cupy.ones((4, 16), np.float32), cupy.ones((7, 16), np.float32)
    outs = [cupy.zeros((4, 7), np.float32) for _ in range(2)]
    assert not product_with_epilogue(
        outs[0], [outs[1], x, w], (False, True), 1.0, ("gelu", "saved")
    )
    assert not outs[0].any()


@pytest.mark.parametrize(
    ("left", "right", "dtype"),
    [
        ("float8_e4m3fn", "float8_e4m3fn", "bfloat16"),
        ("float8_e5m2", "float8_e4m3fn", "bfloat16"),
        ("float8_e4m3fn", "float8_e4m3fn", "float8_e4m3fn"),
    ],
)
def test_eight_bits_with_scales(left: str, right: str, dtype: str) -> None:
    """Numbers of 8 bits times their scales: w (n, k) and x (m, k), with the depth in one piece."""
    if int(cupy.cuda.Device().compute_capability) < 89:
        pytest.skip("needs a GPU with products of 8 bits")
    rng = np.random.default_rng(1)
    kinds = [getattr(ml_dtypes, name) for name in (left, right, dtype)]
    w, x = (
        rng.standard_normal((32, 16)).astype(kinds[0]),
        rng.standard_normal((48, 16)).astype(kinds[1]),
    )
    bias = cupy.asarray(np.arange(32).astype(ml_dtypes.bfloat16))
    sides = [cupy.asarray(a.view(np.uint8)) for a in (w, x)]
    is_small = dtype != "bfloat16"
    scales = [cupy.asarray(np.float32(s)) for s in (0.5, 4.0, 0.25)]
    out, largest = (
        cupy.zeros(48 * 32 * (1 if is_small else 2), np.uint8),
        cupy.zeros((), np.float32),
    )
    request = Request(
        Matrix(left, 16, 32, 16), Matrix(right, 16, 48, 16), Matrix(dtype, 32, 48, 32),
        turns_left=True, epilogue=cublas_lt.BIAS, is_scaled=True,
    )  # fmt: skip
    plan = cublas_lt.plan(request)
    assert plan is not None
    places = (address(scales[0]), address(scales[1]), 0, address(scales[2]) if is_small else 0)
    ins = address(sides[0]), address(sides[1]), address(out), address(bias)
    at = Addresses(*ins, scales=places, largest=address(largest) if is_small else 0)
    plan.run(at, cupy.cuda.get_current_stream().ptr)
    exact = 2.0 * x.astype(np.float64) @ w.astype(np.float64).T + np.arange(32)
    got = out.get().view(kinds[2]).reshape(48, 32).astype(np.float64)
    unscaled = got / (0.25 if is_small else 1.0)
    close = 0.07 if is_small else 0.01
    np.testing.assert_allclose(unscaled, exact, rtol=close, atol=close)
    if is_small:
        np.testing.assert_allclose(largest.get(), np.abs(exact).max(), rtol=1e-5)


def _trained(device: str, dtype: Any) -> tuple[list[Any], list[str]]:
    """Losses and weights of a few steps, and how its products were computed."""
    flow.manual_seed(4)
    up, down = flow.nn.Linear(32, 64), flow.nn.Linear(64, 32)
    model = flow.nn.ModuleList([up, down]).to(device).to(dtype)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.05)

    class Step(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x: Any) -> Any:
            up, down = self.model
            z = x + down(flow.nn.functional.gelu(up(x), approximate="tanh"))
            loss = z.float().square().mean()
            loss.backward()
            return loss

    step, rng = Step(), np.random.default_rng(3)
    made = []
    for _ in range(4):
        x = rng.standard_normal((2, 8, 32)).astype(np.float32)
        made.append(float(step(flow.tensor(x, device=device).to(dtype)).numpy()))
    assert step._spec.plans.now is not None
    segments = step._spec.plans.now.job.bound.memory.segments.values()
    weights = [p.float().numpy() for p in model.parameters()]
    return [np.array(made), *weights], [f.path for s in segments for f in s.facts if f.path]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 3e-2)])
def test_graphs_train_as_on_the_cpu(dtype: str, tolerance: float) -> None:
    kind = getattr(flow, dtype)
    on_gpu, paths = _trained("cuda", kind)
    on_cpu, none = _trained("cpu", kind)
    assert len(paths) == 4 and not none  # up, down, gelu's gradient, down's weight with its bias
    for one, other in zip(on_gpu, on_cpu, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
