"""Parts that the ranks of a test hold become one array again."""

from __future__ import annotations

import numpy as np
import pytest

from oneflow.core.dtype import float32
from oneflow.core.graph import LogicalGraph
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST as B
from oneflow.core.sbp import PARTIAL as P
from oneflow.core.sbp import NdSbp, Split
from oneflow.core.tensor_type import TensorType

from .spread import whole


@pytest.mark.parametrize("layout", [(B, P), (P, B), (P, P), (Split(0), P), (B, Split(0)), (B, B)])
def test_copies_of_a_summand_count_once(layout: NdSbp) -> None:
    place = Placement("cpu", np.arange(4).reshape(2, 2))
    graph = LogicalGraph("g", 1)
    value = graph.append("input", [], [TensorType((4,), float32)], place, {"name": "x"}).outputs[0]
    value.sbp = layout
    wanted = np.arange(1.0, 5.0, dtype=np.float32)
    summands = np.prod([2 if s is P else 1 for s in layout])
    parts = []
    for rank in range(4):
        at = place.coordinate(rank)
        part = wanted / summands
        for i, s in zip(at, layout, strict=True):
            part = part[2 * i : 2 * i + 2] if s.is_split else part
        parts.append(part)
    np.testing.assert_array_equal(whole(value, parts), wanted)
