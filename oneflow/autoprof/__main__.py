"""`python -m oneflow.autoprof FILE_OR_MODULE [arguments of unittest]`: ops beside PyTorch's.

It runs the methods that begin with `profile_`, once for each library in a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from oneflow.autoprof import table
from oneflow.autoprof.measuring import TITLES, Row, call_counts, is_verbose, switch
from oneflow.core.errors import ConfigError, OneFlowError
from oneflow.test_utils.automated_test_util import profiler
from oneflow.test_utils.automated_test_util.dual_object import state

ONLY = {"oneflow": "ONEFLOW_PROFILE_ONLY_ONEFLOW", "pytorch": "ONEFLOW_PROFILE_ONLY_PYTORCH"}
CSV, PRINT = "ONEFLOW_PROFILE_CSV", "ONEFLOW_PROFILE_PRINT_SUMMARY"
QUIET = {"KINETO_LOG_LEVEL": "99"}  # PyTorch's profiler says when it starts and stops
NO_METHODS = 5
"""The exit code of a run without methods, as of unittest and pytest."""


def main(arguments: list[str]) -> int:
    """Profile the chosen methods; return 0 if all of them ran."""
    only = [library for library, name in ONLY.items() if switch(name, False)]
    if len(only) == 2:
        raise ConfigError(f"{' and '.join(ONLY.values())} leave no library: set one of them")
    call_counts(), is_verbose()  # a wrong value is an error here, not of each method
    _check(arguments, only)
    path = Path(os.environ.get(CSV) or "op_prof")
    path = path.with_name(path.name.removesuffix(".csv") + ".csv")
    rows, code = _profile(arguments, only[0]) if only else _profile_both(arguments)
    table.write(path, rows)
    if switch(PRINT, True):
        print(table.summary(rows))
    return code


def _check(arguments: list[str], only: list[str]) -> None:
    """Refuse files that are not there, and a comparison without PyTorch."""
    if not arguments or arguments[0] in ("-h", "--help"):
        raise ConfigError(
            "usage: python -m oneflow.autoprof FILE_OR_MODULE [arguments of unittest]"
        )
    for name in arguments:
        if name.endswith(".py"):
            _check_file(name)
    if only != ["oneflow"] and importlib.util.find_spec("torch") is None:
        raise ConfigError(
            "PyTorch is not installed: pip install torch, or set "
            f"{ONLY['oneflow']}=1 to profile OneFlow alone"
        )


def _check_file(name: str) -> None:
    """Refuse a file that is not there or is no Python, before both libraries run it."""
    if not Path(name).is_file():
        raise ConfigError(f"there is no file {name}")
    try:
        compile(Path(name).read_bytes(), name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{name} is no Python: {error}") from None


def _profile_both(arguments: list[str]) -> tuple[list[dict[str, str]], int]:
    """Run each library in a process, whose threads and memory the other one does not disturb."""
    found, codes = [], []
    with tempfile.TemporaryDirectory() as folder:
        for library, name in ONLY.items():
            path = Path(folder) / f"{library}.csv"
            told = {name: "1", CSV: str(path), PRINT: "0"}
            print(f"profile_ methods on {TITLES[library]}:", file=sys.stderr, flush=True)
            done = subprocess.run(
                [sys.executable, "-m", "oneflow.autoprof", *arguments],
                env={**QUIET, **os.environ, **told},
            )
            codes.append(done.returncode)
            found.append(table.read(path))
    return table.side_by_side(*found), max(codes, key=abs)


def _profile(arguments: list[str], library: str) -> tuple[list[dict[str, str]], int]:
    """Run the methods in this process, on one library."""
    rows: list[dict[str, str]] = []

    def report(measured: list[Row]) -> None:
        rows.extend(map(table.record, measured))

    state.libraries = (library,)
    profiler.reporters.append(report)
    loader = unittest.TestLoader()
    loader.testMethodPrefix = "profile_"
    names = [_found(name) if name.endswith(".py") else name for name in arguments]
    sys.path.insert(0, os.getcwd())
    program = unittest.main(None, argv=["autoprof", *names], testLoader=loader, exit=False)
    if not program.result.wasSuccessful():
        return rows, 1
    if not program.result.testsRun:
        print(f"no method of {' '.join(arguments)} begins with profile_", file=sys.stderr)
        return rows, NO_METHODS
    return rows, 0


def _found(file: str) -> str:
    """Let Python find a file as a module, and return its name."""
    path = Path(file).resolve()
    sys.path.insert(0, str(path.parent))
    if path.stem in sys.modules:
        raise ConfigError(f"{file} has the name of a module that is imported: rename it")
    return path.stem


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OneFlowError as error:
        sys.exit(f"oneflow.autoprof: {error}")
