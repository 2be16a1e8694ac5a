"""AutoTest: `oneflow.test_utils.automated_test_util` finds differences from PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as pytorch

import oneflow as flow
from oneflow.core.errors import ArgumentError, ConfigError
from oneflow.test_utils import test_util
from oneflow.test_utils.automated_test_util import (
    all_sbp,
    autotest,
    constant,
    globaltest,
    nothing,
    oneof,
    random,
    random_bool,
    random_dtype,
    random_placement,
    random_tensor,
    torch,
)
from oneflow.test_utils.automated_test_util.dual_object import DualObject
from oneflow.test_utils.automated_test_util.generators import seed_all
from oneflow.test_utils.automated_test_util.runs import DifferenceError


def failure(test: Callable[[object], Any], **wishes: Any) -> str:
    """Run a test that must find a difference; return the words of the error."""
    with pytest.raises(DifferenceError) as found:
        autotest(**wishes)(test)(None)
    return str(found.value)


def test_a_program_that_agrees_passes_with_its_gradients_and_graphs() -> None:
    shapes = []

    @autotest(n=4)
    def check(_: object) -> Any:
        module = torch.nn.Conv2d(3, 4, kernel_size=random(1, 4), bias=random_bool())
        module.train(random())
        x = random_tensor(ndim=4, dim0=2, dim1=3, dim2=8, dim3=8)
        shapes.append(tuple(x.oneflow.shape))
        y = torch.nn.functional.elu(module(x), alpha=random().to(float) | nothing())
        y += 2 * y[:, 1:2]
        first, second = torch.split(y, 2, dim=1)
        return (first - second).sum(dim=random(0, 4).to(int)), x

    check(None)
    assert shapes == [(2, 3, 8, 8)] * 4


def test_a_wrong_value_is_found_and_its_seed_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "exp2", lambda x: flow.where(x > 0.8, x, 2**x), raising=False)
    seen: list[Any] = []

    def check(_: object) -> Any:
        x = random_tensor(ndim=1, dim0=4)
        seen.append(x.pytorch)
        return torch.exp(x) + torch.exp2(x)

    said = failure(check, n=60, check_graph=False)
    assert "exp2(float32[4]): " in said and "1. exp(float32[4])\n" in said
    assert "of 4 numbers of float32[4], at [" in said
    drawn = seen[-1]
    seen.clear()
    monkeypatch.setenv("ONEFLOW_TEST_SEED", said.rpartition("ONEFLOW_TEST_SEED=")[2].split()[0])
    again = failure(check, n=60, check_graph=False)
    assert len(seen) == 1 and pytorch.equal(seen[0], drawn)
    assert again.partition(": ")[2] == said.partition(": ")[2]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda x: (2**x).reshape(-1), "PyTorch float32[2, 3], OneFlow float32[6]"),
        (lambda x: (2**x).double(), "PyTorch float32[2, 3], OneFlow float64[2, 3]"),
        (lambda x: 2**x + x - x.detach(), "gradient of random_tensor[2, 3]: 6 of 6 numbers"),
        (lambda x: [2**x], "PyTorch float32[2, 3], OneFlow list"),
        (lambda x: x.undefined, "OneFlow raises AttributeError"),
    ],
    ids=["shape", "dtype", "gradient", "list", "error"],
)
def test_every_kind_of_difference_is_told(
    wrong: Callable[[Any], Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "exp2", wrong, raising=False)

    def check(_: object) -> Any:
        return torch.exp2(random_tensor(ndim=2, dim0=2, dim1=3))

    assert said in failure(check, n=1, check_graph=False, check_dtype=True)


def test_a_graph_that_computes_something_else_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_values(x: Any) -> Any:
        try:
            x.numpy()
        except flow.core.errors.GraphError:
            return 2**x + 1
        return 2**x

    monkeypatch.setattr(flow, "exp2", with_values, raising=False)

    def check(_: object) -> Any:
        return torch.exp2(random_tensor(ndim=2))

    assert "exp2(float32[" in (said := failure(check, n=1)) and "in nn.Graph: " in said
    autotest(n=1, check_graph="ValidatedFalse")(check)(None)


def test_values_that_are_not_to_be_compared_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "exp2", lambda x: 2**x + 1, raising=False)

    def check(_: object) -> Any:
        return torch.exp2(random_tensor(ndim=2))

    autotest(n=2, check_allclose=False, check_graph=False)(check)(None)


def test_arguments_that_pytorch_refuses_are_drawn_again() -> None:
    counts = {"runs": 0, "tensors": 0}

    @autotest(n=20, auto_backward="auto")  # half of the shapes fit: all of 20 draws never do
    def check(_: object) -> Any:
        counts["runs"] += 1
        x = random_tensor(ndim=2, dim0=2, dim1=2).reshape(oneof((4,), (3,), (2, 2), (5,)))
        counts["tensors"] += 1
        return x

    check(None)
    assert counts["tensors"] == 20 < counts["runs"]

    @autotest(n=2)
    def never(_: object) -> Any:
        return random_tensor(ndim=2, dim0=2, dim1=2).reshape(7)

    with pytest.raises(ArgumentError, match=r"never: PyTorch refused 40 of 40 runs.*reshape\(7\)"):
        never(None)


def test_one_seed_gives_one_program(rng: np.random.Generator) -> None:
    def drawn() -> list[Any]:
        choice = oneof(random(1, 9).to(int) * 2, random_bool(), constant("x"))
        module = torch.nn.Linear(random(1, 5).to(int), 3)
        arrays = [random_tensor(ndim=random(1, 5)).pytorch.tolist(), torch.rand(2).oneflow.tolist()]
        return [choice.value(), module.oneflow.weight.tolist(), *arrays]

    programs = []
    for seed in (5, 6, 5):
        seed_all(seed)
        programs.append([drawn() for _ in range(5)])
    assert programs[0] == programs[2] != programs[1]


@pytest.mark.parametrize(
    ("annotation", "kinds"),
    [
        (int, {int}),
        (float, {float}),
        (bool, {bool}),
        (complex, {complex}),
        (int | None, {int, type(None)}),
        (tuple[int, int], {list}),
        (str | int, {int}),
    ],
    ids=["int", "float", "bool", "complex", "optional", "tuple", "union"],
)
def test_random_values_have_the_type_that_is_asked_for(annotation: Any, kinds: set[type]) -> None:
    generator = random(2, 4).to(annotation)
    assert {type(generator.eval()) for _ in range(40)} == kinds
    assert generator.value() == generator.value()


def test_a_random_value_without_a_type_is_like_its_bounds() -> None:
    assert isinstance(random(1, 3).value(), int) and isinstance(random(1, 3.0).value(), float)


def test_wrong_generators_are_refused() -> None:
    with pytest.raises(ArgumentError, match="draws no value of the type"):
        random().to(list).value()
    with pytest.raises(ArgumentError, match="possibilities of 2 values"):
        oneof(1, 2, possibility=[0.5])


def test_numbers_and_members_of_both() -> None:
    x = torch.ones(2, 3)
    assert len(x) == 2 and int(x.sum()) == 6 and bool((x == 1).all())
    assert x.grad is None and isinstance(x.shape, DualObject)
    x[0, 0] = 5
    assert float(x.max()) == 5.0 and [float(row.sum()) for row in x] == [7.0, 3.0]
    x.requires_grad = True
    assert x.oneflow.requires_grad and x.pytorch.requires_grad
    with torch.no_grad():
        assert not (x * 2).oneflow.requires_grad
    different = DualObject("x", pytorch.ones(2), flow.zeros(2))
    with pytest.raises(DifferenceError, match=r"PyTorch 2\.0, OneFlow 0\.0"):
        float(different.sum())


def test_dtypes_of_groups() -> None:
    names = {random_dtype(["index", "half"]).oneflow.name for _ in range(60)}
    assert names == {"int32", "int64", "float16"}
    with pytest.raises(ArgumentError, match="groups are None, bool"):
        random_dtype(["strange"])


def test_a_global_test_compares_global_tensors_on_one_rank() -> None:
    placement = random_placement()
    seen = []

    @globaltest
    @autotest(n=2, check_graph=False)
    def check(_: object) -> Any:
        x = random_tensor(ndim=2, dim0=4, dim1=2)
        y = x.to_global(placement=placement.value(), sbp=all_sbp(placement, max_dim=2)[0])
        module = torch.nn.Linear(2, 3)
        where = placement.value()
        module.to_global(placement=where, sbp=[flow.sbp.broadcast] * len(where.hierarchy))
        seen.append((x.oneflow.is_global, y.oneflow.sbp))
        return module(y)

    check(None)
    split = (flow.sbp.split(0),) * len(placement.value().hierarchy)
    assert seen == [(True, split)] * 2
    assert not random_tensor().oneflow.is_global


def test_all_sbp_of_a_grid() -> None:
    found = all_sbp(dim=2, max_dim=2, except_partial_sum=True, valid_split_axis=1)
    one, whole = flow.sbp.split(1), flow.sbp.broadcast
    assert found.value() == [(one, one), (one, whole), (whole, one), (whole, whole)]
    assert all_sbp(dim=2).value() == [(whole, whole)]


def test_the_seed_of_a_process_reaches_the_parameters_of_its_first_module() -> None:
    code = """
