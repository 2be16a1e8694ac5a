"""Values outside of a distribution's support are refused where PyTorch refuses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow

from .distribution_samples import FAMILIES


def refuses(lib: Any, name: str, value: np.ndarray) -> bool:
    parameters = [lib.tensor(np.ascontiguousarray(p)) for p in FAMILIES[name][0]]
    made = getattr(lib.distributions, name)(*parameters)
    try:
        made.log_prob(lib.tensor(value))
    except ValueError:
        return True
    return False


@pytest.mark.parametrize("shift", [-9.5, 0.0, 9.5])
@pytest.mark.parametrize("name", FAMILIES)
def test_values_outside_are_refused(name: str, shift: float) -> None:
    value = np.ascontiguousarray(np.asarray(FAMILIES[name][1]) + shift)
    if name == "Categorical":
        value = value.astype(np.int64)
    assert refuses(flow, name, value) == refuses(torch, name, value)
