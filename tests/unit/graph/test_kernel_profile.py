"""Profiles by op, module, source line and kernel, against counts worked out by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.graph.profiling import GraphProfile
from oneflow.services.kernel_sums import GROUPS, KernelSums

ROWS, WIDTH, HIDDEN, LAYERS, STEPS = 48, 64, 96, 3, 2
PRODUCT = 2 * ROWS * WIDTH * HIDDEN


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.down(flow.tanh(self.up(x)))


class Train(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.add_optimizer(flow.optim.Adam(self.model.parameters()))

    def build(self, x: flow.Tensor) -> flow.Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> GraphProfile:
    graph = Train()
    found = graph.profile(STEPS, tmp_path_factory.mktemp("trace"))
    x = flow.tensor(np.ones((ROWS, WIDTH), np.float32))
    for _ in range(STEPS + 1):
        graph(x)
    found.close()
    return found


def events_of(profile: GraphProfile) -> list[dict[str, Any]]:
    return list(json.loads(gzip.decompress(profile.path.read_bytes()))["traceEvents"])


def kernels_of(profile: GraphProfile) -> list[dict[str, Any]]:
    return [e for e in events_of(profile) if e["ph"] == "X" and e["cat"] == "kernel"]


def line_of(words: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    return f"{__file__}:{1 + next(i for i, line in enumerate(lines) if words in line)}"


def test_ops_are_called_as_often_as_layers_have_them(profile: GraphProfile) -> None:
    ops = {row.name: row for row in profile.sums().kernels.of("op")}
    layers = STEPS * LAYERS
    calls = {name: ops[name].calls for name in ("linear", "tanh", "tanh_grad", "adam_update")}
    assert calls == {
        "linear": 2 * layers, "tanh": layers, "tanh_grad": layers, "adam_update": 4 * layers,
    }  # fmt: skip
    weights, inputs = ops["matmul_weight_grad"], ops["matmul"]
    assert weights.calls == 2 * layers and weights.flops == 2 * layers * PRODUCT
    assert inputs.calls == 2 * layers - STEPS and inputs.flops == inputs.calls * PRODUCT
    biases = layers * ROWS * (WIDTH + HIDDEN)
    assert ops["linear"].flops == 2 * layers * PRODUCT + biases


def test_every_table_has_the_same_time_and_no_more_than_the_acts(profile: GraphProfile) -> None:
    sums = profile.sums()
    for group in GROUPS:
        rows = sums.kernels.rows[group].values()
        assert sum(r.seconds for r in rows) == pytest.approx(sums.kernels.seconds, rel=1e-5)
        assert sum(r.nbytes for r in rows) == pytest.approx(
            sum(e["args"]["bytes"] for e in kernels_of(profile)), rel=1e-5
        )
    assert 0 < sums.kernels.seconds <= sum(a.seconds for a in sums.actors)
    text = str(profile)
    assert all(f"by {group}" in text for group in GROUPS) and "of peak" in text


def test_modules_have_their_gradients_and_those_around_have_all(profile: GraphProfile) -> None:
    kernels = profile.sums().kernels
    modules = {row.name: row for row in kernels.of("module")}
    leaves = [f"model.{i}.{name}" for i in range(LAYERS) for name in ("up", "down")]
    for leaf in leaves:
        products = 2 if leaf == "model.0.up" else 3  # the input needs no gradient
        assert modules[leaf].flops >= STEPS * products * PRODUCT
    inside = sum(r.seconds for r in kernels.rows["module"].values() if r.name.startswith("model"))
    assert modules["model"].inner_seconds == pytest.approx(inside)
    assert modules["model.1"].inner_seconds >= modules["model.1.up"].seconds


def test_lines_are_the_users_also_of_gradients(profile: GraphProfile) -> None:
    lines = {row.name: row for row in profile.sums().kernels.of("line")}
    forward = lines[line_of("return self.down(flow.tanh")]
    assert forward.flops >= STEPS * (6 * LAYERS - 1) * PRODUCT
    assert line_of("loss = self.model(x).square()") in lines
    assert all(name.startswith(__file__) for name in lines)


def test_each_kernel_is_a_slice_inside_of_its_act(profile: GraphProfile) -> None:
    events = [e for e in events_of(profile) if e["ph"] == "X" and e["cat"] in ("segment", "kernel")]
    act = None
    for event in events:
        if event["cat"] == "segment":
            act = event
            continue
        assert act is not None and event["tid"] == act["tid"]
        assert event["args"]["step"] == act["args"]["step"]
        assert act["ts"] <= event["ts"]
        assert event["ts"] + event["dur"] <= act["ts"] + act["dur"] + 0.002
    (one, *_) = [e for e in kernels_of(profile) if e["name"].startswith("linear")]
    assert f"float32[{ROWS}, {WIDTH}]" in one["args"]["shapes"]
    assert one["args"]["line"] == line_of("return self.down(flow.tanh")


def test_a_fused_kernel_names_its_ops_and_shares_its_time_by_bytes(profile: GraphProfile) -> None:
    fused = next(e for e in kernels_of(profile) if e["name"] == "linear.add + tanh")
    first, second = fused["args"]["parts"]
    assert (first["op"], second["op"]) == ("linear", "tanh")
    assert (first["calls"], second["calls"]) == (0, 1)  # the product before was the call
    alone = np.array([2 * ROWS * HIDDEN + HIDDEN, 2 * ROWS * HIDDEN]) * 4.0
    assert [first["share"], second["share"]] == pytest.approx(alone / alone.sum(), abs=1e-6)
    sums = KernelSums()
    sums.add(fused["name"], 1.0, fused["args"])
    assert sums.rows["op"]["tanh"].seconds == second["share"]
    assert sums.rows["kernel"]["linear.add + tanh"].calls == 1
