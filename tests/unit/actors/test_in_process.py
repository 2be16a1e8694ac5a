"""Whole plans on several ranks in one process, against float64 NumPy."""

import numpy as np
import pytest

from oneflow.actors.in_process import InProcessCluster
from oneflow.core.actor_kinds import ActorKind
from oneflow.core.dtype import dtype_of

from .programs import compile_text, reference, run, shards, two_layers

ALL = {p: f"cpu{list(range(p))}" for p in (1, 2, 3, 4)}
LAYOUTS = {
    "single": (1, two_layers(ALL[1], ALL[1], "B")),
    "data-2": (2, two_layers(ALL[2], ALL[2])),
    "data-3-uneven": (3, two_layers(ALL[3], ALL[3], rows=13)),
    "tensor-2": (2, two_layers(ALL[2], ALL[2], "B", "S(0)", "S(1)")),
    "tensor-3-uneven": (3, two_layers(ALL[3], ALL[3], "B", "S(0)", "S(1)")),
    "sharded-weights": (2, two_layers(ALL[2], ALL[2], "S(0)", "S(0)", "S(1)")),
    "pipeline": (2, two_layers("cpu[0]", "cpu[1]", "B", pieces=4)),
    "pipeline-of-data": (4, two_layers("cpu[0, 1]", "cpu[2, 3]", "S(0)", pieces=3)),
    "pipeline-2-to-1": (3, two_layers("cpu[0, 1]", "cpu[2]", "S(0)", pieces=2)),
}


def pieces_of(name: str) -> int:
    return {"pipeline": 4, "pipeline-of-data": 3, "pipeline-2-to-1": 2}.get(name, 1)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_trains_like_float64_numpy(name):
    world_size, text = LAYOUTS[name]
    rows = 13 if name == "data-3-uneven" else 12
    plan = compile_text(text, world_size)
    steps, variables, _ = run(plan, 4, rows=rows)
    losses, w1, w2 = reference(4, pieces_of(name), rows=rows)
    for outputs, expected in zip(steps, losses, strict=True):
        # Pieces are cut from each rank's own rows, so with pieces only their sum is the same.
        found = [np.sum(o[0]) for o in outputs if 0 in o]
        np.testing.assert_allclose(found, sum(expected), rtol=1e-5)
    for shard, wanted in zip(
        variables, shards(plan, "variable", {"w1": w1, "w2": w2}), strict=True
    ):
        for key in shard:
            np.testing.assert_allclose(shard[key], wanted[key], atol=1e-5)


def test_copies_of_a_weight_stay_equal_to_the_last_bit():
    plan = compile_text(two_layers(ALL[3], ALL[3], width=400), 3)
    _, variables, _ = run(plan, 3, width=400)
    for key in ("w1", "w2"):
        assert all(np.array_equal(v[key], variables[0][key]) for v in variables)


def test_a_large_all_reduce_runs_in_two_phases_and_gives_the_same():
    width = 9000  # w1: 288 kB
    plan = compile_text(two_layers(ALL[3], ALL[3], width=width), 3)
    kinds = {a.kind for a in plan.actors}
    assert {ActorKind.FLAT_REDUCE_SCATTER, ActorKind.FLAT_ALL_GATHER} <= kinds
    _, variables, _ = run(plan, 1, width=width)
    _, w1, w2 = reference(1, 1, width=width)
    for shard in variables:
        np.testing.assert_allclose(shard["w1"], w1, atol=1e-6 * np.abs(w1).max())
        np.testing.assert_allclose(shard["w2"], w2, atol=1e-6 * np.abs(w2).max())


@pytest.mark.parametrize("seed", range(20))
def test_the_order_in_which_ranks_move_changes_nothing(seed):
    plan = compile_text(LAYOUTS["pipeline-of-data"][1], 4)
    plain, _, _ = run(plan, 2)
    shuffled, _, cluster = run(plan, 2, seed=seed)
    for a, b in zip(plain, shuffled, strict=True):
        for x, y in zip(a, b, strict=True):
            assert x.keys() == y.keys()
            assert all(np.array_equal(x[k], y[k]) for k in x)
    assert all(not b.actor.quota for e in cluster.executors for b in e.bound.actors.values())


def test_slots_alone_make_the_1f1b_order():
    """Stage s of S holds at most S - s pieces between its forward and its backward."""
    plan = compile_text(two_layers("cpu[0]", "cpu[1]", "B", pieces=4), 2)
    _, _, cluster = run(plan, 1)
    order = _acts_of_segments(plan, cluster)
    for stage, depth in ((0, 2), (1, 1)):
        ahead = 0
        for kind in order[stage]:
            ahead += 1 if kind == "forward" else -1
            assert 0 <= ahead <= depth


def _acts_of_segments(plan, cluster):
    """forward/backward acts of each stage in the order in which they ran; a fused stage counts
    as both.
    """
    orders = {0: [], 1: []}
    for rank, executor in enumerate(cluster.executors):
        for bound in executor.bound.actors.values():
            if bound.spec.kind is not ActorKind.SEGMENT or bound.spec.acts == 1:
                continue
            ops = {n.op for n in bound.spec.nodes}
            names = ["forward"] * ("relu" in ops or "reduce_sum" in ops)
            names += ["backward"] * ("matmul_weight_grad" in ops)
            _record(bound, names, orders[rank])
    from .programs import RATE, initial

    arrays = {**initial(), "lr": np.array(RATE / 10)}
    cluster.step(shards(plan, "input", arrays))
    return orders


