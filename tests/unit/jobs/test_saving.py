"""Checkpoints of a job on one rank: written beside training, kept, given up, read again."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.core.dtype import dtype_of
from oneflow.core.errors import CheckpointError, OneFlowError
from oneflow.core.metrics import METRICS
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST
from oneflow.core.tensor_type import TensorType
from oneflow.io import save_shards
from oneflow.jobs import outputs, saving
from oneflow.jobs.order import Cursor
from oneflow.jobs.outputs import MetricsFile
from oneflow.jobs.restoring import choose, restore
from oneflow.jobs.running import Variable
from oneflow.jobs.saving import Saver, remove_left_overs, saved_steps
from oneflow.jobs.tables import Snapshots, Tables
from oneflow.one_embedding.store.initial import Column, InitialRows
from oneflow.one_embedding.store.options import make_device_mem_store_options
from oneflow.one_embedding.store.row_store import open_store
from tests.support.waiting import wait_until


def variables(value: float = 1.0) -> dict[str, Variable]:
    arrays = {
        "model.weight": np.full((4, 3), value, np.float32),
        "model.weight-momentum_buffer": np.arange(12, dtype=np.float32).reshape(4, 3) * value,
        "count": np.array(int(value)),
    }
    place = Placement("cpu", [0])
    return {
        n: Variable(TensorType(a.shape, dtype_of(a.dtype)), place, (BROADCAST,), a)
        for n, a in arrays.items()
    }


def wait(saver: Saver) -> None:
    def is_done() -> bool:
        saver.hear([saver.said()])
        return not saver.is_busy

    wait_until(lambda: not saver.is_busy or is_done())


def saved(folder: Path, steps: list[int], keep: int = 2) -> tuple[Saver, list[tuple[str, int]]]:
    told: list[tuple[str, int]] = []
    saver = Saver(folder, keep, "key", lambda path, step: told.append((path, step)))
    for step in steps:
        saver.begin(step, Cursor(1, step), variables(step))
        wait(saver)
    return saver, told


def harm(checkpoint: Path, damage: str) -> None:
    pattern = "*.json" if damage == "manifest" else "shard-*"
    file = next(checkpoint.glob(pattern))
    data = bytearray(file.read_bytes())
    data[-3] ^= 4
    file.unlink() if damage == "missing" else file.write_bytes(data)


def test_the_newest_are_kept_and_named(tmp_path: Path) -> None:
    saver, told = saved(tmp_path, [5, 10, 15])
    assert told == [(str(tmp_path / f"step-{n}"), n) for n in (5, 10, 15)]
    assert saved_steps(tmp_path) == [10, 15] and saver.last_step == 15
    assert (tmp_path / "last_checkpoint").read_text() == "step-15\n"
    found = flow.load(tmp_path / "step-10")
    assert found["step"] == 10 and found["cursor"] == {"epoch": 1, "position": 10}
    np.testing.assert_array_equal(
        found["variables"]["model.weight"].to_local().numpy(), np.full((4, 3), 10, np.float32)
    )


def test_going_on_finds_values_and_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are those of its beginning, read into their places without a second copy."""
    saver, state = Saver(tmp_path, 2, "key", lambda *_: None), variables(7)
    saver.begin(7, Cursor(1, 7), state)
    for v in state.values():
        v.array[...] = -1
    wait(saver)
    places = [v.array.ctypes.data for v in state.values()]
    monkeypatch.setattr("oneflow.jobs.restoring.to_device", None)  # nothing is copied
    found = restore(str(tmp_path / "step-7"), state, may_fall_back=False)
    assert (found.step, found.cursor) == (7, Cursor(1, 7))
    assert [v.array.ctypes.data for v in state.values()] == places
    for name, v in variables(7).items():
        np.testing.assert_array_equal(state[name].array, v.array)


def test_a_full_disk_keeps_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(save_shards.PendingFile):
        def commit(self) -> int:
            self.abort()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    METRICS.reset()
    saver, told = saved(tmp_path, [1])
    warned: list[str] = []
    saver._on_failed = warned.append
    monkeypatch.setattr(save_shards, "PendingFile", Full)
    saver.begin(2, Cursor(), variables())
    wait(saver)
    assert saver.failures == 1 and saver.last_failure.startswith("DISK_FULL: rank 0: ")
    assert warned == [f"checkpoint of step 2 was not written: {saver.last_failure}"]
    assert METRICS.checkpoint_failures["DISK_FULL"] == 1
    timed = {k: sum(h.counts) for k, h in METRICS.saves.items()}
    assert timed == {"gather": 2, "write": 1, "commit": 1}
    assert saver.last_step == 1 and len(told) == 1
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path)) == ["last_checkpoint", "step-1"]
    saver.begin(3, Cursor(), variables())
    wait(saver)
    assert saved_steps(tmp_path) == [1, 3]


