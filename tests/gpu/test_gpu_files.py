"""Files between CPU and GPU: local tensors come back to where they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn

from .gpu_needed import need_gpu

pytestmark = pytest.mark.gpu
cupy = need_gpu()


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Any]:
    flow.manual_seed(0)
    model = nn.Linear(3, 2).to("cuda")
    path = tmp_path / "model.of"
    flow.save({"model": model.state_dict(), "x": flow.ones(2)}, path)
    return path, model


def test_tensors_are_loaded_to_the_device_they_were_saved_from(saved: tuple[Path, Any]) -> None:
    found = flow.load(saved[0])
    assert found["model"]["weight"].is_cuda and not found["x"].is_cuda
    np.testing.assert_array_equal(found["model"]["weight"].numpy(), saved[1].weight.numpy())


@pytest.mark.parametrize("where", ["cpu", flow.device("cpu"), lambda x: "cpu"])
def test_map_location_goes_first(saved: tuple[Path, Any], where: Any) -> None:
    found = flow.load(saved[0], map_location=where)
    assert not found["model"]["weight"].is_cuda
    assert flow.load(saved[0], map_location="cuda")["x"].is_cuda


def test_a_model_on_the_cpu_takes_a_state_from_the_gpu(saved: tuple[Path, Any]) -> None:
    model = nn.Linear(3, 2)
    model.load_state_dict(flow.load(saved[0])["model"])
    assert not model.weight.is_cuda
    np.testing.assert_array_equal(model.weight.numpy(), saved[1].weight.numpy())
