"""Functions run in several processes, and how their failures reach the parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

import oneflow as flow


def write(number: int, folder: str) -> None:
    (Path(folder) / str(number)).write_text("done")


def fail(number: int) -> None:
    if number == 1:
        raise ValueError("too much")


def leave(number: int, code: int) -> None:
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


def test_each_process_gets_its_number(tmp_path: Path) -> None:
    start = flow.multiprocessing.start_processes
    assert start(write, (str(tmp_path),), nprocs=2, start_method="fork") is None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "1"]


def test_an_exception_comes_with_its_traceback() -> None:
    with pytest.raises(flow.multiprocessing.ProcessRaisedException, match="too much") as raised:
        flow.multiprocessing.start_processes(fail, nprocs=2, start_method="fork")
    assert raised.value.error_index == 1 and "in fail" in str(raised.value)


@pytest.mark.parametrize(("code", "name"), [(3, None), (-signal.SIGKILL, "SIGKILL")])
def test_another_end_comes_with_its_code(code: int, name: str | None) -> None:
    context = flow.multiprocessing.start_processes(leave, (code,), join=False, start_method="fork")
    with pytest.raises(flow.multiprocessing.ProcessExitedException) as raised:
        context.join()
    assert (raised.value.exit_code, raised.value.signal_name) == (code, name)


def test_pythons_own_names_are_there() -> None:
    assert flow.multiprocessing.Process is multiprocessing.Process
    assert flow.multiprocessing.get_sharing_strategy() == "file_descriptor"
    assert flow.multiprocessing.spawn.__name__ == "spawn"
