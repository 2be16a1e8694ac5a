"""Checkpoints of every kind become one safetensors file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import oneflow as flow
from oneflow.core.errors import CheckpointError
from oneflow.io.convert import convert


def shards(folder: Path) -> Path:
    placement = flow.placement("cpu", [0])
    weight = flow.arange(12).reshape(3, 4).to_global(placement, flow.sbp.broadcast)
    flow.save({"w": weight, "step": 7, "names": ["a"]}, folder / "shards")
    return folder / "shards"


def test_a_folder_of_shards_becomes_one_file(tmp_path: Path) -> None:
    source = shards(tmp_path)
    assert convert(source, tmp_path / "one.safetensors") == (1, 96)
    found = flow.load(tmp_path / "one.safetensors")
    assert (found["step"], found["names"]) == (7, ["a"])
    assert found["w"].numpy().tolist() == np.arange(12).reshape(3, 4).tolist()
    (array,) = load_file(tmp_path / "one.safetensors").values()
    assert array.tolist() == np.arange(12).reshape(3, 4).tolist()


def test_plain_files_are_dicts_of_tensors(tmp_path: Path) -> None:
    convert(shards(tmp_path), tmp_path / "plain.safetensors", is_plain=True)
    found = flow.load(tmp_path / "plain.safetensors")
    assert list(found) == ["w"] and found["w"].shape == (3, 4)
    flow.save({"a": [flow.ones(1), {"b": flow.zeros(2)}], 1: flow.ones(3)}, tmp_path / "nested")
    convert(tmp_path / "nested", tmp_path / "flat.safetensors", is_plain=True)
    shapes = {name: array.shape for name, array in load_file(tmp_path / "flat.safetensors").items()}
    assert shapes == {"a.0": (1,), "a.1.b": (2,), "1": (3,)}


def test_checkpoints_of_pytorch_are_read(tmp_path: Path) -> None:
    import torch

    torch.save({"a": torch.ones(2), "b": {"c": torch.zeros(3)}}, tmp_path / "x.pt")
    convert(tmp_path / "x.pt", tmp_path / "x.safetensors")
    assert flow.load(tmp_path / "x.safetensors")["b"]["c"].shape == (3,)


def test_damage_leaves_no_file(tmp_path: Path) -> None:
    source = shards(tmp_path)
    shard = next(source.glob("shard-*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CheckpointError):
        convert(source, tmp_path / "one.safetensors")
    assert {path.name for path in tmp_path.iterdir()} == {"shards"}


def test_without_tensors_there_is_nothing_to_convert(tmp_path: Path) -> None:
    flow.save({"step": 7}, tmp_path / "x")
    with pytest.raises(CheckpointError, match="no tensors"):
        convert(tmp_path / "x", tmp_path / "y")
