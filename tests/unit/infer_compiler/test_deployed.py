"""`compile_from_torch`: modules of PyTorch that run as graphs of ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import oneflow as flow
from oneflow.core.errors import ConfigError, OneFlowError
from oneflow.infer_compiler import compile_from_torch, converting, register
from oneflow.mock_torch import is_enabled

PROGRAM = """
from dataclasses import dataclass
from functools import partial
import torch
from torch import nn

@dataclass
class Output:
    sample: torch.Tensor
    name: str = ""

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.table = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.register_buffer("shift", torch.ones(4))
        self.dtype, self.act = torch.float32, partial(nn.functional.gelu, approximate="tanh")

    def forward(self, x, *, scale=1.0):
        x = self.body(x).mean((2, 3)) + self.shift
        for layer in self.table:
            x = self.act(layer(x)).to(self.dtype)
        return Output(x * scale, name="made")

    def decode(self, x):
        return [self.table[0](x), {"shift": self.shift}]
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of a program, imported with PyTorch."""
    (tmp_path / "torch_program.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(tmp_path))
    import importlib
    import sys

    yield importlib.import_module("torch_program")
    del sys.modules["torch_program"]
    assert not is_enabled()


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converting, "TWINS", {})
    torch.manual_seed(0)


def close(found: Any, wanted: torch.Tensor) -> None:
    assert type(found) is torch.Tensor
    torch.testing.assert_close(found, wanted.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("use_graph", [True, False])
def test_a_module_gives_its_own_outputs(program: Any, use_graph: bool) -> None:
    model = program.Net().eval()
    compiled = compile_from_torch(model, use_graph=use_graph)
    assert isinstance(compiled, program.Net)
    for size in (6, 8, 6):
        x = torch.randn(2, 3, size, size)
        found, wanted = compiled(x, scale=0.5), model(x, scale=0.5)
        assert type(found) is program.Output and found.name == "made"
        close(found.sample, wanted.sample)
    rows = torch.randn(3, 4)
    close(compiled.decode(rows)[0], model.decode(rows)[0])
    close(compiled.decode(rows)[1]["shift"], model.shift)


def test_updates_of_parameters_and_modules_are_seen(program: Any) -> None:
    model, x = program.Net().eval(), torch.randn(2, 3, 6, 6)
    compiled = compile_from_torch(model)
    compiled(x)
    with torch.no_grad():
        compiled.table[0].weight.mul_(2)
    assert compiled.table[0] is model.table[0]
    close(compiled(x).sample, model(x).sample)
    compiled.table[1] = nn.Linear(4, 4)
    close(compiled(x).sample, model(x).sample)
    model.table[0].bias = None
    close(compiled(x).sample, model(x).sample)
    compiled.load_state_dict({k: v + 0.5 for k, v in model.state_dict().items()})
    close(compiled(x).sample, model(x).sample)
    assert list(compiled.state_dict()) == list(model.state_dict())


def test_plans_come_from_a_file(program: Any, tmp_path: Path) -> None:
    model, x = program.Net().eval(), torch.randn(2, 3, 6, 6)
    file = tmp_path / "graph"
    compile_from_torch(model, options={"graph_file": file})(x)
    assert file.exists()
    written = file.read_bytes()
    again = compile_from_torch(model, options={"graph_file": file})
    close(again(x).sample, model(x).sample)
    assert file.read_bytes() == written
    by_hand = compile_from_torch(model)
    by_hand.load_graph(file)
    close(by_hand(x).sample, model(x).sample)
    by_hand.save_graph(tmp_path / "other")
    assert (tmp_path / "other").exists()


class Local(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear(x)
        return found


class Ours(flow.nn.Module):
    linear: flow.nn.Linear

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        found: flow.Tensor = self.linear(x) + 1
        return found


@dataclass
class Setting:
    value: int


def test_a_program_may_say_what_stands_for_its_classes() -> None:
    model, x = Local(), torch.randn(4, 3)
    model.setting = Setting(3)  # type: ignore[assignment]

    def doubled(setting: Setting) -> Setting:
        return Setting(setting.value * 2)

    doubled.__annotations__["setting"] = Setting
    register(torch2oflow_class_map={Local: Ours}, torch2oflow_funcs=[doubled])
    compiled = compile_from_torch(model)
    close(compiled(x), model(x) + 1)
    assert converting.torch2oflow(Setting(3)) == Setting(6)
    with pytest.raises(OneFlowError, match="needs a class as its annotation"):
        register(torch2oflow_funcs=lambda value: value)


def test_what_cannot_be_compiled_is_named() -> None:
    class Inside(nn.Module):
        pass

    with pytest.raises(OneFlowError, match=r"Inside cannot be imported anew.*register"):
        compile_from_torch(Inside())(torch.ones(1))
    with pytest.raises(ConfigError, match="no such option 'sise'; there are size, dynamic"):
        compile_from_torch(nn.Linear(2, 2), options={"sise": 3})  # type: ignore[typeddict-unknown-key]
