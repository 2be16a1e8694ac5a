"""A rank that waits for a rank 0 nobody started: it says so once, and hears that it exited."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from oneflow.actors import control
from oneflow.actors.control import ControlClient
from oneflow.core.config import Config
from oneflow.core.errors import PeerLostError, RendezvousError
from oneflow.core.exits import note_exited
from oneflow.scheduler.ports import free_port
from tests.support.waiting import CALL_S


def client(config: Config) -> ControlClient:
    return ControlClient(f"127.0.0.1:{free_port()}", 1, 3, config)


def test_an_unreachable_rank_0_is_named_once_before_the_deadline(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "LATE_S", 0.0)
    monkeypatch.setattr(logging.getLogger("oneflow"), "propagate", True)
    waiting = client(Config())
    with pytest.raises(RendezvousError, match="could not reach rank 0"):
        waiting.join(timeout_s=4.0)
    waiting.leave()
    # By identity: a record that two handlers show is still said once.
    said = {id(r): r.getMessage() for r in caplog.records if "rendezvous" in r.getMessage()}
    (only,) = said.values()
    assert "could not reach rank 0's scheduler" in only


@pytest.mark.parametrize("gone", [0, 2])
def test_without_rank_0_one_that_exited_ends_the_wait(tmp_path: Path, gone: int) -> None:
    note_exited(tmp_path, gone)
    waiting = client(Config(exited_dir=tmp_path))
    text = f"rank {gone} exited 0 before it joined: rank 1 needs it"
    with pytest.raises(PeerLostError, match=text):
        waiting.join(timeout_s=CALL_S)
    waiting.leave()
