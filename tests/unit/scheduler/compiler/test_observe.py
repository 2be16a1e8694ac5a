"""Views of a compile, and their cost, which is none if nobody looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from oneflow.core.errors import ConfigError
from oneflow.core.graph import LogicalGraph
from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.scheduler.compiler.observe import Observer
from oneflow.scheduler.compiler.passes import PASSES
from oneflow.scheduler.compiler.pipeline import compile_graph

TEXT = """graph seen pieces=1 {
  %0: float32[4, 4] S(0) = input(; name='x') @cpu[0, 1]
  %1: float32[4, 4] ? = relu(%0) @cpu[0, 1]
  %2: float32[4, 4] B = to_global(%1) @cpu[0, 1]
  output(%2; index=0) @cpu[0, 1]
}"""


def test_graphs_are_not_printed_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(graph: LogicalGraph) -> str:
        raise AssertionError("a graph was made into text that nobody reads")

    monkeypatch.setattr(LogicalGraph, "__str__", refuse)
    compile_graph(parse_graph(TEXT), JobConfig("seen"), Cluster(2), Observer())


def test_what_every_pass_leaves_is_dumped(tmp_path: Path) -> None:
    compile_graph(parse_graph(TEXT), JobConfig("seen"), Cluster(2), Observer(dump_dir=tmp_path))
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == [f"seen.{i:02d}_{name}.txt" for i, name in enumerate(PASSES, 1)]
    assert "boxing(" in (tmp_path / "seen.10_insert_boxing.txt").read_text()


def test_a_dump_into_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="ONEFLOW_DUMP names the folder"):
        compile_graph(
            parse_graph(TEXT), JobConfig("seen"), Cluster(2), Observer(dump_dir=tmp_path / "file")
        )


def test_a_dump_after_one_pass_is_that_pass(tmp_path: Path) -> None:
    observer = Observer(dump_dir=tmp_path, dump_after="infer_sbp")
    compile_graph(parse_graph(TEXT), JobConfig("seen"), Cluster(2), observer)
    (dump,) = tmp_path.iterdir()
    assert "?" not in dump.read_text()
    assert [t.name for t in observer.times] == list(PASSES)
