"""Findings of the fuzzers, each as the smallest input that showed it."""

from __future__ import annotations

import asyncio
import io
import socket
import struct
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from click.testing import CliRunner

from oneflow.actors.bus import ready_code
from oneflow.actors.registers import is_shared
from oneflow.actors.tcp import Connection as Peer
from oneflow.actors.tcp import Mirrors, make_mirrors
from oneflow.cli.main import cli
from oneflow.cli.records import job_details, job_table
from oneflow.cluster.connection import Connection
from oneflow.cluster.settings import load_settings
from oneflow.cluster.toml import read_toml
from oneflow.core.config import Config, split_address
from oneflow.core.control_channel import resolve
from oneflow.core.device import Device
from oneflow.core.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    GraphError,
    PlacementError,
    ProtocolError,
)
from oneflow.core.graph_proto import graph_from_proto, graph_to_proto
from oneflow.core.graph_text import parse_attrs, parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.placement import Placement, parse_placement
from oneflow.core.sbp import parse_sbp
from oneflow.core.tensor_type import parse_type
from oneflow.io.foreign import load_torch
from oneflow.jobs.description import Column, JobFileError
from oneflow.jobs.sources import Access, open_columns
from oneflow.launcher.daemon.archive import ArchiveError, unpack
from oneflow.launcher.logs import escape
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.logs import Wanted
from oneflow.scheduler.compiler.pipeline import compile_graph
from oneflow.scheduler.jobs.causes import cause_line
from oneflow.scheduler.jobs.specs import record_from_proto
from oneflow.scheduler.server import SchedulerServer
from oneflow.services.failpoints import parse
from oneflow.services.quantities import show_duration, show_time
from tests.support.proving import proven
from tests.support.waiting import CALL_S

FAR = """graph far pieces=1 {
  %0: float32[7, 6] S(0) = input(; name='x') @cpu[0, 1]
  %1: float32[7, 6] S(1) = to_global(%0) @cpu[0, 1]
  %2: float32[7, 6] ? = relu(%1) @cpu[0, 1]
  %3: float32[7, 6] B = to_global(%2) @cpu[0, 1]
  output(%3; index=0) @cpu[0, 1]
}"""
LONG = "9" * 5000  # more digits than Python reads


@pytest.mark.parametrize("at", [float("inf"), float("nan"), 1e308, -1.0])
def test_times_that_are_none_are_shown(at: float) -> None:
    record = record_from_proto(pb.JobRecord(submitted_at=at, started_at=at, finished_at=at))
    job_table([record], is_wide=True)
    assert "?" in job_details(record)
    assert show_time(at) == "?"
    assert isfinite(at) or show_duration(at) == "?"


def test_the_last_line_is_one_line_whatever_a_record_says() -> None:
    record = record_from_proto(
        pb.JobRecord(id="a\nb", reason="x\r\ny", host="h\x85", state="FAILED")
    )
    assert len(cause_line(record).splitlines()) == 1


def test_much_that_must_be_spelled_out_takes_no_minute() -> None:
    text = "\x01\x1b[31mx\x9f\n" + "\x02" * (1 << 20)
    started = time.thread_time()
    found = escape(text)
    assert time.thread_time() - started < 10.0
    assert found == "\\x01\x1b[31mx\\x9f\n" + "\\x02" * (1 << 20)


def read_settings(count: str) -> object:
    return load_settings(env={"ONEFLOW_CONFIG_DIR": "/nowhere", "ONEFLOW_LOCAL_DAEMONS": count})


def read_offsets(name: str) -> object:
    return Wanted.parse(pb.LogsRequest(offsets={name: 1}))


@pytest.mark.parametrize(
    ("read", "error", "texts"),
    [
        (split_address, ConfigError, [f"x:{p}" for p in ("\u00b2", LONG, "\u0663", "123456")]),
        (Device, DeviceError, ["cuda:\u00b2", f"cuda:{LONG}"]),
        (resolve, ConfigError, ["a" * 300]),  # too long a label
        (
            parse_attrs,
            GraphError,
            ["a=(", "a=[" + "[" * 500, "a=\0", f"a={LONG}", "a=-'x'", "1x"],
        ),
        (parse_graph, GraphError, [f"graph g pieces={LONG} {{\n}}"]),
        (parse, ConfigError, [f"worker.step=kill@hit={LONG}"]),
        (parse_sbp, GraphError, [f"S({LONG})", "S(\u00b2)"]),
        (parse_type, GraphError, ["float32[2 3]", f"float32[{LONG}]", "float32[,]"]),
        (parse_placement, GraphError, ["cpu" + "[" * 100_000, f"cpu[{LONG}]"]),
        (read_settings, ConfigError, [LONG]),
        (read_offsets, ProtocolError, [f"{LONG}/0/stdout", "\u00b2/0/stdout", f"1/{LONG}/stderr"]),
    ],
)
def test_texts_of_odd_digits_or_depth_are_refused(
    read: Callable[[str], object], error: type[Exception], texts: list[str]
) -> None:
    for text in texts:
        with pytest.raises(error):
            read(text)


