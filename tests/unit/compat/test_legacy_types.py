"""`x.type()` and `x.type(dtype)`, beside PyTorch's."""

from __future__ import annotations

import pytest
import torch

import oneflow as flow


@pytest.mark.parametrize(
    "name",
    ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool"],
)
def test_the_type_of_a_tensor_has_pytorchs_name_with_our_prefix(name: str) -> None:
    ours = flow.zeros(2, dtype=getattr(flow, name)).type()
    theirs = torch.zeros(2, dtype=getattr(torch, name)).type()
    assert ours == theirs.replace("torch.", "oneflow.")


@pytest.mark.parametrize("name", ["float32", "int64", "bool", "float16", "uint8"])
def test_a_tensor_is_cast_by_dtype_type_and_name(name: str) -> None:
    numbers = [0.0, 1.5, 2.0, 3.75]
    wanted = torch.tensor(numbers).type(getattr(torch, name)).tolist()
    long_name = torch.zeros(1, dtype=getattr(torch, name)).type()  # torch.LongTensor
    x = flow.tensor(numbers)
    kinds = [getattr(flow, name), long_name, long_name.replace("torch", "oneflow")]
    kinds.append(getattr(flow, long_name.removeprefix("torch.")))
    for kind in kinds:
        y = x.type(kind)
        assert y.dtype is getattr(flow, name) and y.tolist() == wanted


def test_a_cast_to_the_own_type_is_the_tensor_and_gradients_pass() -> None:
    x = flow.ones(3, requires_grad=True)
    assert x.type(flow.float32) is x and x.type("torch.FloatTensor") is x
    (x.type(flow.float64) * 2).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0] and x.grad.dtype is flow.float32
    assert (flow.ones(4, 3).argmax(1) == flow.zeros(4)).type(flow.float).sum().item() == 4.0


@pytest.mark.parametrize("name", ["foo", "torch.FooTensor", "FloatTensor", "numpy.FloatTensor"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="invalid type"):
        torch.ones(1).type(name)
    with pytest.raises(ValueError, match="invalid type"):
        flow.ones(1).type(name)


def test_what_is_no_type_is_refused() -> None:
    with pytest.raises(TypeError, match="dtype must be a dtype, a tensor type or its name"):
        flow.ones(1).type(3)
