"""A program that was edited gives its new result: every process traces, only plans are kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = '''
import json
import typing
from collections.abc import Callable

import oneflow as flow
from oneflow import distributions, nn
from oneflow.scheduler.compiler import plan_cache

compiled = []
compile_graph = plan_cache.compile_graph
plan_cache.compile_graph = lambda *args: compiled.append(0) or compile_graph(*args)


class Known(distributions.Normal):
    pass


@distributions.register_kl(Known, Known)
def _known(p, q):
    return (p.loc - q.loc).abs() * FACTOR


def named(x):
    """DOC"""
    return x


named.__name__ = "NAME"


def hinted(x: HINT) -> flow.Tensor:
    return x


def by_registry(x):
    zero = Known(x * 0, x + 1)
    return distributions.kl_divergence(Known(x, x + 1), zero)


def by_name(x):
    return x * float(named.__name__.removeprefix("times_"))


def by_doc(x):
    return x * float(named.__doc__)


def by_hints(x):
    return x * (3.0 if typing.get_type_hints(hinted)["x"] is flow.Tensor else 2.0)


class Run(nn.Graph):
    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.function = function

    def build(self, x):
        total = x * 0
        for _ in range(300):
            total = total + self.function(x)
        return total


ones = flow.ones(1)
functions = [by_registry, by_name, by_doc, by_hints]
results = {f.__name__: Run(f)(ones).item() / 300 for f in functions}
print(json.dumps({"results": results, "compiled": len(compiled)}))
'''
"""Four graphs of more nodes than those whose plans are kept on disk have at least."""

BEFORE = {"FACTOR": "2.0", "DOC": "2.0", "NAME": "times_2.0", "HINT": "float"}
AFTER = {"FACTOR": "3.0", "DOC": "3.0", "NAME": "times_3.0", "HINT": "flow.Tensor"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Gives the program's output, of it again, and of the edited program, in a process each."""
    folder = tmp_path_factory.mktemp("program")
    return [run(folder, edits) for edits in (BEFORE, BEFORE, AFTER)]


def run(folder: Path, edits: dict[str, str]) -> dict[str, Any]:
    text = PROGRAM
    for name, value in edits.items():
        text = text.replace(name, value)
    (folder / "program.py").write_text(text)
    found = subprocess.run(
        [sys.executable, folder / "program.py"],
        env={**os.environ, "ONEFLOW_PLAN_CACHE": str(folder / "plans")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    result: dict[str, Any] = json.loads(found.stdout)
    return result


@pytest.mark.parametrize("name", ["by_registry", "by_name", "by_doc", "by_hints"])
def test_an_edited_program_gives_its_new_result(runs: list[dict[str, Any]], name: str) -> None:
    assert [r["results"][name] for r in runs] == [2.0, 2.0, 3.0]


def test_a_second_process_finds_the_plans(runs: list[dict[str, Any]]) -> None:
    assert [r["compiled"] for r in runs] == [4, 0, 4]
