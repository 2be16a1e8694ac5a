"""Runs on the ranks of test_namespaces.py.

Usage: far_program.py SCENE REPORT. SCENE: some of them, by +. Each rank writes its findings to
REPORT.RANK.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import oneflow as flow
from oneflow.boxing.collectives.spanning import SpanningCollectives
from oneflow.core.errors import PeerLostError
from oneflow.distributed.world import world

SCENE, REPORT = sys.argv[1], sys.argv[2]
RANK, SIZE = flow.env.get_rank(), flow.env.get_world_size()
LINE = flow.placement("cpu", list(range(SIZE)))
LAYOUTS = {
    "S0": flow.sbp.split(0),
    "S1": flow.sbp.split(1),
    "B": flow.sbp.broadcast,
    "P": flow.sbp.partial_sum,
}


def mine(rank: int, shape: tuple[int, ...], dtype: Any) -> Any:
    return np.random.default_rng(rank).integers(0, 5, shape).astype(dtype)


def primitives() -> dict[str, Any]:
    """Every primitive, of several dtypes and sizes, against its expected results."""
    here = world().everyone
    for dtype in (np.float32, np.int64, np.complex64, ml_dtypes.bfloat16, np.bool_):
        for n in (0, 1, 1000, 200_000):
            shape = (SIZE, n)
            every = [mine(r, shape, dtype) for r in range(SIZE)]
            x, whole = every[RANK], np.stack(every)
            same = np.testing.assert_array_equal
            total = whole[0]
            for other in whole[1:]:
                total = np.add(total, other)
            same(here.all_reduce(x), total)
            same(here.reduce_scatter(x), total[RANK : RANK + 1])
            same(here.all_gather(x, [x.size] * SIZE), whole.reshape(-1))
            same(here.all_to_all(x), whole[:, RANK])
            same(here.broadcast(x, SIZE - 1), every[-1])
    here.barrier()
    payloads = here.gather_bytes(bytes([RANK]) * (1000 * RANK), "test")
    assert payloads == [bytes([r]) * (1000 * r) for r in range(SIZE)]
    far = here.far_nbytes if isinstance(here, SpanningCollectives) else here.received_nbytes
    return {"backend": type(here).__name__, "received": here.received_nbytes, "far": far}


def pairs() -> dict[str, Any]:
    """Every pair of layouts of one axis."""
    whole = np.random.default_rng(5).integers(-9, 9, (7, 6)).astype(np.float32)
    x = flow.tensor(whole, placement=LINE, sbp=flow.sbp.broadcast)
    done = []
    for a, b in itertools.product(LAYOUTS, repeat=2):
        y = x.to_global(sbp=LAYOUTS[a]).to_global(sbp=LAYOUTS[b])
        np.testing.assert_array_equal(y.numpy(), whole)
        done.append(f"{a}->{b}")
    return {"pairs": done, "backend": type(world().everyone).__name__}


def killed() -> dict[str, Any]:
    """The last rank dies while all exchange a large tensor; the others name the lost one."""
    here = world().everyone
    x = np.ones(16 << 20, np.float32)
    here.barrier()
    if RANK == SIZE - 1:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    died_at = time.monotonic() + 0.3
    try:
        while True:
            here.all_reduce(x, out=x)
    except PeerLostError as error:
        return {"error": str(error), "after_s": time.monotonic() - died_at}


found: dict[str, Any] = {}
for scene in SCENE.split("+"):
    found |= {"primitives": primitives, "pairs": pairs, "killed": killed}[scene]()
Path(f"{REPORT}.{RANK}").write_text(json.dumps(found))
