"""The order between a GPU's streams, with a stand-in for CuPy."""

from __future__ import annotations

from typing import Any

from oneflow.kernels import streams
from oneflow.kernels.streams import BOXING, beside, join, side_stream
from tests.unit.boxing import stand_in_cupy


def test_work_beside_comes_after_what_was_launched_and_before_what_follows_a_join() -> None:
    with stand_in_cupy.installed() as cupy:
        streams._made.cache_clear()
        events, side = stand_in_cupy.events(), side_stream(BOXING)
        del events[:]
        seen: list[Any] = []
        for _ in range(2):
            with beside(BOXING):
                seen.append(cupy.cuda.get_current_stream())
        join(BOXING)
        streams._made.cache_clear()
    assert seen == [side, side]
    main = stand_in_cupy.NULL.ptr
    order = [(main, side.ptr), (main, side.ptr), (side.ptr, main)]
    expected = [e for before, after in order for e in (("record", before), ("wait", after))]
    assert [(kind, ptr) for kind, ptr, _ in events] == expected
