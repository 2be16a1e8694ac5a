"""When a daemon makes a new channel to its scheduler."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from oneflow.launcher.daemon import attach
from oneflow.launcher.daemon.attach import Link
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.protos import cluster_pb2 as pb


def test_a_channel_that_never_connected_is_kept_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> list[bool]:
        settings = DaemonSettings("cpu:0", "127.0.0.1:9", Path("/nowhere"), node="n1")
        link = Link(settings, pb.Hello, lambda message: None, lambda: None)
        seen: list[Any] = []
        for has_connected, age_s in ((False, 0.0), (False, 1.0), (True, 1.0), (False, 99.0)):
            link._has_connected = has_connected
            link._opened_at -= age_s
            await link._renew_channel()
            seen.append(link._channel)
        await link._channel.close()
        return [later is not earlier for earlier, later in itertools.pairwise(seen)]

    monkeypatch.setattr(attach, "CHANNEL_S", 20.0)
    assert asyncio.run(scene()) == [False, True, True]
