"""Python values as JSON and back, with tensors taken out into a table by name.

Numbers, strings, True, False and None stand for themselves; everything else is an object with one
key that says
what it is: {"list": [...]}, {"dict": [[key, value], ...]}, {"tensor": "t0", ...}. Nothing read can
name code.
"""

from __future__ import annotations

import base64
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from oneflow.core.device import Device
from oneflow.core.dtype import DType, dtype_of
from oneflow.core.errors import CheckpointError, OneFlowError
from oneflow.core.placement import Placement, parse_placement
from oneflow.core.sbp import Sbp, parse_sbp
from oneflow.core.size import Size
from oneflow.tensor.tensor import Tensor

MAX_DEPTH = 200


class Encoder:
    """Collects arrays under names. to_array: gives the array of a tensor, which may have to be
    gathered first.
    """

    def __init__(self, to_array: Callable[[Tensor], np.ndarray[Any, Any]]) -> None:
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._to_array = to_array
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []  # what ids in _names belong to must stay alive

    def encode(self, value: Any, path: str = "", depth: int = 0) -> Any:
        """Raises CheckpointError for what has no form here, naming where it is."""
        if depth > MAX_DEPTH:
            raise CheckpointError(
                f"save: {path} is nested more than {MAX_DEPTH} deep, or contains itself"
            )
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": str(value)}
        for kind, name in ((OrderedDict, "odict"), (dict, "dict")):
            if isinstance(value, kind):
                return {name: self._pairs(value, path, depth)}
        for sequence, name in _SEQUENCES:
            if isinstance(value, sequence):
                items = sorted(value, key=repr) if name == "set" else value
                return {
                    name: [self.encode(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(items)]
                }
        return self._leaf(value, path)

    def _pairs(self, value: dict[Any, Any], path: str, depth: int) -> list[Any]:
        return [
            [
                self.encode(k, f"key {k!r} of {path or 'the object'}", depth + 1),
                self.encode(v, f"{path}[{k!r}]", depth + 1),
            ]
            for k, v in value.items()
        ]

    def _leaf(self, value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            return {"tensor": self._name(value), "requires_grad": value.requires_grad}
        if isinstance(value, np.ndarray):
            return {"ndarray": self._add(value, value)}
        if isinstance(value, np.generic):
            return self.encode(value.item(), path)
        for kind, name, text in _LEAVES:
            if isinstance(value, kind):
                return {name: text(value)}
        raise CheckpointError(
            f"save: {path or 'the object'} is a "
            f"{type(value).__module__}.{type(value).__qualname__}, which has no form in a "
            "checkpoint; save its state_dict() or plain values"
        )

    def _name(self, x: Tensor) -> str:
        array = x._array
        known = self._names.get(id(array)) if array is not None and x.is_local else None
        return known if known is not None else self._add(self._to_array(x), array)

    def _add(self, array: np.ndarray[Any, Any], key: Any) -> str:
        name = f"t{len(self.arrays)}"
        self.arrays[name] = array
        self._names[id(key)] = name
        self._kept.append(key)
        return name


_SEQUENCES: tuple[tuple[Any, str], ...] = (
    (Size, "size"),
    (tuple, "tuple"),
    (list, "list"),
    ((set, frozenset), "set"),
)
_LEAVES: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
    (float, "float", str),
    (int, "int", str),
    (str, "str", str),
    (bytes, "bytes", lambda b: base64.b64encode(b).decode()),
    (complex, "complex", lambda c: [c.real, c.imag]),
    (DType, "dtype", lambda d: d.name),
    (Device, "device", str),
    (Placement, "placement", str),
    (Sbp, "sbp", str),
)


def decode(form: Any, tensor: Callable[[str, bool], Any], array: Callable[[str], Any]) -> Any:
    """The inverse of `Encoder.encode`.  tensor, array: give what is stored under a name. Raises
    CheckpointError.
    """
    if form is None or isinstance(form, (bool, int, float, str)):
        return form
    if not isinstance(form, dict) or not form:
        raise CheckpointError(f"load: not a value of a checkpoint: {str(form)[:80]}")
    kind = next(iter(form))
    content = form[kind]
    if kind == "tensor":
        return tensor(_text(content), bool(form.get("requires_grad")))
    if kind == "ndarray":
        return array(_text(content))
    if kind in ("dict", "odict"):
        return _decode_pairs(kind, content, tensor, array)
    if kind in _MAKERS:
        return _MAKERS[kind](decode(v, tensor, array) for v in _list(content))
    if kind in _PARSERS:
        try:
            return _PARSERS[kind](content)
        except (ValueError, TypeError, OneFlowError) as error:
            raise CheckpointError(f"load: not a {kind}: {str(content)[:80]}") from error
    raise CheckpointError(
        f"load: unknown kind of value {kind!r}; the file may be of a newer version"
    )


_MAKERS: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": set, "size": Size}
_PARSERS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "int": int,
    "str": str,
    "bytes": lambda t: base64.b64decode(t, validate=True),
    "complex": lambda pair: complex(*pair),
    "dtype": dtype_of,
    "device": Device,
    "placement": parse_placement,
    "sbp": parse_sbp,
}


def _decode_pairs(kind: str, content: Any, tensor: Any, array: Any) -> Any:
    made: dict[Any, Any] = OrderedDict() if kind == "odict" else {}
    for pair in _list(content):
        if not isinstance(pair, list) or len(pair) != 2:
            raise CheckpointError(f"load: not a key and a value: {str(pair)[:80]}")
        try:
            made[decode(pair[0], tensor, array)] = decode(pair[1], tensor, array)
        except TypeError as error:
            raise CheckpointError(f"load: a key that cannot be one: {str(pair[0])[:80]}") from error
    return made


def _list(content: Any) -> list[Any]:
    if not isinstance(content, list):
        raise CheckpointError(f"load: expected a list, got {str(content)[:80]}")
    return content


def _text(content: Any) -> str:
    if not isinstance(content, str):
        raise CheckpointError(f"load: expected a name, got {str(content)[:80]}")
    return content
