"""`flow.profiler`: the ops and blocks that it saw, and files of them."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest
import torch

import oneflow as flow
from oneflow.profiler import ProfilerActivity, profile, record_function
from oneflow.services.kernel_sums import Row


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


# ---- modules, lines and work ---------------------------------------------------------------------

LAYERS, ROWS, WIDTH = 3, 6, 8
PRODUCT = 2 * ROWS * WIDTH * WIDTH


class Block(flow.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = flow.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.inner(x).tanh()


@pytest.fixture(scope="module")
def trained() -> tuple[profile, int, int]:
    """A profile of two steps whose backward pass is replayed, its ns, and the number of calls of
    a step that is not.
    """
    model = flow.nn.Sequential(*(Block() for _ in range(LAYERS)))
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
    x = flow.ones(ROWS, WIDTH)

    def step() -> None:
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    with profile() as first:
        step()  # by ops, and then replayed
    for _ in range(2):
        step()
    begin = time.perf_counter_ns()
    with profile() as found:
        for _ in range(2):
            step()
            found.step()
    return found, time.perf_counter_ns() - begin, len([e for e in first.events() if e.is_op])


def rows_of(found: profile, by: str) -> dict[str, Row]:
    return {row.name: row for row in found.sums().of(by)}


def test_kernels_of_replayed_backward_passes_are_counted(
    trained: tuple[profile, int, int],
) -> None:
    found, took, first = trained
    ops = rows_of(found, "op")
    assert ops["linear"].calls == ops["tanh"].calls == ops["tanh_grad"].calls == 2 * LAYERS
    weights, inputs = ops["matmul_weight_grad"], ops["matmul"]
    assert weights.calls == 2 * LAYERS and inputs.calls == 2 * (LAYERS - 1)
    assert (weights.flops, inputs.flops) == (weights.calls * PRODUCT, inputs.calls * PRODUCT)
    assert weights.nbytes == weights.calls * 4 * (2 * ROWS * WIDTH + WIDTH * WIDTH)
    assert ops["sgd_update"].calls == 2 * 2 * LAYERS
    assert len([e for e in found.events() if e.is_op]) == 2 * first
    assert 0 < found.sums().seconds <= took * 1e-9


def test_gradients_belong_to_the_module_and_line_of_their_op(
    trained: tuple[profile, int, int],
) -> None:
    modules, lines = (rows_of(trained[0], by) for by in ("module", "line"))
    inner = [modules[f"Sequential.{i}.inner"] for i in range(LAYERS)]
    bias = 3 * ROWS * WIDTH  # added to the product; summed up for its gradient, twice in a step
    assert inner[1].flops == inner[2].flops and inner[0].flops == inner[1].flops - 2 * PRODUCT
    assert 2 * 3 * PRODUCT < inner[1].flops <= 2 * (3 * PRODUCT + bias)
    own = sum(row.seconds for row in modules.values() if row.name.startswith("Sequential"))
    assert modules["Sequential"].inner_seconds == pytest.approx(own)
    source = Path(__file__).read_text().splitlines()
    forward = 1 + source.index("        return self.inner(x).tanh()")
    assert lines[f"{__file__}:{forward}"].flops > 2 * (3 * LAYERS - 1) * PRODUCT
    text = str(trained[0])
    assert all(f"by {by}" in text for by in ("op", "module", "line"))


def test_a_profile_above_autocast_sees_its_backward_pass() -> None:
    x = flow.ones(4, 4, requires_grad=True)
    with flow.autocast("cpu", dtype=flow.bfloat16), profile() as found:
        (x @ x).sum().backward()
    ops = rows_of(found, "op")
    assert ops["matmul"].calls == 3 and ops["cast"].calls >= 1  # one forward, two for gradients
    assert x.grad is not None and x.grad.tolist() == [[8.0] * 4] * 4


# ---- schedules -----------------------------------------------------------------------------------

SCHEDULES = [
    {"wait": 1, "warmup": 1, "active": 2},
    {"wait": 0, "warmup": 0, "active": 1, "repeat": 2},
    {"wait": 2, "warmup": 1, "active": 3, "repeat": 2, "skip_first": 4},
    {"wait": 2, "warmup": 0, "active": 1, "skip_first": 1, "skip_first_wait": 1},
]


@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")  # PyTorch's
@pytest.mark.parametrize("how", SCHEDULES)
def test_a_schedule_does_in_each_step_what_pytorchs_does(how: dict[str, int]) -> None:
    ours, theirs = flow.profiler.schedule(**how), torch.profiler.schedule(**how)
    for step in range(30):
        assert ours(step).name == theirs(step).name


@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")  # PyTorch's
@pytest.mark.parametrize("how", SCHEDULES)
def test_each_window_is_handed_over_once(how: dict[str, int], tmp_path: Path) -> None:
    """The end of a window's last step gives its steps and nothing else."""
    seen: list[tuple[int, list[str], int]] = []

    def ready(found: profile) -> None:
        events = found.events()
        steps = [e.name for e in events if e.name.startswith("ProfilerStep")]
        seen.append((found.step_num, steps, sum(e.name == "exp" for e in events)))
        flow.profiler.tensorboard_trace_handler(tmp_path, use_gzip=True)(found)

    x, total = flow.ones(2), 11
    with profile(schedule=flow.profiler.schedule(**how), on_trace_ready=ready) as found:
        for _ in range(total):
            flow.exp(x)
            found.step()
    plan = [torch.profiler.schedule(**how)(step).name for step in range(total + 1)]
    windows: list[list[int]] = [[]]
    for step, action in enumerate(plan):
        if action.startswith("RECORD"):
            windows[-1].append(step)
        if action == "RECORD_AND_SAVE":
            windows.append([])
    whole = [w for w in windows if w]
    assert len(seen) == len(list(tmp_path.glob("*.pt.trace.json.gz"))) == len(whole)
    for (_, steps, calls), window in zip(seen, whole, strict=True):
        done = [step for step in window if step < total]
        assert steps == [f"ProfilerStep#{step}" for step in done] and calls == len(done)


def test_a_schedule_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="active must be at least 1, got 0"):
        flow.profiler.schedule(wait=1, warmup=1, active=0)
    with pytest.raises(ValueError, match="wait must be at least 0, got -1"):
        flow.profiler.schedule(wait=-1, warmup=1, active=1)


def test_a_trace_has_the_form_of_pytorchs(tmp_path: Path) -> None:
    with profile(record_shapes=True) as found, record_function("block"):
        flow.matmul(flow.ones(2, 3), flow.ones(3, 4))
    found.export_chrome_trace(tmp_path / "ours.json.gz")
    ours = json.loads(gzip.decompress((tmp_path / "ours.json.gz").read_bytes()))
    # As torch.profiler 2.x writes them; to run it for this takes five seconds.
    assert ours.keys() <= {
        "schemaVersion", "deviceProperties", "displayTimeUnit", "traceEvents", "distributedInfo",
    }  # fmt: skip
    assert ours["schemaVersion"] == 1
    [product] = [e for e in ours["traceEvents"] if e["name"] == "matmul"]
    assert (product["ph"], product["cat"]) == ("X", "cpu_op")
    assert product["args"]["Input Dims"] == [[2, 3], [3, 4]]
    assert product["args"]["flops"] == 2 * 2 * 3 * 4
    [block] = [e for e in ours["traceEvents"] if e["name"] == "block"]
    assert block["cat"] == "user_annotation"
    assert block["ts"] <= product["ts"]
    assert product["ts"] + product["dur"] <= block["ts"] + block["dur"]
