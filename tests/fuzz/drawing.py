"""Drawing of arguments: the state of a program under construction, beside PyTorch.

A program is text: leaves, then lines that mean the same of `oneflow` and `torch`, both called `m`.
PyTorch runs each line as it is drawn, so that later lines know shapes, dtypes and shared
memory.

Both libraries round some results differently. Where a later line would turn a difference of the
last bit into another answer (a comparison, a sort, `floor`), its operands must be exact: numbers
that both hold to the last bit, which `is_exact` keeps track of.
"""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import CodeType
from typing import Any

import torch

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int8", "uint8")
WEIGHTS = {
    "float32": 9,
    "float64": 3,
    "float16": 2,
    "bfloat16": 2,
    "int64": 3,
    "int32": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 2,
}
SPECIAL = ("nan", "inf", "-inf", "-0.0")
LARGEST = 1e4  # numbers beyond are not followed: their differences would hide all others

# Errors of a line, as PyTorch raises them.
REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, AttributeError)


@dataclass(frozen=True)
class Leaf:
    """A tensor that a program starts with."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    numbers: tuple[Any, ...]
    requires_grad: bool = False

    def source(self) -> str:
        """The line that makes it."""
        numbers = ", ".join(f"float('{n}')" if n in SPECIAL else repr(n) for n in self.numbers)
        made = f"{self.name} = m.tensor([{numbers}], dtype=m.{self.dtype}).reshape({self.shape})"
        return made + ".detach()" + (".requires_grad_()" if self.requires_grad else "")

    def tensor(self, m: Any) -> Any:
        """The tensor itself. m: oneflow or torch."""
        numbers = [float(n) if n in SPECIAL else n for n in self.numbers]
        made = m.tensor(numbers, dtype=getattr(m, self.dtype)).reshape(self.shape).detach()
        return made.requires_grad_() if self.requires_grad else made


@dataclass(frozen=True)
class Program:
    """Leaves and lines; `refused`: the last line is one that PyTorch refuses.

    followed: names of results whose gradients are compared.
    """

    leaves: tuple[Leaf, ...]
    lines: tuple[str, ...]
    refused: bool = False
    seed: int = 0

    @cached_property
    def dtypes(self) -> frozenset[str]:
        """Those that it names."""
        text = "\n".join(self.lines)
        named = {name for name in WEIGHTS if name in text or f".{name[:4]}(" in text}
        return frozenset(named | {leaf.dtype for leaf in self.leaves})

    def source(self, library: str = "oneflow") -> str:
        """A script that runs by itself."""
        lines = [f"import {library} as m", *(leaf.source() for leaf in self.leaves), *self.lines]
        return "\n".join(lines)


@dataclass
class Draft:
    """A program under construction, and the values that PyTorch has given so far."""

    rng: random.Random
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    leaves: list[Leaf] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    exact: set[str] = field(default_factory=set)
    count: int = 0

    # -- chance

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def pick(self, options: Any) -> Any:
        return self.rng.choice(list(options))

    def dtype(self) -> str:
        return self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]

    def shape(self) -> tuple[int, ...]:
        rank = self.rng.choices((0, 1, 2, 3, 4), (1, 4, 6, 3, 1))[0]
        sizes = (0, 1, 2, 3, 4, 5) if self.chance(0.08) else (1, 2, 2, 3, 4, 5)
        return tuple(self.rng.choice(sizes) for _ in range(rank))

    # -- tensors

    def leaf(
        self,
        shape: tuple[int, ...],
        dtype: str | None = None,
        *,
        numbers: tuple[Any, ...] | None = None,
        grad: bool | None = None,
        special: bool = True,
    ) -> str:
        """A new leaf's name."""
        dtype = dtype or self.dtype()
        if numbers is None:
            numbers = self.numbers(dtype, shape, special)
        wants = dtype in FLOATS and (self.chance(0.6) if grad is None else grad)
        leaf = Leaf(self.name(), dtype, shape, numbers, wants)
        self.leaves.append(leaf)
        self.values[leaf.name] = leaf.tensor(torch)
        self.exact.add(leaf.name)
        return leaf.name

    def numbers(self, dtype: str, shape: tuple[int, ...], special: bool) -> tuple[Any, ...]:
        size = int(torch.Size(shape).numel())
        if dtype == "bool":
            return tuple(self.chance(0.5) for _ in range(size))
        low = 0 if dtype == "uint8" else -3
        if dtype in INTEGERS:
            return tuple(self.rng.randint(low, 5) for _ in range(size))
        found: list[Any] = [self.rng.randint(-12, 12) / 4 for _ in range(size)]
        if special and size and self.chance(0.12):
            found[self.rng.randrange(size)] = self.rng.choice(SPECIAL)
        return tuple(found)

    def positions(self, shape: tuple[int, ...], size: int, negative: bool = False) -> str:
        """A leaf of int64 positions in a dim of `size`, now and then one that is out of range."""
        low = -size if negative else 0
        count = int(torch.Size(shape).numel())
        numbers = [self.rng.randint(low, max(size - 1, 0)) for _ in range(count)]
        if numbers and self.chance(0.03):
            numbers[0] = size + self.rng.randint(0, 2)
        return self.leaf(shape, "int64", numbers=tuple(numbers))

    def name(self) -> str:
        self.count += 1
        return f"v{self.count - 1}"

    def any(self, *, floats: bool = False, exact: bool = False, min_dims: int = 0) -> str:
        """The name of a value of the wanted kind, the younger the likelier, or of a new leaf."""
        names = [
            n
            for n, v in self.values.items()
            if v.ndim >= min_dims
            and (not floats or v.is_floating_point())
            and (not exact or n in self.exact)
            and not v.is_complex()
        ]
        if names and not self.chance(0.12):
            return names[-1] if self.chance(0.4) else self.pick(names)
        shape = self.shape()
        while len(shape) < min_dims:
            shape = (*shape, self.rng.choice((1, 2, 3)))
        return self.leaf(shape, self.pick(FLOATS[:2] + FLOATS) if floats else None)

    def partner(self, x: str, *, exact: bool = False, same: bool = False) -> str:
        """A value whose shape goes with that of x: equal, one that broadcasts, or of any kind."""
        wanted = self.values[x].shape
        names = [
            n
            for n, v in self.values.items()
            if (v.shape == wanted if same else _broadcasts(v.shape, wanted))
            and (not exact or n in self.exact)
            and not v.is_complex()
        ]
        if names and self.chance(0.6):
            return self.pick(names)
        if not same and self.chance(0.02):
            return self.any(exact=exact)
        shape = tuple(wanted)
        if not same and self.chance(0.3):
            shape = tuple(1 if self.chance(0.4) else s for s in shape)
        if not same and self.chance(0.2):
            shape = shape[self.rng.randint(0, len(shape)) :]
        dtype = name_of(self.values[x])
        return self.leaf(shape, dtype if self.chance(0.7) and dtype in WEIGHTS else None)

    # -- attributes

    def number(self, x: str = "") -> str:
        whole = x and not self.values[x].is_floating_point()
        if whole and self.chance(0.8):
            return str(self.rng.randint(0, 3))
        return self.pick(("0", "1", "2", "0.5", "-1.5", "2.0", "-1", "True", "3"))

    def dim(self, x: str) -> str:
        rank = max(self.values[x].ndim, 1)
        if self.chance(0.02):
            return str(rank)
        return str(self.rng.randint(-rank, rank - 1))

    def dims(self, x: str) -> str:
        """Several dims of x, each once."""
        rank = self.values[x].ndim
        if not rank:
            return self.pick(("()", "(0,)", "(-1,)"))
        chosen = self.rng.sample(range(rank), self.rng.randint(1, rank))
        chosen = [d - rank if self.chance(0.3) else d for d in chosen]
        return str(tuple(chosen))

    def size(self, x: str, dim: str) -> int:
        value = self.values[x]
        is_there = -value.ndim <= int(dim) < value.ndim
        return int(value.shape[int(dim)]) if is_there else 1

    def flag(self) -> str:
        return self.pick(("True", "False"))

    def optional(self, *words: str) -> list[str]:
        """Each of the words, or none of it."""
        return [w for w in words if self.chance(0.5)]


