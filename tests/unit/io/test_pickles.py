"""Objects of a program's own classes in checkpoints, where the user allows pickles."""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import oneflow as flow
from oneflow import nn, surfaces
from oneflow.core.config import Config, current_config, set_config
from oneflow.core.errors import CheckpointError
from oneflow.io import pickles


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.scale = 2.5

    def forward(self, x: Any) -> Any:
        return self.layer(x) * self.scale


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> Any:
    before = current_config()
    set_config(replace(before, allows_pickle=True))
    yield
    set_config(before)


def test_the_variable_is_read() -> None:
    assert Config.from_env({pickles.VARIABLE: "1"}).allows_pickle
    assert not Config.from_env({}).allows_pickle


def test_a_module_of_a_class_of_ones_own_comes_back(allowed: None, tmp_path: Path) -> None:
    net, x = Net(), flow.ones(4, 3)
    for target in (tmp_path / "net.pt", io.BytesIO()):
        flow.save({"net": net, "epoch": 3}, target)
        if isinstance(target, io.BytesIO):
            target.seek(0)
        back = flow.load(target, map_location="cpu", weights_only=False)
        assert back["epoch"] == 3
        assert type(back["net"]) is Net
        assert back["net"](x).tolist() == net(x).tolist()
    flow.save(net.state_dict(), tmp_path / "net.pt")  # what has a form keeps it
    assert not pickles.is_pickle((tmp_path / "net.pt").read_bytes())


def test_pickles_are_refused_unless_both_sides_ask(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    with pytest.raises(CheckpointError, match=pickles.VARIABLE):
        flow.save(Net(), path)
    assert not path.exists()
    path.write_bytes(pickles.pickled({"a": 1}))
    with pytest.raises(CheckpointError, match=r"call load\(\.\.\., weights_only=False\)"):
        flow.load(path, weights_only=False)


def test_both_sides_must_ask(allowed: None, tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    flow.save(Net(), path)
    for asked in (None, True):
        with pytest.raises(CheckpointError, match=r"it names .*Net: list that with"):
            flow.load(path, weights_only=asked)
    with flow.serialization.safe_globals([Net]):
        back = flow.load(path)
    assert type(back) is Net
    path.write_bytes(pickles.pickled(print))
    with flow.serialization.safe_globals([Net]), pytest.raises(CheckpointError, match="print"):
        flow.load(path)
    flow.save(Net(), path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match="cannot be read"):
        flow.load(path, weights_only=False)
    with pytest.raises(CheckpointError, match="cannot be pickled"):
        flow.save({"f": (lambda: 0), "net": Net()}, path)


@pytest.mark.parametrize("space", ["flow", "F", "linalg", "special", "fft"])
def test_functions_are_found_where_they_say(space: str) -> None:
    module: Any = {"flow": flow, "F": nn.functional}.get(space) or getattr(flow, space)
    for name in surfaces.names(space):
        function = getattr(module, name)
        if isinstance(function, FunctionType):
            assert pickle.loads(pickle.dumps(function)) is function, name


def test_layers_that_hold_functions_are_pickled() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, dropout=0.0)
    x = flow.ones(3, 1, 8)
    assert pickle.loads(pickle.dumps(layer))(x).tolist() == layer(x).tolist()
