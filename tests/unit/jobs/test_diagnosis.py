"""The op that gave the first number that is none is named, with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.draws import Randomness
from oneflow.jobs.diagnosis import first_nonfinite

from .job_samples import ROWS, WIDTH, export


class Logs(nn.Graph):
    """log of a sum that becomes negative when x is."""

    def __init__(self, pieces: int = 1) -> None:
        super().__init__()
        self.model = nn.Linear(WIDTH, 3, bias=False)
        nn.init.ones_(self.model.weight)
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1))
        self.config.set_gradient_accumulation_steps(pieces)

    def build(self, x: Any, y: Any) -> Any:
        total = flow.log(self.model(x))  # this line is named
        loss = total.mean()
        loss.backward()
        return loss


LINE = 1 + Path(__file__).read_text()[: Path(__file__).read_text().index("# this")].count("\n")


@pytest.mark.parametrize("pieces", [1, 2])
def test_the_op_and_its_line(tmp_path: Path, pieces: int) -> None:
    x = np.ones((ROWS, WIDTH), np.float32)
    path = tmp_path / "a.job"
    export(path, Logs(pieces), data=flow.jobs.data.arrays(x=x, y=x).batch(8), steps=2)
    with flow.jobs.load(path) as file:
        feeds = {"input.0": x[:8].copy(), "lr.0.0": np.array(0.1), "step.0": np.array(1)}
        feeds["input.1"] = feeds["input.0"]
        names = {"input.0": "x", "input.1": "y"}
        variables = {n: file.variables.read(n) for n in file.variables.entries}
        assert first_nonfinite(file.graph(), feeds, variables, Randomness(), names) == ""
        feeds["input.0"][7] = -1
        text = first_nonfinite(file.graph(), feeds, variables, Randomness(), names)
        assert text.startswith("log (") and f"test_diagnosis.py:{LINE})" in text
        assert "from -6 to " in text
        assert ("micro-batch 1 of 2" in text) is (pieces == 2)
        feeds["input.0"][3, 0] = np.nan
        text = first_nonfinite(file.graph(), feeds, variables, Randomness(), names)
        said = "had 1 of 48 numbers not finite before the step, the first in row 3 of the batch"
        assert text == f"input x, which {said}"
        variables["model.weight"][0, :2] = np.inf
        feeds["input.0"][3, 0] = 1
        text = first_nonfinite(file.graph(), feeds, variables, Randomness(), names)
        said = "had 2 of 18 numbers not finite before the step"
        assert text.startswith(f"variable model.weight, which {said}")
