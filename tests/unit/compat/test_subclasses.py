"""Subclasses of Tensor that programs define, beside PyTorch's."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.core.errors import CallError, OneFlowError

PROGRAM = Path(__file__).with_name("subclasses_program.py")


@cache
def answers(library: str) -> dict[str, Any]:
    command = [sys.executable, str(PROGRAM), library]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


NAMES = sorted(
    {part.strip() for line in PROGRAM.read_text().split('"""')[-2].splitlines()
     for part in line.split(" | ") if part.strip()}
)  # fmt: skip
OTHERS = ["gradient", "notes", "called", "silent", "refused", "off", "overrides", "module", "batch"]
OTHERS.append("asked nobody")


def plain(value: Any) -> Any:
    """Numbers apart from the structure they are in, rounded."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    return float(np.float32(round(value, 4))) if isinstance(value, float) else value


@pytest.mark.parametrize("name", [*NAMES, *OTHERS])
def test_a_subclass_gives_what_pytorchs_gives(name: str) -> None:
    assert plain(answers("oneflow")[name]) == plain(answers("torch")[name])


def test_what_is_no_subclass_is_refused() -> None:
    with pytest.raises(CallError, match="subclass of Tensor"):
        flow.ones(1).as_subclass(int)
    with pytest.raises(OneFlowError, match="as_subclass"):
        flow.Tensor._make_wrapper_subclass(flow.Tensor, (2,))
    with pytest.raises(OneFlowError, match="TorchFunctionMode"):
        flow.overrides.TorchFunctionMode()
