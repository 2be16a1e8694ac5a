"""Values of Python's library that scripts keep in checkpoints, as simple ones and back.

Each is one of a fixed list of types. A dataclass of the program's own comes back as an
`argparse.Namespace` of its fields, unless the name of its class is followed (io/safe_names.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import pathlib
import sys
from collections import deque
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

from oneflow import surfaces


class Kind(NamedTuple):
    """A type of values: whether a value is one, and the way to simple values and back."""

    holds: Callable[[Any], bool]
    apart: Callable[[Any], Any]
    make: Callable[[Any], Any]


def _of(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


def _is_config(value: object) -> bool:
    """Is it a configuration of omegaconf, which must have been imported to make it?"""
    library = sys.modules.get("omegaconf")
    return library is not None and bool(library.OmegaConf.is_config(value))


def _from_config(value: object) -> Any:
    return import_module("omegaconf").OmegaConf.to_container(value, resolve=False)


def _to_config(value: object) -> Any:
    """A configuration again, plain containers where omegaconf is not installed."""
    try:
        return import_module("omegaconf").OmegaConf.create(value)
    except ImportError:
        return value


def _fields(value: object) -> dict[str, Any]:
    made: Any = value
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(made)}


def namespace(items: dict[str, Any]) -> argparse.Namespace:
    made = argparse.Namespace()
    made.__dict__.update(items)
    return made


LAYOUTS = ("sparse_coo", "sparse_csr", "sparse_csc")


def _is_sparse(value: object) -> bool:
    return getattr(getattr(value, "layout", None), "name", None) in LAYOUTS


def _from_sparse(value: object) -> list[Any]:
    """The layout, size, positions and values of a sparse tensor, and whether they are coalesced."""
    whole: Any = value
    x = whole.to_sparse()
    return [whole.layout.name, list(x.shape), x._indices(), x._values(), x.is_coalesced()]


def _to_sparse(parts: list[Any]) -> Any:
    layout, size, indices, values, coalesced = parts
    if layout not in LAYOUTS:
        raise ValueError(f"{layout!r} is no layout of sparse tensors")
    make = surfaces.find("flow", "sparse_coo_tensor")
    made = make(indices, values, size, is_coalesced=coalesced)
    return made.to_sparse(layout=surfaces.find("flow", layout))


KINDS: dict[str, Kind] = {
    "sparse": Kind(_is_sparse, _from_sparse, _to_sparse),
    "namespace": Kind(_of(argparse.Namespace, SimpleNamespace), lambda v: dict(vars(v)), namespace),
    "path": Kind(_of(pathlib.PurePath), str, pathlib.Path),
    "datetime": Kind(
        _of(datetime.datetime), lambda v: v.isoformat(), datetime.datetime.fromisoformat
    ),
    "date": Kind(_of(datetime.date), lambda v: v.isoformat(), datetime.date.fromisoformat),
    "timedelta": Kind(
        _of(datetime.timedelta),
        lambda v: [v.days, v.seconds, v.microseconds],
        lambda parts: datetime.timedelta(*parts),
    ),
    "frozenset": Kind(_of(frozenset), lambda v: sorted(v, key=repr), frozenset),
    "range": Kind(_of(range), lambda v: [v.start, v.stop, v.step], lambda parts: range(*parts)),
    "slice": Kind(_of(slice), lambda v: [v.start, v.stop, v.step], lambda parts: slice(*parts)),
    "deque": Kind(_of(deque), lambda v: [list(v), v.maxlen], lambda parts: deque(*parts)),
    "partial": Kind(
        lambda v: type(v) is functools.partial,
        lambda v: [v.func, list(v.args), v.keywords],
        lambda parts: functools.partial(parts[0], *parts[1], **parts[2]),
    ),
    "omegaconf": Kind(_is_config, _from_config, _to_config),
    "dataclass": Kind(
        lambda v: dataclasses.is_dataclass(v) and not isinstance(v, type), _fields, namespace
    ),
}


MUTABLE = ("namespace", "dataclass")
"""Kinds whose values stay one where they are in several places."""


def kind_of(value: object) -> str | None:
    """The kind of a value, None if it is of none."""
    return next((name for name, kind in KINDS.items() if kind.holds(value)), None)
