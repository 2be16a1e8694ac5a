"""Functions and classes of upstream's inner modules that are small enough to stand in one file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import TypeVar

from oneflow.core.config import TRUE_WORDS
from oneflow.nn.modules.linear import Identity

T = TypeVar("T")

# ---- oneflow.nn.modules.utils: one number, or one per spatial dim --------------------------------


def _ntuple(count: int) -> Callable[[T | Iterable[T]], tuple[T, ...]]:
    def parse(value: T | Iterable[T]) -> tuple[T, ...]:
        if isinstance(value, Iterable):
            return tuple(value)
        return tuple(repeat(value, count))

    return parse


_single, _pair, _triple, _quadruple = (_ntuple(n) for n in (1, 2, 3, 4))


def _reverse_repeat_tuple(values: Sequence[T], times: int) -> tuple[T, ...]:
    """Return the values backwards, each `times` times: the paddings of a `pad` call."""
    return tuple(value for value in reversed(values) for _ in range(times))


def _list_with_default(given: Sequence[int | None] | int, defaults: Sequence[int]) -> list[int]:
    """Sizes of the last dims, with those of `defaults` where None is given."""
    if isinstance(given, int):
        return [given] * len(defaults)
    if len(defaults) <= len(given):
        raise ValueError(f"Input dimension should be at least {len(given) + 1}")
    last = defaults[-len(given) :]
    return [own if v is None else v for v, own in zip(given, last, strict=True)]


# ---- oneflow.ops.transpose_util, oneflow.framework.balanced_splitter -----------------------------


def get_perm_when_transpose_axis_to_last_dim(num_axes: int, axis: int) -> tuple[int, ...]:
    """The order of dims in which `axis` comes last and the others stay as they are."""
    axis %= num_axes
    return (*(i for i in range(num_axes) if i != axis), axis)


def get_inversed_perm(perm: Sequence[int]) -> tuple[int, ...]:
    """The order of dims that undoes `perm`."""
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


def BalancedPartNums(total: int, part_size: int) -> list[int]:
    """Sizes of `part_size` parts of `total` that differ by one at most, the larger ones first."""
    base, extra = divmod(total, part_size)
    return [base + (i < extra) for i in range(part_size)]


def BalancedRanges(total: int, part_size: int) -> list[tuple[int, int]]:
    """(start, end) of each of the parts of `BalancedPartNums`."""
    sizes = BalancedPartNums(total, part_size)
    ends = [sum(sizes[: i + 1]) for i in range(part_size)]
    return [(end - size, end) for size, end in zip(sizes, ends, strict=True)]


# ---- oneflow.support.env_var_util ----------------------------------------------------------------


def string_to_bool(env_str: str) -> bool:
    """Whether a word means yes."""
    return env_str.lower() in TRUE_WORDS


def parse_boolean_from_env(env_var: str, defalut_value: bool) -> bool:
    """A variable of the environment as a bool. The second name is upstream's spelling."""
    environment: Mapping[str, str] = os.environ
    return string_to_bool(environment[env_var]) if env_var in environment else defalut_value


parse_boolean_form_env = parse_boolean_from_env

# ---- oneflow._utils, _dynamo, ao.quantization -------------------------------------------------


class KeyErrorMessage(str):
    """The message of a KeyError that is shown with its line breaks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def allow_in_graph(fn: T) -> T:
    """Return the function as it is: nothing here compiles Python code."""
    return fn


class QuantStub(Identity):
    """A place where floating-point numbers would become integers; passes them on."""


class DeQuantStub(Identity):
    """A place where integers would become floating-point numbers again; passes them on."""
