"""Names that scripts read or set, and the truth that they get."""

from __future__ import annotations

import math

import pytest

import oneflow as flow
from oneflow.core.errors import DeviceError
from oneflow.core.no_effect import NoEffectWarning


def test_tensors_are_strided_whatever_format_is_asked_for() -> None:
    x = flow.ones(2, 3, 4, 4)
    assert x.layout is flow.strided and repr(flow.channels_last) == "oneflow.channels_last"
    y = x.to(memory_format=flow.channels_last).contiguous(memory_format=flow.contiguous_format)
    assert flow.equal(x, y)
    assert flow.float32 in flow.dtypes() and flow.tensor_buffer not in flow.dtypes()
    assert flow.ComplexFloatTensor.dtype is flow.complex64


def test_buffers_hold_tensors_of_several_shapes() -> None:
    buffer = flow.gen_tensor_buffer((2,), [(3,), (2, 2)], [1.0, 2.0], flow.float32)
    assert buffer.dtype is flow.tensor_buffer and buffer.shape == (2,)
    first, second = flow.tensor_buffer_to_list_of_tensors(buffer, [(3,), (2, 2)], flow.float32)
    assert first.tolist() == [1, 1, 1] and second.tolist() == [[2, 2], [2, 2]]
    x = flow.arange(24).reshape(2, 3, 4)
    rows = flow.tensor_to_tensor_buffer(x, 1)
    assert rows.shape == (2, 3) and rows.parts[4].tolist() == [16, 17, 18, 19]
    assert flow.equal(flow.tensor_buffer_to_tensor(rows, flow.int64, (4,)), x)
    with pytest.raises(ValueError, match="wanted"):
        flow.tensor_buffer_to_tensor(buffer, flow.float32, (3,))
    with pytest.raises(ValueError, match="last dims"):
        flow.tensor_to_tensor_buffer(x, 4)


def test_questions_about_gpus_without_one() -> None:
    if flow.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    assert flow.cuda.default_generators == () and flow.cuda.get_rng_state_all() == []
    state = flow.cuda.get_rng_state()
    drawn = flow.rand(3)
    flow.cuda.set_rng_state(state)
    assert flow.equal(flow.rand(3), drawn)
    flow.cuda.random.set_rng_state_all([state])
    assert flow.equal(flow.rand(3), drawn)
    for ask in (flow.cuda.get_device_properties, flow.cuda.get_device_capability):
        with pytest.raises(DeviceError):
            ask()


def test_modules_and_optimizers_answer_by_upstreams_names() -> None:
    layer = flow.nn.Linear(2, 3)
    seen = []
    layer.register_backward_hook(lambda module, given, out: seen.append(len(out)))
    layer(flow.ones(1, 2, requires_grad=True)).sum().backward()
    assert seen == [1]
    assert layer.to_memory_format(flow.channels_last) is layer
    assert layer.to_empty(device="cpu").weight.shape == (3, 2)
    assert isinstance(layer.weight, flow.nn.Parameter)
    with pytest.raises(RuntimeError, match="to_global instead"):
        layer.to_consistent()
    with pytest.warns(NoEffectWarning):
        layer.make_contiguous_params_group()
    assert not flow.optim.SGD(layer.parameters(), lr=0.1).support_sparse
    assert flow.script is flow.jit.script and not flow.is_scripting()


def test_libraries_of_ops_cannot_be_loaded() -> None:
    with pytest.raises(OSError, match=r"x\.so: ops in C\+\+ libraries cannot be loaded"):
        flow.utils.load_library("x.so")


def test_numbers_have_names() -> None:
    assert (flow.pi, flow.e, flow.inf) == (math.pi, math.e, math.inf)
    assert math.isnan(flow.nan)
    assert flow.tensor(2.0) * flow.pi == flow.tensor(2 * math.pi)
