"""The public table: one row for every function and object that users reach by name.

One file per topic: a new row joins its neighbours there (row.py explains a row). The
namespaces, `dir()`, the type stubs, the reference page and the comparison with PyTorch are all
made from `ROWS` (`oneflow/surfaces.py`, `docs/stubs.py`, `docs/reference.py`, `tests/parity`); a
public name that has no row does not exist.
"""

from __future__ import annotations

from oneflow.api import (
    algebra,
    compat,
    elementwise,
    environment,
    indexing,
    layers,
    one_embedding,
    reductions,
    shapes,
    tensors,
    training,
    upstream,
)
from oneflow.api.row import ALL, FLOAT, INTEGER, KEEP, SAME, SAME_TYPE, TENSORS, Row

__all__ = [
    "ALL",
    "AUTOGRAD_MODULES",
    "FLOAT",
    "INTEGER",
    "KEEP",
    "MODULES",
    "NN_MODULES",
    "OPTIM_MODULES",
    "ROWS",
    "SAME",
    "SAME_TYPE",
    "TENSORS",
    "Row",
]

TOPICS = (
    tensors,
    elementwise,
    reductions,
    shapes,
    indexing,
    algebra,
    layers,
    training,
    one_embedding,
    environment,
    compat,
    upstream,
)

ROWS: tuple[Row, ...] = tuple(row for topic in TOPICS for row in topic.ROWS)

MODULES = (
    "amp",
    "asyncs",
    "autograd",
    "backends",
    "boxing",
    "cluster",
    "comm",
    "cuda",
    "distributed",
    "distributions",
    "elastic",
    "env",
    "fft",
    "graph",
    "hub",
    "io",
    "jit",
    "jobs",
    "linalg",
    "masked",
    "mock_torch",
    "multiprocessing",
    "nn",
    "one_embedding",
    "onnx",
    "optim",
    "profiler",
    "remat",
    "sbp",
    "signal",
    "special",
    "sysconfig",
    "utils",
    "version",
    "_C",
)
"""Sub-packages that `oneflow.<name>` finds without an import by the user."""

NN_MODULES = (
    *("functional", "graph", "init", "modules", "parallel", "parameter", "qat", "quantized"),
    "utils",
)
OPTIM_MODULES = ("lr_scheduler", "swa_utils")
AUTOGRAD_MODULES = ("functional", "function", "graph")
