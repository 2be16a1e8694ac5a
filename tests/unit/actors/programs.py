"""Small training programs as graph text, with their float64 NumPy reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from oneflow.actors.in_process import InProcessCluster
from oneflow.boxing.boxes import shard_box
from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.plan import Plan
from oneflow.scheduler.compiler.pipeline import compile_graph

Array = np.ndarray[Any, Any]
RATE = 0.05


def two_layers(
    first: str,
    second: str,
    sbp_x: str = "S(0)",
    sbp_w1: str = "B",
    sbp_w2: str = "B",
    rows: int = 12,
    width: int = 16,
    pieces: int = 1,
) -> str:
    """relu(x @ w1^T) @ w2^T, sum of squares, SGD. first, second: placements of the layers."""
    m = rows // pieces
    unpack = f"%x: float32[{m}, 8] {sbp_x} = unpack(%input) @{first}\n" if pieces > 1 else ""
    name = "%input" if pieces > 1 else "%x"
    moved = "%h" if first == second else "%hm"
    lines = f"""graph layers pieces={pieces} {{
      {name}: float32[{rows}, 8] {sbp_x} = input(; name='x') @{first}
      {unpack}
      %w1: float32[{width}, 8] {sbp_w1} = variable(; name='w1') @{first}
      %w2: float32[4, {width}] {sbp_w2} = variable(; name='w2') @{second}
      %lr1: float64[] B = input(; name='lr') @{first}
      %lr2: float64[] B = input(; name='lr') @{second}
      %z: float32[{m}, {width}] ? = matmul(%x, %w1; transpose_b=True) @{first}
      %h: float32[{m}, {width}] ? = relu(%z) @{first}
      %hm: float32[{m}, {width}] {sbp_x} = to_global(%h) @{second}
      %y: float32[{m}, 4] ? = matmul({moved}, %w2; transpose_b=True) @{second}
      %yy: float32[{m}, 4] ? = mul(%y, %y) @{second}
      %loss: float32[] ? = reduce_sum(%yy; dims=(0, 1), keepdim=False) @{second}
      %dy: float32[{m}, 4] ? = scalar_mul(%y; value=2.0) @{second}
      %dw2: float32[4, {width}] ? = matmul_weight_grad({moved}, %dy; transpose=True) @{second}
      %dhm: float32[{m}, {width}] ? = matmul(%dy, %w2) @{second}
      %dh: float32[{m}, {width}] {sbp_x} = to_global(%dhm) @{first}
      %dz: float32[{m}, {width}] ? = relu_grad(%dh, %h) @{first}
      %dw1: float32[{width}, 8] ? = matmul_weight_grad(%x, %dz; transpose=True) @{first}
      %a1: float32[{width}, 8] ? = accumulate(%dw1) @{first}
      %a2: float32[4, {width}] ? = accumulate(%dw2) @{second}
      %u1: float32[{width}, 8] ? = sgd_update(%w1, %a1, %lr1; weight_decay=0.0, maximize=False) @{first}
      %u2: float32[4, {width}] ? = sgd_update(%w2, %a2, %lr2; weight_decay=0.0, maximize=False) @{second}
      %whole: float32[] B = to_global(%loss) @{second}
      output(%whole; index=0) @{second}
    }}"""
    return _numbered(lines)


def _numbered(text: str) -> str:
    """Names like %dw1 as numbers, as the text form wants them."""
    import re

    names: dict[str, int] = {}
    return re.sub(
        r"%([a-z]\w*)", lambda match: f"%{names.setdefault(match.group(1), len(names))}", text
    )


def compile_text(text: str, world_size: int) -> Plan:
    plan = compile_graph(parse_graph(text), JobConfig("job"), Cluster(world_size))
    return Plan.from_bytes(plan.to_bytes())


def initial(width: int = 16, rows: int = 12) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.standard_normal((rows, 8)).astype(np.float32),
        "w1": (rng.standard_normal((width, 8)) / 4).astype(np.float32),
        "w2": (rng.standard_normal((4, width)) / 4).astype(np.float32),
    }


def shards(plan: Plan, kind: str, arrays: dict[str, Array]) -> list[dict[str, Array]]:
    """Every rank's part of the variables or inputs of a plan."""
    result: list[dict[str, Array]] = [{} for _ in range(plan.world_size)]
    for node in plan.graph.of_kind(kind):
        name, value = node.attrs["name"], node.outputs[0]
        for rank in node.placement.rank_ids:
            box = shard_box(value.type.shape, value.sbp, node.placement, rank)
            result[rank][name] = arrays[name][box.slices].copy()
    return result


def reference(
    steps: int, pieces: int, width: int = 16, rows: int = 12
) -> tuple[list[Any], Any, Any]:
    """Losses (a list of the pieces' losses for each step) and final weights, in float64."""
    start = initial(width, rows)
    x, w1, w2 = (start[k].astype(np.float64) for k in ("x", "w1", "w2"))
    losses = []
    for _ in range(steps):
        g1, g2, step = np.zeros_like(w1), np.zeros_like(w2), []
        for part in np.split(x, pieces):
            h = np.maximum(part @ w1.T, 0)
            y = h @ w2.T
            step.append((y * y).sum())
            dz = (2 * y @ w2) * (h > 0)
            g1 += dz.T @ part / pieces
            g2 += (2 * y).T @ h / pieces
        losses.append(step)
        w1 = w1 - RATE / 10 * g1
        w2 = w2 - RATE / 10 * g2
    return losses, w1, w2


def run(
    plan: Plan, steps: int, width: int = 16, rows: int = 12, seed: int | None = None
) -> tuple[list[list[dict[int, Array]]], list[dict[str, Array]], InProcessCluster]:
    """Outputs of every rank in every step, final variables of every rank."""
    arrays: dict[str, Array] = {**initial(width, rows), "lr": np.array(RATE / 10)}
    variables = shards(plan, "variable", arrays)
    cluster = InProcessCluster(plan, variables, seed)
    feeds = shards(plan, "input", arrays)
    return [cluster.step(feeds) for _ in range(steps)], variables, cluster