def _record(bound, names, order):
    kernel = bound.kernel

    def recording(in_slots, out_slots):
        order.extend(names)
        kernel(in_slots, out_slots)

    bound.kernel = recording


def test_a_step_after_the_first_allocates_nothing_of_the_size_of_the_data():
    import tracemalloc

    width = 3000
    plan = compile_text(two_layers(ALL[1], ALL[1], "B", width=width, rows=120), 1)
    from .programs import RATE, initial

    arrays = {**initial(width, 120), "lr": np.array(RATE / 1000)}
    from oneflow.actors.in_process import InProcessCluster

    cluster = InProcessCluster(plan, shards(plan, "variable", arrays))
    feeds = shards(plan, "input", arrays)
    for _ in range(2):
        cluster.step(feeds)
    tracemalloc.start()
    cluster.step(feeds)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40_000  # the smallest tensor of the model has 48,000 bytes


def test_the_arena_is_no_larger_than_its_bound_here():
    plan = compile_text(LAYOUTS["single"][1], 1)
    _, _, cluster = run(plan, 1)
    bound = cluster.bound[0]
    assert bound.arena_nbytes == bound.arena_bound


LATE_READER = """graph late pieces=1 {
  %0: float32[4, 4] S(0) = input(; name='x') @cpu[0, 1]
  %1: float32[4, 4] B = variable(; name='w') @cpu[0, 1]
  %2: float64[] B = input(; name='lr') @cpu[0, 1]
  %3: float32[4, 4] B = input(; name='g') @cpu[0, 1]
  %4: float32[4, 4] B = to_global(%0) @cpu[0, 1]
  %5: float32[4, 4] S(1) = to_global(%4) @cpu[0, 1]
  %6: float32[4, 4] B = to_global(%5) @cpu[0, 1]
  %7: float32[4, 4] ? = matmul(%6, %1) @cpu[0, 1]
  %8: float32[4, 4] ? = sgd_update(%1, %3, %2; weight_decay=0.0, maximize=False) @cpu[0, 1]
  output(%7; index=0) @cpu[0, 1]
}"""


@pytest.mark.parametrize("seed", range(5))
def test_an_update_waits_for_every_reader_of_its_variable(seed):
    plan = compile_text(LATE_READER, 2)
    rng = np.random.default_rng(0)
    x, w, g = (rng.standard_normal((4, 4)).astype(np.float32) for _ in range(3))
    from oneflow.actors.in_process import InProcessCluster

    arrays = {"x": x, "w": w, "g": g, "lr": np.array(1.0)}
    variables = shards(plan, "variable", arrays)
    cluster = InProcessCluster(plan, variables, seed)
    outputs = cluster.step(shards(plan, "input", arrays))
    np.testing.assert_allclose(outputs[0][0], x @ w, rtol=1e-6)
    np.testing.assert_allclose(variables[1]["w"], w - g, rtol=1e-6)


HALVES = {"float16": 2048.0, "bfloat16": 256.0}
"""The number from which on the dtype skips odd ones."""


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("sbp", ["B", "S(0)"])
@pytest.mark.parametrize("rows", [8, 80_000])
def test_plans_add_up_ranks_in_float32(dtype: str, sbp: str, rows: int) -> None:
    place = "cpu[0, 1, 2, 3]"
    plan = compile_text(
        f"""graph sums pieces=1 {{
          %0: {dtype}[{rows}] P = input(; name='x') @{place}
          %1: {dtype}[{rows}] {sbp} = to_global(%0) @{place}
          output(%1; index=0) @{place}
        }}""",
        4,
    )
    kind = dtype_of(dtype).np
    given = [{"x": np.full(rows, HALVES[dtype] if r == 0 else 1, kind)} for r in range(4)]
    for found in InProcessCluster(plan, [{}] * 4).step(given):
        np.testing.assert_allclose(found[0].astype(float), HALVES[dtype] + 3, atol=1)


@pytest.mark.parametrize("dtype", HALVES)
def test_pieces_are_accumulated_in_float32(dtype: str) -> None:
    pieces, place, kind = 4096, "cpu[0]", dtype_of(dtype).np
    plan = compile_text(
        f"""graph pieces pieces={pieces} {{
          %0: {dtype}[{pieces}] B = input(; name='x') @{place}
          %1: {dtype}[1] B = unpack(%0) @{place}
          %2: {dtype}[1] B = relu(%1) @{place}
          %3: {dtype}[1] B = accumulate(%2) @{place}
          %4: {dtype}[1] B = variable(; name='w') @{place}
          %5: float64[] B = input(; name='lr') @{place}
          %6: {dtype}[1] B = sgd_update(%4, %3, %5; weight_decay=0.0, maximize=False) @{place}
        }}""",
        1,
    )
    variables = [{"w": np.zeros(1, kind)}]
    cluster = InProcessCluster(plan, variables)
    for step in (1, 2):
        cluster.step([{"x": np.ones(pieces, kind), "lr": np.array(1.0)}])
        np.testing.assert_array_equal(variables[0]["w"].astype(float), [-step])
