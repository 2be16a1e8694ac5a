"""Reactions of a rank to the news that another one has failed."""

from __future__ import annotations

import pytest

from oneflow.actors.control import AbortInfo, _news
from oneflow.core.errors import DesyncError, OneFlowError, PeerLostError

CAUSE = "DesyncError: the ranks [0, 2] disagree: rank 0: add at a.py:1; rank 2: mul at a.py:2"


@pytest.mark.parametrize(
    ("reason", "rank", "kind"),
    [
        ("DESYNC", 2, DesyncError),  # of those who disagree
        ("DESYNC", 1, PeerLostError),  # only follows
        ("USER_ERROR", 2, PeerLostError),
    ],
)
def test_who_disagrees_has_failed_itself(reason: str, rank: int, kind: type[OneFlowError]) -> None:
    error = _news(AbortInfo(0, "h", CAUSE, 81, reason), rank)
    assert type(error) is kind
    said = CAUSE.removeprefix("DesyncError: ") if kind is DesyncError else "rank 0 on host h"
    assert str(error).startswith(said)
