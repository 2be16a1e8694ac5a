"""The table of variables: complete, equal to its page, strict, and read where they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from oneflow.core.config import (
    Config,
    ConfigWarning,
    current_config,
    set_config,
    warn_of_unread,
)
from oneflow.core.errors import ConfigError
from oneflow.core.variables import (
    PREFIXES,
    SECTIONS,
    VARIABLES,
    Variable,
    is_known,
    unread,
)

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "CONFIGURATION.md"
FOLDERS = (
    *("oneflow", "kernels", "boxing", "actors", "scheduler", "launcher", "protos"),
    *("deploy", "docs", "examples", "benchmarks", "campaigns", "tests", ".ci"),
)
SUFFIXES = (".py", ".pyi", ".md", ".sh", ".sbatch", ".yaml", ".yml", ".toml", ".service", ".env")
NAME = re.compile(r"\bONEFLOW_[A-Z0-9_]*[A-Z0-9]\b")
ELSEWHERE = {"ONEFLOW_ENABLE_NHWC"}
"""Upstream's variables that a page says are not read."""
PARSED = ("flag", "count", "seconds", "address", "choice")
NOT_IN_CONFIG = {
    *("ONEFLOW_PULSE_FD", "ONEFLOW_SCHEDULER_ADDRESS", "ONEFLOW_DEVICES_PER_NODE"),
    *("ONEFLOW_MOCK_TORCH_LAZY", "ONEFLOW_MOCK_TORCH_VERBOSE", "ONEFLOW_DISABLE_MOCK_TORCH"),
    "ONEFLOW_ENABLE_GLOBAL_INPUTS_WITH_INCONSISTENT_PLACEMENT",
    *(name for name in VARIABLES if name.startswith(("ONEFLOW_PROFILE_", "ONEFLOW_TEST_"))),
}
"""Variables that are read by other programs, or at each use."""
WORLD = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "4", "RANK": "2"}


def _names() -> dict[str, str]:
    """Names in the files of the project, each with a file."""
    found: dict[str, str] = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path == Path(__file__) or path.suffix not in SUFFIXES or not path.is_file():
                continue
            for name in NAME.findall(path.read_text()):
                found.setdefault(name, str(path.relative_to(ROOT)))
    return found


def test_every_name_in_the_project_stands_in_the_table() -> None:
    found = _names()
    assert len(found) > 80
    beginnings = {name.rpartition("_")[0] for name in (*VARIABLES, *PREFIXES)}
    unknown = {n: f for n, f in found.items() if not is_known(n)}
    assert {n: f for n, f in unknown.items() if n not in beginnings | ELSEWHERE} == {}


def test_every_variable_of_the_table_is_read_somewhere() -> None:
    named = "\n".join(
        path.read_text()
        for folder in (*FOLDERS[:7], "deploy", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SUFFIXES and path.name != "variables.py" and path != Path(__file__)
    )
    assert [n for n in VARIABLES if n.startswith("ONEFLOW_") and n not in named] == []


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_page_says_what_the_table_says(heading: str) -> None:
    part = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if re.match(r"\| `[A-Z_a-z0-9]+` \|", line)]
    for line, variable in zip(lines, SECTIONS[heading], strict=True):
        name, kind, default, meaning = variable
        assert line.startswith(f"| `{name}` | {kind} | {default} | {meaning}")


@pytest.mark.parametrize(
    "variable",
    [v for v in VARIABLES.values() if v.kind in PARSED and v.name not in NOT_IN_CONFIG],
    ids=lambda v: v.name,
)
def test_a_bad_value_is_an_error_that_names_the_variable(variable: Variable) -> None:
    with pytest.raises(ConfigError, match=rf"{variable.name}\b.*bogus"):
        Config.from_env(WORLD | {variable.name: "bogus"})


@pytest.mark.parametrize(
    ("name", "clause"),
    [
        ("ONEFLOW_TIMEOUT_SECOND", "nothing reads it; did you mean ONEFLOW_TIMEOUT_SECONDS?"),
        ("ONEFLOW_KERNELFUSION", "nothing reads it; did you mean ONEFLOW_KERNEL_FUSION?"),
        ("ONEFLOW_VM_MULTI_THREAD", "ONEFLOW_VM_MULTI_THREAD is set, but nothing reads it"),
    ],
)
def test_a_variable_that_nothing_reads_is_found(name: str, clause: str) -> None:
    known = {"ONEFLOW_DEBUG": "1", "ONEFLOW_SCHEDULER_LISTEN": "", "HOME": "/", "RANK": "0"}
    (found,) = unread(known | {name: "1"})
    assert found.endswith(clause)


def test_one_warning_names_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFLOW_DEBUG_MOD", "1")
    monkeypatch.setenv("ONEFLOW_NOTHING_OF_THE_KIND", "1")
    warn_of_unread.cache_clear()
    with pytest.warns(ConfigWarning) as told:
        warn_of_unread()
        warn_of_unread()
    assert len(told) == 1
    assert "did you mean ONEFLOW_DEBUG_MODE?; ONEFLOW_NOTHING_OF" in str(told[0].message)


def test_other_ranks_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFLOW_DEBUG_MOD", "1")
    kept = current_config()
    set_config(Config.from_env(WORLD))
    warn_of_unread.cache_clear()
    try:
        warn_of_unread()
    finally:
        set_config(kept)


PROGRAM = "import oneflow as flow; print(float(flow.ones(3).sum()))"


@pytest.mark.parametrize("launcher", [(), ("-m", "oneflow.distributed.launch")])
def test_a_program_warns_once(launcher: tuple[str, ...], tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ranks = ("--nproc_per_node", "2") if launcher else ()
    done = subprocess.run(
        [sys.executable, *launcher, *ranks, str(program)],
        env=os.environ | {"ONEFLOW_LOGLEVEL": "INFO", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("did you mean ONEFLOW_LOG_LEVEL?") == 1


def test_the_launcher_lists_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from oneflow.launcher.launch import main

    monkeypatch.setenv("ONEFLOW_LOGLEVEL", "INFO")
    assert main(["--print_config"]) == 0
    assert "did you mean ONEFLOW_LOG_LEVEL?" in capsys.readouterr().out
