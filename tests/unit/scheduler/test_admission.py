"""Joins that are let in at once, and the moments at which the others are to come again."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from oneflow.launcher.daemon import attach
from oneflow.launcher.daemon.attach import Attachment
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler import admission
from oneflow.scheduler.admission import Admission, ComeAgainError
from oneflow.scheduler.authenticator import Authenticator
from oneflow.services.proof import digest_of
from tests.support.waiting import CALL_S, WAIT_S


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def put_off(joins: Admission) -> float:
    with pytest.raises(ComeAgainError, match="come again in") as caught, joins.join():
        raise AssertionError("let in")
    return caught.value.pause_s


def test_only_so_many_join_at_once_and_the_others_get_moments_of_their_own() -> None:
    clock = Clock()
    joins = Admission(3, clock)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(joins.join())
        pauses = [put_off(joins) for _ in range(1000)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(pauses)]
    assert pauses[0] >= admission.LEAST_S
    assert gaps == pytest.approx([admission.EACH_S] * 999)
    with joins.join():
        pass  # there is room again


def test_nobody_is_put_off_for_longer_than_a_minute() -> None:
    joins = Admission(0, Clock())
    assert max(put_off(joins) for _ in range(20_000)) == admission.MOST_S


def test_a_join_that_never_ends_gives_its_place_back() -> None:
    clock = Clock()
    joins = Admission(1, clock)
    with joins.join():
        put_off(joins)
        clock.now += admission.FORGET_S
        with joins.join():
            put_off(joins)


def test_a_crowd_lasts_until_those_put_off_have_come_but_not_for_ever() -> None:
    clock = Clock()
    joins = Admission(0, clock)
    assert not joins.is_crowded
    clock.now += put_off(joins)
    assert joins.is_crowded
    clock.now += admission.COMING_S
    assert not joins.is_crowded
    for _ in range(1000):  # somebody who hammers at the door
        put_off(joins)
        clock.now += 1.0
    assert not joins.is_crowded


def test_a_daemon_that_is_put_off_comes_again_then_over_the_same_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> tuple[list[float], bool, str]:
        joins, server = Admission(1), grpc.aio.server()
        door = Authenticator(
            lambda name: digest_of("secret"), lambda *refused: None, lambda: "", lambda name: joins
        )
        server.add_generic_rpc_handlers((door.handler(),))
        where = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        settings = DaemonSettings("cpu:0", where, Path("/nowhere"), node="n1", token="secret")
        line = Attachment(settings, pb.Hello, lambda message: None, lambda: None)
        pauses, channels = [], []
        with joins.join():
            for _ in range(2):
                await line._run_stream()
                pauses.append(line._rejoin_after_s or 0.0)
                channels.append(line._channel)
        await asyncio.wait_for(line._join(), CALL_S)  # now there is room
        channels.append(line._channel)
        await line._close()
        await server.stop(0)
        return pauses, len(set(map(id, channels))) == 1, line._broken_by

    monkeypatch.setattr(admission, "LEAST_S", 3.0)
    pauses, is_same, why = asyncio.run(asyncio.wait_for(scene(), WAIT_S))
    assert is_same
    assert all(3.0 <= pause <= 3.1 * (1 + attach.AGAIN_JITTER) for pause in pauses)
    assert why.startswith("many join at once: come again in 3.0 s")
