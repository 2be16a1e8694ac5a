"""Protobuf messages of every kind, handed on to whom they are for."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

from google.protobuf.message import DecodeError

from oneflow.core.errors import OneFlowError

from .fuzz_inputs import (
    Verdict,
    judged,
    message_kinds,
    random_message,
    watched,
    wire_bytes,
)

VARIANTS, FILLED = 8, (0.2, 0.6, 0.9)
NOW_S, WALL_S = 1000.0, 1_700_000_000.0


class UnstableError(Exception):
    """Something that was decoded, encoded and decoded again is not the same."""


def fuzz_messages(verdict: Verdict, seeds: range) -> None:
    kinds = message_kinds()
    base: dict[Any, tuple[int, bytes]] = {}
    for seed in watched(seeds):
        rng = random.Random(seed)
        kind = kinds[seed % len(kinds)]
        turn = seed // len(kinds) // VARIANTS
        if base.get(kind, (-1, b""))[0] != turn:  # making a message costs more than trying many
            made = random.Random(turn)
            base[kind] = turn, random_message(made, kind, 0, FILLED[turn % 3]).SerializeToString()
        data = wire_bytes(rng, kind, base[kind][1])
        with judged(verdict, seed, (DecodeError, OneFlowError)):
            message = kind.FromString(data)
            once = message.SerializeToString(deterministic=True)
            if kind.FromString(once).SerializeToString(deterministic=True) != once:
                raise UnstableError(kind.__name__)
            receiver = receivers().get(kind.__name__)
            if receiver is not None:
                receiver(message)


@cache
def receivers() -> dict[str, Callable[[Any], Any]]:
    """The one that such a message is for, by its name."""
    from oneflow.core.graph_proto import graph_from_proto
    from oneflow.core.plan import Plan
    from oneflow.scheduler.cluster.logs import Wanted
    from oneflow.scheduler.cluster.views import _filters, _parse_cursor
    from oneflow.scheduler.jobs.limits import check_job_id, check_spec
    from oneflow.scheduler.jobs.messages import cut_progress, joined, key_of
    from oneflow.scheduler.jobs.specs import record_from_proto, spec_from_proto, spec_to_proto

    def spec(message: Any) -> None:
        found = spec_from_proto(message)
        check_spec(found)
        if spec_from_proto(spec_to_proto(found)) != found:
            raise UnstableError("JobSpec")

    def submit(message: Any) -> None:
        check_job_id(message.job_id)
        spec(message.spec)

    def record(message: Any) -> None:
        from oneflow.cli.progress import progress_line
        from oneflow.cli.records import job_details, job_table, record_as_dict
        from oneflow.scheduler.jobs.causes import cause_line

        found = record_from_proto(message)
        job_table([found], is_wide=True)
        job_details(found)
        record_as_dict(found)
        progress_line(found)
        if "\n" in cause_line(found):
            raise UnstableError("more than one line")

    def listing(message: Any) -> None:
        _filters(message.filters)
        _parse_cursor(message.cursor)

    def logs(message: Any) -> None:
        Wanted.parse(message)

    def status(message: Any) -> None:
        from oneflow.cli.records import daemon_table, status_as_dict, status_lines

        status_lines(message)
        status_as_dict(message)
        daemon_table(message.daemons, is_wide=True)

    def tensor(message: Any) -> None:
        from oneflow.cluster.values import tensor_of

        tensor_of(message)

    def progress(message: Any) -> None:
        key_of(message.id)
        cut_progress(message)

    def graph(message: Any) -> None:
        from oneflow.core.graph_proto import graph_from_bytes

        graph_from_bytes(message.SerializeToString())
        graph_from_proto(message)

    def plan(message: Any) -> None:
        Plan.from_bytes(message.SerializeToString())

    return {
        "JobSpec": spec,
        "SubmitRequest": submit,
        "JobRecord": record,
        "ListRequest": listing,
        "LogsRequest": logs,
        "ClusterStatus": status,
        "Tensor": tensor,
        "InferRequest": request,
        "Infer": request,
        "Hello": joined,
        "DaemonMessage": daemon_says,
        "SchedulerMessage": scheduler_says,
        "Progress": progress,
        "Graph": graph,
        "Plan": plan,
    }


# ---- the cluster's parts -------------------------------------------------------------------------


def daemon_says(message: Any) -> None:
    """The table takes it, and nothing about it is wrong afterwards."""
    from oneflow.scheduler.jobs.messages import event_of
    from tests.support.job_invariants import invariants

    table = a_table()
    for _ in range(2):
        event = event_of(message, "rig/cpu:0", lambda: WALL_S)
        if event is None:
            return
        table.step(event, NOW_S)
        if wrong := invariants(table):
            raise UnstableError(f"{type(event).__name__}: {wrong[0]}")
        _about_what_runs(message)


def _about_what_runs(message: Any) -> None:
    """The same of the attempt that there is: most ids that are made up name none."""
    message.epoch = 1
    content = getattr(message, message.WhichOneof("kind"))
    if hasattr(content, "id"):
        content.id.job_id, content.id.attempt, content.id.rank = "j1", 1, 0


def scheduler_says(message: Any) -> None:
    """A daemon's mind takes it, at rest and with a rank that runs."""
    from oneflow.launcher.daemon.daemon import Daemon
    from oneflow.launcher.daemon.events import Gathered, Launched
    from oneflow.protos import cluster_pb2 as pb
    from oneflow.scheduler.jobs.messages import AttemptKey

    key = AttemptKey("j1", 1, 0)
    welcome = pb.SchedulerMessage(welcome=pb.Welcome(epoch=3))
    prepare = pb.SchedulerMessage(prepare=pb.Prepare(id=key.wire))
    start = pb.SchedulerMessage(start=pb.Start(id=key.wire, master_port=5000))
    at_work = (welcome, prepare, Gathered(key, 5000), start, Launched(key, 77))
    for history in ((), (welcome,), at_work):
        daemon = Daemon()
        for earlier in (*history, message):
            daemon.step(earlier, NOW_S)
        daemon.running()


def a_table() -> Any:
    """One job that runs on one daemon."""
    from oneflow.protos import cluster_pb2 as pb
    from oneflow.scheduler.jobs.events import DaemonJoined, Heard, Submitted
    from oneflow.scheduler.jobs.records import JobSpec
    from oneflow.scheduler.jobs.table import Table

    table = Table([], 0)
    hello = pb.Hello(daemon="rig/cpu:0", node="rig", device_type="cpu", incarnation=7)
    table.step(DaemonJoined(hello), NOW_S - 2)
    spec = JobSpec(argv=("true",))
    table.step(Submitted("j1", spec, "me", "k", WALL_S), NOW_S - 1)
    prepared = pb.Prepared(id=pb.AttemptId(job_id="j1", attempt=1), master_port=5000)
    message = pb.DaemonMessage(epoch=1, prepared=prepared)
    table.step(Heard("rig/cpu:0", message), NOW_S - 1)
    return table


@cache
def _interface() -> Any:
    from oneflow.core.job_config import JobConfig
    from oneflow.jobs.description import Description, Port
    from oneflow.jobs.requests import Interface

    ports = (Port(name="x", index=0, dtype="float32", shape=(2, 3)),)
    config = JobConfig("x")
    found = Description(
        kind="inference", name="x", config=config, inputs=ports, outputs=ports, entries={}
    )
    return Interface(found, {0})


def request(message: Any) -> None:
    from oneflow.protos import cluster_pb2 as pb

    _interface().request(pb.Infer(request=1, inputs=message.inputs))
