"""Pipelines of many stages in virtual time: how long a step takes, and which registers stages
keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from oneflow.core.actor_kinds import ActorKind
from oneflow.core.errors import GraphError
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.placement import Placement
from oneflow.core.plan import ActorSpec, Plan
from oneflow.scheduler.compiler.pipeline import compile_graph
from tests.support.virtual_time import VirtualCluster
from tests.unit.scheduler.compiler.graph_builder import Builder, cut

from .programs import shards

WIDTH = 4
F, B, W = 2.0, 2.0, 2.0
"""Seconds of a stage's products, by the virtual clock."""
Spans = dict[tuple[int, str], list[tuple[float, float]]]


def slow(*shapes: tuple[int, ...]) -> list[Any]:
    return [pytest.param(*shape, marks=pytest.mark.slow) for shape in shapes]


def pipeline(
    num_stages: int,
    num_ranks: int,
    pieces: int,
    schedule: str = "1f1b",
    placed: Sequence[int] = (),
) -> Plan:
    """A product a stage; stage c on rank c mod num_ranks, or placed[c]. Labels go from the first
    stage to the last.
    """
    builder = Builder("Pipeline", pieces)
    ranks = [Placement("cpu", [rank]) for rank in range(num_ranks)]
    x, y = (builder.input(n, (pieces, WIDTH), "B", ranks[0]) for n in ("x", "y"))
    x, y = cut(builder, x), cut(builder, y)
    params = [builder.variable("scale", (1, WIDTH), "B", ranks[0])]
    h = builder.call("mul", x, params[0])
    for stage in range(num_stages):
        builder.stage, where = stage, ranks[placed[stage] if placed else stage % num_ranks]
        if h.placement != where:
            h = builder.to_global(h, "B", where)
        params.append(builder.variable(f"w{stage}", (WIDTH, WIDTH), "B", where))
        h = builder.call("relu", builder.call("matmul", h, params[-1], transpose_b=True))
    h = builder.call("mul", h, builder.to_global(y, "B", h.placement))
    loss = builder.call("reduce_sum", h, dims=(0, 1))
    grads = builder.backward(loss)
    for param in params:
        builder.stage = param.node.stage
        grad = builder.structural("accumulate", grads[param])
        lr = builder.input("lr", (), "B", param.placement, "float64")
        builder.call("sgd_update", param, grad, lr, weight_decay=0.0, maximize=False)
    builder.output(loss)
    config = JobConfig("job", pieces, pipeline=schedule)
    return Plan.from_bytes(compile_graph(builder.graph, config, Cluster(num_ranks)).to_bytes())


def seconds(spec: ActorSpec) -> float:
    """Return the time of an act: that of its products, of whichever phase they are."""
    found = 0.0
    for node in spec.nodes:
        if node.op.startswith("matmul"):
            is_of_weight = node.attrs["transpose_a"]
            found += W if is_of_weight else F if node.attrs["transpose_b"] else B
    return found


