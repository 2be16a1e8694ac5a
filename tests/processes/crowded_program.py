"""Runs on the ranks of test_crowded_ranks.py, all on one core: `crowded_program.py SCENE`."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np

from oneflow.distributed.world import world

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def calls() -> None:
    """Small and large calls of the whole set and of pairs, with every value checked."""
    here = world()
    rank, p, everyone = here.rank, here.world_size, here.everyone
    pair = here.collectives((rank // 2 * 2, rank // 2 * 2 + 1))
    factor = p * (p + 1) // 2
    for step in range(60):
        n = (5, 4099, 300_001)[step % 3] if step % 10 == 9 else (5, 900)[step % 2]
        x = np.arange(n, dtype=np.float64) * (rank + 1)
        np.testing.assert_array_equal(everyone.all_reduce(x), np.arange(n) * float(factor))
        rows = [np.arange(n, dtype=np.float64) * (r + 1) for r in range(p)]
        np.testing.assert_array_equal(everyone.all_gather(x), np.concatenate(rows))
        part = np.array_split(np.arange(n) * float(factor), p)[rank]
        np.testing.assert_array_equal(everyone.reduce_scatter(x), part)
        swapped = everyone.all_to_all(np.full((p, n), rank, np.int32))
        assert (swapped == np.arange(p)[:, None]).all()
        both = rows[pair.ranks[0]] + rows[pair.ranks[1]]
        np.testing.assert_array_equal(pair.all_reduce(x), both)
    print("done", flush=True)


def killed() -> None:
    """Rank 1 dies in the middle of a long series of large calls."""
    here = world()
    x = np.ones(1_000_000)
    for step in range(10_000):
        if here.rank == 1 and step == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        here.everyone.all_gather(x)


{"calls": calls, "killed": killed}[sys.argv[1]]()
