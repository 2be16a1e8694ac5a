"""Plans whose moves are fused less train to the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.plan import Plan
from oneflow.scheduler.compiler.pipeline import compile_graph

from .programs import reference, run, shards, two_layers


@pytest.mark.parametrize("width", [16, 9000], ids=["small", "two-phases"])
@pytest.mark.parametrize("fields", [{"fuse_boxing": False}, {"fusion_ops": 1}], ids=str)
def test_less_fusion_changes_no_value(fields: dict[str, Any], width: int) -> None:
    text = two_layers("cpu[0, 1, 2]", "cpu[0, 1, 2]", width=width)
    config, cluster = JobConfig("job", **fields), Cluster(3)
    plan = Plan.from_bytes(compile_graph(parse_graph(text), config, cluster).to_bytes())
    together = compile_graph(parse_graph(text), JobConfig("job"), cluster)
    assert len(plan.actors) > len(together.actors)
    _, variables, _ = run(plan, 1, width=width)
    _, w1, w2 = reference(1, 1, width=width)
    wanted = shards(plan, "variable", {"w1": w1, "w2": w2})
    for shard, expected in zip(variables, wanted, strict=True):
        for name in shard:
            np.testing.assert_allclose(
                shard[name], expected[name], atol=2e-6 * np.abs(expected[name]).max()
            )
