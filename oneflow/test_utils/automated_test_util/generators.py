"""Generators: values that tests draw at random, by upstream's names.

A generator draws once and keeps its value, so that `device = random_device()` is one device
wherever a test uses it. All draw from one stream, which `seed_all` begins anew: the same seed gives
the same program, on every rank.
"""

from __future__ import annotations

import random as python_random
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

from oneflow.core.errors import ArgumentError, ConfigError
from oneflow.functional.random_state import manual_seed

SIZES = (1, 8)
"""Bounds of a tensor's random sizes; the second is left out."""

BOUNDS: dict[object, tuple[float, float]] = {int: (-10, 11), float: (-1, 1), complex: (-10, 10)}
"""Bounds of the numbers in tensors, by their kind."""

GROUPS = {
    "None": (None,),
    "bool": ("bool",),
    "float": ("float32", "float64"),
    "half": ("float16",),
    "bfloat16": ("bfloat16",),
    "complex": ("complex64", "complex128"),
    "signed": ("int8", "int32", "int64"),
    "unsigned": ("uint8",),
    "int": ("int8", "int32", "int64"),
    "image": ("uint8", "float32"),
    "index": ("int32", "int64"),
}
"""Dtypes by the names of groups that tests ask for."""
GROUPS["arithmetic"] = (*GROUPS["float"], *GROUPS["int"])
GROUPS["pod"] = (*GROUPS["arithmetic"], "uint8", "bool")
GROUPS["all"] = (*GROUPS["arithmetic"], "float16", "bfloat16")


class Stream:
    """The random numbers of all generators."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def choice(self, values: Sequence[object]) -> Any:
        """Draw one of several values."""
        return values[int(self.rng.integers(len(values)))]


stream = Stream()


def seed_all(seed: int) -> None:
    """Begin the random numbers of generators, Python, NumPy and both libraries anew."""
    stream.rng = np.random.default_rng(seed)
    python_random.seed(seed)
    np.random.seed(seed % 2**32)
    manual_seed(seed)
    pytorch().manual_seed(seed)  # which draws the parameters of modules


def pytorch() -> Any:
    """Import PyTorch. Raises ConfigError where it is not installed."""
    try:
        return import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError(
            "oneflow.test_utils compares with PyTorch, which is not installed: pip install torch"
        ) from None


class generator(ABC):
    """A value to be drawn. parts: The generators inside, which `to` and `eval` reach, too."""

    def __init__(self, parts: Sequence[generator] = ()) -> None:
        self.parts = tuple(parts)
        self._drawn: list[Any] = []

    @abstractmethod
    def draw(self) -> Any:
        """Return a new value."""

    def value(self) -> Any:
        """Return the value, which is drawn at the first call."""
        if not self._drawn:
            self._drawn.append(self.draw())
        return self._drawn[0]

    def eval(self) -> Any:
        """Return a value that is drawn anew."""
        self.forget()
        return self.value()

    def forget(self) -> None:
        """Let the next `value` draw again."""
        self._drawn.clear()
        for part in self.parts:
            part.forget()

    def to(self, annotation: object) -> generator:
        """Set the type of the value, unless it is set: int, float, bool, or one of `typing`."""
        for part in self.parts:
            part.to(annotation)
        return self

    def size(self) -> int:
        """Return the number of values that `|` chooses among."""
        return 1

    def __or__(self, other: object) -> oneof:
        second = pack(other)
        return oneof(self, second, possibility=self.size() / (self.size() + second.size()))

    __ror__ = __or__

    def __add__(self, other: object) -> generator:
        return _Formula(lambda a, b: a + b, self, other)

    __radd__ = __add__

    def __sub__(self, other: object) -> generator:
        return _Formula(lambda a, b: a - b, self, other)

    def __rsub__(self, other: object) -> generator:
        return _Formula(lambda a, b: b - a, self, other)

    def __mul__(self, other: object) -> generator:
        return _Formula(lambda a, b: a * b, self, other)

    __rmul__ = __mul__

    def __neg__(self) -> generator:
        return _Formula(lambda a: -a, self)


class _Formula(generator):
    """The value of a function of other generators."""

    def __init__(self, function: Callable[..., Any], *operands: object) -> None:
        super().__init__([pack(x) for x in operands])
        self.function = function

    def draw(self) -> Any:
        return self.function(*(x.value() for x in self.parts))


class constant(generator):
    """A value that is given."""

    def __init__(self, x: object) -> None:
        super().__init__()
        self.x = x

    def draw(self) -> Any:
        return self.x


def pack(x: object) -> generator:
    """Return a generator as it is, and anything else as a constant."""
    return x if isinstance(x, generator) else constant(x)


class Nothing:
    """The value of an argument that is left out of a call."""


class nothing(generator):
    """An argument that is left out of a call."""

    def draw(self) -> Any:
        return Nothing()


class oneof(generator):
    """One of several values. possibility: That of the first of two, or a list of all (equal)."""

    def __init__(self, *args: object, possibility: float | Sequence[float] | None = None) -> None:
        super().__init__([pack(x) for x in args])
        if possibility is None:
            possibility = [1 / len(args)] * len(args)
        elif isinstance(possibility, float):
            possibility = [possibility, 1 - possibility]
        if len(possibility) != len(args) or abs(sum(possibility) - 1) > 1e-6:
            raise ArgumentError(
                f"oneof: needs possibilities of {len(args)} values with the sum 1, "
                f"got {list(possibility)}"
            )
        self.limits = np.cumsum(possibility)

    def draw(self) -> Any:
        at = int(np.searchsorted(self.limits, stream.rng.random(), side="right"))
        return self.parts[min(at, len(self.parts) - 1)].value()

    def size(self) -> int:
        return sum(part.size() for part in self.parts)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Call one of several functions."""
        return self.draw()(*args, **kwargs)


