"""Files of traces: whole, capped and valid; merged on one clock, and refused when broken."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from oneflow.core.errors import OneFlowError
from oneflow.services import traces
from oneflow.services.traces import (
    FORMAT,
    TraceFileError,
    TraceReader,
    TraceWriter,
    clock_origin,
    merge,
    of_earlier_traces,
    remove_left_overs,
    truncated_event,
)


def header(rank: int, **more: Any) -> dict[str, Any]:
    found = {
        "format": FORMAT, "trace": "t1", "rank": rank, "host": "h", "boot_id": "b",
        "monotonic_ns": 1_000_000, "wall_ns": 5_000_000, "offset_ns": None, "offset_error_ns": None,
    }  # fmt: skip
    return found | more


def event(rank: int, at_us: float, **more: Any) -> str:
    return json.dumps({"ph": "X", "pid": rank, "tid": 1, "name": "a", "ts": at_us, "dur": 1} | more)


def write(path: Path, head: dict[str, Any], *events: str) -> Path:
    writer = TraceWriter(path, head)
    name = {"ph": "M", "name": "process_name", "pid": head["rank"], "tid": 0, "args": {"name": "r"}}
    writer.add([json.dumps(name)])
    writer.add(events)
    writer.commit({"acts": len(events)})
    return path


def parsed(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def rewritten(path: Path, change: Any) -> None:
    path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))


def test_a_file_is_json_and_read_back(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json.gz", header(3), event(3, 1.5), event(3, 2.5))
    whole = parsed(path)
    assert whole["otherData"] == header(3) and whole["summary"] == {"acts": 2}
    reader = TraceReader(path)
    assert list(reader.events()) == whole["traceEvents"]
    assert reader.summary == {"acts": 2}
    reader.close()
    assert [p.name for p in tmp_path.iterdir()] == ["a.json.gz"]


def test_an_empty_file_is_valid(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "a.json.gz", header(0))
    writer.commit({})
    assert parsed(tmp_path / "a.json.gz")["traceEvents"] == []
    writer = TraceWriter(tmp_path / "b.json.gz", header(0))
    writer.commit({}, truncated_event(0, 1.0, why="test"))
    assert len(parsed(tmp_path / "b.json.gz")["traceEvents"]) == 1


def test_no_byte_more_than_the_cap(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "a.json.gz", header(0), max_nbytes=10_000)
    written = sum(writer.add([event(0, n), event(0, n + 0.5)]) for n in range(1000))
    assert writer.is_full and 0 < written < 2000
    assert writer.add([event(0, 0)]) == 0
    writer.commit({}, truncated_event(0, 1000.0, why="full"))
    data = gzip.decompress((tmp_path / "a.json.gz").read_bytes())
    events = json.loads(data)["traceEvents"]
    assert len(data) <= 10_000 and len(events) == written + 1
    assert events[-1]["name"] == "truncated" and events[-1]["ph"] == "i"


def test_what_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    TraceWriter(tmp_path / "a.json.gz", header(0)).abort()
    assert not list(tmp_path.iterdir())


def test_what_is_being_written_is_no_left_over(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    (tmp_path / ".a.json.gz.dead").write_bytes(b"of one that was killed")
    (tmp_path / ".a.json.gz.link").symlink_to(tmp_path / "elsewhere")
    writers = [TraceWriter(path, header(rank)) for rank in range(2)]
    remove_left_overs(path)
    left = {p.name for p in tmp_path.iterdir()}
    assert ".a.json.gz.dead" not in left and len(left) == 3
    for rank, writer in enumerate(writers):
        writer.commit({})
        assert parsed(path)["otherData"]["rank"] == rank


def test_ranks_of_one_host_share_their_clock(tmp_path: Path) -> None:
    one = write(tmp_path / "0.gz", header(0), event(0, 10.0), event(0, 30.0))
    other = write(tmp_path / "1.gz", header(1, monotonic_ns=1_005_000), event(1, 10.0))
    found = merge([other, one], tmp_path / "out.gz")
    assert found.ranks == (0, 1) and set(found.clocks.values()) == {"the same clock"}
    events = parsed(tmp_path / "out.gz")["traceEvents"]
    assert [(e["pid"], e.get("ts")) for e in events] == [
        (0, None), (1, None), (0, 10.0), (1, 15.0), (0, 30.0),
    ]  # fmt: skip


@pytest.mark.parametrize("offset", [None, 7_000_000])
def test_hosts_are_compared_as_well_as_can_be(offset: int | None, tmp_path: Path) -> None:
    """Rank 1's clock is 7 ms ahead; both began at the same moment, by all that is known."""
    head = header(1, boot_id="c", monotonic_ns=8_000_000, offset_ns=offset, offset_error_ns=2000)
    paths = [
        write(tmp_path / "0.gz", header(0, offset_ns=0, offset_error_ns=0), event(0, 1.0)),
        write(tmp_path / "1.gz", head, event(1, 2.0)),
    ]
    found = merge(paths, tmp_path / "out.gz")
    wanted = "by the wall clocks" if offset is None else "measured, to 2.0 us"
    assert found.clocks == {0: "the same clock", 1: wanted}
    times = [e["ts"] for e in parsed(tmp_path / "out.gz")["traceEvents"] if "ts" in e]
    assert times == [1.0, 2.0]


