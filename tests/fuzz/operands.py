"""Operands of recipes: leaves of their own, and arguments that several subjects share."""

from __future__ import annotations

import torch

from .drawing import Draft, name_of
from .recipes import Arguments, Operand

WIDE = ("float32", "float32", "float64")
LAYERS = ("float32", "float32", "float64", "float16", "bfloat16")


def fresh(*shapes: tuple[int, ...], dtypes: tuple[str, ...] = LAYERS) -> Operand:
    def operand(d: Draft) -> str:
        return d.leaf(d.pick(shapes), d.pick(dtypes), special=False)

    return operand


def of(*choices: str) -> Arguments:
    """One of the texts; the empty one is none."""
    return lambda d, x: [text for text in [d.pick(choices)] if text]


def reduced(d: Draft) -> list[str]:
    return d.optional(f"reduction='{d.pick(('mean', 'sum', 'none'))}'")


def second(low: float, high: float) -> Arguments:
    """A partner whose numbers lie between two bounds."""

    def arguments(d: Draft, x: str) -> list[str]:
        value = d.values[x]
        numbers = tuple(round(d.rng.uniform(low, high) * 4) / 4 for _ in range(int(value.numel())))
        return [d.leaf(tuple(value.shape), name_of(value), numbers=numbers, grad=False)]

    return arguments


def between(low: float, high: float, dtypes: tuple[str, ...] = WIDE) -> Operand:
    def operand(d: Draft) -> str:
        shape = d.shape()
        numbers = tuple(d.rng.uniform(low, high) for _ in range(int(torch.Size(shape).numel())))
        return d.leaf(shape, d.pick(dtypes), numbers=tuple(round(n * 16) / 16 for n in numbers))

    return operand
