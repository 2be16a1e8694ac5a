"""Each message of a stream once, and none missing."""

from __future__ import annotations

import pytest

from oneflow.scheduler.cluster.sequence import MissingMessageError, Order


def test_what_came_before_is_repeated() -> None:
    order = Order()
    assert [order.is_repeated(n) for n in (1, 1, 2, 1, 2, 3)] == [
        False,
        True,
        False,
        True,
        True,
        False,
    ]


def test_a_gap_ends_the_stream() -> None:
    order = Order()
    order.is_repeated(1)
    with pytest.raises(MissingMessageError, match="message 2 of a stream is missing: 3 has come"):
        order.is_repeated(3)
    assert MissingMessageError.status == "UNAVAILABLE"


def test_who_counts_may_not_stop_to() -> None:
    order = Order()
    order.is_repeated(1)
    with pytest.raises(MissingMessageError, match="0 has come"):
        order.is_repeated(0)


def test_who_does_not_count_is_believed() -> None:
    order = Order()
    assert not any(order.is_repeated(0) for _ in range(3))
