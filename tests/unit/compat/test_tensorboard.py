"""Files of TensorBoard, read back by its own reader."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

import oneflow as flow


def read(folder: Path) -> Any:
    reader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(folder))
    found.Reload()
    return found


def test_values_of_tensors_are_read_back(tmp_path: Path) -> None:
    writer = importlib.import_module("oneflow.utils.tensorboard").SummaryWriter
    with writer(tmp_path) as w:
        w.add_scalar("loss", flow.tensor(1.5, requires_grad=True), 3)
        w.add_histogram("weights", flow.ones(4), 1)
        w.add_image("image", flow.rand(3, 4, 5), 2)
        w.add_images("images", flow.zeros(2, 1, 4, 5))
        w.add_text("note", "hello")
        w.add_scalars("both", {"a": 1, "b": flow.tensor(2.0)}, 1)
        w.add_hparams({"lr": 0.1, "name": "x"}, {"accuracy": flow.tensor(0.5)}, run_name="run")
        with pytest.raises(RuntimeError, match=r"print\(graph\)"):
            w.add_graph(None)
    found = read(tmp_path)
    assert [(e.step, e.value) for e in found.Scalars("loss")] == [(3, 1.5)]
    assert [(i.width, i.height) for i in found.Images("image")] == [(5, 4)]
    assert found.Images("images")[0].width == 10
    assert set(found.Tags()["tensors"]) == {"weights", "note"}
    assert read(tmp_path / "both_b").Scalars("both")[0].value == 2.0
    assert read(tmp_path / "run").Scalars("accuracy")[0].value == 0.5