def test_a_full_disk_of_rows_costs_one_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = make_device_mem_store_options(str(tmp_path / "rows"), capacity=10)
    made = InitialRows(1, [[Column(2, "constant", 1.0)]])
    with open_store(options, key_type="int64", line_size=2, initial=made) as store:
        keys = np.arange(3, dtype=np.uint64), np.zeros(3, np.int32)
        store.put(*keys, np.full((3, 2), 7, np.float32))
        table: Any = SimpleNamespace(store=store, load_snapshot=store.load_snapshot, text="")
        rows = Tables({"users": table}, ["users"])
        saver = Saver(tmp_path, 2, "key", lambda *_: None, rows=Snapshots(rows, "job"))
        with monkeypatch.context() as patched:

            def full(*_: object) -> int:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            patched.setattr(os, "pwrite", full)
            METRICS.reset()
            saver.begin(1, Cursor(), variables(), 1)
            wait(saver)
        assert saver.failures == METRICS.checkpoint_failures["DISK_FULL"] == 1
        assert saver.last_failure.startswith("DISK_FULL: rank 0: the disk of ")
        for step in (2, 3, 4):
            saver.begin(step, Cursor(), variables(), step)
            wait(saver)
        store.put(*keys, np.zeros((3, 2), np.float32))
        restore(str(tmp_path / "step-4"), variables(), rows, may_fall_back=False)
        found = np.concatenate([values for _, _, values in store.items()])
        np.testing.assert_array_equal(found, np.full((3, 2), 7))
        steps = [name.partition(".")[0] for name in store.snapshot_names()]
        assert steps == ["job-step-3", "job-step-4"]
        (kept,) = [name for name in store.snapshot_names() if "step-4" in name]
        store.remove_snapshot(kept)
        with pytest.raises(CheckpointError, match=r"step-4: no snapshot 'job-step-4\..*there are"):
            restore(str(tmp_path / "step-4"), variables(), rows, may_fall_back=False)
        assert restore(str(tmp_path / "step-4"), variables(), rows, may_fall_back=True).step == 3


def test_a_step_that_is_there_already_is_replaced(tmp_path: Path) -> None:
    """And files that an earlier attempt began are taken away, but nothing else."""
    (tmp_path / ".step-3.0123456789abcdef").mkdir()
    (tmp_path / "mine").mkdir()
    remove_left_overs(tmp_path)
    saved(tmp_path, [4])
    saver = Saver(tmp_path, 2, "other", lambda *_: None)
    saver.begin(4, Cursor(), variables(9))
    wait(saver)
    state = variables(0)
    restore(str(tmp_path / "step-4"), state, may_fall_back=False)
    assert float(state["model.weight"].array.max()) == 9.0
    assert sorted(os.listdir(tmp_path)) == ["last_checkpoint", "mine", "step-4"]


@pytest.mark.parametrize("damage", ["shard", "manifest", "missing"])
def test_damage_is_found_and_an_older_one_taken(tmp_path: Path, damage: str) -> None:
    """Damage is looked for before there is any memory, and again where it is read."""
    saved(tmp_path, [1, 2])
    last = str(tmp_path / "step-2")
    assert choose(last, may_fall_back=False) == last
    harm(Path(last), damage)
    METRICS.reset()
    with pytest.raises(CheckpointError, match="step-2"):
        choose(last, may_fall_back=False)
    assert choose(last, may_fall_back=True) == str(tmp_path / "step-1")
    with pytest.raises(CheckpointError, match="step-2"):
        restore(last, variables(), may_fall_back=False)
    assert restore(last, variables(), may_fall_back=True).step == 1
    assert METRICS.checkpoint_failures["CHECKPOINT_INVALID"] == 4


def test_a_folder_of_checkpoints_means_the_last_one(tmp_path: Path) -> None:
    saved(tmp_path, [3, 4])
    assert choose(str(tmp_path), may_fall_back=False) == str(tmp_path / "step-4")
    (tmp_path / "last_checkpoint").write_text("step-3\n")
    assert choose(str(tmp_path), may_fall_back=False) == str(tmp_path / "step-3")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "nothing is no checkpoint: there is no such folder"),
        ("empty", "empty is no checkpoint: it has no checkpoint.manifest.json"),
        ("odd", "its last_checkpoint names none of them ('../step-9'); name one yourself, as "),
        ("none", "its last_checkpoint names none of them ('No such file or directory')"),
    ],
)
def test_what_is_no_checkpoint_is_said_so(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    for folder in ("odd", "none"):
        (tmp_path / folder / "step-7").mkdir(parents=True)
    (tmp_path / "odd" / "last_checkpoint").write_text("../step-9\n")
    with pytest.raises(CheckpointError) as caught:
        choose(str(tmp_path / name), may_fall_back=False)
    assert message in str(caught.value)


def test_one_that_was_removed_gives_way_to_the_newest(tmp_path: Path) -> None:
    """Its end was told, the end of newer ones was not: the rank was killed."""
    saved(tmp_path, [1, 2, 3])
    assert restore(str(tmp_path / "step-1"), variables(), may_fall_back=True).step == 3
    with pytest.raises(CheckpointError, match="step-1"):
        restore(str(tmp_path / "step-1"), variables(), may_fall_back=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.pop("count"), "'count' is only in the checkpoint"),
        (lambda v: v.update(more=v["count"]), "'more' is only in the job"),
        (lambda v: v.update(count=v["model.weight"]), r"'count' is int64\[\] there"),
    ],
)
def test_a_checkpoint_of_another_job_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    saved(tmp_path, [1])
    state = variables()
    change(state)
    with pytest.raises(CheckpointError, match=message):
        restore(str(tmp_path / "step-1"), state, may_fall_back=False)


