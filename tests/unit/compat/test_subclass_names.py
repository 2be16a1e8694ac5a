"""Names and classes that a subclass of Tensor meets, beside PyTorch's."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("subclass_names_program.py")


@cache
def answers(library: str) -> dict[str, Any]:
    command = [sys.executable, str(PROGRAM), library]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("part", ["operators", "methods", "parameters", "gradients"])
def test_a_subclass_meets_pytorchs_names_and_classes(part: str) -> None:
    assert answers("oneflow")[part] == answers("torch")[part]
    assert answers("torch")[part]
