"""The number of threads of kernels, in a process of its own: the limit would stay."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import oneflow as flow
from oneflow.kernels.threads import loaded, num_threads, set_limit
{limit}
for library in loaded("openblas"):
    for name in ("scipy_openblas_get_num_threads64_", "scipy_openblas_get_num_threads"):
        get = getattr(library, name, None)
        assert get is None or get() == 1, get()
assert num_threads() == 1
"""


@pytest.mark.parametrize("limit", ["set_limit(1)", "flow.set_num_threads(1)"])
def test_threads_are_limited_in_libraries_that_are_loaded(limit: str) -> None:
    code = CODE.format(limit=limit)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
