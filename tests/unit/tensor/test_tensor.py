"""Creation, memory, predicates, errors and repr."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.core.config import Config
from oneflow.core.errors import ArgumentError, OneFlowError


def test_import_is_light_and_the_function_survives_the_package() -> None:
    code = (
        "import sys, oneflow\n"
        "heavy = {'numba', 'grpc', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "import oneflow.tensor.tensor; assert oneflow.tensor([1]).tolist() == [1]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_function"):
        flow.no_such_function  # noqa: B018
    assert not hasattr(flow.ones(1), "no_such_method")


def test_default_dtypes() -> None:
    assert flow.tensor([1.0]).dtype is flow.float32
    assert flow.tensor([1]).dtype is flow.int64
    assert flow.tensor([True]).dtype is flow.bool
    assert flow.tensor(np.ones(2)).dtype is flow.float64
    assert flow.Tensor([1, 2]).dtype is flow.float32
    assert flow.Tensor(2, 3).shape == (2, 3)
    assert (flow.tensor([1, 2]) / 2).dtype is flow.float32


def test_numpy_shares_memory() -> None:
    array = np.zeros(3, np.float32)
    x = flow.from_numpy(array)
    x.add_(1)
    assert array.tolist() == [1, 1, 1]
    x.numpy()[0] = 5
    assert x[0].item() == 5


def test_random_numbers_follow_the_seed() -> None:
    flow.manual_seed(3)
    a, state = flow.randn(4), flow.get_rng_state()
    b = flow.randn(4)
    flow.set_rng_state(state)
    assert flow.equal(flow.randn(4), b)
    flow.manual_seed(3)
    assert flow.equal(flow.randn(4), a) and not flow.equal(a, b)
    own = flow.Generator().manual_seed(3)
    assert flow.equal(flow.randn(4, generator=own), a)


def test_a_view_that_would_copy_is_an_error_unless_the_user_allows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = flow.tensor(np.arange(6.0).reshape(2, 3))
    assert x.t().contiguous().view(6).tolist() == [0, 3, 1, 4, 2, 5]
    with pytest.raises(OneFlowError, match="runs with ONEFLOW_DISABLE_VIEW=1"):
        x.t().view(6)
    config = Config.from_env({"ONEFLOW_DISABLE_VIEW": "1"})
    monkeypatch.setattr("oneflow.core.config._current", config)
    assert x.t().view(6).tolist() == [0, 3, 1, 4, 2, 5]


def test_in_place_methods_on_views() -> None:
    x = flow.zeros(2, 3)
    x.view(3, 2).add_(1)
    x.t().mul_(2)
    x.reshape(-1)[0:2].zero_()
    assert x.tolist() == [[0, 0, 2], [2, 2, 2]]


def test_attribute_errors_of_local_tensors() -> None:
    x = flow.ones(2)
    for name in ("placement", "sbp"):
        with pytest.raises(RuntimeError, match="Only global tensors"):
            getattr(x, name)
    with pytest.raises(RuntimeError, match="Expected global tensor for to_local"):
        x.to_local()
    with pytest.raises(RuntimeError, match="has been removed"):
        x.is_consistent  # noqa: B018


def test_repr() -> None:
    assert repr(flow.tensor([1.0, 2.0])) == "tensor([1., 2.], dtype=oneflow.float32)"
    x = flow.tensor([1.0], requires_grad=True)
    assert repr(x) == "tensor([1.], dtype=oneflow.float32, requires_grad=True)"
    assert repr(x + x) == "tensor([2.], dtype=oneflow.float32, grad_fn=<add_backward>)"
    assert repr(flow.ones(0, 2)) == "tensor([], size=(0, 2), dtype=oneflow.float32)"
    assert repr(flow.Size([2, 3])) == "oneflow.Size([2, 3])"


def test_copies() -> None:
    x = flow.tensor([1.0, 2.0], requires_grad=True)
    for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert y.tolist() == [1, 2] and y.requires_grad
        with flow.no_grad():
            y.add_(1)
    assert x.tolist() == [1, 2]


def test_placement_and_sbp_names() -> None:
    place = flow.placement(type="cpu", ranks=[0])
    assert isinstance(place, flow.placement) and place == flow.placement.all("cpu")
    assert repr(flow.sbp.split(0)) == "oneflow.sbp.split(dim=0)"
    assert isinstance(flow.sbp.broadcast, flow.sbp.sbp)
    with pytest.raises(RuntimeError, match="Split axis must not be negative, but got -1!"):
        flow.sbp.split(-1)


def test_a_method_of_the_table_is_looked_up_once() -> None:
    code = (
        "import oneflow as flow; from oneflow.tensor.tensor import Tensor\n"
        "x = flow.ones(2); before = Tensor.__dict__['cumsum']\n"
        "assert x.cumsum(0).tolist() == [1, 2] and Tensor.cumsum(x, 0).tolist() == [1, 2]\n"
        "assert Tensor.__dict__['cumsum'] is flow.cumsum is not before\n"
        "assert flow.nn.Parameter(x).cumprod(0).tolist() == [1, 1]\n"
        "assert not hasattr(x, 'no_such_method')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_copy_of_what_was_computed_has_no_history() -> None:
    x = flow.ones(2, requires_grad=True)
    y = x * 2
    again = copy.deepcopy([y, y])
    assert again[0] is again[1] and again[0].is_leaf and not again[0].requires_grad
    y.sum().backward()
    assert again[0].tolist() == [2, 2] and x.grad.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([1, [2]], r"data\[1\] has shape \(1,\) and data\[0\] \(\)"),
        ([[1, 2], [3]], r"data\[1\] has shape \(1,\) and data\[0\] \(2,\)"),
        ([[[1], [2, 3]]], r"data\[0\]\[1\] has shape \(2,\) and data\[0\]\[0\] \(1,\)"),
    ],
)
def test_uneven_lists_are_named_by_their_place(data: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        flow.tensor(data)
