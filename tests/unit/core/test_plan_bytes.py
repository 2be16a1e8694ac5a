"""Bytes that are no plan are refused as such, for any fault in them."""

from __future__ import annotations

import pytest

from oneflow.core.dtype import dtype_of
from oneflow.core.errors import DTypeError, ProtocolError
from oneflow.core.plan import PLAN_VERSION, Plan
from oneflow.protos import graph_pb2, plan_pb2


@pytest.mark.parametrize(
    "graph",
    [
        graph_pb2.Graph(attrs=[{"names": ["a"]}]),
        graph_pb2.Graph(placements=[{"device_type": "cpu"}]),
        graph_pb2.Graph(placements=[{"device_type": "cpu", "runs": [0, 2**31 - 1]}]),
    ],
    ids=["attribute without a value", "placement without ranks", "two billion ranks"],
)
def test_a_graph_that_contradicts_itself(graph: graph_pb2.Graph) -> None:
    data = plan_pb2.Plan(version=PLAN_VERSION, graph=graph).SerializeToString()
    with pytest.raises(ProtocolError, match="contradicts itself"):
        Plan.from_bytes(data)


@pytest.mark.parametrize("name", ["9" * 32 + ")", "(", "1,2)", "f4, f4", ""])
def test_no_text_makes_numpy_fail_in_its_own_words(name: str) -> None:
    with pytest.raises(DTypeError, match="no such dtype"):
        dtype_of(name)


def test_a_turn_of_an_actor_that_there_is_not() -> None:
    turns = [plan_pb2.Turns(actors=[1])]
    data = plan_pb2.Plan(version=PLAN_VERSION, turns=turns).SerializeToString()
    with pytest.raises(ProtocolError, match="contradicts itself"):
        Plan.from_bytes(data)
