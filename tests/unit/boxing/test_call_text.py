"""The text of a call that all ranks show: it fits, and keeps the words that tell two calls
apart.
"""

from __future__ import annotations

import numpy as np
import pytest

from oneflow.boxing.collectives.base import TEXT_NBYTES, call_info, call_text, shortened
from oneflow.boxing.collectives.in_process import InProcessGroup
from oneflow.boxing.transitions import make_step
from oneflow.core.errors import HangError, TransportError
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, Split

WHERE = "/home/somebody/projects/a_long_name/src/train.py:123"


def boxing(num_ranks: int, wanted: object) -> str:
    placement = Placement("cpu", list(range(num_ranks)))
    return f"boxing float32[64, 64] {make_step((Split(0),), placement, (wanted,), placement)}"


def test_a_short_text_is_kept_as_it_is() -> None:
    what = boxing(2, BROADCAST)
    text = "boxing float32[64, 64] all_gather S(0)@cpu[0, 1] -> B@cpu[0, 1]"
    assert call_text(what, WHERE) == f"{text} at {WHERE}"
    assert call_text("barrier", "") == "barrier"


def test_many_ranks_are_named_in_short() -> None:
    text = call_text(boxing(64, BROADCAST), WHERE)
    assert text == f"boxing float32[64, 64] all_gather S(0)@cpu[0..63] -> B@cpu[0..63] at {WHERE}"
    assert "-> S(1)@cpu[0..63]" in call_text(boxing(64, Split(1)), WHERE)
    odd = "x float32[1, 2, 3, 4] S(0)@cpu[[0, 2, 4, 6], [7, 8, 9, 10]] " + "y" * 100
    assert "float32[1, 2, 3, 4] S(0)@cpu[[0, 2, 4, 6], [7..10]]" in call_text(odd, WHERE)


@pytest.mark.parametrize("what", ["all_gather " + "9, " * 300, "ü" * 300, "barrier"])
@pytest.mark.parametrize("where", [WHERE, "/ä" * 300 + "/train.py:7", ""])
def test_a_long_text_keeps_both_ends_and_fits(what: str, where: str) -> None:
    text = call_text(what, where)
    assert len(text.encode()) <= TEXT_NBYTES
    assert text.startswith(what[:6]) and text.endswith(where[-11:])
    info = call_info(what, "", (), where)
    assert len(info.encoded) == TEXT_NBYTES
    assert info.encoded.rstrip(b"\0").decode() == info.text == text


def test_shortened_cuts_no_character_in_two() -> None:
    for nbytes in range(10, 40):
        assert len(shortened("aü" * 40, nbytes, 0.5).encode()) <= nbytes


def test_everything_that_must_agree_is_in_the_signature() -> None:
    calls = [
        ("all_reduce(sum)", "float32", (3,)),
        ("all_reduce(max)", "float32", (3,)),
        ("all_reduce(sum)", "float64", (3,)),
        ("all_reduce(sum)", "float32", (3, 1)),
        ("broadcast(from rank 0)", "float32", (3,)),
        ("broadcast(from rank 1)", "float32", (3,)),
        (boxing(64, BROADCAST), "", ()),
        (boxing(64, Split(1)), "", ()),
    ]
    signatures = {call_info(*call, f"x.py:{i}").signature for i, call in enumerate(calls)}
    assert len(signatures) == len(calls)
    assert len({call_info(*calls[0], f"x.py:{i}").signature for i in range(5)}) == 1


def test_who_gave_up_in_a_call_makes_no_other() -> None:
    """Its peers, if they come, would read its offer for the call it gave up."""
    c = InProcessGroup((0, 1)).collectives(0, timeout_s=0.01)
    with pytest.raises(HangError, match=r"barrier at .*: rank 0 waited 0.01 s for rank 1"):
        c.barrier()
    with pytest.raises(TransportError, match=r"cut off since barrier at .*HangError"):
        c.all_reduce(np.ones(3))


def test_calls_are_counted_alike_whatever_they_are() -> None:
    c = InProcessGroup((0,)).collectives(0)
    x = np.ones((1, 2))
    for i, call in enumerate(
        [
            lambda: c.all_reduce(x),
            lambda: c.reduce_scatter(x),
            lambda: c.all_gather(x),
            lambda: c.all_gather(x, [2]),
            lambda: c.all_to_all(x),
            lambda: c.broadcast(x, 0),
            c.barrier,
        ]
    ):
        call()
        assert c.calls == i + 1
