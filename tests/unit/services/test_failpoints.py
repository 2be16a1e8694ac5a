"""Failpoints: nothing happens outside of tests, armed ones act, and every place exists."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from oneflow.core.errors import ConfigError
from oneflow.services import failpoints
from oneflow.services.failpoints import FAILPOINTS, arm, failpoint, is_armed, parse
from tests.support.waiting import WAIT_S, wait_until

ROOT = Path(__file__).resolve().parents[3]
PLACE = re.compile(r"""(?<!is_armed\()failpoint(?:\(|, )"([a-z_.]+)"\)""")
ROOMS = ("oneflow", "scheduler", "launcher", "actors", "boxing")


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    arm({})


def places() -> dict[str, int]:
    """Counts how often each name stands in the sources."""
    found: dict[str, int] = {}
    files = {p.resolve() for room in ROOMS for p in (ROOT / room).rglob("*.py")}
    for path in files - {(ROOT / "oneflow/services/failpoints.py").resolve()}:
        for name in PLACE.findall(path.read_text()):
            found[name] = found.get(name, 0) + 1
    return found


def test_every_place_exists_once_and_is_known() -> None:
    assert places() == dict.fromkeys(FAILPOINTS, 1)


def test_every_place_is_documented() -> None:
    text = (ROOT / "docs" / "FAULTS.md").read_text()
    assert [name for name in FAILPOINTS if f"| `{name}` |" not in text] == []
    assert set(re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \|", text, re.M)) == set(FAILPOINTS)


def test_nothing_happens_unless_the_process_is_under_test() -> None:
    arm({"ONEFLOW_FAILPOINTS": "worker.step=error:EIO"})
    failpoint("worker.step")
    assert not is_armed("worker.step")


def test_an_error_at_the_third_passage_only() -> None:
    arm({"ONEFLOW_TESTING": "1", "ONEFLOW_FAILPOINTS": " ckpt.write=error:ENOSPC@hit=3; "})
    failpoint("ckpt.write")
    failpoint("worker.step")
    failpoint("ckpt.write")
    with pytest.raises(OSError, match=r"ckpt\.write") as raised:
        failpoint("ckpt.write")
    assert raised.value.errno == errno.ENOSPC
    failpoint("ckpt.write")


@pytest.mark.parametrize(
    "text",
    [
        "worker.step",
        "no.such=kill",
        "worker.step=jump",
        "worker.step=kill:9",
        "worker.step=error:ENOSUCH",
        "worker.step=error:errorcode",
        "worker.step=stop",
        "worker.step=sleep:-1",
        "worker.step=sleep:nan",
        "worker.step=hold:here",
        "worker.step=kill@3",
        "worker.step=kill@hit=0",
        "worker.step=kill@hit=²",
        "worker.step=kill;worker.step=sleep:1",
    ],
)
def test_what_cannot_be_understood_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="ONEFLOW_FAILPOINTS"):
        parse(text)


def test_one_process_is_held_until_it_is_let_go(tmp_path: Path) -> None:
    arm({"ONEFLOW_TESTING": "1", "ONEFLOW_FAILPOINTS": f"worker.step=hold:{tmp_path}"})
    failpoint("worker.step")  # the folder is empty: nothing is held
    (tmp_path / "worker.step").touch()
    thread = threading.Thread(target=failpoint, args=("worker.step",))
    thread.start()
    held = tmp_path / f"worker.step.{os.getpid()}"
    wait_until(held.exists)
    failpoint("worker.step")  # another goes by
    assert thread.is_alive()
    held.unlink()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_who_would_be_held_may_be_told_to_do_something_else(tmp_path: Path) -> None:
    arm({"ONEFLOW_TESTING": "1", "ONEFLOW_FAILPOINTS": f"ckpt.write=hold:{tmp_path}"})
    (tmp_path / "ckpt.write").write_text("error:EIO")
    with pytest.raises(OSError, match=r"ckpt\.write"):
        failpoint("ckpt.write")
    failpoint("ckpt.write")


def test_nobody_else_runs_while_the_interpreter_is_kept() -> None:
    arm({"ONEFLOW_TESTING": "1", "ONEFLOW_FAILPOINTS": "worker.step=gil:0.3"})
    turns: list[float] = []
    is_over = threading.Event()

    def turn() -> None:
        while not is_over.is_set():
            turns.append(time.monotonic())
            os.sched_yield()

    thread = threading.Thread(target=turn)
    thread.start()
    wait_until(lambda: turns)
    failpoint("worker.step")
    before = len(turns)
    wait_until(lambda: len(turns) > before)
    is_over.set()
    thread.join()
    assert max(after - at for at, after in pairwise(turns)) > 0.25


@pytest.mark.parametrize(("action", "code"), [("kill", -9), ("sleep:0.01", 0), ("stop:0.2", 0)])
def test_what_happens_to_a_process(action: str, code: int) -> None:
    text = "import os; from oneflow.services import failpoints as f; f.arm(os.environ); "
    env = {"ONEFLOW_TESTING": "1", "ONEFLOW_FAILPOINTS": f"worker.step={action}"}
    argv = [sys.executable, "-c", text + "f.failpoint('worker.step')"]
    assert subprocess.run(argv, env=os.environ | env, timeout=60).returncode == code


def test_a_place_that_is_not_armed_costs_a_look_up() -> None:
    arm({})
    assert failpoints._armed == {}
