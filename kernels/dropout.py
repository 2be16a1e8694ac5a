"""Dropout on the CPU: an element is kept if the first Philox word of its global index is at least p
* 2^32.
"""

from __future__ import annotations

from typing import Any

from oneflow.core import dtype as dtypes
from oneflow.core.rng import Rng
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.registry import kernel


def threshold(p: float) -> int:
    """The least word that keeps an element: 0 keeps all, 2^32 none."""
    return round(p * 2.0**32)


def keep_scale(p: float) -> float:
    """What a kept element is multiplied by; p = 1 keeps none."""
    return 1.0 / (1.0 - p) if p < 1.0 else 0.0


def _mask(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
    return (types[0].with_dtype(dtypes.bool_),)


@kernel("dropout", device="cpu", workspace=_mask)
def dropout(xp: Any, out: Any, x: Any, dropped: Any, *, p: float, seed: int, rng: Rng) -> None:
    words, _ = rng.words(x.shape)
    xp.less(words, threshold(p), out=dropped)
    xp.multiply(x, keep_scale(p), out=out)
    xp.copyto(out, 0, where=dropped)