def _broadcasts(shape: torch.Size, wanted: torch.Size) -> bool:
    if len(shape) > len(wanted):
        return False
    return all(a in (1, b) for a, b in zip(reversed(shape), reversed(wanted), strict=False))


def name_of(value: torch.Tensor) -> str:
    """The dtype of a tensor without its library."""
    return str(value.dtype).removeprefix("torch.")


def row_major(before: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    """New results whose memory is their own and in another order, in row-major order: the page
    Differences promises none."""
    news = {k: v for k, v in names.items() if v is not before.get(k) and _is_odd(v)}
    if not news:
        return {}
    olds = [v for v in before.values() if hasattr(v, "data_ptr") and v.numel()]
    places = [_place(v) for v in (*olds, *news.values())]
    return {
        k: v.contiguous()
        for k, v in news.items()
        if sum(p.start < _place(v).stop and _place(v).start < p.stop for p in places) == 1
    }


def _place(value: Any) -> range:
    """Addresses of the memory of a tensor."""
    start, strides = value.data_ptr(), zip(value.shape, value.stride(), strict=True)
    return range(start, start + value.element_size() * (1 + sum((n - 1) * s for n, s in strides)))


def _is_odd(value: Any) -> bool:
    return hasattr(value, "is_contiguous") and not value.is_contiguous()


@lru_cache(maxsize=256)
def _compiled(text: str) -> CodeType:
    return compile(text, "<line>", "exec")


def quietly(text: str, names: dict[str, Any]) -> None:
    """Runs a line without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(_compiled(text), names)
