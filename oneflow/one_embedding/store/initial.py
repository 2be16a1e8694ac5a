"""First values of rows: functions of seed, table and id alone.

A row's id gives, by Philox under the seed of its table, the index of the row's first number; each
number is then Philox of its own index. So a row has the same values on any rank, in any order and
after any restart, and nothing is kept of rows that nobody has looked up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from oneflow.core.draws import mix_seed
from oneflow.core.errors import ArgumentError
from oneflow.core.rng import as_normal, as_uniform, philox, words_of_runs

Array: TypeAlias = "np.ndarray[Any, Any]"

KINDS = ("uniform", "normal", "trunc_normal", "constant")
_LEAST_KEPT = 0.01
"""Share of a normal distribution between the bounds below which drawing again takes too long."""


@dataclass(frozen=True)
class Column:
    """Distribution of `width` neighbouring numbers of a row.

    kind: "uniform" in [first, second), "normal" of mean `first` and standard deviation `second`,
    "trunc_normal" the same between `low` and `high`, or "constant" `first`.
    """

    width: int
    kind: str
    first: float = 0.0
    second: float = 0.0
    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ArgumentError(f"no initializer {self.kind!r}; there are {', '.join(KINDS)}")
        if self.kind == "trunc_normal" and not self.low < self.high:
            raise ArgumentError(
                f"trunc_normal between a={self.low:g} and b={self.high:g}: no number lies there; "
                "a must be less than b"
            )
        if self.kind == "trunc_normal" and self._share_kept() < _LEAST_KEPT:
            raise ArgumentError(
                f"trunc_normal of mean {self.first:g} and std {self.second:g}: less than 1 % of "
                f"the numbers lie between {self.low:g} and {self.high:g}; widen the bounds"
            )

    def _share_kept(self) -> float:
        if not self.second > 0:
            return 0.0
        ends = [(x - self.first) / (self.second * math.sqrt(2)) for x in (self.low, self.high)]
        return (math.erf(ends[1]) - math.erf(ends[0])) / 2

    def values(self, seed: int, firsts: Array) -> Array:
        """float64 (rows, width). firsts: uint64, index of each row's first number."""
        if self.kind == "constant":
            return np.full((firsts.size, self.width), self.first)
        words = words_of_runs(seed, firsts, self.width)
        if self.kind == "uniform":
            return self.first + (self.second - self.first) * as_uniform(*words)
        values = self.first + self.second * as_normal(*words)
        if self.kind == "trunc_normal":
            self._draw_again(values, seed, firsts)
        return values

    def _draw_again(self, values: Array, seed: int, firsts: Array) -> None:
        attempt = 0
        index = firsts[:, None] + np.arange(self.width, dtype=np.uint64)
        while (outside := (values < self.low) | (values > self.high)).any():
            attempt += 1
            words = philox(mix_seed(seed, attempt), index[outside])
            values[outside] = self.first + self.second * as_normal(*words)


@dataclass(frozen=True)
class InitialRows:
    """First values of the rows of all tables of a store.

    tables: the columns of each table, whose widths have one sum.  state: first values
    behind the embedding in a row: optimizer states, step counts.
    """

    seed: int
    tables: Sequence[Sequence[Column]]
    state: Sequence[float] = ()

    def __post_init__(self) -> None:
        widths = {sum(column.width for column in columns) for columns in self.tables}
        if len(widths) != 1:
            raise ArgumentError(f"tables of one store need one width, not {sorted(widths)}")

    @property
    def line_size(self) -> int:
        """Numbers of a row, states included."""
        return sum(column.width for column in self.tables[0]) + len(self.state)

    def fill(self, keys: Array, tables: Array, out: Array) -> None:
        """Write the first values of rows.

        keys: uint64[n].  tables: integers[n].  out: float32[n, line_size].
        """
        if self.state:
            out[:, self.line_size - len(self.state) :] = self.state
        if len(self.tables) == 1:
            out[:, : out.shape[1] - len(self.state)] = self._embeddings(0, keys)
            return
        for table in np.unique(tables).tolist():
            of_table = np.flatnonzero(tables == table)
            values = self._embeddings(table, keys[of_table])
            out[of_table, : values.shape[1]] = values

    def _embeddings(self, table: int, keys: Array) -> Array:
        high, low = philox(mix_seed(self.seed, table), keys)
        firsts = high.astype(np.uint64) << np.uint64(32) | low
        values, begin = [], 0
        for column in self.tables[table]:
            seed = mix_seed(self.seed, table, 1)
            values.append(column.values(seed, firsts + np.uint64(begin)))
            begin += column.width
        return values[0] if len(values) == 1 else np.concatenate(values, axis=1)
