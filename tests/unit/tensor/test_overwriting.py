"""A tensor that is overwritten as a whole: whose gradient goes where. Expected: as PyTorch says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow

HERE = flow.placement("cpu", [0])
LAYOUTS = {"local": {}, "global": {"placement": HERE, "sbp": flow.sbp.split(0)}}
BOTH = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


@BOTH
def test_a_leaf_that_is_copied_gets_its_gradient(layout: dict[str, Any]) -> None:
    x = flow.ones(3, requires_grad=True, **layout)
    y = flow.ones(3, requires_grad=True, **layout)
    z = x * 1.5
    z.copy_(y)
    (z * 2).sum().backward()
    assert not z.is_leaf and y.grad.tolist() == [2.0, 2.0, 2.0]
    assert x.grad.tolist() == [0.0, 0.0, 0.0]


@BOTH
def test_a_constant_becomes_part_of_the_history(layout: dict[str, Any]) -> None:
    y = flow.ones(3, requires_grad=True, **layout)
    z = flow.zeros(3, **layout)
    z.copy_(y)
    assert z.requires_grad and not z.is_leaf
    (z * z).sum().backward()
    np.testing.assert_array_equal(y.grad.numpy(), [2.0, 2.0, 2.0])
    z.add_(1)
    assert y.tolist() == [1.0, 1.0, 1.0]


@BOTH
@pytest.mark.parametrize(
    "write",
    [
        lambda z: z.zero_(),
        lambda z: z.fill_(3.0),
        lambda z: z.copy_(flow.zeros_like(z).detach()),
        lambda z: z.normal_(),
    ],
    ids=["zero_", "fill_", "copy_", "normal_"],
)
def test_what_was_overwritten_gets_zeros(layout: dict[str, Any], write: Callable[..., Any]) -> None:
    x = flow.ones(3, requires_grad=True, **layout)
    z = x * 1.5
    write(z)
    assert z.requires_grad and not z.is_leaf
    (z * z).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [0.0, 0.0, 0.0])


def test_in_a_graph_too() -> None:
    class Copy(flow.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.y = flow.nn.Parameter(flow.ones(3))

        def forward(self, x: Any) -> Any:
            z = x * 1.5
            z.copy_(self.y)
            return (z * z).sum()

    class Step(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.25))

        def build(self, x: Any) -> Any:
            loss = self.model(x)
            loss.backward()
            return loss

    model = Copy()
    assert Step()(flow.zeros(3)).item() == 3.0
    assert model.y.tolist() == [0.5, 0.5, 0.5]


@BOTH
@pytest.mark.parametrize("in_graph", [False, True])
def test_a_view_that_is_written_to_after_its_base_has_the_history_of_both(
    layout: dict[str, Any], in_graph: bool
) -> None:
    weight = flow.nn.Parameter(flow.ones(3, 2, **layout))

    def build(x: Any) -> Any:
        base = x * weight
        row = base[0]
        base.mul_(2)
        row.mul_(3)
        base[1].add_(row)
        loss = base.sum()
        loss.backward()
        return loss, weight.grad.clone()

    class Compute(flow.nn.Graph):
        def build(self, x: Any) -> Any:
            return build(x)

    loss, grad = (Compute() if in_graph else build)(flow.ones(3, 2, **layout))
    assert loss.item() == 32.0
    np.testing.assert_array_equal(grad.numpy(), [[12.0, 12.0], [2.0, 2.0], [2.0, 2.0]])


@BOTH
def test_an_array_is_copied_to_a_leaf_outside_of_its_history(layout: dict[str, Any]) -> None:
    w = flow.ones(3, requires_grad=True, **layout)
    w.copy_(np.array([1.0, 2.0, 3.0]))
    assert w.is_leaf and w.requires_grad and w.tolist() == [1.0, 2.0, 3.0]
    (w * w).sum().backward()
    assert w.grad.tolist() == [2.0, 4.0, 6.0]
    with pytest.raises(RuntimeError, match="a leaf Tensor"):
        w.copy_(flow.zeros(3, **layout))


@BOTH
def test_an_array_that_is_copied_over_a_result_ends_its_gradient(layout: dict[str, Any]) -> None:
    x = flow.ones(3, requires_grad=True, **layout)
    y = x * 2
    y.copy_(np.array([1.0, 2.0, 3.0]))
    (y * y).sum().backward()
    assert y.tolist() == [1.0, 2.0, 3.0] and x.grad.tolist() == [0.0, 0.0, 0.0]


@BOTH
@pytest.mark.parametrize("part", [(), (0,)], ids=["whole", "view"])
def test_a_tensor_that_fills_gets_the_sum_of_gradients(
    layout: dict[str, Any], part: tuple[int, ...]
) -> None:
    x = flow.ones(4, 2, requires_grad=True, **layout)
    where = {"placement": HERE, "sbp": flow.sbp.broadcast} if layout else {}
    v = flow.tensor(3.0, requires_grad=True, **where)
    y = x * 1.5
    y[part].fill_(v)
    (y * y).sum().backward()
    kept = 0.0 if part == () else 1.5 * 2 * 1.5
    filled = 8 if part == () else 2
    assert v.grad.item() == filled * 2 * 3.0
    np.testing.assert_array_equal(x.grad.numpy()[1:], np.full((3, 2), kept))
    np.testing.assert_array_equal(x.grad.numpy()[0], [0.0, 0.0])


def test_a_graph_fills_with_the_value_of_each_call() -> None:
    class Filling(flow.nn.Graph):
        def build(self, x: flow.Tensor, v: flow.Tensor) -> flow.Tensor:
            return (x * 2).fill_(v)

    graph, x = Filling(), flow.ones(3)
    assert [graph(x, flow.tensor(v)).tolist() for v in (2.0, 5.0)] == [[2.0] * 3, [5.0] * 3]
