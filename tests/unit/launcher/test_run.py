"""torchrun's flags as the launcher's."""

from __future__ import annotations

import pytest

from oneflow.distributed.run import translated
from oneflow.launcher.flags import parse

CASES = {
    "--nproc_per_node=2 train.py --lr 1": ["--nproc_per_node=2", "train.py", "--lr", "1"],
    "--standalone --nproc-per-node 4 -m pkg.train -x": [
        *("--standalone", "--nproc_per_node=4", "-m", "pkg.train", "-x"),
    ],
    "--nnodes=1:4 --rdzv-backend c10d --rdzv-endpoint host:29400 --rdzv_id=7 a.py": [
        *("--nnodes=4", "--master_addr=host", "--master_port=29400", "a.py"),
    ],
    "-t 3 -r 1 --role trainer --max-restarts 2 a.py": ["--max_restarts=2", "a.py"],
    "--rdzv_endpoint=localhost a.py": ["--master_addr=localhost", "a.py"],
}


@pytest.mark.parametrize("line", CASES)
def test_flags_are_those_of_the_launcher(line: str) -> None:
    made = translated(line.split())
    assert made == CASES[line]
    assert parse(made, {}).script in ("train.py", "pkg.train", "a.py")
