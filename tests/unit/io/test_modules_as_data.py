"""Modules of ours saved as whole objects: class names and data, no code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import CheckpointError
from oneflow.io.assemble import assemble
from tests.unit.graph.test_every_module import CASES


def saved_and_loaded(value: Any, path: Path) -> Any:
    flow.save(value, path)
    return flow.load(path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case[0]()).__name__)
def test_every_module_comes_back(case: Any, tmp_path: Path) -> None:
    make, arrays = case
    model = make()
    model.eval() if isinstance(model, nn.RReLU) else model.train()
    back = saved_and_loaded(model, tmp_path / "x")
    assert type(back) is type(model) and repr(back) == repr(model)
    assert list(back.state_dict()) == list(model.state_dict())
    results = []
    for one in (model, back):
        flow.manual_seed(2)
        out = one(*(flow.tensor(a) for a in arrays))
        results.append((out[0] if isinstance(out, tuple) else out).numpy())
    np.testing.assert_array_equal(*results)


def test_functions_that_modules_call_come_back(tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 6, activation=nn.functional.gelu)
    assert saved_and_loaded(layer, tmp_path / "x").activation is nn.functional.gelu


def test_tied_parameters_stay_tied_and_train(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[1].weight = model[0].weight
    model[1].bias.requires_grad = False
    back = saved_and_loaded({"model": model, "step": 3}, tmp_path / "x")["model"]
    assert back[0].weight is back[1].weight and type(back[0].weight) is nn.Parameter
    assert [p.requires_grad for p in back.parameters()] == [True, True, False, True, True]
    assert [name for name, _ in back.named_buffers()] == [n for n, _ in model.named_buffers()]
    back(flow.ones(2, 3)).sum().backward()
    assert back[0].weight.grad is not None


def test_global_modules_come_back_where_they_were(tmp_path: Path) -> None:
    here = flow.placement("cpu", [0])
    model = nn.Linear(3, 2).to_global(placement=here, sbp=flow.sbp.split(0))
    back = saved_and_loaded(model, tmp_path / "x")
    assert (back.weight.placement, back.weight.sbp) == (here, (flow.sbp.split(0),))
    np.testing.assert_array_equal(back.weight.numpy(), model.weight.numpy())


def test_module_of_data_parallel_comes_back_plain(tmp_path: Path) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))
    back = saved_and_loaded(model.module, tmp_path / "x")
    x = flow.ones(2, 3)
    np.testing.assert_array_equal(back(x).numpy(), model(x).numpy())


def damaged() -> list[Any]:
    names = "Graph", "Parameter", "init", "os", "__class__", "Module", 3, "functional"
    forms: list[Any] = [{"module": name, "attributes": []} for name in names]
    pairs = ["forward", 3], ["__class__", 3], [3, 2], ["_modules", 3], ["training", 3], 7
    forms += [{"module": "ReLU", "attributes": [pair]} for pair in pairs]
    kinds = "parameters", "buffers", "modules"
    return forms + [{"module": "ReLU", kind: [["weight", 3]]} for kind in kinds]


@pytest.mark.parametrize("name", ["open", "Module", "../relu", 3, None])
def test_function_that_is_not_ours_is_refused(name: Any) -> None:
    with pytest.raises(CheckpointError, match="load: not a function"):
        assemble({"function": name}, None, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", damaged(), ids=str)
def test_damaged_module_is_refused(form: Any) -> None:
    def none(name: str) -> Any:
        raise AssertionError(f"{name} is not stored")

    with pytest.raises(CheckpointError, match="load: "):
        assemble(form, none, none, None)