STATE = {
    "format": "oneflow job state",
    "step": 3,
    "cursor": {"epoch": 0, "position": 0},
    "variables": {"x": "x"},
    "rows": {},
}


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"step": -1},
        {"step": True},
        {"step": 1 << 60},
        {"cursor": {"epoch": 0}},
        {"cursor": {"epoch": 0, "position": 0.5}},
        {"cursor": {"epoch": -1, "position": 0}},
        {"variables": [1]},
        {"rows": {"users": 3}},
    ],
)
def test_a_checkpoint_that_no_job_wrote_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    x = flow.ones(2, placement=flow.placement("cpu", [0]), sbp=flow.sbp.broadcast)
    flow.save({**STATE, **change, "y": x}, tmp_path / "f")
    with pytest.raises(CheckpointError, match=r"not one of a job: .* at `\$\."):
        restore(str(tmp_path / "f"), variables(), may_fall_back=False)


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files of this process end after 100 bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_curve_waits_in_memory_for_room(tmp_path: Path, small_files: None) -> None:
    file = MetricsFile(tmp_path, 0)
    for step in range(1, 21):
        file.add(step, {"loss": 1 / step})
        file.flush()
    path = tmp_path / "outputs" / "metrics.jsonl"
    assert path.stat().st_size == 100
    with pytest.raises(OSError, match="large"):
        file.check()
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    file.add(21, {"loss": 0.0})
    file.check()
    file.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 22))
    assert [line["loss"] for line in lines[:20]] == [1 / step for step in range(1, 21)]


def test_waiting_lines_are_bounded(
    tmp_path: Path, small_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "MAX_WAITING_NBYTES", 500)
    file = MetricsFile(tmp_path, 0)
    for step in range(1000):
        file.add(step, {})
        file.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    file.close()
    lines = (tmp_path / "outputs" / "metrics.jsonl").read_text().splitlines()
    assert 30 < len(lines) < 100
    assert [json.loads(line)["step"] for line in lines] == list(range(len(lines)))


def test_the_curve_goes_on_where_the_checkpoint_was(tmp_path: Path) -> None:
    first = MetricsFile(tmp_path, 0)
    for step in range(1, 6):
        first.add(step, {"loss": 1 / step})
    first.close()
    path = tmp_path / "outputs" / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"step": 6, "lo')
    second = MetricsFile(tmp_path, 3)
    second.add(4, {"loss": 0.1})
    second.flush()
    second.check()
    assert path.read_text().splitlines() == [
        '{"step": 1, "loss": 1.0}',
        '{"step": 2, "loss": 0.5}',
        '{"step": 3, "loss": 0.3333333333333333}',
        '{"step": 4, "loss": 0.1}',
    ]
    path.unlink()
    with pytest.raises(OneFlowError, match="deleted while the job ran"):
        second.check()
    second.close()


def test_a_cause_is_logged_once_by_the_rank_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve checkpoints of two ranks find the disk full at rank 1, then another fails there."""
    lines: list[str] = []
    monkeypatch.setattr(saving.log, "warning", lambda form, *given: lines.append(form % given))
    warned: list[str] = []
    saver = Saver(tmp_path, 2, "key", lambda *_: None, warned.append)

    def fail(step: int, text: str, cause: str, rank: int) -> None:
        saver.begin(step, Cursor(), variables())
        heard = [{"written": {}}, {"written": {}}]
        heard[rank] = {"failed": text, "cause": cause}
        saver.hear(heard)

    for step in range(12):
        fail(step, f"DISK_FULL: rank 1: step-{step}", "DISK_FULL", 1)
    assert lines == [] and len(warned) == 12  # this is rank 0: rank 1 logs it
    assert warned[0].endswith("rank 1: step-0")
    assert warned[11].endswith("rank 1: step-11 (12 in a row were not)")
    for step in range(12, 36):
        fail(step, f"rank 0: step-{step}", "Input/output error", 0)
    assert lines == [warned[12], warned[21]]
    saver.begin(40, Cursor(), variables())
    wait(saver)
    fail(41, "rank 0: step-41", "Input/output error", 0)
    assert lines[2:] == ["checkpoint of step 41 was not written: rank 0: step-41"]
    assert saver.failures == 37
