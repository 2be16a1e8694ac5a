"""Calls that PyTorch, or upstream, refuses: refused here too, as a RuntimeError in their words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import oneflow as flow

Call = Callable[[Any], Any]

BOTH: dict[str, Call] = {
    "The size of tensor a": lambda f: f.broadcast_tensors(f.ones(2, 3), f.ones(4, 3)),
    "Shape mismatch: objects cannot be broadcast to a single shape": lambda f: f.broadcast_shapes(
        (2,), (3, 3)
    ),
    "must match the size of tensor b": lambda f: f.nn.functional.cosine_similarity(
        f.ones(2, 5), f.ones(2, 4)
    ),
    "repeats must have the same size as input along dim": lambda f: f.repeat_interleave(
        f.ones(2, 2), f.tensor([1, 2, 3]), dim=1
    ),
    "repeats has to be Long or Int tensor": lambda f: f.repeat_interleave(
        f.ones(2), f.tensor([1.0, 2.0])
    ),
    "repeats must be 0-dim or 1-dim tensor": lambda f: f.repeat_interleave(
        f.ones(2), f.ones(2, 2, dtype=f.int64)
    ),
    "repeats can not be negative": lambda f: f.repeat_interleave(f.ones(2), f.tensor([-1, 2])),
    "allocated size does not match required size": lambda f: f.repeat_interleave(
        f.ones(2), f.tensor([1, 2]), output_size=5
    ),
    "chunk expects at least a 1-dimensional tensor": lambda f: f.chunk(f.tensor(5.0), 1, 0),
    "split expects at least a 1-dimensional tensor": lambda f: f.split(f.tensor(5.0), 1, 0),
    "split expects split_size be non-negative, but got split_size=-1": lambda f: f.split(
        f.ones(4), -1
    ),
    "chunk expects `chunks` to be greater than 0, got: 0": lambda f: f.chunk(f.ones(4), 0),
    "glu does not support scalars because halving size must be even": lambda f: f.nn.functional.glu(
        f.tensor(5.0)
    ),
    "Halving dimension must be even, but dimension 1 is size 3": lambda f: f.nn.functional.glu(
        f.ones(2, 3), 1
    ),
    "meshgrid expects all tensors to have the same dtype": lambda f: f.meshgrid(
        f.ones(2), f.ones(2, dtype=f.float16), indexing="ij"
    ),
    "Expected 0D or 1D tensor in the tensor list but got": lambda f: f.meshgrid(
        f.ones(1, 2, 3), f.ones(2), indexing="ij"
    ),
    "expected both vectors to have same dtype": lambda f: f.dot(f.tensor([2, 3]), f.ones(2)),
    "expected common dtype to be floating point": lambda f: f.nn.functional.cosine_similarity(
        f.ones(2, 5, dtype=f.int32), f.ones(2, 5, dtype=f.int32)
    ),
    "does not support negative values for beta": lambda f: f.nn.SmoothL1Loss(beta=-1.0)(
        f.ones(2), f.zeros(2)
    ),
    "tensordot expects dims >= 0, but got dims=-1": lambda f: f.tensordot(
        f.ones(2, 2), f.ones(2, 2), dims=-1
    ),
    "both dimension lists should have same length": lambda f: f.tensordot(
        f.ones(2, 2), f.ones(2, 2), dims=([0, 1], [0])
    ),
    "contracted dimensions need to match": lambda f: f.tensordot(
        f.ones(2, 3), f.ones(2, 3), dims=([1], [0])
    ),
    "appears multiple times in the list of dims": lambda f: f.tensordot(
        f.ones(2, 2), f.ones(2, 2), dims=([0, 0], [0, 1])
    ),
    "Index tensor must have the same number of dimensions as input tensor": lambda f: f.gather(
        f.ones(2, 2), 0, f.tensor([0])
    ),
    "Size does not match at dimension 0": lambda f: f.gather(
        f.ones(2, 2), 1, f.zeros(3, 1, dtype=f.int64)
    ),
    "pixel_shuffle expects a positive upscale_factor": lambda f: f.nn.functional.pixel_shuffle(
        f.ones(1, 4, 1, 1), 0
    ),
    "divisible by the square of upscale_factor": lambda f: f.nn.functional.pixel_shuffle(
        f.ones(1, 3, 1, 1), 2
    ),
    "pixel_shuffle expects input to have at least 3 dimensions": lambda f: (
        f.nn.functional.pixel_shuffle(f.ones(4, 4), 2)
    ),
    "more than one element of the written-to tensor refers to a single memory location": (
        lambda f: f.ones(1, 2).expand(3, 2).add_(1)
    ),
    "Dimension specified as 0 but tensor has no dimensions": lambda f: f.unbind(f.tensor(1.0)),
    "select() cannot be applied to a 0-dim tensor": lambda f: f.tensor(1.0).select(0, 0),
}

OTHER_WORDS = {
    "The size of tensor a",
    "Shape mismatch: objects cannot be broadcast to a single shape",
    "must match the size of tensor b",
    "repeats has to be Long or Int tensor",
}
"""Words that PyTorch has for the same mistake in other calls, or on other devices."""

C = flow._C
F32, F64 = flow.ones(2, 3), flow.ones(2, 3, dtype=flow.float64)
SCORES = flow.tensor([[0.0, 1.0, 2.0, 3.0], [3.0, 2.0, 1.0, 0.0]])

UPSTREAM: dict[str, Callable[[], Any]] = {
    "meshgrid of none": lambda: flow.meshgrid(indexing="ij"),
    "meshgrid of local and global": lambda: flow.meshgrid(
        flow.ones(2),
        flow.ones(2).to_global(flow.placement("cpu", [0]), flow.sbp.broadcast),
        indexing="ij",
    ),
    "in_top_k, a target for two rows": lambda: flow.in_top_k(flow.tensor([3]), SCORES, k=1),
    "in_top_k, targets of two dims": lambda: flow.in_top_k(flow.tensor([[3, 1]]), SCORES, k=1),
    "batch_gather of other rows": lambda: flow.batch_gather(
        flow.ones(4, 5), flow.tensor([[1, 2]] * 3)
    ),
    "deform_conv2d of 3 dims": lambda: flow.nn.functional.deform_conv2d(
        flow.ones(2, 5, 1), flow.ones(2, 5, 1, 1), flow.ones(2, 5, 1, 1)
    ),
    "deform_conv2d, weight of 3 dims": lambda: flow.nn.functional.deform_conv2d(
        flow.ones(2, 5, 1, 1), flow.ones(2, 3, 1, 1), flow.ones(2, 5, 5)
    ),
    "deform_conv2d of stride 0": lambda: flow.nn.functional.deform_conv2d(
        flow.ones(1, 3, 10, 10), flow.ones(1, 18, 8, 8), flow.ones(5, 3, 3, 3), stride=(1, 0)
    ),
    "split_like axis": lambda: C.split_like(flow.ones(4), [flow.ones(2), flow.ones(2)], 3),
    "split_like ranks": lambda: C.split_like(flow.ones(4, 4), [flow.ones(2, 4), flow.ones(2)], 0),
    "split_like sizes": lambda: C.split_like(flow.ones(4, 4), [flow.ones(2, 3)] * 2, 0),
    "slice_update sizes": lambda: C.slice_update(
        flow.ones(2), flow.ones(2), [0, 0], [1, 1], [1, 1]
    ),
    "slice, start after stop": lambda: C.slice(flow.ones(5), [3], [1], [1]),
    "slice, negative start": lambda: C.slice(flow.ones(5), [-2], [4], [1]),
    "fused_mlp lists": lambda: C.fused_mlp(flow.ones(2, 4), [flow.ones(4, 4)], [], False),
    "normalization of 1 dim": lambda: C.normalization(
        flow.ones(1), None, None, flow.ones(4), flow.ones(4), 1, 1e-5, 0.9, True
    ),
    "softmax_cross_entropy dtypes": lambda: C.softmax_cross_entropy(F32, F64),
    "softmax_cross_entropy of 1 dim": lambda: C.softmax_cross_entropy(flow.ones(3), flow.ones(3)),
    "softmax_cross_entropy_grad dtypes": lambda: C.softmax_cross_entropy_grad(
        flow.ones(2), F32, F64
    ),
    "reduce_sum_like dtypes": lambda: C.reduce_sum_like(F64, flow.ones(2, 1), axis=(1,)),
    "arg_sort direction": lambda: C.arg_sort(flow.ones(3), "UP"),
}


@pytest.mark.parametrize("words", BOTH)
def test_refused_as_in_torch(words: str) -> None:
    with pytest.raises((RuntimeError, IndexError)) as theirs:
        BOTH[words](torch)
    with pytest.raises(RuntimeError) as ours:
        BOTH[words](flow)
    assert words in str(ours.value)
    if words not in OTHER_WORDS:
        assert words in str(theirs.value)


@pytest.mark.parametrize("name", UPSTREAM)
def test_refused_as_upstream(name: str) -> None:
    with pytest.raises(RuntimeError):
        UPSTREAM[name]()


def test_an_index_of_no_dims_is_one_of_a_vector() -> None:
    x = flow.tensor([1.0, 2.0, 3.0], requires_grad=True)
    picked = flow.gather(x, 0, flow.tensor(2))
    picked.backward()
    assert picked.shape == () and picked.item() == 3.0
    assert x.grad is not None and x.grad.tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "dims", [flow.tensor([2]), flow.tensor(2), 2, flow.tensor([[1, 2], [0, 1]])]
)
def test_dims_of_tensordot_may_be_a_tensor(dims: Any) -> None:
    a = flow.arange(24.0).reshape(2, 3, 4)
    b = flow.arange(24.0).reshape(3, 4, 2)
    want = torch.tensordot(torch.tensor(a.numpy()), torch.tensor(b.numpy()), 2)
    assert flow.tensordot(a, b, dims=dims).tolist() == want.tolist()


def test_positions_of_upstreams_functions() -> None:
    assert C.fused_scale_tril(flow.ones(2, 2), 0, 0, 2.0).tolist() == [[2.0, 0.0], [2.0, 2.0]]
    made = C.group_norm(flow.ones(2, 4, 2), flow.ones(4), flow.zeros(4), True, 2, 1e-5)
    assert made.shape == (2, 4, 2)
    assert C.pixel_shuffle(flow.ones(1, 8, 4, 4), 2, 4).shape == (1, 1, 8, 16)
    assert C.arg_sort(flow.tensor([1, 3, 2]), "DESCENDING").tolist() == [1, 2, 0]


# ---- half floats ---------------------------------------------------------------------------------

COMPOSED: dict[str, Callable[[Any, Any], Any]] = {
    "addcmul": lambda x, y: flow.addcmul(x, y, x),
    "addcdiv": lambda x, y: flow.addcdiv(x, y, x),
    "lerp": lambda x, y: flow.lerp(x, y, 0.3),
    "lerp by a tensor": lambda x, y: flow.lerp(x, y, x),
    "sinc": lambda x, y: flow.sinc(x),
    "logaddexp": lambda x, y: flow.logaddexp(x, y),
    "logaddexp2": lambda x, y: flow.logaddexp2(x, y),
    "glu": lambda x, y: flow.nn.functional.glu(x),
    "deg2rad": lambda x, y: flow.deg2rad(x),
    "rad2deg": lambda x, y: flow.rad2deg(x),
    "igamma": lambda x, y: flow.igamma(x, y),
    "igammac": lambda x, y: flow.igammac(x, y),
}


@pytest.mark.parametrize("dtype", [flow.bfloat16, flow.float16])
@pytest.mark.parametrize("name", COMPOSED)
def test_compositions_of_half_floats_are_rounded_once(name: str, dtype: Any, rng: Any) -> None:
    x = flow.tensor(rng.uniform(0.1, 1.5, (2, 64))).to(dtype)
    y = x.flip(-1)
    exact = COMPOSED[name](x.double(), y.double()).to(dtype)
    got = COMPOSED[name](x, y)
    assert got.dtype is dtype
    assert int((got != exact).sum()) <= 1  # float32 itself may round to the other side
