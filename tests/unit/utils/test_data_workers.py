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
import torch.utils.data as theirs

from oneflow.functional.random_state import Generator
from oneflow.tensor.tensor import wrap
from oneflow.utils import data
from oneflow.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    default_collate,
    get_worker_info,
)
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


def test_a_fork_needs_neither_picklable_samples_nor_a_guard() -> None:
    class Local(Dataset[Any]):
        def __init__(self) -> None:
            self.double = lambda i: 2 * i

        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> int:
            doubled: int = self.double(index)
            return doubled

    loader = DataLoader(
        Local(),
        2,
        num_workers=2,
        multiprocessing_context="fork",
        collate_fn=lambda samples: sum(samples),
    )
    assert list(loader) == [2, 10, 8]


@pytest.mark.parametrize(("method", "count"), [("fork", 2), ("spawn", 1)])
def test_large_batches_arrive_whole(method: str, count: int) -> None:
    loader = DataLoader(
        Large(), 2, num_workers=count, multiprocessing_context=method, collate_fn=with_a_copy
    )
    kept = list(loader)  # more than one batch of each worker at once
    for number, (images, names, doubled) in enumerate(kept):
        first = np.stack([large(2 * number + k) for k in range(2)])
        assert np.array_equal(images.numpy(), first)
        assert tuple(names) == (str(2 * number), str(2 * number + 1))
        assert np.array_equal(doubled, 2 * first)
        images += 1  # the memory is the caller's now
        assert np.array_equal(images.numpy(), first + 1)
    assert no_children()


def large(index: int) -> Any:
    return np.arange(100_000, dtype=np.float32).reshape(100, 1000) * (index + 1)


class Large(Dataset[Any]):
    """Images of 400 kB each, and their names."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return large(index), str(index)


def with_a_copy(samples: Any) -> Any:
    """A batch of which one array lies where batches are made, and another does not."""
    images, names = default_collate(samples)
    return images, names, images.numpy() * 2


def test_a_fork_computes_though_its_parent_has_used_threads() -> None:
    x = wrap(np.random.default_rng(0).normal(size=1 << 20).astype(np.float32))
    wide = (x * 2 + x.exp()).numpy()  # by threads, of which a fork has none

    class Pooled(Dataset[Any]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, _: int) -> Any:
            return x * 2 + x.exp()

    loader = DataLoader(Pooled(), None, num_workers=1, multiprocessing_context="fork")
    (computed,) = list(loader)
    assert np.allclose(computed.numpy(), wide, rtol=1e-6)


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
    loop = iter(DataLoader(Rows(100), num_workers=2))  # at work before the first batch is taken
    assert not no_children()
    del loop
    assert no_children()


def test_persistent_workers_stay_the_same_processes_between_epochs() -> None:
    loader = DataLoader(Rows(6), batch_size=3, num_workers=1, persistent_workers=True)
    first = [b.tolist() for b in loader]
    processes = [w.process.pid for w in loader._workers]
    for _ in loader:  # left early: what is on its way must not turn up in the next epoch
        break
    assert [b.tolist() for b in loader] == first
    assert [w.process.pid for w in loader._workers] == processes
    old = iter(loader)
    assert len(old) == 2
    next(old)
    new = iter(loader)
    next(new)
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


class OthersLoader:
    """A loader as fastai writes them: a class of its own that hands itself to PyTorch's passes."""

    _auto_collation, _dataset_kind, _index_sampler = False, 1, range(99)
    _IterableDataset_len_called = generator = worker_init_fn = multiprocessing_context = None
    drop_last, pin_memory, persistent_workers, pin_memory_device = False, False, False, ""
    timeout, in_order, _get_shared_seed = 0, True, lambda *_: None

    def __init__(self, num_workers: int) -> None:
        self.dataset, self.num_workers = self, num_workers
        self.prefetch_factor = 2 if num_workers else None

    def collate_fn(self, batch: Any) -> Any:
        return [batch]

    def __iter__(self) -> Any:
        info = get_worker_info() or theirs.get_worker_info()
        return iter(range(10 * info.id if info else 0, 10 * info.id + 3 if info else 3))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_passes_take_loaders_of_other_classes(num_workers: int) -> None:
    name = "_MultiProcessingDataLoaderIter" if num_workers else "_SingleProcessDataLoaderIter"
    ours, reference = (
        list(getattr(library.dataloader, name)(OthersLoader(num_workers)))
        for library in (data, theirs)
    )
    assert ours == reference
    assert len(ours) == 3 * max(1, num_workers)