def test_a_merged_file_has_the_first_moments_of_all_ranks(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / f"{r}.gz", header(r), *(event(r, n) for n in range(500))) for r in (0, 1)
    ]
    found = merge(paths, tmp_path / "out.gz", max_nbytes=20_000)
    assert found.is_truncated and found.nbytes <= 20_000
    *events, last = parsed(tmp_path / "out.gz")["traceEvents"]
    assert last["name"] == "truncated"
    counts = [sum(e["ph"] == "X" and e["pid"] == r for e in events) for r in (0, 1)]
    assert sum(counts) + 2 == found.events and abs(counts[0] - counts[1]) <= 1


def test_a_merged_file_repeats_no_more_of_headers_than_it_may(tmp_path: Path) -> None:
    padded = {"padding": "x" * 50_000, "job": "j" * 10_000, "attempt": [1] * 100}
    paths = []
    for rank in range(40):
        writer = TraceWriter(tmp_path / f"{rank}.gz", header(rank, **padded, world_size=40))
        writer.add([event(rank, n) for n in range(30)])
        writer.commit({"acts": 30, "truncated": False, "steps": "x" * 50_000})
        paths.append(writer.path)
    found = merge(paths, tmp_path / "out.gz", max_nbytes=1 << 16)
    whole = parsed(tmp_path / "out.gz")
    nbytes = len(gzip.decompress((tmp_path / "out.gz").read_bytes()))
    assert found.is_truncated and found.nbytes == nbytes <= 1 << 16 and found.events > 0
    for rank, said in enumerate(whole["otherData"]["files"]):
        assert said == header(rank, job="j" * 256, world_size=40)
    assert whole["summary"]["ranks"] == [{"acts": 30, "truncated": False}] * 40
    with pytest.raises(TraceFileError, match="no room for 40 ranks"):
        merge(paths, tmp_path / "no.gz", max_nbytes=1 << 14)
    assert not (tmp_path / "no.gz").exists()


