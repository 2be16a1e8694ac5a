"""Every op in a graph that is the first to run it; the new process runs
graph_first_program.py.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

LIMIT_S = 600
LEAST_CALLS = 1500


@pytest.mark.parametrize("how", ["", pytest.param("whole", marks=pytest.mark.slow)])
def test_kernels_are_right_when_a_graph_binds_them_first(how: str) -> None:
    program = [sys.executable, "-m", "tests.unit.ops.graph_first_program", how]
    result = subprocess.run(program, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert result.returncode == 0, result.stdout[-9000:] + result.stderr[-9000:]
    found = re.search(r"(\d+) calls alike", result.stdout)
    assert found
    assert int(found[1]) >= LEAST_CALLS * (2 if how else 1)
