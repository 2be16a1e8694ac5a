"""Clients that are suites of tests: ports of OneFlow and models alone, which install themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from .client import Client
from .environment import plain_name
from .installing import ROOT
from .verdict import Outcome

TESTS = "tests/clients/test_clients.py"


def named_versions(client: Client) -> dict[str, str]:
    """Versions that the requirements of a suite name."""
    return {plain_name(one): one.partition("==")[2] or "main" for one in client.packages}


def judge_suite(client: Client, folder: Path, output: Path) -> list[Outcome]:
    """Run the tests of a suite.

    Args:
        client: A client with a suite.
        folder: Gets the packages that the tests install.
        output: Gets `pytest.log` and `pytest.xml`.
    """
    output.mkdir(parents=True, exist_ok=True)
    report = output / "pytest.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "client", "-p", "no:cacheprovider"]
    with (output / "pytest.log").open("w") as log:
        try:
            subprocess.run(
                [*command, TESTS, "-k", client.suite, f"--junitxml={report}"],
                cwd=ROOT,
                env={**os.environ, "ONEFLOW_CLIENTS": str(folder)},
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=client.time_limit_s,
            )
        except subprocess.TimeoutExpired:
            return [Outcome("suite", trouble=f"did not end within {client.time_limit_s:g} s")]
    if not report.exists():
        return [Outcome("suite", trouble="pytest wrote no report; see pytest.log")]
    return [outcome_of_case(case) for case in ElementTree.parse(report).iter("testcase")]


def outcome_of_case(case: ElementTree.Element) -> Outcome:
    """Read the result of one test; a skipped one names its needs."""
    name = case.get("name", "").removeprefix("test_")
    for kind in ("failure", "error"):
        if (found := case.find(kind)) is not None:
            return Outcome(name, trouble=found.get("message", kind))
    skipped = case.find("skipped")
    return Outcome(name, refused="" if skipped is None else f"not run: {skipped.get('message')}")
