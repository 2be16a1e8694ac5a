"""Work that takes longer the first time, done before workers are forked."""

from __future__ import annotations

import numpy as np

from oneflow.core.job_config import JobConfig
from oneflow.jobs.description import Description, decode, encode
from oneflow.kernels.expressions.placing import offsets_of


def rehearse() -> None:
    """Look up the types of the fields of job files, and compile the placing of registers."""
    sample = Description(
        kind="inference",
        name="sample",
        config=JobConfig("sample"),
        inputs=(),
        outputs=(),
        entries={},
    )
    decode(encode(sample), "a sample")
    offsets_of(*np.ones((3, 1), np.int64))
