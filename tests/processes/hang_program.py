"""Two ranks train together; then rank 1 does something else. FOLDER/pid tells when rank 0 waits.

hang_program.py FOLDER
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import oneflow as flow
from oneflow import nn

SLEEP_S = 600.0


class Sum(nn.Graph):
    def build(self, x: flow.Tensor) -> flow.Tensor:
        return x.sum().to_global(sbp=flow.sbp.broadcast)


def main() -> None:
    folder = Path(sys.argv[1])
    everywhere = flow.placement("cpu", [0, 1])
    graph = Sum()
    x = flow.ones(4, 4, placement=everywhere, sbp=flow.sbp.split(0))
    assert graph(x).to_local().item() == 16
    if flow.env.get_rank() == 1:
        time.sleep(SLEEP_S)
    (folder / "pid").write_text(str(os.getpid()))
    graph(x)


if __name__ == "__main__":
    main()
