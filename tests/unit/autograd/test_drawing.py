"""The picture of a backward pass that debug mode writes."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import oneflow as flow
from oneflow.core.config import current_config, set_config


@pytest.fixture(autouse=True)
def debugging(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("GLOG_log_dir", str(tmp_path))
    set_config(replace(current_config(), debug=True))
    yield
    set_config(None)


def picture(tmp_path: Path, mode: str) -> str:
    return (tmp_path / socket.gethostname() / f"autograd_{mode}_rank0_graph.dot").read_text()


def test_a_backward_pass_is_drawn_with_its_leaves(tmp_path: Path) -> None:
    w = flow.ones(3, 2, requires_grad=True)
    b = flow.ones(2, requires_grad=True)
    (flow.ones(4, 3) @ w + b).sum().backward()
    text = picture(tmp_path, "backward")
    ops = dict(re.findall(r'^  (op\d+) \[label="([^"]+)"\];', text, re.MULTILINE))
    leaves = dict(re.findall(r'^  (leaf\d+) \[.*label="([^"]+)"\];', text, re.MULTILINE))
    assert sorted(leaves.values()) == ["(2,) float32", "(3, 2) float32"]
    edges = re.findall(r"^  (\w+) -> (\w+)", text, re.MULTILINE)
    assert {a for a, _ in edges} == set(ops) and {b for _, b in edges} <= set(ops) | set(leaves)
    assert sum(b in leaves for _, b in edges) == 2
    assert len(ops) >= 3 and text.endswith("}\n")


def test_the_next_pass_takes_the_place_of_the_last_one(tmp_path: Path) -> None:
    w = flow.ones(5, requires_grad=True)
    (w * w).sum().backward()
    w.exp().sum().backward()
    assert "exp" in picture(tmp_path, "backward") and "mul" not in picture(tmp_path, "backward")
    flow.autograd.grad((w * w).sum(), w)
    assert "mul" in picture(tmp_path, "grad")
    names = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert names == ["autograd_backward_rank0_graph.dot", "autograd_grad_rank0_graph.dot"]
