"""Loading by worker processes: order, seeds, errors, and nobody left behind."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oneflow.functional.random_state import Generator
from oneflow.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from tests.support.waiting import wait_until


class Rows(Dataset[Any]):
    """Sample i is i twice; sample `bad` raises, sample `deadly` ends the process."""

    def __init__(self, size: int, bad: int = -1, deadly: int = -1) -> None:
        self.size, self.bad, self.deadly = size, bad, deadly

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if index == self.bad:
            raise KeyError(f"sample {index} is broken")
        if index == self.deadly:
            os._exit(3)
        return np.array([index, index])


class Info(Dataset[Any]):
    """Things that the worker that reads a sample knows about itself."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None and len(info.dataset) == 6
        return (
            info.id,
            info.num_workers,
            info.seed,
            random.random(),
            os.environ.get("OF_TEST_INIT", ""),
        )


class Share(IterableDataset[int]):
    """Every worker streams its own part of 0 ... 9."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        assert info is not None
        return iter(range(info.id, 10, info.num_workers))


def mark(worker_id: int) -> None:
    os.environ["OF_TEST_INIT"] = f"init {worker_id}"


def no_children() -> bool:
    return not [p for p in multiprocessing.active_children() if "DataLoader" in p.name]


def test_order_is_that_of_the_sampler() -> None:
    loader = DataLoader(Rows(11), batch_size=2, num_workers=2, prefetch_factor=3)
    batches = [batch.tolist() for batch in loader]
    assert batches == [[[i, i] for i in range(k, min(k + 2, 11))] for k in range(0, 11, 2)]
    assert no_children()


def test_workers_have_numbers_seeds_and_an_init_function() -> None:
    def run() -> list[Any]:
        loader = DataLoader(
            Info(), None, num_workers=2, worker_init_fn=mark, generator=Generator().manual_seed(4),
            collate_fn=tuple,
        )  # fmt: skip
        return list(loader)

    samples = run()
    assert [s[0] for s in samples] == [0, 1, 0, 1, 0, 1]
    assert {s[1] for s in samples} == {2}
    assert len({s[2] for s in samples}) == 2
    assert [s[4] for s in samples] == ["init 0", "init 1"] * 3
    assert run() == samples  # random numbers follow the generator's seed


def test_streams_are_shared_by_worker_number_and_may_end_at_different_times() -> None:
    loader = DataLoader(Share(), batch_size=2, num_workers=3)
    samples = [i for batch in loader for i in batch.tolist()]
    assert sorted(samples) == list(range(10))
    assert samples[:4] == [0, 3, 1, 4]


def test_an_error_comes_out_with_type_and_traceback() -> None:
    loader = DataLoader(Rows(6, bad=3), batch_size=2, num_workers=2)
    with pytest.raises(KeyError, match=r"(?s)worker process 1.*__getitem__.*sample 3 is broken"):
        list(loader)
    assert no_children()


def test_a_worker_that_dies_is_reported_and_not_waited_for() -> None:
    loader = DataLoader(Rows(6, deadly=3), batch_size=2, num_workers=2)
    with pytest.raises(RuntimeError, match=r"worker 1 .* exit code 3"):
        list(loader)
    assert no_children()


def test_leaving_the_loop_ends_the_workers() -> None:
    for _ in DataLoader(Rows(100), num_workers=2):
        break
    assert no_children()


def test_persistent_workers_stay_the_same_processes_between_epochs() -> None:
    loader = DataLoader(Rows(6), batch_size=3, num_workers=1, persistent_workers=True)
    first = [b.tolist() for b in loader]
    processes = [w.process.pid for w in loader._workers]
    for _ in loader:  # left early: what is on its way must not turn up in the next epoch
        break
    assert [b.tolist() for b in loader] == first
    assert [w.process.pid for w in loader._workers] == processes
    old, new = iter(loader), iter(loader)
    next(old), next(new)
    with pytest.raises(RuntimeError, match="second iteration"):
        next(old)
    del loader, old, new
    assert no_children()


SCRIPT = """
import os, signal
import numpy as np
from oneflow.utils.data import DataLoader, TensorDataset
from oneflow.tensor.tensor import wrap

if __name__ == "__main__":
    loader = DataLoader(TensorDataset(wrap(np.zeros(100))), num_workers=2, persistent_workers=True)
    next(iter(loader))
    print(*[w.process.pid for w in loader._workers], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_no_worker_outlives_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(SCRIPT)
    found = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60
    )
    workers = [int(pid) for pid in found.stdout.split()]
    assert len(workers) == 2, found.stderr
    wait_until(lambda: not any(is_running(pid) for pid in workers))


def is_running(pid: int) -> bool:
    """Neither gone nor a zombie that nobody has collected yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
