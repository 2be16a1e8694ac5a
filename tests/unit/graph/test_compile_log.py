"""The stages of compiling: on the terminal, in a file, as a table; tensors of checkpointing."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.config import current_config, set_config
from oneflow.core.stage_log import measured, note, recording
from oneflow.scheduler.compiler.passes import PASSES


class Training(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        inner = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
        self.model = nn.Sequential(inner, nn.Linear(64, 2))
        self.model[0].to(nn.graph.GraphModule).activation_checkpointing = True
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1))

    def build(self, x: Any) -> Any:
        loss = self.model(x).sum()
        loss.backward()
        return loss


@pytest.fixture
def debug_mode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    before = current_config()
    monkeypatch.delenv("GLOG_log_dir", raising=False)
    monkeypatch.chdir(tmp_path)
    set_config(replace(before, debug=True))
    yield tmp_path / "log" / "local_rank_0" / socket.gethostname() / "oneflow.INFO"
    set_config(before)


def stages_of(lines: list[str]) -> list[dict[str, str]]:
    head = "[count log]"
    return [json.loads(line[len(head) :]) for line in lines if line.startswith(head)]


def test_each_stage_is_a_line_on_the_terminal_and_in_the_file(
    debug_mode: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = Training()
    graph.debug(0)
    graph(flow.ones(16, 64))
    graph(flow.ones(16, 64))
    shown = stages_of(capsys.readouterr().out.splitlines())
    written = debug_mode.read_text().splitlines()
    assert stages_of(written) == shown
    names = [stage["loc"].removeprefix(f"[GraphCompile]{graph.name} ") for stage in shown]
    passes = list(PASSES)
    assert names[0] == "trace" and names[-3:] == ["compile", "bind", "first_run"]
    assert [name for name in names if name in passes] == passes[: len(names) - 4]
    for stage in shown:
        assert stage["time_cost"].endswith(" seconds") and float(stage["time_cost"].split()[0]) >= 0
        assert stage["mem_rss"].endswith(" MB") and stage["mem_vm"].endswith(" MB")
    assert any("registers" in line for line in written)  # the memory report
    table = str(graph.compile_log()).splitlines()
    assert [row.split()[0] for row in table[1:]] == names


def test_the_folder_of_the_launcher_is_taken(
    debug_mode: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GLOG_log_dir", str(tmp_path / "mine"))
    Training()(flow.ones(16, 64))
    assert (tmp_path / "mine" / socket.gethostname() / "oneflow.INFO").exists()
    assert not debug_mode.exists()


def test_nothing_is_said_that_nobody_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    graph = Training()
    graph(flow.ones(16, 64))
    assert "count log" not in capsys.readouterr().out
    assert graph.compile_log().stages[-1].name == "first_run"


def test_checkpointing_names_its_tensors(capsys: pytest.CaptureFixture[str]) -> None:
    graph = Training()
    graph.debug(1)
    graph(flow.ones(16, 64))
    lines = [line for line in capsys.readouterr().out.splitlines() if "kept" in line]
    dropped = [line for line in lines if "model.0: not kept: %" in line]
    assert len(dropped) == 2 and all("float32[16, 64]" in line for line in dropped)
    assert all(line.endswith("4096 bytes") for line in dropped)
    assert [line for line in lines if "kept to compute it again" in line and "(input)" in line]


def test_stages_reach_only_who_records_the_graph() -> None:
    found: list[str] = []
    with recording("mine", lambda stage: found.append(stage.name)):
        note("mine", "a", 0.5)
        note("other", "b", 0.5)
    note("mine", "c", 0.5)
    assert found == ["a"]
    stage = measured("x", 0.5)
    assert stage.vm_nbytes > stage.rss_nbytes > 1 << 20
