"""A node that wants to know learns of each of its gradients as soon as it is complete."""

from __future__ import annotations

from typing import Any

import oneflow as flow
from oneflow.distributed.ddp import divide
from oneflow.tensor.tape import record_call
from oneflow.tensor.tensor import Tensor, alias


def gate(leaves: list[Tensor], events: list[Any]) -> list[Tensor]:
    outs = [alias(x) for x in leaves]

    def arrived(index: int, grad: Tensor | None) -> None:
        events.append((index, None if grad is None else grad.tolist()))

    def backward(grads: list[Any]) -> list[Any]:
        events.append("backward")
        return grads

    record_call("gate", leaves, outs, backward, arrived)
    return outs


def leaf(value: float) -> Tensor:
    return flow.tensor([value], requires_grad=True)


def test_later_layers_arrive_while_earlier_ones_are_unknown() -> None:
    events: list[Any] = []
    a, b, c = leaf(2.0), leaf(3.0), leaf(5.0)
    first, second, _unused = gate([a, b, c], events)
    hidden = first * first
    hidden.register_hook(lambda grad: events.append("hidden"))
    (hidden * second).sum().backward()
    assert events == [(1, [4.0]), "hidden", (0, [12.0]), "backward"]
    assert a.grad is not None and a.grad.tolist() == [12.0] and c.grad is None


def test_an_output_used_twice_arrives_once_with_the_sum() -> None:
    events: list[Any] = []
    (x,) = gate([leaf(2.0)], events)
    loss = (x * 3.0 + x * 4.0).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert events == [(0, [7.0]), "backward"] * 2


def test_a_root_counts_as_a_use() -> None:
    events: list[Any] = []
    (x,) = gate([leaf(2.0)], events)
    flow.autograd.backward([x, x * 2.0], [flow.ones(1), flow.ones(1)])
    assert events == [(0, [3.0]), "backward"]


def test_what_is_not_asked_for_arrives_as_nothing() -> None:
    events: list[Any] = []
    a, b = leaf(2.0), leaf(3.0)
    first, second = gate([a, b], events)
    (grad,) = flow.autograd.grad((first * second).sum(), [a])
    assert grad is not None and grad.tolist() == [3.0]
    assert sorted(events[:2]) == [(0, [3.0]), (1, [2.0])] and events[2] == "backward"


def test_buckets_hold_the_last_parameters_first() -> None:
    one, large = leaf(1.0), flow.ones(25)
    assert divide([one] * 5, 8) == [[4, 3], [2, 1], [0]]
    assert divide([one, large, one], 8) == [[2], [1], [0]]
    assert divide([one] * 2, 0) == [[1], [0]]
    assert divide([], 8) == []
