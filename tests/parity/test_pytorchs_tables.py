"""PyTorch's tables: the first samples of every entry in CI, all of them when there is time."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from . import report
from .known import KNOWN, LATER
from .report import Finding

ROOT = pathlib.Path(__file__).parents[2]
SAMPLES = 3  # per dtype and surface: 16 s of CPU
FLOOR = (
    98.9  # percent of the samples that ran, of 675 entries; a change may raise it, never lower it
)


pytestmark = pytest.mark.timeout(900)
CHOICES = [
    pytest.param(["--samples", str(SAMPLES)], id="first samples"),
    pytest.param([], id="all samples", marks=pytest.mark.slow),  # 70 s of CPU
]


@pytest.fixture(scope="module", params=CHOICES)
def chosen(request: pytest.FixtureRequest) -> list[str]:
    return list(request.param)


@pytest.fixture(scope="module")
def known(chosen: list[str]) -> dict[tuple[str, str, str], str]:
    return KNOWN if chosen else KNOWN | LATER


@pytest.fixture(scope="module")
def findings(chosen: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[Finding]:
    """Runs in a process of its own, which keeps PyTorch to one thread and its seeds to itself."""
    found = tmp_path_factory.mktemp("parity") / "found.json"
    command = [sys.executable, "-m", "tests.parity", *chosen, "--json", found]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return [Finding(**f) for f in json.loads(found.read_text())]


def test_entries_that_differ_are_known(findings: list[Finding], known: Any) -> None:
    unknown = [f for f in findings if (f.table, f.entry, f.surface) not in known]
    assert not any(f.outcome == "failed" for f in unknown), report.failures(unknown)


def test_known_entries_still_differ(findings: list[Finding], known: Any) -> None:
    lost = {(f.table, f.entry, f.surface) for f in findings if f.outcome == "failed"}
    assert not set(known) - lost, (
        "these agree with PyTorch now: take them off tests/parity/known.py"
    )


def test_the_share_of_samples_only_rises(findings: list[Finding]) -> None:
    assert report.share_passed(findings) >= FLOOR, report.summary(findings)


def test_most_entries_run(findings: list[Finding]) -> None:
    """Guards against a harness that finds nothing to compare."""
    ran = [f for f in findings if f.ran]
    assert len(ran) >= 10500 and len({f.entry for f in ran if f.table == "operators"}) >= 670
