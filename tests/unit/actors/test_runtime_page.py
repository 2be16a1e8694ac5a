"""The plan that docs/RUNTIME.md explains is the plan that the compiler makes."""

from __future__ import annotations

import re
from pathlib import Path

from oneflow.core.actor_kinds import ActorKind
from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.scheduler.compiler.lower.group_segments import FLAT_TWO_PHASE_NBYTES
from oneflow.scheduler.compiler.pipeline import compile_graph

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "RUNTIME.md").read_text()


def block(kind: str) -> str:
    (found,) = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    text: str = found
    return text


def test_the_plan_on_the_page_is_compiled_from_the_graph_on_the_page() -> None:
    plan = compile_graph(parse_graph(block("graph")), JobConfig("mlp"), Cluster(2))
    assert f"{plan.graph}\n" == block("graph-after")
    assert f"{plan}\n" == block("plan")


def test_the_kinds_of_boxing_on_the_page_exist() -> None:
    kinds = re.findall(r"^\| `([a-z_]+)` \| ", PAGE, re.MULTILINE)
    assert kinds and {k.upper() for k in kinds} <= {k.name for k in ActorKind}
    assert f"below {FLAT_TWO_PHASE_NBYTES // 1024} KiB" in PAGE
