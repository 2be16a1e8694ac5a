"""Keywords and positional orders of upstream's functions, beside PyTorch's."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
import oneflow.nn.functional as F
from tests.parity.values import compare, to_flow

_OF_ONE = """
abs exp exp2 acos atanh sign sinh tan log log2 log10 sigmoid tanh log1p floor frac negative
neg reciprocal sin asin asinh atan ceil cos cosh erf erfc expm1 flatten rsqrt sqrt square round tril
triu relu diag diagonal unbind squeeze sum mean prod std var argmax argmin all any selu logit
"""
_OF_LAYERS = """
relu hardtanh hardshrink hardswish elu celu selu sigmoid softshrink gelu logsigmoid softsign
softplus tanh silu mish quick_gelu square_relu rrelu leaky_relu
"""
OF_ONE, OF_LAYERS = _OF_ONE.split(), _OF_LAYERS.split()


def test_the_tensor_may_be_called_x(rng: np.random.Generator) -> None:
    x = flow.tensor(rng.uniform(0.1, 0.9, (3, 3)).astype(np.float32))
    for name in OF_ONE:
        function = getattr(flow, name)
        mine, wanted = function(**{"input" if name == "logit" else "x": x}), function(x)
        both = zip(mine, wanted, strict=True) if isinstance(wanted, tuple) else [(mine, wanted)]
        assert all(flow.equal(a, b) for a, b in both), name
    for name in OF_LAYERS:
        assert flow.equal(getattr(F, name)(x=x), getattr(F, name)(x)), name
    for name in ("softmax", "log_softmax", "logsumexp", "chunk"):
        dim = {"chunks": 3} if name == "chunk" else {"dim": 0}
        found = getattr(flow, name)(x=x, **dim)
        assert len(found) == 3 or found.shape in ((3,), (3, 3))
    for name in ("cat", "concat", "stack"):
        assert flow.equal(getattr(flow, name)(inputs=[x, x]), getattr(flow, name)([x, x]))
    with pytest.raises(TypeError, match="input"):
        flow.exp()
    with pytest.raises(TypeError):
        flow.exp(x, y=x)


CALLS: list[tuple[Any, Any]] = [
    (lambda x: flow.zeros_like(x, flow.int32).dtype, "int32"),
    (lambda x: flow.ones_like(x, flow.int64).dtype, "int64"),
    (lambda x: flow.full((2,), 3, flow.int64).dtype, "int64"),
    (lambda x: flow.arange(0, 5, 2, flow.float32).tolist(), [0, 2, 4]),
    (lambda x: flow.linspace(0, 1, 3, flow.float64).dtype, "float64"),
    (lambda x: flow.arange(end=3).tolist(), [0, 1, 2]),
    (lambda x: flow.randint(high=1, size=(2,)).tolist(), [0, 0]),
    (lambda x: flow.randint_like(x, high=1).tolist(), [[0, 0], [0, 0]]),
    (lambda x: x.cumsum(0, flow.float64).dtype, "float64"),
    (lambda x: flow.argwhere(x > 3, dtype=flow.int32).dtype, "int32"),
    (lambda x: flow.allclose(x, x + 0.1, 0.2, 0.0), True),
    (lambda x: flow.allclose(x, x + 0.1, 0.0, 0.001), False),
    (lambda x: x.allclose(other=x + 0.1, atol=0.2), True),
    (lambda x: (x > 2).where(x, -1.0).tolist(), [[-1, -1], [3, 4]]),
    (lambda x: x.where(x > 2, flow.zeros(2, 2)).tolist(), [[0, 0], [3, 4]]),
    (lambda x: (x > 2).where(x=x, y=-x).tolist(), [[-1, -2], [3, 4]]),
    (lambda x: flow.bmm(a=x[None], b=x[None], transpose_b=True)[0].tolist(), [[5, 11], [11, 25]]),
    (lambda x: x[None].bmm(x[None], alpha=2.0)[0].tolist(), [[14, 20], [30, 44]]),
    (lambda x: flow.gather_nd(params=x, indices=flow.tensor([[1, 0]])).tolist(), [3]),
    (lambda x: flow.batch_gather(**{"in": x, "indices": flow.tensor([[1], [0]])}).shape, (2, 1)),
    (lambda x: F.leaky_relu(-x, alpha=0.5).tolist(), [[-0.5, -1], [-1.5, -2]]),
    (lambda x: F.normalize(x, use_l2_norm_kernel=False).shape, (2, 2)),
    (lambda x: F.smooth_l1_loss(x, x + 4, 2.0, "sum").item(), 12.0),
    (lambda x: x.copy_(other=x * 2).tolist(), [[2, 4], [6, 8]]),
    (lambda x: flow.linalg.norm(self=x[0]).item() ** 2, pytest.approx(5)),
    (lambda x: flow.linalg.vector_norm(input=x[0]).item() ** 2, pytest.approx(5)),
    (lambda x: flow.quantile(x, 0.5, None, False, "lower").item(), 2.0),
    (lambda x: flow.atleast_3d(tensors=x[0]).shape, (1, 2, 1)),
    (lambda x: [y.shape for y in flow.atleast_2d(tensors=[x[0], x])], [(1, 2), (2, 2)]),
    (lambda x: x.numpy(np.float64).dtype, np.float64),
    (lambda x: flow.nn.Dropout(1.0)(x, addend=-x).tolist(), [[-1, -2], [-3, -4]]),
    (lambda x: flow.optim.Optimizer(parameters=[x], options={"a": 3}).param_groups[0]["a"], 3),
    (lambda x: flow.bincount(flow.tensor([0, 1]), x[0]).dtype, "float32"),
    (lambda x: flow.distributed.get_rank(group=None), 0),
    (lambda x: flow.distributed.get_world_size(None), 1),
    (lambda x: flow.env.all_device_placement(device_type="cpu").type, "cpu"),
    (lambda x: flow.convert_oneflow_dtype_to_numpy_dtype(oneflow_dtype=flow.int8), np.int8),
]


@pytest.mark.parametrize("call", range(len(CALLS)))
def test_calls_of_upstream(call: int) -> None:
    run, wanted = CALLS[call]
    found = run(flow.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert (found.name if isinstance(found, flow.dtype) else found) == wanted


def test_labels_come_first(rng: np.random.Generator) -> None:
    logits, labels = torch.from_numpy(rng.normal(size=(4, 3))), torch.tensor([0, 2, 1, 1])
    wanted = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    x, t = to_flow([logits, labels])
    for found in (
        F.sparse_softmax_cross_entropy(t, x),
        F.sparse_softmax_cross_entropy(labels=t, logits=x),
        flow._C.sparse_softmax_cross_entropy(x, t),
    ):
        compare(wanted, found)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_channels_may_come_last(rng: np.random.Generator, dims: int) -> None:
    x = torch.from_numpy(rng.normal(size=(2, 3, *(6,) * dims)).astype(np.float32))
    w = torch.from_numpy(rng.normal(size=(4, 3, *(3,) * dims)).astype(np.float32))
    last = to_flow(x.movedim(1, -1))

    def same(name: str, *args: Any, **keywords: Any) -> None:
        wanted = getattr(torch.nn.functional, f"{name}{dims}d")(x, *args)
        ours = getattr(F, f"{name}{dims}d")
        compare(wanted, ours(to_flow(x), *to_flow(list(args)), data_format="channels_first"))
        turned = [a.movedim(1, -1) if isinstance(a, torch.Tensor) else a for a in args]
        found = (
            ours(x=last, **keywords, data_format="channels_last")
            if keywords
            else ours(last, *to_flow(turned), data_format="channels_last")
        )
        compare(wanted.movedim(1, -1), found)

    same("max_pool", 2)
    same("avg_pool", 2, kernel_size=2)
    same("adaptive_avg_pool", 3)
    same("conv", w)
    layer = getattr(flow.nn, f"MaxPool{dims}d")
    wanted = getattr(torch.nn, f"MaxPool{dims}d")(2)(x).movedim(1, -1)
    compare(wanted, layer(2, data_format="channels_last")(last))
    pool = getattr(flow.nn, f"AdaptiveAvgPool{dims}d")
    assert pool(1, data_format="channels_last")(last).shape == (2, *(1,) * dims, 3)
    with pytest.raises(ValueError, match="channels_first"):
        getattr(F, f"max_pool{dims}d")(last, 2, data_format="NHWC")


@pytest.mark.parametrize("ndim", [1, 2, 5, 6])
def test_channels_of_other_dims_are_dropped_whole(ndim: int) -> None:
    x = flow.ones((4,) * ndim)
    out = F.dropout2d(x, 0.5).numpy().reshape(4, 4 if ndim > 1 else 1, -1)
    assert set(out.ravel()) <= {0.0, 2.0} and (out == out[..., :1]).all()


def test_other_algorithms_are_asked_for_in_vain() -> None:
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        flow.use_deterministic_algorithms(False)
    assert not flow.are_deterministic_algorithms_enabled()
    try:
        flow.use_deterministic_algorithms(True)
        assert flow.are_deterministic_algorithms_enabled()
        assert not flow.is_deterministic_algorithms_warn_only_enabled()
        flow.use_deterministic_algorithms(True, warn_only=True)
        assert flow.is_deterministic_algorithms_warn_only_enabled()
    finally:
        flow.use_deterministic_algorithms(False)


def test_settings_take_upstreams_keywords() -> None:
    flow.boxing.enable_fusion(val=True)
    flow.boxing.nccl.allow_fuse_all_reduce(mode=True)
    flow.boxing.nccl.set_fusion_max_ops_num(val=1000)
    with pytest.raises(TypeError, match="one thing"):
        flow.boxing.nccl.allow_fuse_all_reduce(enabled=True, mode=True)
    config = flow.nn.graph.GraphConfig()
    config.enable_compress_memory(mode=False)
    assert config.compress_memory is False
    with flow.set_grad_enabled(is_train=False):
        assert not flow.is_grad_enabled()
    out, given = flow.zeros(2), flow.ones(2)
    flow.comm.all_gather_into_tensor(output_tensor=out, input_tensor=given)
    assert out.tolist() == [1, 1]
    found = flow.autograd.functional.jacobian(lambda x: x * 2, given, strategy="reverse-mode")
    assert found.tolist() == [[2, 0], [0, 2]]
    assert flow.utils.global_view.to_local(input=[given])[0] is given


def test_pixels_are_shuffled_by_two_factors(rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 6, 3, 4))
    layer = flow.nn.PixelShuffle(h_upscale_factor=2, w_upscale_factor=3)
    out = layer(flow.tensor(x)).numpy()
    assert out.shape == (2, 1, 6, 12)
    for row in range(6):
        for column in range(12):
            channel = (row % 2) * 3 + column % 3
            assert (out[:, 0, row, column] == x[:, channel, row // 2, column // 3]).all()
    with pytest.raises(ValueError, match="larger than zero"):
        flow.nn.PixelShuffle()


def test_keywords_of_saving_and_of_switches(tmp_path: Path) -> None:
    file = tmp_path / "f"
    flow.save(obj={"a": 1}, f=file, pickle_protocol=4, _use_new_zipfile_serialization=False)
    assert flow.load(f=file) == {"a": 1}
    flow.set_default_dtype(d=flow.float32)
    flow.set_rng_state(new_state=flow.get_rng_state())
    x = flow.arange(16.0).reshape(2, 4, 2)
    wanted = flow.nn.functional.group_norm(x, 2)
    assert (flow.nn.functional.group_norm(x, 2, num_channels=4) == wanted).all()


def test_unflatten_takes_its_sizes_by_both_names() -> None:
    x = flow.arange(12).reshape(2, 6)
    wanted = torch.arange(12).reshape(2, 6).unflatten(1, (3, -1)).tolist()
    for found in (
        x.unflatten(1, (3, -1)),
        x.unflatten(1, sizes=(3, -1)),
        x.unflatten(1, shape=(3, -1)),
        flow.unflatten(x, 1, (3, -1)),
        flow.unflatten(x, dim=-1, shape=(3, -1)),
    ):
        assert found.tolist() == wanted
    with pytest.raises(TypeError, match="more than once"):
        x.unflatten(1, (3, -1), shape=(3, 2))
    with pytest.raises(TypeError, match="needs the sizes"):
        x.unflatten(1)
