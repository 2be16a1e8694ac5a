"""Graphs of several ranks, written as ONNX models."""

from __future__ import annotations

from pathlib import Path

from tests.support.launching import check_done, launch


def test_graph_of_two_ranks_is_written_as_one_model(tmp_path: Path) -> None:
    check_done(launch(2, "onnx_program", tmp_path / "model.onnx"), 2)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
