"""Samples of ops; samples.py and nn_samples.py list them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sample:
    """One call of an op with its right answer.

    inputs: float64 arrays are run in every dtype of `dtypes`; arrays of other dtypes stay as they
    are.
    reference: of (*inputs, **attrs) in float64: the output or a tuple of outputs; None if there is
    no formula (random).
    tolerance: relative and absolute, in float32.
    wrt: inputs whose gradient is compared with finite differences; None: all of float64.
    refused: inputs whose gradient is an error to ask for.
    compared: outputs that are compared, and differentiated; None: all.
    """

    op: str
    inputs: tuple[Array, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)
    reference: Callable[..., Any] | None = None
    dtypes: tuple[str, ...] = ("float32", "float64")
    tolerance: float = 1e-5
    wrt: tuple[int, ...] | None = None
    compared: tuple[int, ...] | None = None
    refused: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The call: `matmul[2x3,3x4]-transpose_b=False`."""
        shapes = ",".join("x".join(map(str, x.shape)) or "()" for x in self.inputs)
        given = "".join(f"-{key}={_word(value)}" for key, value in self.attrs.items())
        return f"{self.op}[{shapes}]{given}"

    def inputs_as(self, dtype: Any) -> tuple[Array, ...]:
        return tuple(x.astype(dtype) if x.dtype == np.float64 else x for x in self.inputs)


def _word(value: Any) -> str:
    """An attribute's value, without spaces, in at most 40 characters."""
    return "".join(str(value).split())[:40]


def named(samples: Iterable[Sample]) -> list[Any]:
    """Parameters of a test. Calls that look alike get letters, so that a new sample renames none
    but those like it that follow.
    """
    import pytest  # here: programs without tests read samples too

    seen: Counter[str] = Counter()
    found = []
    for sample in samples:
        seen[sample.name] += 1
        again = f"-{chr(96 + seen[sample.name])}" if seen[sample.name] > 1 else ""
        found.append(pytest.param(sample, id=sample.name + again))
    return found


def normal(*shape: int, seed: int = 0) -> Array:
    """float64, standard normal."""
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def between(low: float, high: float, *shape: int, seed: int = 0) -> Array:
    """float64, uniform."""
    return np.random.default_rng([seed, *shape]).uniform(low, high, size=shape)


def integers(low: int, high: int, *shape: int, seed: int = 0, dtype: Any = np.int64) -> Array:
    """low .. high - 1."""
    return np.random.default_rng([seed, *shape]).integers(low, high, shape).astype(dtype)


def booleans(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).random(shape) < 0.5


def distinct(*shape: int, seed: int = 0) -> Array:
    """float64 without ties, some 0.5 apart: safe for sorting and extremes under finite
    differences."""
    order = np.random.default_rng([seed, *shape]).permutation(int(np.prod(shape)))
    return (order.reshape(shape) - order.size / 2 + 0.25) * 0.5
