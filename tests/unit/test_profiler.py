"""`flow.profiler`: the ops and blocks that it saw, and files of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import oneflow as flow
from oneflow.profiler import ProfilerActivity, profile, record_function


def test_each_op_of_the_block_is_an_event() -> None:
    x = flow.ones(2, 3)
    flow.exp(x)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, record_attrs=True) as prof:
        with record_function("block"):
            y = flow.matmul(x, flow.ones(3, 4))
        flow.exp(y)
        flow.exp(y[:1])
    flow.exp(x)
    names = [e.name for e in prof.events()]
    assert names.index("block") < names.index("matmul") < names.index("exp")
    assert names.count("exp") == 2
    product = next(e for e in prof.events() if e.name == "matmul")
    assert product.input_shapes == ((2, 3), (3, 4)) and product.cpu_time > 0
    together = {e.name: e for e in prof.key_averages()}
    assert together["exp"].count == 2 and not together["block"].is_op
    assert together["block"].cpu_time_total >= product.cpu_time_total
    apart = [e for e in prof.key_averages(group_by_input_shape=True) if e.name == "exp"]
    assert [e.input_shapes for e in apart] == [((2, 4),), ((1, 4),)]
    assert "matmul" in prof.key_averages().table(sort_by="cpu_time_total")
    assert prof.events().total_average().count == sum(e.is_op for e in prof.events())


def test_values_and_gradients_are_as_without() -> None:
    x = flow.tensor([1.0, 2.0], requires_grad=True)
    with flow.autograd.profiler.profile() as prof:
        y = (x * x).sum()
        y.backward()
        z = flow.zeros(2, device="cpu")
        z += 1
    assert x.grad.tolist() == [2, 4] and z.tolist() == [1, 1]
    assert len(prof.events()) >= 3


def test_traces_are_written(tmp_path: Path) -> None:
    handler = flow.profiler.tensorboard_trace_handler(tmp_path, "rank0")
    with flow.profiler.profile(on_trace_ready=handler):
        flow.profiler.range_push("outer")
        flow.ones(2)
        flow.profiler.range_pop()
    (file,) = tmp_path.glob("rank0.*.json")
    rows = json.loads(file.read_text())["traceEvents"]
    assert any(row["name"] == "outer" and row["ph"] == "X" and row["dur"] >= 0 for row in rows)
    with pytest.raises(IndexError):
        flow.profiler.range_pop()


def test_a_function_may_be_a_block_and_a_profiler_may_be_off() -> None:
    @record_function("named")
    def double(x: flow.Tensor) -> flow.Tensor:
        return x * 2

    with profile() as prof, profile(enabled=False) as off:
        assert double(flow.ones(1)).tolist() == [2]
    assert "named" in [e.name for e in prof.events()]
    assert not off.events()
    assert not flow.profiler.kineto_available()
