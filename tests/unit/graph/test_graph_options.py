"""Options of graphs: plans, states and messages; test_options_everywhere has their results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.amp import GradScaler
from oneflow.core.errors import ConfigError, GraphError
from oneflow.core.sbp import BROADCAST as B
from oneflow.core.sbp import PARTIAL as P
from oneflow.nn.graph import GraphModule
from oneflow.optim import SGD, Adam

from .options import (
    BAD,
    S0,
    Model,
    Option,
    Train,
    amp,
    batches,
    dynamic,
    local,
    loss_of,
    setting,
    zero,
)
from .spread import Spread, placed

# ---- mixed precision -----------------------------------------------------------------------------


def test_weights_are_cast_once_a_step() -> None:
    """Not once by each micro-batch; products read and make half floats, parameters stay as they
    are."""
    option = Option(amp(flow.bfloat16), pieces=4)
    model = Model(local)
    graph = Train(model, [(SGD(model.parameters(), lr=0.1), None)], option)
    graph(flow.ones(8, 6))
    nodes = list(graph._spec.plans.now.job.bound.plan.graph)
    casts = [n for n in nodes if n.op == "cast" and n.inputs[0].node.op == "variable"]
    assert [(n.rate, n.outputs[0].type.dtype) for n in casts] == [("step", flow.bfloat16)] * 6
    products = [n for n in nodes if n.op in ("linear", "matmul", "matmul_weight_grad")]
    assert len(products) == 8
    for n in products:
        assert {v.type.dtype for v in (*n.inputs, *n.outputs)} == {flow.bfloat16}
    assert all(p.dtype is flow.float32 for p in model.parameters())


def test_ordinary_precision_within_mixed() -> None:
    """A block of float32 in build() keeps float32 in its backward pass too."""

    class Mixed(Train):
        def build(self, x: Any) -> Any:
            with flow.autocast("cpu", enabled=False):
                loss = loss_of(self.model, x)
            loss.backward()
            return loss

    found = []
    for kind, option in ((Train, Option()), (Mixed, Option(amp(flow.float16)))):
        model = Model(local)
        graph = kind(model, [(SGD(model.parameters(), lr=0.1), None)], option)
        losses = [graph(flow.ones(8, 6)).item() for _ in range(3)]
        found.append((losses, [p.numpy() for p in model.parameters()]))
    assert found[0][0] == found[1][0]
    for a, b in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_array_equal(a, b)


def test_amp_knows_half_floats_only() -> None:
    graph = Train(Model(local), [(SGD([flow.ones(1)], lr=0.1), None)], Option())
    with pytest.raises(ConfigError, match="must be float16 or bfloat16, got"):
        graph.config.enable_amp(True, dtype=flow.float32)
    graph.config.enable_amp(True)
    assert graph.config.amp_dtype is flow.float16
    graph.config.enable_amp(False)
    assert graph.config.amp_dtype is None


# ---- kernels -------------------------------------------------------------------------------------


def ops_and_weights(optimizer: Any, mode: bool | None) -> tuple[list[str], list[Any]]:
    """The updates of a graph's segment, and its parameters after some steps."""
    model = Model(local)
    option = Option() if mode is None else Option(setting("enable_multi_tensor_update", mode))
    graph = Train(model, [(optimizer(model.parameters()), None)], option)
    for x in batches(np.random.default_rng(5), -1):
        graph(flow.tensor(x))
    (segment,) = graph._spec.plans.now.job.bound.memory.segments.values()
    ops = [b.node.op for b in segment.nodes if b.call.op.mutates]
    return ops, [p.numpy() for p in model.parameters()]


@pytest.mark.parametrize("optimizer", [Adam, SGD])
def test_updates_in_one_call(optimizer: Any) -> None:
    found = {m: ops_and_weights(lambda p: optimizer(p, lr=0.05), m) for m in (None, False, True)}
    (together,) = found[True][0]
    assert together.startswith("6 x ")
    assert found[None][0] == found[False][0] == [together.removeprefix("6 x ")] * 6
    for apart, one in zip(found[None][1], found[True][1], strict=True):
        np.testing.assert_allclose(one, apart, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "build", "alone"),
    [
        ("allow_fuse_add_to_output", lambda x: flow.exp(x * 0.5) + x, "add"),
        ("allow_fuse_cast_scale", lambda x: flow.exp(x.to(flow.float64) * 0.5), "cast"),
    ],
)
def test_kinds_of_fusion_that_are_switched_off(name: str, build: Any, alone: str) -> None:
    x = np.linspace(-1.0, 1.0, 4096, dtype=np.float32).reshape(64, 64)
    made = []
    for mode in (None, True, False):
        graph = nn.Graph.trace(build)
        if mode is not None:
            getattr(graph.config, name)(mode)
        made.append(graph(flow.tensor(x)).numpy())
        (segment,) = graph._spec.plans.now.job.bound.memory.segments.values()
        groups = [f.ops for f in segment.facts if not f.reason]
        if mode is False:
            assert alone not in {op for ops in groups for op in ops}
            assert any("is switched off" in f.reason for f in segment.facts)
        else:
            assert len(groups) == 1 and len(groups[0]) == 3
    np.testing.assert_allclose(made[1], made[0], rtol=0)
    np.testing.assert_allclose(made[2], made[0], rtol=1e-6)