def test_a_rank_that_no_number_holds() -> None:
    with pytest.raises(PlacementError):
        Placement("cpu", [2**63])


def test_a_peer_that_speaks_of_a_register_that_is_not_shared() -> None:
    plan = compile_graph(parse_graph(FAR), JobConfig("far"), Cluster(2))
    theirs, mine = Mirrors(plan, 0, make_mirrors(plan, 0)), Mirrors(plan, 1, make_mirrors(plan, 1))
    unshared = next(r for r in plan.registers if not is_shared(r))
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        near.sendall(struct.pack("<QQ", ready_code(unshared, 0), 0))
        time.sleep(0.05)
        with pytest.raises(ProtocolError):
            Peer(plan, 1, 0, far, mine, theirs).receive()


def test_settings_that_are_nested_too_deep(tmp_path: Any) -> None:
    path = tmp_path / "x.toml"
    path.write_text("a = " + "[" * 2000)
    with pytest.raises(ConfigError, match="nested"):
        read_toml(path)


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [b"(4, 3", b"{'descr'"])
def test_a_header_of_npy_that_is_cut(tmp_path: Any, at: bytes) -> None:
    """NumPy reads it with Python's tokenizer, whose error is its own."""
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((4, 3), np.float32))
    path.write_bytes(path.read_bytes().replace(b")", b"(").replace(at, b"(" * len(at)))
    column = Column(name="x", dtype="float32", shape=(3,), path=str(path))
    with pytest.raises(JobFileError):
        open_columns("npy", (column,), Access())


@pytest.mark.parametrize(("steps", "bound"), [((1, 0), 9), ((1, -1), 9), ((1, 1), 1), ((1, 1), 0)])
def test_values_whose_numbers_are_not_their_own(steps: tuple[int, int], bound: int) -> None:
    """Readers of the one would have got the other, or a pass would have made it once more."""
    graph = parse_graph(
        """graph g pieces=1 {
  %0: float32[4] B = input(; name='x') @cpu[0]
  %1: float32[4] B = input(; name='y') @cpu[0]
}"""
    )
    proto = graph_to_proto(graph)
    assert len(list(graph_from_proto(proto))) == 2
    proto.value_id[:], proto.value_id_bound = steps, bound
    with pytest.raises(GraphError):
        graph_from_proto(proto)


def archive_of(path: Path, *links: tuple[str, str]) -> Path:
    """An archive of links alone: name and target."""
    with tarfile.open(path, "w:gz") as tar:
        for name, target in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return path


