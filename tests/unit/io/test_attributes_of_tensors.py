"""Attributes that a user gave to tensors are saved with them, as PyTorch's are."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow


def marked(m: Any) -> Any:
    t, p = m.ones(2), m.nn.Parameter(m.zeros(3))
    t.tag, t.mask = {"k": [1, 2.5]}, m.tensor([1.0, 0.0])
    p.name_of_layer = "fc"
    return {"t": t, "p": [p, t]}


def test_attributes_come_back_as_from_pytorch(tmp_path: Path) -> None:
    flow.save(marked(flow), tmp_path / "ours")
    torch.save(marked(torch), tmp_path / "theirs")
    found = flow.load(tmp_path / "ours")
    wanted = torch.load(tmp_path / "theirs", weights_only=False)
    for ours, theirs in ((found["t"], wanted["t"]), *zip(found["p"], wanted["p"], strict=True)):
        assert vars(ours).keys() == vars(theirs).keys()
    assert found["t"].tag == wanted["t"].tag
    assert found["p"][0].name_of_layer == "fc"
    np.testing.assert_array_equal(found["t"].mask.numpy(), wanted["t"].mask.numpy())


def test_attributes_in_files_of_pytorch_are_read(tmp_path: Path) -> None:
    wanted = marked(torch)
    torch.save(wanted, tmp_path / "theirs")
    found = flow.load(tmp_path / "theirs")
    assert found["t"].tag == wanted["t"].tag and found["p"][0].name_of_layer == "fc"
    np.testing.assert_array_equal(found["t"].mask.numpy(), wanted["t"].mask.numpy())
    np.testing.assert_array_equal(found["t"].numpy(), np.ones(2, np.float32))


def test_an_attribute_without_a_form_is_left_out_with_a_warning(tmp_path: Path) -> None:
    t = flow.ones(2)
    endless: list[Any] = []
    for _ in range(300):
        endless = [endless]
    t.f, t.own, t.kept, t.endless = len, t, "kept", endless
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        flow.save({"t": t, "after": [1]}, tmp_path / "ours")
    assert ["'t'].f is a" in str(told[0].message), "contains itself" in str(told[1].message)] == [
        True,
        True,
    ]
    assert len(told) == 3
    found = flow.load(tmp_path / "ours")
    assert vars(found["t"]) == {"kept": "kept"} and found["after"] == [1]


def test_tensors_without_attributes_are_saved_as_before(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flow.save(flow.nn.Linear(2, 2), tmp_path / "ours")
    assert not vars(flow.load(tmp_path / "ours").weight)


def test_a_global_tensor_is_no_attribute_of_a_local_one_in_a_file(tmp_path: Path) -> None:
    t = flow.ones(2)
    t.whole = flow.ones(3, placement=flow.placement("cpu", [0]), sbp=flow.sbp.broadcast)
    t.kept = 1
    vars(t)[3] = "no name"
    with pytest.warns(UserWarning, match="is a global tensor; the attribute is left out"):
        flow.save(t, tmp_path / "ours")
    assert vars(flow.load(tmp_path / "ours")) == {"kept": 1}
