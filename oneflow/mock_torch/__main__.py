"""`eval $(oneflow-mock-torch)`: programs started from this shell import oneflow as torch."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

FOLDER = str(Path(__file__).parent / "path")
"""Holds a package `torch` that puts the mock in force when it is imported."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="oneflow-mock-torch", description=__doc__)
    parser.add_argument("mock", choices=("enable", "disable"), nargs="?", default="enable")
    parser.add_argument("--lazy", action="store_true", help="missing names fail when they are used")
    parser.add_argument("--verbose", action="store_true", help="print the names that are missing")
    given = parser.parse_args(arguments)
    others = [p for p in os.environ.get("PYTHONPATH", "").split(":") if p and p != FOLDER]
    if given.mock == "disable":
        gone = "ONEFLOW_MOCK_TORCH_LAZY ONEFLOW_MOCK_TORCH_VERBOSE"
        print(f"export PYTHONPATH={':'.join(others)}; unset {gone}")
        return
    print(
        f"export ONEFLOW_MOCK_TORCH_LAZY={given.lazy}; "
        f"export ONEFLOW_MOCK_TORCH_VERBOSE={given.verbose}; "
        f"export PYTHONPATH={':'.join([FOLDER, *others])}"
    )


if __name__ == "__main__":
    main()