from oneflow.test_utils.automated_test_util import *

@autotest(n=1, check_graph=False)
def check(_):
    module = torch.nn.Linear(1, 1)
    print(float(module.oneflow.weight))
    return module(random_tensor(2, 1, 1))

check(None)
"""
    command, env = [sys.executable, "-c", code], {**os.environ, "ONEFLOW_TEST_SEED": "7"}
    first, second = (
        subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    assert first == second and float(first)


def test_a_wrong_seed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFLOW_TEST_SEED", "many")
    with pytest.raises(ConfigError, match=r"ONEFLOW_TEST_SEED is a seed.*'many'"):
        autotest(n=1)(lambda _: None)(None)


def test_without_pytorch_the_names_are_there_and_their_use_says_what_is_missing() -> None:
    code = """
import sys
sys.modules["torch"] = None
from oneflow.test_utils.automated_test_util import *
try:
    torch.ones(2)
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ConfigError ") and "pip install torch" in done.stdout


def test_products_of_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    given = OrderedDict(a=[1, 2], device=["cpu", "cuda"])
    monkeypatch.delenv("ONEFLOW_TEST_CPU_ONLY", raising=False)
    assert len(list(test_util.GenArgList(given))) == 4
    monkeypatch.setenv("ONEFLOW_TEST_CPU_ONLY", "1")
    wanted = [{"a": 1, "device": "cpu"}, {"a": 2, "device": "cpu"}]
    assert test_util.GenArgDict(given) == wanted
    with pytest.raises(ArgumentError, match="values of 'a' are a list"):
        test_util.GenArgList({"a": (1, 2)})


def test_positions_and_names_of_dtypes() -> None:
    assert test_util.Index2Coordinate(7, (2, 3, 2)) == [1, 0, 1]
    assert test_util.Coordinate2Index([1, 0, 1], (2, 3, 2)) == 7
    with pytest.raises(ArgumentError, match=r"no position in \[2\]"):
        test_util.Coordinate2Index([1, 0], (2,))
    assert test_util.type_name_to_flow_type["double"] is flow.float64
    assert test_util.type_name_to_np_type["half"] is np.float16
    assert test_util.FlattenArray(np.eye(2)) == [1, 0, 0, 1]
    assert test_util.Array2Numpy([1, 2], (2, 1)).shape == (2, 1)
