"""Run neighbours one after another, and write their results into docs/DEPLOY.md."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from xml.etree import ElementTree

from tests.clients.client import Client
from tests.clients.environment import Environment, InstallError
from tests.clients.records import library_state, plain, write_rows
from tests.clients.suites import outcome_of_case
from tests.clients.verdict import Outcome

from .neighbour import NEIGHBOURS, ROOT, Neighbour

FOLDER = ROOT / "build" / "neighbours"
PAGE = ROOT / "docs" / "DEPLOY.md"
MARKS = ("<!-- make neighbours: begin -->", "<!-- make neighbours: end -->")
HEAD = (
    "| neighbour | version | what ran | tests passed | unproven | date |",
    "|---|---|---|---|---|---|",
)
SBIN = f"{os.environ['PATH']}:/usr/sbin:/sbin"
VERSION = re.compile(r"\d+\.\d+[\w.]*")
INSTALL_LIMIT_S = 1200


@dataclass(frozen=True)
class Record:
    """Result of a neighbour.  key: digest of the sources and the version that it holds for."""

    name: str
    key: str
    version: str
    result: str
    is_whole: bool
    date: str

    def row(self, neighbour: Neighbour) -> str:
        """The neighbour's line of the table."""
        cells = (neighbour.name, self.version, neighbour.ran, self.result, neighbour.unproven)
        return f"| {' | '.join(cells)} | {self.date} |"


def install(neighbour: Neighbour) -> tuple[str, str]:
    """Install a neighbour unless it is there.

    Returns:
        The interpreter that runs its tests, and the PATH to run them with.

    Raises:
        InstallError: If something is missing and cannot be installed here.
    """
    missing = [name for name in neighbour.programs if shutil.which(name, path=SBIN) is None]
    if missing:
        packages = " ".join(neighbour.debian)
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise InstallError(f"{', '.join(missing)} is missing: apt-get install {packages}")
        apt = ["apt-get", "install", "-qq", "--no-install-recommends", *neighbour.debian]
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(
            apt, env=quiet, capture_output=True, text=True, timeout=INSTALL_LIMIT_S
        )
        if done.returncode:
            raise InstallError(done.stderr.strip().splitlines()[-1])
    python = sys.executable
    if neighbour.index:
        client = Client(neighbour.name, Path(__file__), neighbour.ran, (), neighbour.index)
        environment = Environment(client, FOLDER)
        environment.install()
        python = str(environment.python)
    return python, f"{Path(python).parent}:{Path(sys.executable).parent}:{SBIN}"


def judge(neighbour: Neighbour, python: str, path: str) -> list[Outcome]:
    """Run the tests of a neighbour; `pytest.log` and `pytest.xml` are kept in its folder."""
    output = FOLDER / "output" / neighbour.name
    output.mkdir(parents=True, exist_ok=True)
    report = output / "pytest.xml"
    report.unlink(missing_ok=True)
    argv = [
        python,
        "-m",
        "pytest",
        "-v",
        "-m",
        "neighbour",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:kmock",
    ]
    argv += ["-o", f"timeout={neighbour.time_limit_s:g}", f"--junitxml={report}"]
    with (output / "pytest.log").open("w") as log:
        try:
            done = subprocess.run(
                [*argv, *neighbour.tests],
                cwd=ROOT,
                env={**os.environ, "PATH": path},
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=neighbour.time_limit_s,
            )
        except subprocess.TimeoutExpired:
            limit_s = neighbour.time_limit_s
            return [Outcome("tests", trouble=f"did not end within {limit_s:g} s")]
    if not report.exists():
        return [Outcome("tests", trouble="pytest wrote no report; see pytest.log")]
    found = [outcome_of_case(case) for case in ElementTree.parse(report).iter("testcase")]
    if done.returncode and not any(outcome.trouble for outcome in found):
        found.append(Outcome("tests", trouble=f"pytest ended with {done.returncode}"))
    return found


def told(outcomes: Sequence[Outcome]) -> str:
    """Put the outcomes of tests into a cell of the table."""
    bad = [o for o in outcomes if o.trouble or o.refused]
    parts = [f"{len(outcomes) - len(bad)} of {len(outcomes)}"]
    return "; ".join(parts + [f"{o.name}: {plain(o.trouble or o.refused)}" for o in bad])


def version_of(neighbour: Neighbour, python: str, path: str) -> str:
    """Ask a neighbour for its version."""
    argv = [python if word == "python" else word for word in neighbour.version]
    done = subprocess.run(
        argv, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120
    )
    found = VERSION.search(done.stdout + done.stderr)
    return found.group() if found else "-"


def run_neighbour(neighbour: Neighbour, *, again: bool) -> Record:
    """Return the record of a neighbour, which runs unless it has passed in the same state."""
    date = datetime.now(timezone.utc).date().isoformat()
    try:
        python, path = install(neighbour)
    except InstallError as error:
        return Record(neighbour.name, "", "-", f"not run: {plain(str(error))}", False, date)
    version = version_of(neighbour, python, path)
    key = json.dumps([neighbour.digest, version, library_state("deploy")])
    file = FOLDER / "records" / f"{neighbour.name}.json"
    if file.exists() and not again:
        kept = Record(**json.loads(file.read_text()))
        if kept.key == key and kept.is_whole:
            return kept
    outcomes = judge(neighbour, python, path)
    is_whole = bool(outcomes) and not any(o.trouble or o.refused for o in outcomes)
    record = Record(neighbour.name, key, version, told(outcomes), is_whole, date)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(record), indent=1))
    return record


def main(arguments: list[str] | None = None) -> int:
    """Run the neighbours that were asked for; return 1 if any of them did not pass whole."""
    parser = argparse.ArgumentParser(prog="python -m tests.neighbours", description=__doc__)
    parser.add_argument("--only", default="", help="names of neighbours, with commas; default: all")
    parser.add_argument("--again", action="store_true", help="run what has passed, too")
    options = parser.parse_args(arguments)
    names = [neighbour.name for neighbour in NEIGHBOURS]
    only = [name for name in options.only.split(",") if name]
    if unknown := sorted(set(only) - set(names)):
        parser.error(f"no neighbour is called {', '.join(unknown)}; there are {', '.join(names)}")
    all_passed = True
    for neighbour in NEIGHBOURS:
        if only and neighbour.name not in only:
            continue
        began = time.monotonic()
        record = run_neighbour(neighbour, again=options.again)
        write_rows({neighbour.name: record.row(neighbour)}, names, PAGE, MARKS, HEAD)
        seconds = time.monotonic() - began
        print(f"{record.name} {record.version} ({seconds:.0f} s): {record.result}", flush=True)
        all_passed &= record.is_whole
    return 0 if all_passed else 1


if __name__ == "__main__":
    sys.exit(main())
