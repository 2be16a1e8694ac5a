"""Logs for the web page: bounded, from their end on, whole characters, the cause of a failure."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.core.errors import OneFlowError, ProtocolError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.page.logs import (
    MAX_NBYTES,
    MAX_STREAMS,
    MAX_WORDS,
    LogTails,
    last_words,
    wanted,
)
from oneflow.scheduler.cluster.refusals import RefusedError, UnavailableError
from oneflow.scheduler.jobs.records import Assignment, JobRecord, JobSpec, JobState


class Daemon:
    """Answers as a daemon does, from `data`: the streams by rank and name."""

    def __init__(self, data: dict[tuple[int, str], bytes]) -> None:
        self.data, self.error = data, ""

    async def ask(self, request: pb.ReadLog, kind: object, timeout_s: float) -> pb.LogData:
        if self.error:
            raise UnavailableError(self.error)
        data = self.data.get((request.id.rank, request.stream), b"")
        offset = min(request.offset, len(data))
        piece = pb.LogPiece(offset=offset, data=data[offset : offset + request.limit])
        is_closed = offset + len(piece.data) == len(data)
        return pb.LogData(piece=piece, size=len(data), is_closed=is_closed)


class Rig:
    """A job of some ranks whose logs one daemon has."""

    def __init__(self, data: dict[tuple[int, str], bytes], ranks: int = 1, **record: Any) -> None:
        places = tuple(
            Assignment(r, f"n1/cpu:{r}", "n1", f"cpu:{r}", "/jobs") for r in range(ranks)
        )
        fields: dict[str, Any] = {"attempt": 1, "assignments": places, **record}
        self.record = JobRecord("j1", JobSpec(devices=ranks), JobState.RUNNING, **fields)
        self.daemon = Daemon(data)
        driver = SimpleNamespace(job=lambda job_id: self.record, places=self.places)
        lines = SimpleNamespace(on_node=lambda node, name: self.daemon)
        state: Any = SimpleNamespace(driver=driver, lines=lines)
        self.tails = LogTails(state)

    async def places(self, record: JobRecord, attempt: int) -> tuple[Assignment, ...]:
        return record.assignments

    def read(self, **query: str) -> dict[str, Any]:
        return asyncio.run(self.tails.read("j1", query))

    def failure(self) -> dict[str, Any]:
        return asyncio.run(self.tails.failure("j1"))


def test_each_stream_of_each_rank_goes_on_where_it_was() -> None:
    data = {(0, "stdout"): b"a\n", (1, "stdout"): b"b\nc", (1, "stderr"): b"no\n"}
    rig = Rig(data, ranks=2)
    parts = {(p["rank"], p["stream"]): p for p in rig.read()["streams"]}
    assert {key: p["text"] for key, p in parts.items() if p["text"]} == {
        (0, "stdout"): "a\n",
        (1, "stdout"): "b\nc",
        (1, "stderr"): "no\n",
    }
    data[1, "stdout"] += b"d\n"
    reached = ",".join(f"1/{rank}/{name}:{p['next']}" for (rank, name), p in parts.items())
    later = rig.read(**{"from": reached})["streams"]
    assert {(p["rank"], p["stream"]): p["text"] for p in later if p["text"]} == {
        (1, "stdout"): "d\n"
    }
    only = rig.read(ranks="1", stream="stderr")["streams"]
    assert [(p["rank"], p["stream"], p["text"]) for p in only] == [(1, "stderr", "no\n")]


@pytest.mark.parametrize("ranks", [1, 4, 100])
def test_an_answer_is_bounded_and_of_the_end(ranks: int) -> None:
    line = b"x" * 99 + b"\n"
    rig = Rig({(rank, "stdout"): line * 20_000 + b"last\n" for rank in range(ranks)}, ranks)
    found = rig.read(stream="stdout")
    shown = min(ranks, MAX_STREAMS)
    texts = [part["text"] for part in found["streams"]]
    assert len(texts) == shown and found["ranks_left_out"] == ranks - shown
    assert sum(map(len, texts)) <= MAX_NBYTES
    for text in texts:
        assert text.endswith("\nlast\n")
        assert len(text) > MAX_NBYTES // shown - 200  # no more is left out than must be
        assert text.startswith("x" * 99 + "\n")  # whole lines
    following = [part["next"] for part in found["streams"]]
    assert following == [20_000 * 100 + 5] * shown


def test_a_character_in_two_parts_is_told_once_it_is_whole() -> None:
    whole = "Schön\n".encode()
    rig = Rig({(0, "stdout"): whole[:4]})
    first = rig.read(stream="stdout")["streams"][0]
    assert (first["text"], first["next"]) == ("Sch", 3)
    rig.daemon.data[0, "stdout"] = whole
    second = rig.read(stream="stdout", **{"from": "1/0/stdout:3"})["streams"][0]
    assert (second["text"], second["next"]) == ("ön\n", 7)
    rig.daemon.data[0, "stdout"] = b"\xff!\n"
    assert rig.read(stream="stdout")["streams"][0]["text"] == "\ufffd!\n"


def test_a_daemon_that_is_away_is_an_error_of_its_streams() -> None:
    rig = Rig({})
    rig.daemon.error = "daemon n1/cpu:0 is not connected"
    part = rig.read(stream="stdout", **{"from": "1/0/stdout:12"})["streams"][0]
    assert (part["error"], part["text"], part["next"]) == (rig.daemon.error, "", 12)


def test_a_job_that_never_ran_has_no_logs() -> None:
    rig = Rig({}, attempt=0, assignments=())
    assert rig.read() == {"attempt": 0, "streams": [], "ranks_left_out": 0}


@pytest.mark.parametrize(
    "query",
    [
        {"ranks": "-1"},
        {"ranks": "1;2"},
        {"ranks": "٣"},
        {"ranks": str(1 << 32)},
        {"attempt": "x"},
        {"stream": "stdin"},
        {"from": "1/0/stdout:x"},
        {"from": "1/0/stdout:" + "9" * 19},
        {"from": "../etc:1"},
        {"ranks": ",".join(["1"] * 5000)},
    ],
)
def test_nonsense_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(ProtocolError):
        wanted(query)


def test_ranks_and_attempts_that_are_not_there_are_refused() -> None:
    with pytest.raises(RefusedError, match="no rank 1"):
        Rig({}).read(ranks="1")
    rig = Rig({})
    rig.record = replace(rig.record, state=JobState.FAILED)
    with pytest.raises(OneFlowError, match="no attempt 2"):
        rig.read(attempt="2")


# ---- failures ------------------------------------------------------------------------------------

CHAINED = """loading
Traceback (most recent call last):
  File "a.py", line 1, in <module>
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in <module>
ValueError: no column x

