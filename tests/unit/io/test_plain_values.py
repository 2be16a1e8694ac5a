"""Values that scripts keep in checkpoints besides tensors, and files of PyTorch."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import json
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.errors import CheckpointError
from oneflow.io.container import Writer


@dataclasses.dataclass
class Settings:
    lr: float
    inner: Settings | None = None


NOW = datetime.datetime(2024, 2, 29, 12, 30, 1, 5)

SAME: dict[str, Any] = {
    "namespace": argparse.Namespace(lr=0.1, out=Path("a/b"), layers=[1, 2], none=None),
    "path": Path("/tmp/x.pt"),
    "moment": NOW,
    "moment with zone": NOW.replace(tzinfo=datetime.timezone.utc),
    "day": NOW.date(),
    "span": datetime.timedelta(1, 2, 3),
    "range": range(1, 9, 2),
    "slice": slice(None, 3),
    "deque": collections.deque([1, 2], 5),
    "inside": {"args": argparse.Namespace(a=(1, Path("x"))), "when": [NOW]},
}


@pytest.mark.parametrize("name", SAME)
def test_a_value_comes_back(name: str, tmp_path: Path) -> None:
    flow.save(SAME[name], tmp_path / "f")
    found = flow.load(tmp_path / "f")
    assert found == SAME[name] and type(found) is type(SAME[name])


def test_a_dataclass_comes_back_as_a_namespace(tmp_path: Path) -> None:
    flow.save({"s": Settings(0.5, Settings(1.5)), "t": flow.ones(2)}, tmp_path / "f")
    found = flow.load(tmp_path / "f")
    assert found["s"] == argparse.Namespace(lr=0.5, inner=argparse.Namespace(lr=1.5, inner=None))


def test_a_tensor_inside_of_a_namespace(tmp_path: Path) -> None:
    flow.save(argparse.Namespace(x=flow.arange(3)), tmp_path / "f")
    assert flow.load(tmp_path / "f").x.tolist() == [0, 1, 2]


def test_a_configuration_of_omegaconf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Config:
        """A stand-in: omegaconf need not be installed."""

        def __init__(self, content: Any) -> None:
            self.content = content

    class OmegaConf:
        is_config = staticmethod(lambda value: isinstance(value, Config))
        to_container = staticmethod(lambda value, resolve: value.content)
        create = Config

    content = {"model": {"size": [1, 2]}, "ref": "${model.size}"}
    library: Any = types.ModuleType("omegaconf")
    library.OmegaConf = OmegaConf
    monkeypatch.setitem(sys.modules, "omegaconf", library)
    flow.save({"cfg": Config(content)}, tmp_path / "f")
    found = flow.load(tmp_path / "f")["cfg"]
    assert isinstance(found, Config) and found.content == content
    monkeypatch.setitem(sys.modules, "omegaconf", None)  # an import of it fails
    assert flow.load(tmp_path / "f")["cfg"] == content


def test_what_has_no_form_is_still_refused(tmp_path: Path) -> None:
    class Own:
        pass

    with pytest.raises(CheckpointError, match=r"found by no name .*Own\), so it has no form"):
        flow.save({"x": Own()}, tmp_path / "f")
    with pytest.raises(CheckpointError, match=r"found by no name"):
        flow.save(Own, tmp_path / "f")


def as_plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "tolist") and not isinstance(value, np.ndarray):
        return str(value.dtype).split(".")[-1], tuple(value.shape), value.tolist()
    if isinstance(value, np.ndarray):
        return "array", value.dtype, value.tolist()
    if isinstance(value, dict):
        return {key: as_plain(item) for key, item in value.items()}
    return type(value)(map(as_plain, value)) if type(value) in (list, tuple) else value


def files() -> dict[str, Any]:
    torch.manual_seed(0)
    whole = torch.arange(12.0).reshape(3, 4)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    return {
        "state": model.state_dict(),
        "views": {"whole": whole, "part": whole[1:, ::2], "turned": whole.t(), "none": whole[:0]},
        "dtypes": {
            str(d): torch.ones(2, dtype=d)
            for d in (torch.bfloat16, torch.complex64, torch.bool, torch.uint8, torch.int16)
        },
        "values": {
            "args": argparse.Namespace(lr=0.1, path=Path("x")),
            "when": NOW,
            "day": NOW.date(),
            "span": datetime.timedelta(1),
            "best": np.float64(0.5),
            "state": np.random.RandomState(3).get_state(),
            "kinds": [collections.Counter("aab"), {1, 2}, range(3), slice(1, 2)],
            "default": collections.defaultdict(list, {"a": [1]}),
        },
    }


@pytest.mark.parametrize("name", files())
@pytest.mark.parametrize("zipped", [True, False])
def test_files_of_pytorch(name: str, zipped: bool, tmp_path: Path) -> None:
    value = files()[name]
    torch.save(value, tmp_path / "f", _use_new_zipfile_serialization=zipped)
    assert as_plain(flow.load(tmp_path / "f")) == as_plain(value)
    assert as_plain(flow.load(tmp_path / "f", "cpu", weights_only=True, mmap=False)) == as_plain(
        value
    )


def test_a_dtype_without_a_storage_of_its_own(tmp_path: Path) -> None:
    torch.save(torch.tensor([0.5, -2.0, 448.0]).to(torch.float8_e4m3fn), tmp_path / "f")
    found = flow.load(tmp_path / "f")
    assert found.dtype is flow.float8_e4m3fn and found.float().tolist() == [0.5, -2.0, 448.0]


def test_broken_files_of_the_old_format(tmp_path: Path) -> None:
    torch.save({"x": torch.arange(9.0)}, tmp_path / "f", _use_new_zipfile_serialization=False)
    data = (tmp_path / "f").read_bytes()
    for length in (40, len(data) // 2, len(data) - 5):
        (tmp_path / "g").write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            flow.load(tmp_path / "g")
    with pytest.raises(CheckpointError, match="support_pytorch_format is False"):
        flow.load(tmp_path / "f", support_pytorch_format=False)


def test_a_file_cannot_ask_for_endless_memory(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return list, (range(10**12),)

    torch.save({"x": Bomb()}, tmp_path / "f")
    with pytest.raises(CheckpointError, match="may be endless"):
        flow.load(tmp_path / "f")
    (tmp_path / "g").write_bytes(pickle.dumps(Bomb(), 2))
    with pytest.raises(CheckpointError, match="may be endless"):
        flow.load(tmp_path / "g")


def write(path: Path, arrays: dict[str, Any]) -> None:
    with open(path, "wb") as file:
        writer = Writer(file, {n: (a.dtype, a.shape) for n, a in arrays.items()}, {})
        for name, array in arrays.items():
            writer.add(name, array)


def test_several_files_and_their_index(tmp_path: Path) -> None:
    a, b = np.arange(6.0, dtype=np.float32).reshape(2, 3), np.arange(4)
    write(tmp_path / "model-1.safetensors", {"a": a})
    write(tmp_path / "model-2.safetensors", {"b": b, "unused": b})
    index = tmp_path / "model.safetensors.index.json"
    places = {"b": "model-2.safetensors", "a": "model-1.safetensors"}
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    found = flow.load(index)
    assert list(found) == ["b", "a"]
    assert np.array_equal(found["a"].numpy(), a) and np.array_equal(found["b"].numpy(), b)
    seen = []
    flow.load(index, map_location=lambda x: seen.append(x.shape) or x)  # type: ignore[func-returns-value]
    assert seen == [(4,), (2, 3)]  # one after another
    for wrong, text in (
        ({"a": "model-2.safetensors"}, "holds no 'a'"),
        ({"a": "model-3.safetensors"}, "no model-3.safetensors beside it"),
        ({"a": "../model-1.safetensors"}, "beside it"),
        (None, "no weight_map"),
    ):
        index.write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises(CheckpointError, match=text):
            flow.load(index)
