"""Placements, SBP objects, devices and legacy types as users write and compare them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.core.errors import PlacementError, SbpError

ALONE = flow.placement("cpu", [0])


def test_a_placement_knows_its_type_and_ranks() -> None:
    p = flow.placement(type="cpu", ranks=np.array([[0, 1], [2, 3]], np.int32))
    assert p.type == "cpu" and p.ranks.dtype == np.int64 and p.ranks.shape == (2, 2)
    assert repr(p) == str(p) == 'oneflow.placement(type="cpu", ranks=[[0, 1], [2, 3]])'
    assert isinstance(p, flow.placement)
    assert flow.placement("cpu", range(3)) == flow.placement("cpu", (0, 1, 2))
    with pytest.warns(DeprecationWarning, match=r"use placement\.type"):
        assert p.device_type == "cpu"


def test_ranks_are_sorted_and_named_once() -> None:
    assert flow.placement("cpu", [1, 0]) == flow.placement("cpu", [0, 1])
    assert flow.placement("cpu", [0, 0, 1]) == flow.placement("cpu", [0, 1])
    assert flow.placement("cpu", [[3, 2], [1, 0]]).ranks.tolist() == [[0, 1], [2, 3]]
    with pytest.raises(PlacementError, match="names a rank twice"):
        flow.placement("cpu", [[0, 0]])


def test_equal_placements_are_equal_everywhere() -> None:
    p = flow.placement("cpu", [[0, 1]])
    for other in (pickle.loads(pickle.dumps(p)), copy.deepcopy(p)):
        assert other == p and hash(other) == hash(p)
    assert p != flow.placement("cpu", [0, 1]) and p != flow.placement("cuda", [[0, 1]])
    assert len({p, flow.placement("cpu", [[1, 0]])}) == 1


@pytest.mark.parametrize("ranks", [[0.5], [], "ab", [[0, 1], [2]], ["0:0-3"], [True], [None]])
def test_ranks_that_are_no_integers_are_refused(ranks: Any) -> None:
    with pytest.raises(RuntimeError, match="placement ranks shoule be an array of long int"):
        flow.placement("cpu", ranks)


def test_other_mistakes_are_named() -> None:
    with pytest.raises(RuntimeError, match="Expected one of cpu, cuda device type at start of"):
        flow.placement("tpu", [0])
    with pytest.raises(TypeError, match="needs a device type and ranks"):
        flow.placement("cpu")
    with pytest.raises(RuntimeError, match='"x" type because there is no device!'):
        flow.placement.all("x")
    far = flow.placement("cpu", [7])
    with pytest.raises(RuntimeError, match="rank must be less than world size!"):
        flow.ones(2, placement=far, sbp=flow.sbp.broadcast)


def test_all_devices_are_one_row() -> None:
    assert flow.placement.all("cpu") == flow.env.all_device_placement("cpu") == ALONE


@pytest.mark.parametrize(
    ("args", "keywords", "expected"),
    [
        (("cuda", {0: [0, 1]}, (2,)), {}, [0, 1]),
        (("cuda", {0: [0, 1], 1: [2, 3]}, (2, 2)), {}, [[0, 1], [2, 3]]),
        ((), {"device_type": "cuda", "device_ids": {0: range(2)}}, [0, 1]),
        ((), {"device_type": "cuda", "device_ids": {0: [0, 1]}, "hierarchy": (1, 2)}, [[0, 1]]),
    ],
)
def test_the_old_forms_warn(args: Any, keywords: Any, expected: Any) -> None:
    with pytest.warns(DeprecationWarning, match="placement"):
        assert flow.placement(*args, **keywords) == flow.placement("cuda", expected)


def test_sbp_objects() -> None:
    split, broadcast, partial = flow.sbp.split, flow.sbp.broadcast, flow.sbp.partial_sum
    assert repr(split(0)) == "oneflow.sbp.split(dim=0)"
    assert repr(broadcast) == "oneflow.sbp.broadcast"
    assert repr(partial) == "oneflow.sbp.partial_sum"
    for s in (split(1), broadcast, partial):
        assert isinstance(s, flow.sbp.sbp) and s() is s
        assert pickle.loads(pickle.dumps(s)) == s and copy.deepcopy(s) == s
        assert hash(pickle.loads(pickle.dumps(s))) == hash(s)
    assert split(dim=1) == split(np.int64(1)) != split(0)
    with pytest.warns(DeprecationWarning, match="use dim="):
        assert flow.sbp.split(axis=1) == split(1)


@pytest.mark.parametrize(
    ("dim", "error", "text"),
    [
        (-1, SbpError, "Split axis must not be negative, but got -1!"),
        (7, SbpError, r"less than the supported maximum axis \(6\), but got 7!"),
        (1.5, TypeError, "must be an integer, got 1.5"),
        ("0", TypeError, "must be an integer, got '0'"),
        (None, SbpError, "needs the dim to split"),
    ],
)
def test_dims_that_cannot_be_split_are_refused(dim: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        flow.sbp.split(dim)


def test_the_sbp_of_a_tensor_is_a_tuple() -> None:
    x = flow.ones(2, placement=flow.placement("cpu", [[0]]), sbp=[flow.sbp.split(0)] * 2)
    assert x.sbp == (flow.sbp.split(0), flow.sbp.split(0))
    assert x.to_global(sbp=(flow.sbp.broadcast, flow.sbp.split(0))).sbp[0] is flow.sbp.broadcast


def test_legacy_types_make_and_recognise_tensors() -> None:
    assert flow.FloatTensor(2, 3).shape == (2, 3)
    assert flow.LongTensor([1.5, 2]).tolist() == [1, 2]
    assert flow.DoubleTensor(flow.ones(2)).dtype is flow.float64
    assert flow.BoolTensor([0, 1]).tolist() == [False, True]
    assert flow.ByteTensor().shape == (0,)
    assert isinstance(flow.ones(2), flow.FloatTensor)
    assert not isinstance(flow.ones(2), (flow.LongTensor, flow.cuda.FloatTensor))
    assert repr(flow.HalfTensor) == "oneflow.HalfTensor"
    assert repr(flow.cuda.HalfTensor) == "oneflow.cuda.HalfTensor"