# ---- gradient scalers ----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
def test_the_scale_is_in_the_state(rng: np.random.Generator) -> None:
    option = Option(scaler=dynamic, bad=BAD)
    data = batches(rng, BAD)

    def make() -> Train:
        model = Model(local)
        return Train(model, [(Adam(model.parameters(), lr=0.01), None)], option)

    graph = make()
    for x in data[: BAD + 1]:
        graph(flow.tensor(x))
    assert graph.scaler.get_scale() == 1024.0  # grown once, then shrunk
    assert graph.scaler.state_dict()["_growth_tracker"] == 0
    state = graph.state_dict()
    assert state["System-GradScaler-skipped.0"].item() == 1
    again = make()
    again.load_state_dict(state)
    for x in data[BAD + 1 :]:
        assert again(flow.tensor(x)).item() == graph(flow.tensor(x)).item()
    assert again.scaler.get_scale() == graph.scaler.get_scale() == 2048.0
    again.scaler.update(32.0)
    again(flow.tensor(data[0]))
    assert again.state_dict()["System-GradScaler-scale"].item() == 32.0


def test_scalers_that_do_not_fit() -> None:
    model = Model(local)
    graph = Train(model, [(SGD(model.parameters(), lr=0.1), None)], Option())
    with pytest.raises(TypeError, match="takes a GradScaler or None, got float"):
        graph.set_grad_scaler(2.0)
    graph.set_grad_scaler(GradScaler(enabled=False))
    assert graph._spec.scaler is None
    graph(flow.ones(8, 6))
    with pytest.raises(GraphError, match="is compiled already"):
        graph.set_grad_scaler(GradScaler())
    half = Model(lambda _, a: flow.tensor(a.astype(np.float16)))
    graph = Train(half, [(SGD(half.parameters(), lr=0.1), None)], Option(scaler=dynamic))
    with pytest.raises(GraphError, match="cannot unscale float16 gradients"):
        graph(flow.ones(8, 6, dtype=flow.float16))


# ---- recomputation -------------------------------------------------------------------------------


class Block(nn.Module):
    """Draws random numbers and counts in buffers, one of which it reads before it writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.norm = nn.Linear(16, 64), nn.BatchNorm1d(64)
        self.narrow, self.drop = nn.Linear(64, 16), nn.Dropout(0.4)
        self.register_buffer("scale", flow.ones(1))
        self.register_buffer("calls", flow.zeros(1))

    def forward(self, x: Any, *, by: Any = None) -> Any:
        y = self.narrow(F.gelu(self.norm(self.wide(x)) * (self.scale * 1.0)))
        self.scale.mul_(0.9)
        self.calls = self.calls + 1
        return x + self.drop(y) * (1.0 if by is None else by["factor"])


class Stack(nn.Graph):
    def __init__(self, recomputed: tuple[str, ...], pieces: int = 1) -> None:
        super().__init__()
        flow.manual_seed(7)
        self.blocks = nn.Sequential(*[Block() for _ in range(4)])
        self.add_optimizer(SGD(self.blocks.parameters(), lr=0.1, momentum=0.9))
        self.config.set_gradient_accumulation_steps(pieces)
        for i in range(4):
            for name in recomputed:
                module = getattr(self.blocks[i], name) if name else self.blocks[i]
                module.to(GraphModule).activation_checkpointing = True

    def build(self, x: Any) -> Any:
        factor = flow.sigmoid(x.mean(0)).requires_grad_()
        for block in self.blocks:
            x = block(x, by={"factor": factor})
        loss = (x * x).mean()
        loss.backward()
        return loss


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("recomputed", [("",), ("norm", "drop"), ("", "norm", "drop")], ids=str)
def test_recomputing_gives_the_same_bits(
    recomputed: tuple[str, ...], pieces: int, rng: np.random.Generator
) -> None:
    """The same numbers are drawn, and statistics are counted once."""
    data = [flow.tensor(rng.standard_normal((32, 16)).astype(np.float32)) for _ in range(3)]
    found = []
    for names in ((), recomputed):
        graph = Stack(names, pieces)
        losses = [graph(x).numpy() for x in data]
        after = flow.get_rng_state().numpy()
        found.append([*losses, after, *(v.numpy() for v in graph.blocks.state_dict().values())])
    for plain, again in zip(*found, strict=True):
        np.testing.assert_array_equal(again, plain)


def test_recomputing_saves_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Four blocks keep their inputs only; one at a time has its intermediate values."""
    graphs = [Stack(()), Stack(("",))]
    for graph in graphs:
        graph.debug(0)
        graph(flow.ones(2048, 16))
    lines = [line for line in capsys.readouterr().out.splitlines() if "computed again" in line]
    said = [int(line.split(": ")[1].split()[0]) for line in lines]
    assert [line.split("] ")[1].split()[0] for line in lines] == [f"blocks.{i}" for i in range(4)]
    plain, again = (g._spec.plans.now.job.bound.arena_nbytes for g in graphs)
    # Said of the ops one by one: in one kernel several of them keep less.
    assert plain - again >= 0.85 * sum(said[1:])
    assert again < 0.55 * plain


