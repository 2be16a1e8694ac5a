"""Every op in a graph that is the first to run it; the new process runs
graph_first_program.py.
"""

from __future__ import annotations

import re
import subprocess
import sys

LIMIT_S = 600
LEAST_CALLS = 3000


def test_kernels_are_right_when_a_graph_binds_them_first() -> None:
    program = [sys.executable, "-m", "tests.unit.ops.graph_first_program"]
    result = subprocess.run(program, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert result.returncode == 0, result.stdout[-9000:] + result.stderr[-9000:]
    found = re.search(r"(\d+) calls alike", result.stdout)
    assert found
    assert int(found[1]) >= LEAST_CALLS
