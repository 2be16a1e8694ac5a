"""The pipeline as a whole: order of passes, dumps, timing, progress, checks."""

from __future__ import annotations

import pytest

from oneflow.core.errors import ConfigError, InternalError
from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.placement import Placement
from oneflow.scheduler.compiler.observe import Observer
from oneflow.scheduler.compiler.passes import PASSES
from oneflow.scheduler.compiler.pipeline import compile_graph, run_passes
from oneflow.scheduler.compiler.verify import verify

from .graph_builder import mlp

TWO = Placement("cpu", [0, 1])
GRAPH_PASSES = PASSES[: PASSES.index("group_segments")]
"""Passes that leave a graph; the others leave a plan."""


def graph():
    return mlp([TWO], "S(0)", "B", "B")


def test_each_pass_is_timed_and_reported_once():
    seen = []
    observer = Observer(check=True, progress=lambda *event: seen.append(event))
    run_passes(graph(), JobConfig("g"), Cluster(2), observer=observer)
    assert [t.name for t in observer.times] == list(PASSES)
    assert seen == [(name, i, len(PASSES)) for i, name in enumerate(PASSES, 1)]
    assert all(name in observer.report() for name in PASSES)


def test_passes_stop_after_the_one_asked_for():
    observer = Observer()
    run_passes(graph(), JobConfig("g"), Cluster(2), until="infer_sbp", observer=observer)
    assert [t.name for t in observer.times] == list(PASSES[: PASSES.index("infer_sbp") + 1])
    with pytest.raises(ConfigError, match="no pass 'fly'"):
        run_passes(graph(), JobConfig("g"), Cluster(2), until="fly")


def test_dumps_parse_back(tmp_path):
    made = graph()
    observer = Observer(dump_dir=tmp_path)
    run_passes(made, JobConfig("g"), Cluster(2), until=GRAPH_PASSES[-1], observer=observer)
    files = sorted(tmp_path.iterdir())
    assert [f.name for f in files] == [
        f"Mlp.{i:02d}_{name}.txt" for i, name in enumerate(GRAPH_PASSES, 1)
    ]
    assert str(parse_graph(files[-1].read_text())) == str(made)


def test_only_the_pass_asked_for_is_dumped(tmp_path):
    observer = Observer(dump_dir=tmp_path, dump_after="order")
    run_passes(graph(), JobConfig("g"), Cluster(2), observer=observer)
    assert [f.name for f in tmp_path.iterdir()] == [
        f"Mlp.{PASSES.index('order') + 1:02d}_order.txt"
    ]


def test_the_observer_follows_the_environment(tmp_path, monkeypatch):
    from oneflow.core.config import Config, set_config

    env = {"ONEFLOW_DUMP": str(tmp_path), "ONEFLOW_NNGRAPH_ENABLE_PROGRESS_BAR": "1"}
    set_config(Config.from_env(env))
    try:
        observer = Observer.from_config()
    finally:
        set_config(None)
    assert observer.dump_dir == tmp_path
    assert observer.progress is not None


def test_the_bar_counts_to_the_end_on_a_terminal(capsys, monkeypatch):
    from oneflow.scheduler.compiler.observe import Bar

    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    run_passes(graph(), JobConfig("g"), Cluster(2), observer=Observer(progress=Bar()))
    assert f"{len(PASSES)}/{len(PASSES)}" in capsys.readouterr().err


def test_a_file_gets_lines_and_no_bar(capsys):
    from oneflow.scheduler.compiler.observe import Bar

    clock = iter(range(100))  # a second a look
    compile_graph(
        graph(),
        JobConfig("g"),
        Cluster(2),
        Observer(progress=Bar(interval_s=2.0, now=lambda: float(next(clock)))),
    )
    err = capsys.readouterr().err
    total = len(PASSES)
    assert "\r" not in err and "\x1b" not in err
    assert err.splitlines()[-1].startswith(f"compiling: {total}/{total} passes")
    assert 2 <= len(err.splitlines()) < total


def test_passes_leave_graphs_and_then_plans_and_all_are_counted(tmp_path):
    from oneflow.core.metrics import METRICS

    before = {k: sum(h.counts) for k, h in METRICS.scheduler.passes.items()}
    plan = compile_graph(
        graph(), JobConfig("g"), Cluster(2), Observer(dump_dir=tmp_path, prefix="rank1.")
    )
    files = sorted(tmp_path.iterdir())
    assert [f.name for f in files] == [
        f"rank1.Mlp.{i:02d}_{name}.txt" for i, name in enumerate(PASSES, 1)
    ]
    assert files[-1].read_text() == f"{plan}\n"
    for name in PASSES:
        assert sum(METRICS.scheduler.passes[name].counts) == before.get(name, 0) + 1


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda plan: plan.actors.reverse(), "out of order"),
        (lambda plan: plan.actors[1].nodes.pop(), "run by 0 actors"),
        (lambda plan: plan.registers[0].consumers[0].inputs.clear(), "both of its ends"),
        (lambda plan: setattr(plan.registers[0], "num_slots", 0), "0 slots"),
        (lambda plan: setattr(plan.registers[0], "items", 7), "acts"),
    ],
)
def test_a_wrong_plan_is_told(damage, said):
    plan = compile_graph(graph(), JobConfig("g"), Cluster(2))
    verify(plan, after=PASSES[-1])
    damage(plan)
    with pytest.raises(InternalError, match=said):
        verify(plan, after=PASSES[-1])