class random(generator):
    """A number from `low` to `high`, which is left out of ints.

    Its type is that which `to` sets, or that of the parameter which it is given for; where PyTorch
    does not tell one, that of its bounds.
    """

    def __init__(self, low: object = 1, high: object = 6) -> None:
        super().__init__([pack(low), pack(high)])
        self.annotation: object = None

    def to(self, annotation: object) -> generator:
        if self.annotation is None:
            self.annotation = annotation
        return super().to(annotation)

    def draw(self) -> Any:
        if self.annotation is not None:
            return self._of(self.annotation)
        bounds = [part.value() for part in self.parts]
        return self._of(int if all(isinstance(bound, int) for bound in bounds) else float)

    def _of(self, annotation: object) -> Any:
        """Draw a value of a type."""
        origin, inner = get_origin(annotation), get_args(annotation)
        if origin in (Union, types.UnionType):
            return self._of(stream.choice([a for a in inner if _is_drawn(a)] or inner))
        if origin is tuple:
            return [self._of(a) for a in inner if a is not ...]
        if origin is Literal:
            return stream.choice(inner)
        if annotation in (None, type(None)):
            return None
        if annotation is bool:
            return bool(stream.rng.integers(2))
        low, high = (part.value() for part in self.parts)
        if annotation is int:
            return int(stream.rng.integers(int(low), int(high)))
        if annotation is float:
            return float(stream.rng.uniform(low, high))
        if annotation is complex:
            return complex(*stream.rng.uniform(low, high, size=2))
        raise ArgumentError(f"random(): draws no value of the type {annotation!r}")


def _is_drawn(annotation: object) -> bool:
    """Can `random` draw a value of this type?"""
    known = (int, float, bool, complex, None, type(None))
    return annotation in known or get_origin(annotation) in (Union, types.UnionType, tuple)


def random_bool() -> generator:
    """Return a generator of True or False."""
    return random().to(bool)


def random_or_nothing(low: object, high: object) -> generator:
    """Return a generator of a number, or of nothing in a third of all cases."""
    return oneof(random(low, high), nothing(), possibility=2 / 3)


