"""Objects of a program's own classes in checkpoints: which come back, which must be asked for,
which
never run.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow import nn
from oneflow.core.config import Config, current_config, set_config
from oneflow.core.errors import CheckpointError
from oneflow.io.assemble import assemble
from oneflow.io.safe_names import VARIABLE, Names
from oneflow.io.tree import Encoder

from . import own_classes as own

HERE = own.__name__


def again(value: Any, **how: Any) -> Any:
    buffer = io.BytesIO()
    flow.save(value, buffer)
    buffer.seek(0)
    return flow.load(buffer, **how)


def whole(value: Any) -> Any:
    return again(value, weights_only=False)


def test_a_module_comes_back_with_all_that_it_holds() -> None:
    net, x = own.Net(), flow.ones(4, 3)
    back = whole({"epoch": 3, "model": net, "ema": None})["model"]
    assert type(back) is own.Net
    np.testing.assert_array_equal(back(x).numpy(), net(x).numpy())
    assert list(back.state_dict()) == list(net.state_dict())
    assert back.tied is back.layer and back.own[0] is back
    assert back.sizes == own.Sizes(4, ["a"]) and back.level is own.Level.HIGH
    assert type(back.layer.weight) is nn.Parameter
    back(x).sum().backward()
    assert back.layer.weight.grad is not None


def test_data_parallel_module_comes_back_with_its_module() -> None:
    net, x = nn.parallel.DistributedDataParallel(own.Net()), flow.ones(4, 3)
    back = whole(net)
    assert type(back.module) is own.Net
    assert list(back.state_dict()) == list(net.state_dict())
    np.testing.assert_array_equal(back(x).numpy(), net(x).numpy())
    back(x).sum().backward()
    assert again(nn.parallel.DistributedDataParallel(nn.Linear(2, 3)))(x[:, :2]).shape == (4, 3)


def test_values_keep_their_classes_where_these_are_followed() -> None:
    point, table = own.Point(1, [2]), own.Table(a=1)
    table.more = 5
    values = [
        *(point, own.Colour.BLUE, own.Level.LOW, own.Sizes(2), own.Frozen((1,))),
        *(table, own.double, own.Net, len, partial(own.double, 3)),
    ]
    back = whole(values)
    assert [type(one) for one in back] == [type(one) for one in values]
    assert back[:9] == values[:9] and back[5].more == 5
    assert (back[9].func, back[9].args) == (own.double, (3,))
    slots, counting = whole([own.Slots(1, flow.ones(2)), own.Counting()])
    assert slots.left == 1 and slots.right.tolist() == [1, 1]
    assert counting.count == 3 and counting.cache is None


def test_plain_values_stay_plain_without_their_classes() -> None:
    table = own.Table(a=1)
    back = again([own.Point(1, 2), own.Level.LOW, own.Sizes(2, ["x"]), table, own.Frozen(1)])
    assert back[:2] == [(1, 2), 1] and [type(one) for one in back[:2]] == [tuple, int]
    assert back[2] == argparse.Namespace(width=2, names=["x"])
    assert type(back[3]) is dict and back[3] == {"a": 1}


def test_shared_values_stay_shared_and_cycles_close() -> None:
    inner: list[Any] = [flow.ones(2)]
    inner.append(inner)
    config = own.Sizes(3)
    slots = own.Slots(config, inner)
    slots.right.append(slots)
    back = whole({"a": inner, "b": inner, "c": slots, "d": config, "e": (inner,)})
    assert back["a"] is back["b"] is back["c"].right is back["e"][0]
    assert back["a"][1] is back["a"] and back["a"][2] is back["c"]
    assert back["c"].left is back["d"]


@pytest.mark.parametrize("listed", [[own.Net, own.double, own.Sizes, own.Level], [f"{HERE}.*"]])
def test_listed_names_are_followed(listed: list[Any]) -> None:
    with pytest.raises(CheckpointError, match=rf"names {HERE}.Net.*safe_globals.*{VARIABLE}=1"):
        again(own.Net())
    with flow.serialization.safe_globals(listed):
        back = again(own.Net())
        assert type(back) is own.Net and type(back.sizes) is own.Sizes
        with pytest.raises(CheckpointError, match=r"names threading\.Thread"):
            again(threading.Thread)
    with pytest.raises(CheckpointError, match="weights_only=False"):
        again(own.Net(), weights_only=True)


def test_names_that_are_not_followed_are_listed() -> None:
    buffer = io.BytesIO()
    flow.save([own.Slots(own.double, own.Point(1, 2)), own.Level.LOW], buffer)
    with flow.serialization.safe_globals([own.Slots]):
        buffer.seek(0)
        found = flow.serialization.get_unsafe_globals_in_checkpoint(buffer)
    assert found == [f"{HERE}.{name}" for name in ("double", "Point", "Level")]


@pytest.fixture
def any_class() -> Iterator[None]:
    before = current_config()
    set_config(replace(before, loads_any_class=True))
    yield
    set_config(before)


def test_the_variable_stands_for_calls_that_say_nothing(any_class: None) -> None:
    assert Config.from_env({VARIABLE: "1"}).loads_any_class
    assert not Config.from_env({}).loads_any_class
    assert type(again(own.Net())) is own.Net
    with pytest.raises(CheckpointError, match="names"):
        again(own.Net(), weights_only=True)


def decoded(form: Any, names: Names) -> Any:
    return assemble(form, None, None, None, names)  # type: ignore[arg-type]


def test_no_file_makes_anything_by_a_function() -> None:
    for name in ("os:system", "posix:system", "builtins:eval"):
        form: Any = {"object": name, "state": "echo no"}
        for names in (Names(), Names(True), Names(False)):
            with pytest.raises(CheckpointError, match=r"names|is no class|no class or function"):
                decoded(form, names)
    with flow.serialization.safe_globals([f"{HERE}.*"]):  # what a module imports is not its own
        for name in ("nn.Linear", "dataclass", "Net.__init__", "enum.Enum", "nope"):
            with pytest.raises(CheckpointError):
                decoded({"object": f"{HERE}:{name}", "state": None}, Names())


@pytest.mark.parametrize(
    "form",
    [
        {"object": f"{HERE}:Net", "state": {"dict": [["_modules", 3]]}},
        {"object": f"{HERE}:Net", "state": [3]},
        {"object": f"{HERE}:Sizes", "state": {"dict": [[3, 3]]}},
        {"object": f"{HERE}:Slots", "state": {"tuple": [None, {"dict": [["__class__", 3]]}]}},
        {"object": f"{HERE}:Colour", "state": None},
        {"object": f"{HERE}:gone", "state": None},
        {"object": 3, "state": None},
        {"enum": f"{HERE}:Colour", "value": 7},
        {"enum": f"{HERE}:Net", "value": 7},
        {"dict": [], "class": f"{HERE}:Sizes"},
        {"tuple": [], "class": f"{HERE}:Table"},
        {"list": [], "class": 3},
        {"dataclass": {"dict": [["nope", 1]]}, "class": f"{HERE}:Sizes"},
        {"dataclass": {"dict": [["x", 1]]}, "class": f"{HERE}:Net"},
        {"ref": 0},
        {"ref": "a"},
        {"partial": [3, {"list": []}, {"dict": []}]},
    ],
    ids=json.dumps,
)
def test_damaged_objects_are_refused(form: Any) -> None:
    with pytest.raises(CheckpointError, match="load: "):
        decoded(form, Names(False))


def test_what_has_no_form_is_named_by_its_path(tmp_path: Path) -> None:
    class Local:
        pass

    hooked = nn.Linear(2, 2)
    hooked.register_forward_hook(lambda *_: None)
    for value, text in (
        ({"m": [own.Slots(1, threading.Lock())]}, r"\['m'\]\[0\].*lock.*no form.*state_dict\(\)"),
        ({"m": Local()}, r"\['m'\] is of a class that is found by no name.*Local"),
        ({"f": lambda: 0}, r"\['f'\] is a function that is found by no name.*<lambda>"),
        (hooked, r"the object\._forward_hooks\[\d+\] is a function that is found by no name"),
        ([iter([1])], r"\[0\] is a builtins\.list_iterator, which has no form"),
    ):
        with pytest.raises(CheckpointError, match=text):
            flow.save(value, tmp_path / "x")
        assert not (tmp_path / "x").exists()


def test_hooks_that_have_names_come_back() -> None:
    layer = nn.Linear(2, 2)
    layer.register_forward_pre_hook(own.double)
    back = again_with_names(layer)
    assert list(back._forward_pre_hooks.values()) == [own.double]


def test_attributes_that_hide_methods_come_back() -> None:
    layer = nn.Linear(2, 2)
    layer.type, layer.f = "models.common.Conv", -1
    back = again(layer)
    assert (back.type, back.f) == ("models.common.Conv", -1)
    assert back(flow.ones(1, 2)).tolist() == layer(flow.ones(1, 2)).tolist()


def again_with_names(value: Any) -> Any:
    with flow.serialization.safe_globals([own.double]):
        return again(value)


def test_map_location_moves_parameters_and_buffers() -> None:
    here = flow.placement("cpu", [0])
    back = again(own.Net(), weights_only=False, map_location=here)
    assert all(x.is_global for x in (*back.parameters(), *back.buffers()))


def test_random_damage_is_an_error_of_ours_or_the_same_tree() -> None:
    """Words of the structure are swapped at random; nothing but a CheckpointError comes of it."""
    form = json.dumps(Encoder({"a": own.Sizes(1), "b": own.Point(1, 2), "c": own.Counting()}).form)
    words = ["object", "class", "state", "enum", "named", "dict", "os:system", f"{HERE}:Slots", ""]
    rng = np.random.default_rng(0)
    made = 0
    for _ in range(300):
        parts = form.split('"')
        parts[2 * rng.integers(len(parts) // 2) + 1] = words[rng.integers(len(words))]
        try:
            decoded(json.loads('"'.join(parts)), Names(False))
            made += 1
        except CheckpointError:
            continue
    assert 0 < made < 300


# ---- PyTorch's files -----------------------------------------------------------------------------


def from_torch(value: Any, **how: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return flow.load(buffer, **how)


ROW = np.random.default_rng(0).standard_normal((5, 2, 8)).astype(np.float32)
LAYERS = {
    "lstm": lambda: torch.nn.LSTM(8, 4, 2, bidirectional=True),
    "gru": lambda: torch.nn.GRU(8, 4, bias=False),
    "encoder": lambda: torch.nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, activation=torch.nn.functional.gelu
    ),
    "sequential": lambda: torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Conv1d(2, 2, 3), torch.nn.SiLU()
    ),
    "convolution": lambda: torch.nn.Conv1d(2, 4, 3, padding="same", padding_mode="circular"),
    "norm": lambda: torch.nn.BatchNorm1d(2),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_layers_of_pytorch_become_ours(make: Any) -> None:
    twin = make()
    back = from_torch({"model": twin, "epoch": 1}, map_location="cpu")["model"]
    want, got = twin(torch.tensor(ROW)), back(flow.tensor(ROW))
    want, got = (one[0] if isinstance(one, tuple) else one for one in (want, got))
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), atol=1e-6)
    assert isinstance(back, nn.Module) and list(back.state_dict()) == list(twin.state_dict())
    assert all(type(p) is nn.Parameter for p in back.parameters())


class TorchNet(torch.nn.Module):  # type: ignore[misc]
    """A class that a file of PyTorch names; a class of ours is read in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)


def test_own_classes_in_files_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    net = TorchNet()
    with pytest.raises(CheckpointError, match=r"TorchNet.*safe_globals"):
        from_torch(net)
    buffer = io.BytesIO()
    torch.save([net, own.Point(1, 2), own.Colour.RED, own.double], buffer)
    ours = type("TorchNet", (nn.Module,), {"__module__": __name__})
    monkeypatch.setitem(globals(), "TorchNet", ours)
    for how in ([ours, own.Point, own.Colour, own.double], [f"{__name__}.*", f"{HERE}.*"]):
        buffer.seek(0)
        with flow.serialization.safe_globals(how):
            back, *others = flow.load(buffer, map_location="cpu")
        assert others == [own.Point(1, 2), own.Colour.RED, own.double]
        assert type(back) is ours and type(back.layer) is nn.Linear
        np.testing.assert_array_equal(back.layer.weight.numpy(), net.layer.weight.detach().numpy())


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("echo no",)


def test_a_file_of_pytorch_calls_nothing() -> None:
    for how in ({}, {"weights_only": True}, {"weights_only": False}):
        with pytest.raises(CheckpointError, match="system"):
            from_torch(Evil(), **how)