def test_what_is_recomputed_is_chosen_before_the_first_call() -> None:
    graph = Stack(("",))
    block = graph.blocks[0].to(GraphModule)
    assert block.activation_checkpointing is True
    block.activation_checkpointing = False
    assert block.activation_checkpointing is False
    graph(flow.ones(4, 16))
    assert [cost.module for cost in graph._spec.plans.now.recomputed] == [
        f"blocks.{i}" for i in (1, 2, 3)
    ]
    with pytest.raises(GraphError, match="is compiled already"):
        block.activation_checkpointing = True


def test_a_module_that_is_computed_again_runs_once() -> None:
    class Counting(nn.Module):
        calls = 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return x.exp() if self.calls == 1 else (x * x).exp()

    class Trains(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 4), Counting())
            self.add_optimizer(SGD(self.net.parameters(), lr=0.1))
            self.net[1].to(GraphModule).activation_checkpointing = True

        def build(self, x: Any) -> Any:
            loss = self.net(x).sum()
            loss.backward()
            return loss

    graph: Any = Trains()
    linear = graph.net[0].to(nn.Module)
    weight, bias = linear.weight.numpy().copy(), linear.bias.numpy().copy()
    graph(flow.ones(2, 4))
    assert graph.net[1].to(nn.Module).calls == 1
    slope = np.exp(weight.sum(1) + bias)
    np.testing.assert_allclose(linear.bias.numpy(), bias - 0.2 * slope, rtol=1e-5)


def test_depend_orders_and_changes_nothing() -> None:
    class Waits(nn.Graph):
        def build(self, x: Any, y: Any) -> Any:
            return F.depend(x, [y.exp(), y]) * 2.0

    x, y = flow.ones(3, 2), flow.zeros(2)
    graph = Waits()
    np.testing.assert_array_equal(graph(x, y).numpy(), 2.0 * x.numpy())
    nodes = list(graph._spec.plans.now.job.bound.plan.graph)
    assert [n.op for n in nodes if not n.is_structural] == ["exp", "depend", "depend", "scalar_mul"]
    assert F.depend(x, y) is x


# ---- ZeRO ----------------------------------------------------------------------------------------

DEPTH, WIDTH = 6, 64
LAYER = WIDTH * WIDTH * 4
"""Bytes of a layer's weight."""


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        data = np.random.default_rng(2)
        for i in range(DEPTH):
            array = data.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8.0
            setattr(self, f"w{i}", nn.Parameter(placed(array, (B,))))

    def forward(self, x: Any) -> Any:
        for i in range(DEPTH):
            x = F.linear(x, getattr(self, f"w{i}")).tanh()
        return x


def spread_deep(stage: int, ranks: int, pieces: int, seed: int | None = None) -> Spread:
    model = Deep()
    option = Option(lambda g: g.config.enable_zero(stage > 0, stage=stage or 1), pieces=pieces)

    class Trains(Train):
        def build(self, x: Any) -> Any:
            loss = (self.model(x) ** 2).mean()
            loss.backward()
            return loss

    graph = Trains(model, [(Adam(model.parameters(), lr=0.01), None)], option)
    return Spread(graph, placed(np.ones((16, WIDTH), np.float32), (S0,)), (ranks,), seed)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bytes_of_variables_are_those_of_the_formula(stage: int, ranks: int) -> None:
    """Adam: a parameter and two states. Copies: 3 P. Stages 1, 2: P + 2 P / n. Stage 3: 3 P / n."""
    spread = spread_deep(stage, ranks, 1)
    total = DEPTH * LAYER
    split = {0: 0, 1: 2, 2: 2, 3: 3}[stage]
    for held in spread.held:
        nbytes = sum(array.nbytes for array in held.values())
        assert nbytes == (3 - split) * total + split * total // ranks