class random_array(generator):
    """A NumPy array. dtype: float, int or complex.  dim0, dim1, ...: Sizes (random from 1 to 7)."""

    def __init__(
        self, ndim: object, dims: Sequence[object], low: object, high: object, dtype: object
    ) -> None:
        drawn = [random(*SIZES) if dim is None else dim for dim in dims]
        self.ndim = pack(random(1, 6) if ndim is None else ndim).to(int)
        self.dims = [pack(dim).to(int) for dim in drawn]
        self.low, self.high = pack(low).to(float), pack(high).to(float)
        self.dtype = pack(dtype)
        super().__init__([self.ndim, *self.dims, self.low, self.high, self.dtype])

    def draw(self) -> Any:
        dtype, low, high = (part.value() for part in (self.dtype, self.low, self.high))
        if dtype not in BOUNDS:
            raise ArgumentError(f"random_tensor: dtype is float, int or complex, got {dtype!r}")
        low = BOUNDS[dtype][0] if low is None else low
        high = BOUNDS[dtype][1] if high is None else high
        shape = self._shape(int(self.ndim.value()))
        if dtype is int:
            return stream.rng.integers(int(low), int(high), size=shape)
        numbers = stream.rng.uniform(low, high, size=shape)
        if dtype is complex:
            return (numbers + 1j * stream.rng.uniform(low, high, size=shape)).astype(np.complex64)
        return numbers.astype(np.float32)

    def _shape(self, ndim: int) -> tuple[int, ...]:
        sizes = [int(dim.value()) for dim in self.dims[:ndim]]
        return tuple(sizes + [int(n) for n in stream.rng.integers(*SIZES, size=ndim - len(sizes))])


class random_pytorch_tensor(random_array):
    """A tensor of PyTorch's alone; `random_tensor` makes one of both libraries."""

    def __init__(
        self,
        ndim: object = None,
        dim0: object = 1,
        dim1: object = None,
        dim2: object = None,
        dim3: object = None,
        dim4: object = None,
        low: object = None,
        high: object = None,
        dtype: object = float,
        pin_memory: bool = False,
    ) -> None:
        super().__init__(ndim, (dim0, dim1, dim2, dim3, dim4), low, high, dtype)
        self.pin_memory = pin_memory

    def draw(self) -> Any:
        made = pytorch().as_tensor(super().draw())
        return made.pin_memory() if self.pin_memory else made


def choice_array(
    a: Sequence[float] | int,
    size: int | Sequence[int] | None,
    replace: bool,
    p: Sequence[float] | None,
    dtype: type,
) -> Any:
    """Draw values of an array, as `numpy.random.choice` does."""
    return np.asarray(stream.rng.choice(a, size, replace, p)).astype(dtype)


class choice_pytorch_tensor(generator):
    """A tensor of PyTorch's alone with values drawn as by `numpy.random.choice`."""

    def __init__(
        self,
        a: Sequence[float] | int,
        size: int | Sequence[int] | None = None,
        replace: bool = True,
        p: Sequence[float] | None = None,
        dtype: type = int,
    ) -> None:
        super().__init__()
        self.given = a, size, replace, p, dtype

    def draw(self) -> Any:
        return pytorch().as_tensor(choice_array(*self.given))


def random_name(groups: Sequence[str]) -> str | None:
    """Draw the name of a dtype of some groups."""
    if unknown := [name for name in groups if name not in GROUPS]:
        raise ArgumentError(f"random_dtype: groups are {', '.join(GROUPS)}; got {unknown}")
    found: str | None = stream.choice([name for group in groups for name in GROUPS[group]])
    return found


class random_pytorch_dtype(generator):
    """A dtype of PyTorch's of some groups: "float", "int", "half", "all", ..."""

    def __init__(self, seq_names: Sequence[str]) -> None:
        super().__init__()
        self.groups = seq_names

    def draw(self) -> Any:
        name = random_name(self.groups)
        return None if name is None else getattr(pytorch(), name)
