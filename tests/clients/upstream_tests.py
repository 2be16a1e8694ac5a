"""Upstream's tests of ops, unmodified, with `oneflow.test_utils` and `oneflow.autoprof`.

`python -m tests.clients.upstream_tests FOLDER OUTPUT [names]` takes a checkout of
Oneflow-Inc/oneflow and runs the files of python/oneflow/test/modules and tensor that have
`profile_` methods. It prints one line of JSON: tests that ran and were skipped, those that failed,
methods that were profiled and raised, and rows of the table. The logs are in OUTPUT.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = "python/oneflow/test"
FOLDERS = ("modules", "tensor")
PROFILE = re.compile(r"^    def (profile_\w+)", re.MULTILINE)
FAILED = re.compile(r"^(?:ERROR|FAIL): (\w+) \(([\w.]+?)(?:\.\1)?\)", re.MULTILINE)
RAN = re.compile(r"^Ran (\d+) test", re.MULTILINE)
SKIPPED = re.compile(r"skipped=(\d+)")
FEW = {"ONEFLOW_PROFILE_WARMUP_NUM": "1", "ONEFLOW_PROFILE_RUN_NUM": "2"}
TIME_LIMIT_S = 3600


def files(checkout: Path) -> list[Path]:
    """Return the files that have methods to profile."""
    found = [f for name in FOLDERS for f in sorted((checkout / TESTS / name).glob("test_*.py"))]
    return [file for file in found if PROFILE.search(file.read_text())]


def run(module: str, arguments: list[str], chosen: list[Path], folder: Path) -> str:
    """Run a module of Python on the files, and return its output, which goes to a log, too."""
    paths = [str(path) for path in dict.fromkeys(file.parent for file in chosen)]
    env = {
        **os.environ,
        **FEW,
        "ONEFLOW_TEST_CPU_ONLY": "1",
        "ONEFLOW_PROFILE_CSV": str(folder / "op_prof.csv"),
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
    }
    log = folder / f"{module}.log"
    with log.open("w") as out:
        subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=folder,
            env=env,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=TIME_LIMIT_S,
        )
    return log.read_text()


def counted(pattern: re.Pattern[str], text: str) -> int:
    """Return the sum of the numbers that a pattern finds."""
    return sum(map(int, pattern.findall(text)))


def named(text: str) -> list[str]:
    """Return the tests that failed, with their classes."""
    return sorted(f"{place}.{name}" for name, place in FAILED.findall(text))


def report(chosen: list[Path], folder: Path) -> dict[str, Any]:
    """Run the tests of all files in one process, then their methods to profile."""
    folder.mkdir(parents=True, exist_ok=True)
    tests = run("unittest", [file.stem for file in chosen], chosen, folder)
    profiled = run("oneflow.autoprof", [str(file) for file in chosen], chosen, folder)
    with (folder / "op_prof.csv").open(newline="") as rows:
        libraries = [row["Library"] for row in csv.DictReader(rows)]
    return {
        "files": len(chosen),
        "tests": counted(RAN, tests),
        "skipped": counted(SKIPPED, tests),
        "failed": named(tests),
        "methods": sum(len(PROFILE.findall(file.read_text())) for file in chosen),
        "profiled": counted(RAN, profiled),
        "raised": named(profiled),
        "rows": {name: libraries.count(name) for name in ("OneFlow", "PyTorch")},
    }


def main() -> None:
    """Print the report of the files that were asked for, or of all."""
    checkout, folder, names = Path(sys.argv[1]), Path(sys.argv[2]).resolve(), sys.argv[3:]
    chosen = [file for file in files(checkout) if not names or file.stem in names]
    print(json.dumps(report(chosen, folder)), flush=True)


if __name__ == "__main__":
    main()
