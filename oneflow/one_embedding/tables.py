"""Options of tables: the distributions from which new rows are drawn, by table and column.

The options are the dictionaries that upstream's functions make, so scripts may change and print
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from oneflow.core.errors import ArgumentError
from oneflow.one_embedding.store.initial import Column

Initializer: TypeAlias = dict[str, Any]
Options: TypeAlias = dict[str, Any]


def make_uniform_initializer(low: float = 0.0, high: float = 1.0) -> Initializer:
    """Numbers of a new row are drawn between `low` and `high`."""
    return {"type": "uniform", "low": low, "high": high}


def make_normal_initializer(mean: float = 0.0, std: float = 1.0) -> Initializer:
    """Numbers of a new row are normally distributed."""
    return {"type": "normal", "mean": mean, "std": std}


def make_trunc_normal_initializer(
    mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> Initializer:
    """Numbers of a new row are normally distributed between `a` and `b`; others are drawn again."""
    return {"type": "trunc_normal", "mean": mean, "std": std, "a": a, "b": b}


def make_constant_initializer(value: float) -> Initializer:
    """Numbers of a new row all have one value."""
    return {"type": "constant", "value": value}


def make_xavier_uniform_initializer(num_rows: int, gain: float = 1.0) -> Initializer:
    """Uniform between ±gain · √(6 / (num_rows + width)), as `nn.init.xavier_uniform_` draws for a
    weight of that many rows; a table that grows has no number of its own."""
    return {"type": "xavier_uniform", "num_rows": num_rows, "gain": gain}


def make_xavier_normal_initializer(num_rows: int, gain: float = 1.0) -> Initializer:
    """Normal of standard deviation gain · √(2 / (num_rows + width)): see
    `make_xavier_uniform_initializer`."""
    return {"type": "xavier_normal", "num_rows": num_rows, "gain": gain}


def make_column_options(initializer: Initializer) -> Options:
    """Make the options of a column of a table: the distribution of its first numbers."""
    return {"initializer": initializer}


def make_table_options(param: Initializer | Sequence[Options]) -> Options:
    """Options of a table: an initializer, or options of each of its columns."""
    if isinstance(param, Mapping):
        return {"initializer": dict(param)}
    return {"columns": [dict(column) for column in param]}


make_table = make_table_options

_NUMBERS = {
    "uniform": ("low", "high"),
    "normal": ("mean", "std"),
    "trunc_normal": ("mean", "std", "a", "b"),
    "constant": ("value",),
    "xavier_uniform": ("num_rows", "gain"),
    "xavier_normal": ("num_rows", "gain"),
}
"""Initializers, and the numbers that each names."""


def columns_of(
    table: Mapping[str, Any], widths: Sequence[int], default: Initializer | None
) -> list[dict[str, Any]]:
    """The columns of a table, each as `store.initial.Column` takes it. Raises ArgumentError, also
    for values that it refuses."""
    columns = table.get("columns")
    if columns is None:
        columns = [{"initializer": table.get("initializer", default)}] * len(widths)
    if len(columns) != len(widths):
        raise ArgumentError(
            f"a table has {len(columns)} columns, but embedding_dim gives {len(widths)} widths"
        )
    made = [
        _column(column.get("initializer") or default, width)
        for column, width in zip(columns, widths, strict=True)
    ]
    for column in made:
        Column(**column)
    return made


def _column(initializer: Initializer | None, width: int) -> dict[str, Any]:
    if initializer is None:
        raise ArgumentError(
            "a table without an initializer: give it one by make_table_options, or all tables one "
            "by default_initializer"
        )
    kind = initializer.get("type")
    names = _NUMBERS.get(str(kind))
    if names is None or any(name not in initializer for name in names):
        raise ArgumentError(
            f"no initializer {initializer}: make one by make_uniform_initializer, "
            "make_normal_initializer, make_trunc_normal_initializer, make_constant_initializer or "
            "make_xavier_uniform_initializer"
        )
    numbers = [float(initializer[name]) for name in names]
    if any(map(math.isnan, numbers)):
        raise ArgumentError(f"an initializer of a number that is NaN: {initializer}")
    made: dict[str, Any] = {"width": width, "kind": kind}
    if kind == "constant":
        return made | {"first": numbers[0]}
    if kind in ("xavier_uniform", "xavier_normal"):
        spread = numbers[1] / math.sqrt(numbers[0] + width)
        if kind == "xavier_normal":
            return made | {"kind": "normal", "first": 0.0, "second": math.sqrt(2) * spread}
        bound = math.sqrt(6) * spread
        return made | {"kind": "uniform", "first": -bound, "second": bound}
    made |= {"first": numbers[0], "second": numbers[1]}
    return made | ({"low": numbers[2], "high": numbers[3]} if kind == "trunc_normal" else {})
