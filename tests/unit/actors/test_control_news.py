"""Reactions of a rank to the news that another one has failed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from oneflow.actors import control
from oneflow.actors.control import AbortInfo, ControlClient, _news
from oneflow.core.errors import DesyncError, OneFlowError, PeerLostError
from oneflow.protos import control_pb2 as pb
from tests.support.waiting import CALL_S

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


@pytest.mark.parametrize(
    ("last", "cause"),
    [
        (pb.Notice(abort=pb.Failure(rank=0, host="h", cause="boom", exit_code=81)), "boom"),
        (pb.Notice(closing=True), ""),
    ],
)
def test_what_a_scheduler_said_last_is_heard_though_it_is_gone(
    monkeypatch: pytest.MonkeyPatch, last: pb.Notice, cause: str
) -> None:
    """The line breaks at once, and the message is read a moment later."""
    client = ControlClient("127.0.0.1:1", 1, 2)
    is_told = threading.Event()

    async def breaks(method: str, request: Any, timeout_s: float) -> None:
        is_told.set()

    def hear() -> None:
        is_told.wait(CALL_S)
        client.take(last)

    monkeypatch.setattr(control, "LAST_NEWS_S", CALL_S)
    monkeypatch.setattr(client, "_say", breaks)
    monkeypatch.setattr(client, "_line", object())
    hearing = threading.Thread(target=hear)
    hearing.start()
    first = client.report_failure("bang")
    hearing.join()
    assert (first.cause if first else "") == cause