"""


def test_the_last_traceback_is_what_failed() -> None:
    assert last_words(CHAINED) == [
        "Traceback (most recent call last):",
        '  File "a.py", line 3, in <module>',
        "ValueError: no column x",
    ]


def test_a_long_traceback_keeps_its_end() -> None:
    deep = "Traceback (most recent call last):\n" + "  File\n" * 900 + "RecursionError: deep\n"
    found = last_words(deep)
    assert len(found) == MAX_WORDS and (found[0], found[-1]) == ("...", "RecursionError: deep")


def test_without_a_traceback_the_last_lines_are_told() -> None:
    found = last_words("".join(f"{n}\n" for n in range(100)))
    assert found[-1] == "99" and len(found) == MAX_WORDS // 3
    assert last_words("") == []


def test_the_rank_that_failed_first_says_why() -> None:
    data = {(0, "stderr"): b"rank 0 follows\n", (1, "stderr"): CHAINED.encode()}
    rig = Rig(data, ranks=2, first_failed_rank=1, pid=4711)
    found = rig.failure()
    assert (found["rank"], found["lines"][-1]) == (1, "ValueError: no column x")
    assert found["log"] == "/jobs/j1/1/rank1/stderr"
    assert Rig(data, ranks=2).failure() == {"rank": -1, "lines": [], "log": ""}
