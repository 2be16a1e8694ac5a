"""split_stages: stages by sets of ranks, or as the user set them."""

from __future__ import annotations

from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.scheduler.compiler.schedule.split_stages import split_stages


def stages(text: str) -> list[int]:
    graph = parse_graph(f"graph g pieces=1 {{\n{text}\n}}")
    split_stages(graph, JobConfig("g"), Cluster(4))
    return [node.stage for node in graph]


def chain(*lines: str) -> str:
    """relu after relu, each with the words behind `@`; a move before each change of ranks."""
    text = ["%0: float32[4] B = input(; name='x') @" + lines[0].split(" stage")[0]]
    last = lines[0].split(" stage")[0]
    for line in lines:
        where = line.split(" stage")[0]
        if where != last:
            text.append(f"%{len(text)}: float32[4] B = boxing(%{len(text) - 1}) @{where}")
        text.append(f"%{len(text)}: float32[4] B = relu(%{len(text) - 1}) @{line}")
        last = where
    return "\n".join(text)


def test_one_set_of_ranks_is_one_stage():
    assert set(stages(chain("cpu[0, 1]", "cpu[0, 1]"))) == {0}


def test_sets_of_ranks_are_stages_in_order_of_appearance_and_backward_returns_to_them():
    assert stages(chain("cpu[2, 3]", "cpu[0, 1]", "cpu[2, 3]")) == [0, 0, 1, 1, 0, 0]


def test_ranks_that_overlap_are_one_stage():
    assert stages(chain("cpu[0, 1]", "cpu[[0], [1]]", "cpu[2]")) == [0, 0, 0, 0, 1, 1]


def test_the_users_stages_carry_over_to_what_runs_on_the_same_ranks():
    text = chain("cpu[0]", "cpu[1] stage=3", "cpu[1]", "cpu[0]")
    assert stages(text) == [0, 0, 3, 3, 3, 0, 0]


def test_stages_that_share_all_ranks_stay_as_set():
    assert stages(chain("cpu[0]", "cpu[0] stage=1", "cpu[0]")) == [0, 0, 1, 0]
