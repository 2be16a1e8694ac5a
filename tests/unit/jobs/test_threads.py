"""A forked worker learns how many threads it has after it imported its libraries."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from oneflow.kernels.fused.math import PARALLEL

TOLD_LATER = """
import os, sys
import numba
from oneflow.jobs import worker
from oneflow.protos import cluster_pb2 as pb
{before}
names = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"
worker.configure(pb.Begin(env=dict.fromkeys(names, "1")))
import numpy as np
from oneflow.kernels.fused.math import ALONE, vectorized
def double(out, x):
    for i in range(x.size):
        out[i] = x[i] + x[i]
x = np.arange(ALONE, dtype=np.float32)
out = np.empty_like(x)
loop = vectorized(double)
loop(out, x)  # launches threads, if none were, then compiles
assert (out == 2 * x).all()
print(numba.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
"""


@pytest.mark.skipif(not PARALLEL, reason="numba has no threading layer here")
@pytest.mark.parametrize(
    ("before", "wanted"),
    [("", "1 1"), ("numba.set_num_threads(3)", "1 3")],
    ids=["imported", "threads launched"],
)
def test_the_first_compilation_agrees_with_the_threads_there_are(
    before: str, wanted: str, tmp_path: object
) -> None:
    """Runs as with an empty cache of compiled kernels: numba reads its settings again then."""
    env = {**os.environ, "NUMBA_NUM_THREADS": "3", "NUMBA_CACHE_DIR": str(tmp_path)}
    program = [sys.executable, "-c", TOLD_LATER.format(before=before)]
    done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == wanted