@pytest.mark.parametrize("link", [("l", ""), (".", "a"), ("d" * 300, "a")])
def test_links_that_cannot_be_made(tmp_path: Path, link: tuple[str, str]) -> None:
    """tarfile would look for their targets in the archive, again and again."""
    archive = archive_of(tmp_path / "x", link, ("a", "b"))
    with pytest.raises(ArchiveError):
        unpack(archive, tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_links_that_can_be_made(tmp_path: Path) -> None:
    unpack(archive_of(tmp_path / "x", ("a/l", "../b")), tmp_path / "work")
    assert str((tmp_path / "work" / "a" / "l").readlink()) == "../b"


def zip_with(field: int, value: bytes) -> bytes:
    """An archive whose first record of the directory has another value."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("x/data.pkl", b"N.")
    data = bytearray(buffer.getvalue())
    at = data.find(b"PK\1\2") + field
    data[at : at + len(value)] = value
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        zip_with(6, b"\xff\0"),  # needs version 25.5 of the format
        zip_with(8, b"\1\0"),  # encrypted
        zip_with(42, b"\xff\xff\0\0"),  # its entry lies beyond the file
        zip_with(0, b"PK\1\2")[:-6] + b"\xff\xff\xff\x7f\0\0",  # so does its directory
    ],
    ids=["version", "encrypted", "entry beyond", "directory beyond"],
)
def test_zip_files_that_are_none(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        load_torch(data)


# ---- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["ckpt", "verify", "9" * 5000], 78),  # a path that is too long
        (["cluster", "token", "create", "--role", "view", "\udcff"], 78),
        (["job", "logs", "--rank", LONG, "x"], 2),
        (["job", "logs", "--rank", f"0-{LONG}", "x"], 2),
        (["job", "get", "--address", "127.0.0.1:\u00b2", "x"], 78),
    ],
)
def test_words_that_are_none_end_in_one_line(words: list[str], code: int) -> None:
    result = CliRunner().invoke(cli, words)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code


# ---- lines ---------------------------------------------------------------------------------------


@contextmanager
def job_scheduler() -> Iterator[tuple[str, str]]:
    """Address and token of the control plane that rank 0 of a job hosts."""
    token = "0123456789abcdef0123456789abcdef"
    config = Config(world_size=2, job_token=token)
    server = SchedulerServer("127.0.0.1:0", 2, lambda graph, config: b"", config)
    address = server.start()
    try:
        yield address, token
    finally:
        server.stop(0.0)


def test_bytes_that_are_no_message_are_told_so_by_a_jobs_own_scheduler() -> None:
    with job_scheduler() as who, proven(*who) as (channel, metadata):
        for path, streams in (("Put", False), ("Heartbeat", True)):
            kind = channel.stream_stream if streams else channel.unary_unary
            body: Any = iter((b"\xff\xff",)) if streams else b"\xff\xff"
            given = {"timeout": CALL_S, "metadata": metadata}
            with pytest.raises(grpc.RpcError) as caught:
                list(kind(f"/oneflow.Scheduler/{path}")(body, **given))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]


def test_a_jobs_token_that_is_shown_opens_no_call() -> None:
    with job_scheduler() as (address, token), grpc.insecure_channel(address) as channel:
        ask = channel.unary_unary("/oneflow.Scheduler/Get")
        for shown in (("oneflow-token", token), ("authorization", f"Bearer {token}")):
            with pytest.raises(grpc.RpcError) as caught:
                ask(b"", timeout=CALL_S, metadata=(shown,))
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]


class _Nothing:
    """A stream that brings none."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def initial_metadata(self) -> tuple[()]:
        return ()

    def cancel(self) -> None:
        """It is over anyway."""


def test_who_waits_for_centuries_waits() -> None:
    """gRPC takes 10**10 seconds for a time that has passed: the caller would ask for ever."""
    connection = Connection("127.0.0.1:1", lambda: None)
    seen: dict[str, float] = {}

    def method(service: str, name: str, timeout_s: float) -> Any:
        def ask(request: Any, timeout: float, metadata: Any) -> Any:
            seen[name] = timeout
            return _Nothing()

        return ask, ()

    connection._method = method  # type: ignore[method-assign]
    connection.call("Jobs", "Get", pb.JobRequest(), 1e30)
    list(connection.stream("Jobs", "Watch", pb.JobRequest(), float("inf")))
    assert 0 < seen["Get"] <= 5e9 and 0 < seen["Watch"] <= 5e9


def test_an_address_that_is_none_is_answered() -> None:
    from oneflow.scheduler.cluster.page import Page

    nobody: Any = None
    folders = SimpleNamespace(state_dir=Path())
    names = ("driver", "points", "paces", "lines", "audit", "plans", "blobs")
    nothing: Any = SimpleNamespace(settings=folders, **dict.fromkeys(names))
    answer = Page(nobody, nobody, nothing).route("http://[/", {}, "127.0.0.1:1")
    assert answer is not None and answer.status == 400


async def _points(start: int) -> list[Any]:
    from oneflow.scheduler.cluster.points import LAST, Points

    class Driver:
        jobs: dict[str, Any] = {}
        store = None

        async def in_store(self, work: Any) -> Any:
            return []

    driver: Any = Driver()
    points = Points(driver)
    asked = []

    async def page(job_id: str, first: int) -> list[Any]:
        asked.append(first)
        return []

    points._page = page  # type: ignore[method-assign]
    assert [p async for p in points.read("j", start, False)] == []
    return [first <= LAST for first in asked]


def test_points_from_beyond_what_the_store_counts() -> None:
    assert asyncio.run(_points(2**64 - 1)) == [True]