def test_updated_parameters_are_gathered_a_few_at_a_time() -> None:
    """One memory takes them all, and values are those of copies in any order of acts."""
    x = np.random.default_rng(0).standard_normal((16, WIDTH)).astype(np.float32)
    plain = spread_deep(0, 2, 2)
    wanted = [plain(x) for _ in range(3)]
    for seed in (None, 1, 2):
        spread = spread_deep(1, 2, 2, seed)
        np.testing.assert_allclose([spread(x) for _ in range(3)], wanted, rtol=1e-5)
    written = [
        r
        for r in spread.plan.registers
        if r.values and all(u.op == "assign" for v in r.values for u in v.users)
    ]
    assert len(written) == DEPTH and sum(r.storage is None for r in written) == 1


def gathers(spread: Spread) -> list[Any]:
    """Registers of parameters that are gathered in the midst of the step."""
    return [
        r
        for r in spread.plan.registers
        if any(v.node.op == "boxing" and v.node.inputs[0].node.op == "depend" for v in r.values)
    ]


@pytest.mark.parametrize("pieces", [1, 4])
def test_gathered_parameters_share_memory(pieces: int, rng: np.random.Generator) -> None:
    """Each is gathered once to go forward and once to go back; few are there at a time. The values
    are those of copies, in any order of the ranks' acts."""
    x = rng.standard_normal((16, WIDTH)).astype(np.float32)
    plain = spread_deep(0, 4, pieces)
    wanted = [plain(x) for _ in range(3)]
    for seed in (None, 1, 2):
        spread = spread_deep(3, 4, pieces, seed)
        found = [spread(x) for _ in range(3)]
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    registers = gathers(spread)
    read = [v for r in registers for v in r.values if v.type.shape == (WIDTH, WIDTH)]
    assert sum(v.sbp == (B,) for v in read) >= 2 * DEPTH - 3
    memories = {(r.storage or r).id: r for r in registers if r.storage is None}
    held = sum(sum(v.type.nbytes for v in r.values if v.sbp == (B,)) for r in memories.values())
    assert held <= 5 * LAYER  # of 11 or 12
    if pieces == 1:
        plain_nbytes, nbytes = (
            s.cluster.bound[0].arena_nbytes + sum(a.nbytes for a in s.held[0].values())
            for s in (plain, spread)
        )
        assert nbytes < 0.65 * plain_nbytes


def test_gradients_are_split_as_soon_as_they_are_made() -> None:
    """Sums over micro-batches are those of a part from stage 2 on."""
    for stage, layout in ((1, (P,)), (2, (S0,)), (3, (S0,))):
        spread = spread_deep(stage, 2, 4)
        sums = [n for n in spread.plan.graph.of_kind("accumulate")]
        assert {n.outputs[0].sbp for n in sums} == {layout}
        assert len(sums) == DEPTH


@pytest.mark.parametrize("made", [local, lambda _, a: placed(a, (B,))])
def test_parameters_of_one_rank_stay_as_they_are(made: Any) -> None:
    x = flow.ones(8, 6)
    plain, split = (Model(made) for _ in range(2))
    options = Option(), Option(zero(3))
    graphs = [
        Train(m, [(Adam(m.parameters(), lr=0.01), None)], o)
        for m, o in zip((plain, split), options, strict=True)
    ]
    for graph in graphs:
        graph(x if made is local else placed(x.numpy(), (B,)))
    for a, b in zip(plain.parameters(), split.parameters(), strict=True):
        assert a._sbp == b._sbp
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stage": 4}, "stage must be 1, 2 or 3, got 4"),
        ({"shard_restore_level": 3}, "shard_restore_level must be 0, 1 or 2, got 3"),
        ({"shard_min_size": -1}, "shard_min_size must be an integer >= 0, got -1"),
    ],
    ids=str,
)
def test_zero_refuses_what_it_does_not_know(given: dict[str, int], message: str) -> None:
    graph = Train(Model(local), [(SGD([flow.ones(1)], lr=0.1), None)], Option())
    with pytest.raises(ConfigError, match=message):
        graph.config.enable_zero(True, **given)
    with pytest.raises(ConfigError, match="or 'non_distributed', got 'split'"):
        graph.config.set_zero_redundancy_optimizer_mode("split")


def test_the_older_name_of_zero_is_its_first_stage() -> None:
    graph = Train(Model(local), [(SGD([flow.ones(1)], lr=0.1), None)], Option())
    graph.config.set_zero_redundancy_optimizer_mode()
    older = graph.config.zero
    graph.config.enable_zero(True, stage=1)
    assert older == graph.config.zero is not None
    graph.config.set_zero_redundancy_optimizer_mode("non_distributed")
    assert graph.config.zero is None