def arrays(num_stages: int, pieces: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    made = {n: rng.standard_normal((pieces, WIDTH)).astype(np.float32) for n in ("x", "y")}
    for stage in range(num_stages):
        made[f"w{stage}"] = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
    return {**made, "scale": np.ones((1, WIDTH), np.float32), "lr": np.array(1e-3)}


def run(plan: Plan, num_stages: int, latency: float = 0.0) -> tuple[float, VirtualCluster]:
    """Seconds of the second step."""
    given = arrays(num_stages, plan.graph.num_pieces)
    cluster = VirtualCluster(plan, shards(plan, "variable", given), seconds, latency)
    feeds = shards(plan, "input", given)
    cluster.step(feeds)
    return cluster.step(feeds), cluster


def spans(plan: Plan, cluster: VirtualCluster) -> Spans:
    """(rank, phase) -> begin and end of its acts, of pipelines with a stage on each rank."""
    found: Spans = {}
    for rank, actor, begin, end in cluster.acts:
        spec = plan.actors[actor]
        if spec.kind is not ActorKind.SEGMENT or spec.acts == 1:
            continue
        products = [n.attrs for n in spec.nodes if n.op.startswith("matmul")]
        for phase, has in {
            "forward": any(a["transpose_b"] for a in products),
            "backward": any(not a["transpose_a"] and not a["transpose_b"] for a in products),
            "weights": any(a["transpose_a"] for a in products),
        }.items():
            if has:
                found.setdefault((rank, phase), []).append((begin, end))
    return found


def most_kept(found: Spans, rank: int, until: str) -> int:
    """The largest number of pieces between the begin of a forward pass and the end of `until`."""
    begins = [begin for begin, _ in found[rank, "forward"]]
    ends = [end for _, end in found[rank, until]]
    return max(i + 1 - sum(end <= begin for end in ends) for i, begin in enumerate(begins))


SHAPES = [(2, 2), (3, 5), (4, 3), (4, 8), *slow((8, 8), (8, 16), (8, 32))]


@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_1f1b_takes_and_keeps_what_theory_says(p: int, m: int) -> None:
    plan = pipeline(p, p, m)
    took, cluster = run(plan, p)
    assert took == pytest.approx((m + p - 1) * (F + B + W))
    assert not plan.turns
    found = spans(plan, cluster)
    assert [most_kept(found, i, "backward") for i in range(p)] == [min(m, p - i) for i in range(p)]
    for register in plan.registers:  # what the forward pass keeps has these slots, and no more
        if len(register.consumers) == 2 and register.values[0].node.op in ("boxing", "relu"):
            stage = register.producer.nodes[0].stage
            assert register.num_slots == max(min(m, p - stage), 1 if stage < p - 1 else 2)


@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_zero_bubble_takes_and_keeps_what_theory_says(p: int, m: int) -> None:
    plan = pipeline(p, p, m, "zero_bubble")
    took, cluster = run(plan, p)
    if m >= p:
        assert took == pytest.approx(m * (F + B + W) + (p - 1) * (F + B - W))
    found = spans(plan, cluster)
    assert {most_kept(found, i, "weights") for i in range(p)} == {min(m, p)}


@pytest.mark.parametrize(
    ("p", "v", "m"), [(2, 2, 2), (2, 2, 6), (2, 3, 4), (3, 2, 6), *slow((4, 2, 16), (8, 2, 16))]
)
def test_interleaved_stages_take_what_theory_says(p: int, v: int, m: int) -> None:
    took, _ = run(pipeline(p * v, p, m), p * v)
    assert took == pytest.approx((m * v + p - 1) * (F + B + W))


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_latency_is_paid_once_for_each_stage_that_a_piece_passes(schedule: str) -> None:
    """Nobody begins an act that can wait just before a piece comes in."""
    p, m, latency = 4, 8, 0.01
    plan = pipeline(p, p, m, schedule)
    prompt, _ = run(plan, p)
    late, _ = run(plan, p, latency)
    assert late - prompt < 8 * p * latency


@pytest.mark.parametrize(("p", "m"), [(2, 3), (3, 4), (3, 5), (4, 5)])
def test_interleaved_stages_run_any_number_of_pieces(p: int, m: int) -> None:
    """Also numbers that are no multiple of the ranks, some of which no order of turns fits."""
    assert run(pipeline(3 * p, p, m), 3 * p)[0] > 0


def test_stages_that_go_there_and_back_over_the_ranks_take_no_turns() -> None:
    plan = pipeline(4, 2, 4, placed=(0, 1, 1, 0))
    assert not plan.turns and run(plan, 4)[0] > 0


def test_zero_bubble_refuses_stages_that_share_ranks() -> None:
    with pytest.raises(GraphError, match="needs ranks of its own for each stage"):
        pipeline(4, 2, 4, "zero_bubble")


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_schedules_change_no_results(ranks: int, schedule: str) -> None:
    """Stage by stage in float64, as one rank would compute it."""
    stages, pieces = 4, 4
    if schedule == "zero_bubble" and ranks < stages:
        stages = ranks
    plan = pipeline(stages, ranks, pieces, schedule)
    given = arrays(stages, pieces)
    variables = shards(plan, "variable", given)
    VirtualCluster(plan, variables, seconds).step(shards(plan, "input", given))
    wanted = _updated(given, stages, pieces)
    for held in variables:
        for name, array in held.items():
            np.testing.assert_allclose(array, wanted[name], rtol=1e-5, atol=1e-6)


def _updated(given: dict[str, np.ndarray], stages: int, pieces: int) -> dict[str, np.ndarray]:
    exact = {name: a.astype(np.float64) for name, a in given.items()}
    inputs = []
    h = exact["x"] * exact["scale"]
    for stage in range(stages):
        inputs.append(h)
        h = np.maximum(h @ exact[f"w{stage}"].T, 0)
    d, grads = exact["y"], {}
    for stage in reversed(range(stages)):
        w = exact[f"w{stage}"]
        d = d * (inputs[stage] @ w.T > 0)
        grads[f"w{stage}"] = d.T @ inputs[stage]
        d = d @ w
    grads["scale"] = (d * exact["x"]).sum(0, keepdims=True)
    rate = float(exact["lr"])
    return {name: exact[name] - rate * grad / pieces for name, grad in grads.items()}
