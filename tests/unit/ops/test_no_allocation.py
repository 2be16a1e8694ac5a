"""Kernels allocate nothing of the size of the data besides the workspace they declare.

Samples are too small to tell, so every op here has a large call of its own: 256 KiB of float32 and
more.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from oneflow.core import dtype as dtypes

from .activation_samples import ACTIVATIONS
from .numpy_mode import Array, bind_whole, garbage
from .sample import Sample, named
from .samples import BINARY, COMPARE, UNARY, UNARY_GRADS

LIMIT_BYTES = 4096
"""Python's own objects: slices, views, keyword dictionaries."""

ROWS, COLUMNS = 256, 256
X = np.random.default_rng(0).uniform(0.1, 0.9, (ROWS, COLUMNS)).astype(np.float32)
Y = X[::-1].copy()
MASK = X > 0.5
INDEX = np.random.default_rng(1).integers(0, ROWS, ROWS)
WHOLE: dict[str, Any] = {"starts": (0, 3), "stops": (ROWS, 100), "steps": (1, 1)}

POOL: dict[str, Any] = {"kernel": (2, 2), "stride": (1, 1), "padding": (0, 0)}

CALLS: list[tuple[str, tuple[Array, ...], dict[str, Any]]] = [
    *((name, (X,), {}) for name in UNARY if name not in ("acosh", "erf")),
    ("erf", (X,), {}),
    *((name, (X, Y), {}) for name in (*UNARY_GRADS, *BINARY, *COMPARE)),
    *((f"scalar_{name}", (X,), {"value": 2.5}) for name in ("add", "mul", "pow", "rpow", "rdiv")),
    ("scalar_compare", (X,), {"value": 0.5, "kind": "lt"}),
    *((name, (X,), attrs) for name, attrs, _ in ACTIVATIONS if name not in UNARY),
    ("clamp", (X,), {"min": 0.2, "max": 0.7}),
    ("full_like", (X,), {"value": 1.0}),
    ("where", (MASK, X, Y), {}),
    ("masked_fill", (X, MASK), {"value": 0.0}),
    ("reduce_sum", (X,), {"dims": (0,)}),
    ("reduce_sum", (X,), {"dims": (1,)}),
    ("reduce_sum", (X,), {"dims": (0, 1)}),
    ("reduce_prod", (X,), {"dims": (1,)}),
    ("reduce_max", (X,), {"dims": (0,)}),
    ("reduce_min", (X,), {"dims": (1,)}),
    ("reduce_any", (MASK,), {"dims": (1,)}),
    ("reduce_all", (MASK,), {"dims": (0,)}),
    ("argmax", (X,), {"dim": 1}),
    ("argmin", (X,), {"dim": 1}),
    ("cumprod", (X,), {"dim": 1}),
    ("reshape", (X,), {"shape": (ROWS * COLUMNS,)}),
    ("reshape", (X.T,), {"shape": (ROWS * COLUMNS,)}),
    ("transpose", (X,), {"dims": (1, 0)}),
    ("expand", (X[:1],), {"shape": (ROWS, COLUMNS)}),
    ("flip", (X,), {"dims": (0, 1)}),
    ("roll", (X,), {"shifts": (3, 5), "dims": (0, 1)}),
    ("pad", (X,), {"pads": (1, 2, 3, 4), "value": 0.5}),
    ("tril", (X,), {"diagonal": 1}),
    ("triu", (X,), {"diagonal": 1}),
    ("diagonal", (X,), {"offset": 1}),
    ("diag_embed", (X[0],), {"offset": 0, "rows": COLUMNS, "columns": COLUMNS}),
    ("slice", (X,), WHOLE),
    ("slice_scatter", (X[:, :97],), {"shape": (ROWS, COLUMNS), **WHOLE}),
    ("slice_update", (X, Y[:, :97]), WHOLE),
    ("concat", (X, Y), {"dim": 1}),
    ("split", (X,), {"sizes": (100, 156), "dim": 1}),
    ("gather", (X, INDEX), {"dim": 0}),
    ("gather", (X, INDEX), {"dim": 1}),
    ("gather_grad", (X, INDEX), {"dim": 0, "size": ROWS}),
    ("constant", (), {"shape": (ROWS, COLUMNS), "dtype": dtypes.float32, "value": 1}),
    ("eye", (), {"rows": ROWS, "columns": COLUMNS, "dtype": dtypes.float32}),
]

BUFFERED: list[tuple[str, tuple[Array, ...], dict[str, Any]]] = [
    ("add", (X, X[0].copy()), {}),
    ("cast", (X,), {"dtype": dtypes.int32}),
    ("cast", (X,), {"dtype": dtypes.bfloat16}),
    ("reduce_sum", (X.astype(np.float16),), {"dims": (0,)}),
    ("cumsum", (X,), {"dim": 0}),
    ("cumsum", (X.astype(np.float16),), {"dim": 0}),
    ("avg_pool", (X.astype(np.float16).reshape(64, 4, 16, 16),), POOL),
]
"""NumPy broadcasts and converts through buffers of 8192 elements, whatever the size of the data."""

# Not in the list, each for a reason:
#   sort, topk: NumPy's argsort has no out=;  argmax, argmin along a strided dim: NumPy copies;
#   dim_gather, dim_scatter, dim_scatter_add: fancy indexing makes its result before it is stored;
#   one_hot: one bool per index;  arange, randperm: run once;
#   uniform, normal, randint, bernoulli: two 32-bit words per element of the generator;
#   standard_gamma, poisson: as many as are tried;  standard_gamma_grad: nodes of an integral.


def _named(calls: list[Any]) -> dict[str, Any]:
    found = named(Sample(name, inputs, attrs) for name, inputs, attrs in calls)
    return {"argvalues": calls, "ids": [parameter.id for parameter in found]}


@pytest.mark.parametrize(("name", "inputs", "attrs"), **_named(CALLS))
def test_kernel_allocates_nothing(
    name: str, inputs: tuple[Array, ...], attrs: dict[str, Any]
) -> None:
    assert _peak(name, inputs, attrs) < LIMIT_BYTES


@pytest.mark.parametrize(("name", "inputs", "attrs"), **_named(BUFFERED))
def test_kernel_allocates_only_buffers_of_fixed_size(
    name: str, inputs: tuple[Array, ...], attrs: dict[str, Any]
) -> None:
    assert _peak(name, inputs, attrs) < X.nbytes // 2


def _peak(name: str, inputs: tuple[Array, ...], attrs: dict[str, Any]) -> int:
    """Bytes that one call of the kernel has allocated at most."""
    bound = bind_whole(name, inputs, attrs)
    outs, work = ([garbage(*kind) for kind in kinds] for kinds in (bound.outs, bound.work))

    def run() -> None:
        bound.function(np, *outs, *inputs, *work, **bound.attrs)

    with np.errstate(all="ignore"):
        run()  # imports and compiles
        tracemalloc.start()
        try:
            run()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