def test_a_merged_file_replaces_none_of_its_files(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{r}.gz", header(r), event(r, 1.0)) for r in range(2)]
    before = paths[1].read_bytes()
    for out in (paths[1], tmp_path / "link.gz"):
        if out != paths[1]:
            out.symlink_to(paths[1])
        with pytest.raises(TraceFileError, match="one of the files to merge"):
            merge(paths, out)
    assert paths[1].read_bytes() == before


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    one, twin = (write(tmp_path / f"{n}.gz", header(0)) for n in "ab")
    other = write(tmp_path / "c.gz", header(1, trace="t2"))
    for paths, said in (([one, twin], "both of rank 0"), ([one, other], "different traces")):
        with pytest.raises(TraceFileError, match=said):
            merge(paths, tmp_path / "out.gz")
    with pytest.raises(TraceFileError, match="no file"):
        merge([], tmp_path / "out.gz")
    assert not (tmp_path / "out.gz").exists()
    later = write(tmp_path / "d.gz", header(2, trace="t3", wall_ns=6_000_000))
    assert of_earlier_traces([one, later, other]) == [one, other]
    assert of_earlier_traces([one, twin]) == []


def test_a_name_without_gz_is_plain_json(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{r}.json.gz", header(r), event(r, 1.0)) for r in (0, 1)]
    for name in ("all.json", "all.json.gz"):
        merge(paths, tmp_path / name)
    assert json.loads((tmp_path / "all.json").read_text()) == parsed(tmp_path / "all.json.gz")


BROKEN = {
    "no gzip": lambda path: path.write_bytes(b"{}"),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "a flipped bit": lambda path: path.write_bytes(_flipped(path.read_bytes())),
    "empty": lambda path: path.write_bytes(b""),
    "no trace": lambda path: rewritten(path, lambda d: b'{"a": 1}\n'),
    "no end": lambda path: rewritten(path, lambda d: d[: d.rindex(b"\n],") + 1]),
    "an odd line": lambda path: rewritten(path, lambda d: d.replace(b'"ph": "X"', b'"ph": X')),
    "no event": lambda path: rewritten(path, lambda d: d.replace(b'{"ph": "X"', b'[{"ph": "X"')),
    "no time": lambda path: rewritten(path, lambda d: d.replace(b'"ts": 1.0', b'"ts": NaN')),
    "no number": lambda path: rewritten(path, lambda d: d.replace(b'"ts": 1.0', b'"ts": "1"')),
    "an infinite number": lambda path: rewritten(
        path, lambda d: d.replace(b'"dur": 1', b'"dur": 1e999')
    ),
    "infinity at its end": lambda path: rewritten(
        path, lambda d: d.replace(b'"acts": 1', b'"acts": -1e999')
    ),
    "a long line": lambda path: rewritten(path, lambda d: d.replace(b'"a"', b'"' + b"a" * 99_999)),
    "no rank": lambda path: rewritten(path, lambda d: d.replace(b'"rank": 0', b'"rank": "0"')),
    "more": lambda path: rewritten(path, lambda d: d + b"more\n"),
    "no text": lambda path: rewritten(path, lambda d: d.replace(b'"a"', b'"\xff"')),
    "deep": lambda path: rewritten(path, lambda d: d.replace(b'"a"', b"[" * 20_000)),
}


def _flipped(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_is_refused(how: str, tmp_path: Path) -> None:
    path = write(tmp_path / "0.gz", header(0), event(0, 1.0))
    BROKEN[how](path)
    with pytest.raises(TraceFileError, match=r"0\.gz: ") as caught:
        merge([path], tmp_path / "out.gz")
    assert isinstance(caught.value, OneFlowError) and caught.value.exit_code == 65
    assert [p.name for p in tmp_path.iterdir()] == ["0.gz"]


def test_a_file_that_unpacks_to_more_than_a_trace_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "0.gz", header(0), *(event(0, n) for n in range(200)))
    reader = TraceReader(path, max_nbytes=1000)
    with pytest.raises(TraceFileError, match="larger than"):
        list(reader.events())
    reader.close()


def test_the_clock_is_the_one_of_the_acts() -> None:
    import time

    before = time.perf_counter_ns()
    origin = clock_origin()
    assert before <= origin["monotonic_ns"] <= time.perf_counter_ns()
    assert time.perf_counter_ns() <= time.monotonic_ns() <= time.perf_counter_ns()  # on Linux
    assert traces.boot_id() == traces.boot_id()
