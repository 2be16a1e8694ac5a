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


def test_a_class_may_use_the_names_of_members() -> None:
    """MONAI's tensors have a dictionary `meta`; the members of ours are no names of PyTorch."""
    program = """if True:
        import oneflow as flow

        class Noted:
            @property
            def meta(self):
                return self._meta

            @meta.setter
            def meta(self, value):
                self._meta = value

        class Own(Noted, flow.Tensor):
            def __new__(cls, data):
                return flow.as_tensor(data).as_subclass(cls)

            def __init__(self, data):
                self.meta = {"from": "scan"}
                self.value = 7

        x = Own([[1.0, 2.0], [3.0, 4.0]])
        y = (x @ x).sum(0)
        assert type(y) is Own and y.tolist() == [22.0, 32.0] and y.shape == (2,) and y.ndim == 1
        print(x.meta, x.value, x.shape, hasattr(y, "meta"), hasattr(y, "value"))
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "{'from': 'scan'} 7 oneflow.Size([2, 2]) False False\n", done.stderr
