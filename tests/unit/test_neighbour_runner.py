"""The runner of `make neighbours`: runs that are repeated, the words of a row, and the table."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.clients.records import write_rows
from tests.clients.verdict import Outcome
from tests.neighbours import __main__ as runner
from tests.neighbours.neighbour import NEIGHBOURS, ROOT, Neighbour

ONE = Neighbour("one", "runs", ("tests/neighbours/__init__.py",), ("one", "--version"))


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[Outcome]]:
    """Outcomes of the next runs of tests, the first one first."""
    coming: list[list[Outcome]] = []
    monkeypatch.setattr(runner, "FOLDER", tmp_path)
    monkeypatch.setattr(runner, "install", lambda one: ("python", ""))
    monkeypatch.setattr(runner, "version_of", lambda one, python, path: "1.2")
    monkeypatch.setattr(runner, "library_state", lambda *more: "state")
    monkeypatch.setattr(runner, "judge", lambda one, python, path: coming.pop(0))
    return coming


def test_every_neighbour_has_tests_and_a_row() -> None:
    table = runner.PAGE.read_text().partition(runner.MARKS[0])[2].partition(runner.MARKS[1])[0]
    rows = [line.split("|")[1].strip() for line in table.strip().splitlines()[2:]]
    assert rows == [one.name for one in NEIGHBOURS], "run `make neighbours`"
    for one in NEIGHBOURS:
        for file in one.tests:
            assert "mark.neighbour" in (ROOT / file).read_text()
        assert "|" not in one.ran + one.unproven


def test_a_neighbour_that_passed_is_not_run_again(judged: list[list[Outcome]]) -> None:
    good = [Outcome("a"), Outcome("b")]
    judged += [good, good]
    first = runner.run_neighbour(ONE, again=False)
    assert (first.result, first.is_whole, first.version) == ("2 of 2", True, "1.2")
    assert runner.run_neighbour(ONE, again=False) == first and len(judged) == 1
    assert runner.run_neighbour(ONE, again=True) == first and not judged


def test_a_neighbour_that_failed_is_run_again(judged: list[list[Outcome]]) -> None:
    judged += [[Outcome("a"), Outcome("b", trouble="assert 1 | 2")], [Outcome("a")]]
    first = runner.run_neighbour(ONE, again=False)
    assert (first.result, first.is_whole) == ("1 of 2; b: assert 1 / 2", False)
    assert runner.run_neighbour(ONE, again=False).is_whole


def test_a_skipped_test_has_not_passed(judged: list[list[Outcome]]) -> None:
    judged.append([Outcome("a", refused="not run: needs Slurm")])
    assert not runner.run_neighbour(ONE, again=False).is_whole


def test_a_run_that_was_cut_short_has_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report of a run that is interrupted has the tests that were over."""

    def run(argv: list[str], **more: object) -> subprocess.CompletedProcess[str]:
        report = next(word.partition("=")[2] for word in argv if word.startswith("--junitxml"))
        Path(report).write_text('<testsuites><testcase name="test_a"/></testsuites>')
        return subprocess.CompletedProcess(argv, 2)

    monkeypatch.setattr(runner, "FOLDER", tmp_path)
    monkeypatch.setattr(runner.subprocess, "run", run)
    assert runner.told(runner.judge(ONE, "python", "")) == "1 of 2; tests: pytest ended with 2"


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Neighbour("one", "", (), (), programs=("no-such-program",), debian=("such",))
    monkeypatch.setattr(runner.os, "geteuid", lambda: 1000)
    found = runner.run_neighbour(one, again=False)
    assert not found.is_whole
    assert found.result == "not run: no-such-program is missing: apt-get install such"


def test_rows_are_in_the_order_of_names_and_others_go(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<1>\n| h |\n|---|\n| old | x |\n| b | x |\n<2>\nz\n")
    write_rows({"c": "| c | new |"}, ["c", "b"], page, ("<1>", "<2>"), ("| h |", "|---|"))
    assert page.read_text() == "a\n<1>\n| h |\n|---|\n| c | new |\n| b | x |\n<2>\nz\n"
