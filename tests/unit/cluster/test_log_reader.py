"""Lines of logs: whole, in order, without gaps over broken streams."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from oneflow.cluster.connection import Retries
from oneflow.cluster.logs import MAX_LINE_NBYTES, LogReader, last_lines
from oneflow.core.errors import ClusterUnreachableError
from oneflow.protos import cluster_pb2 as pb


class FakeConnection:
    """Serves the given bytes in pieces of random sizes; breaks streams at random."""

    def __init__(self, logs: dict[tuple[int, int, str], bytes], seed: int, breaks: int) -> None:
        self.logs, self.rng, self.breaks = logs, random.Random(seed), breaks
        self.requests: list[Any] = []

    def retries(self) -> Retries:
        return Retries(60.0)

    def stream(
        self, service: str, method: str, request: Any, *, retries: Retries
    ) -> Iterator[pb.LogPiece]:
        assert (service, method) == ("Jobs", "Logs")
        self.requests.append(request)
        for (attempt, rank, name), data in self.logs.items():
            offset = request.offsets.get(f"{attempt}/{rank}/{name}", 0)
            while offset < len(data):
                if self.breaks and self.rng.random() < 0.3:
                    self.breaks -= 1
                    raise ClusterUnreachableError("broke")
                size = self.rng.randint(1, 7)
                piece = pb.LogPiece(attempt=attempt, rank=rank, stream=name, host="n1")
                piece.offset, piece.data = offset, data[offset : offset + size]
                offset += size
                yield piece


def read(connection: Any, follow: bool = False) -> list[Any]:
    reader = LogReader(connection, "j1", (), 0, "")
    return [line for block in reader.blocks(follow, lambda: True) for line in block.lines()]


def test_lines_survive_broken_streams() -> None:
    first = b"".join(b"line %d\n" % number for number in range(20)) + b"no end"
    logs = {(1, 0, "stdout"): first, (1, 1, "stderr"): b"\n\xff\n"}
    for seed in range(5):
        found = read(FakeConnection(logs, seed, breaks=3), follow=True)
        said = [line.data for line in found if line.rank == 0]
        assert said == first.split(b"\n")
        assert [line.text for line in found if line.rank == 1] == ["", "\\xff"]
        assert {line.host for line in found} == {"n1"}


@pytest.mark.parametrize("tail", [0, 1, 3, 100])
def test_the_last_lines_of_each_stream(tail: int) -> None:
    lines = [b"line %d" % number for number in range(20)]
    logs = {(1, 0, "stdout"): b"\n".join(lines) + b"\n", (1, 1, "stderr"): b"one\ntwo\n"}
    reader = LogReader(FakeConnection(logs, 1, 0), "j1", (), 0, "")  # type: ignore[arg-type]
    found = list(last_lines(reader.blocks(False, lambda: True), tail))
    assert [b.data for b in found if b.rank == 0] == (lines[-tail:] if tail else [])
    assert [b.data for b in found if b.rank == 1] == ([b"one", b"two"][-tail:] if tail else [])
    logs[1, 0, "stdout"] += b"more\n"
    assert [b.data for b in reader.blocks(True, lambda: True)] == [b"more"]


class Scripted:
    """Serves exactly these pieces."""

    def __init__(self, *pieces: tuple[int, bytes]) -> None:
        self.pieces = pieces

    def retries(self) -> Retries:
        return Retries(60.0)

    def stream(
        self, service: str, method: str, request: Any, *, retries: Retries
    ) -> Iterator[pb.LogPiece]:
        for offset, data in self.pieces:
            yield pb.LogPiece(attempt=1, rank=0, stream="stdout", offset=offset, data=data)


def test_dropped_bytes_are_said() -> None:
    found = [line.data for line in read(Scripted((0, b"ab"), (10, b"cd\n")))]
    assert found == [b"ab", b"[oneflow: 8 bytes were dropped here]", b"cd"]


def test_what_comes_twice_is_shown_once() -> None:
    assert [line.data for line in read(Scripted((0, b"abc"), (1, b"bcd\n")))] == [b"abcd"]


def test_a_line_without_end_comes_in_pieces() -> None:
    size = 16 << 10
    pieces = [(index * size, b"x" * size) for index in range(9)]
    found = read(Scripted(*pieces))
    assert sum(len(line.data) for line in found) == 9 * size
    assert max(len(line.data) for line in found) <= MAX_LINE_NBYTES + size


def test_a_long_line_in_one_piece_is_handed_out_in_parts() -> None:
    long = bytes(range(32, 42)) * 20_000
    (block,) = LogReader(Scripted((0, b"a\n\n" + long + b"\nb\n")), "j1", (), 0, "").blocks(  # type: ignore[arg-type]
        False, lambda: True
    )
    found = [line.data for line in block.lines()]
    assert (found[:2], found[-1]) == ([b"a", b""], b"b") and b"".join(found[2:-1]) == long
    assert max(map(len, found)) == MAX_LINE_NBYTES


def test_by_time_a_stream_begins_where_it_was_then() -> None:
    reader = LogReader(Scripted((10, b"cd\n"), (20, b"ef\n")), "j1", (), 0, "", since=5.0)  # type: ignore[arg-type]
    found = [block.data for block in reader.blocks(False, lambda: True)]
    assert found == [b"cd", b"[oneflow: 7 bytes were dropped here]", b"ef"]


def test_following_one_attempt_ends_with_it() -> None:
    reader = LogReader(Scripted((0, b"ab\n")), "j1", (), 1, "")  # type: ignore[arg-type]
    assert [block.data for block in reader.blocks(True, lambda: False)] == [b"ab"]


def test_lines_that_come_together_stay_together() -> None:
    """A million lines cost the one who shows them no work for each."""
    text = b"x" * 9 + b"\n"
    reader = LogReader(Scripted((0, 5000 * text + b"y")), "j1", (), 1, "")  # type: ignore[arg-type]
    found = list(reader.blocks(False, lambda: True))
    assert [len(block.data) for block in found] == [49_999, 1]
    assert len(list(found[0].lines())) == 5000
