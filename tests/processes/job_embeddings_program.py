"""Exports a job from two ranks over which the rows of its embeddings are split.

argv: a folder for the job file and the rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

import oneflow as flow

from .test_job_embeddings import BATCH, TABLES, Model, Train, options_of

BOTH, B = flow.placement("cpu", [0, 1]), flow.sbp.broadcast


def main(folder: Path) -> None:
    model = Model(str(folder / "rows"), "memory").to_global(placement=BOTH, sbp=B)
    ids = flow.zeros(BATCH, TABLES, dtype=flow.int64, placement=BOTH, sbp=B)
    targets = flow.zeros(BATCH, placement=BOTH, sbp=B)
    inputs = {"x": ids.to_global(sbp=flow.sbp.split(0)), "y": targets}
    Train(model).export(folder / "split.job", inputs=inputs, **options_of())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
