"""Python values as JSON and back, with tensors taken out into a table by name.

Numbers, strings, True, False and None stand for themselves; everything else is an object with one
key that says what it is: {"list": [...]}, {"dict": [[key, value], ...]}, {"tensor": "t0", ...}.
A module of `oneflow.nn` is the name of its class and tables (io/modules.py), a function that it
calls the name in `nn.functional`. Nothing read can name other code.
"""

from __future__ import annotations

import base64
import math
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np

from oneflow.core.device import Device
from oneflow.core.dtype import DType, dtype_of
from oneflow.core.errors import CheckpointError, InternalError, OneFlowError
from oneflow.core.json_values import Json
from oneflow.core.placement import Placement, parse_placement
from oneflow.core.sbp import Sbp, parse_sbp
from oneflow.core.size import Size
from oneflow.io import modules, plain
from oneflow.io.container import has_form
from oneflow.kernels.array import Array
from oneflow.nn.module import Module
from oneflow.nn.parameter import Parameter
from oneflow.tensor.formats import strided
from oneflow.tensor.tensor import Tensor, needs_data

MAX_DEPTH = 200


Form: TypeAlias = dict[str, Json]


@dataclass
class Found:
    """A tensor or an array in a tree. where: its place, for messages.  form: what names it."""

    value: Tensor | Array
    where: str
    form: Form

    @property
    def array(self) -> Any:
        """The values: of a local tensor; or of a global one this rank's part."""
        return self.value._array if isinstance(self.value, Tensor) else self.value

    @property
    def is_global(self) -> bool:
        return isinstance(self.value, Tensor) and self.value.is_global


def global_tensor(found: Found) -> Tensor:
    """The global tensor that was found. Raises InternalError for anything else."""
    if not isinstance(found.value, Tensor) or not found.value.is_global:
        raise InternalError(f"save: {found.where or 'the object'} is no global tensor")
    return found.value


class Encoder:
    """Takes a tree apart: its form, and the tensors and arrays found, which get names later.

    What has no form is kept in `error`, so that the ranks can first tell each other.
    """

    def __init__(self, value: object) -> None:
        self.found: list[Found] = []
        self.error: OneFlowError | None = None
        self._is_endless = False
        self._holders: list[Tensor] = []
        """Tensors whose attributes are being taken apart."""
        self.form = self._encode(value, "", 0)

    def name(self, name_of: Callable[[int, Found], str]) -> dict[str, Found]:
        """Gives everything found its name; what shares a name is stored once."""
        named: dict[str, Found] = {}
        for i, one in enumerate(self.found):
            kind = next(iter(one.form))
            name = one.form[kind] = name_of(i, one)
            named.setdefault(name, one)
        return named

    def _encode(self, value: object, where: str, depth: int) -> Json:
        if self._is_endless:
            return None
        if depth > MAX_DEPTH:
            self._is_endless = True  # a tree that contains itself twice has no end to look for
            self._refuse(
                CheckpointError(
                    f"save: {where} is nested more than {MAX_DEPTH} deep, or contains itself"
                )
            )
            return None
        if value is None or type(value) is bool or type(value) is int or type(value) is str:
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": str(value)}
        for kind, name in ((OrderedDict, "odict"), (dict, "dict")):
            if isinstance(value, kind):
                return {name: self._pairs(value, where, depth)}
        for sequence, name in _SEQUENCES:
            if isinstance(value, sequence):
                items = sorted(value, key=repr) if name == "set" else value
                return {
                    name: [self._encode(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(items)]
                }
        return self._leaf(value, where, depth)

    def _pairs(self, value: dict[Any, Any], where: str, depth: int) -> list[Any]:
        return [
            [
                self._encode(k, f"key {k!r} of {where or 'the object'}", depth + 1),
                self._encode(v, f"{where}[{k!r}]", depth + 1),
            ]
            for k, v in value.items()
        ]

    def _module(self, value: Module, where: str, depth: int) -> Json:
        try:
            form: Form = {"module": modules.class_name(value, where or "the object")}
        except CheckpointError as error:
            self._refuse(error)
            return None
        at = f"{where or 'the object'}."
        for table, entries in modules.tables(value).items():
            form[table] = [[k, self._encode(v, at + k, depth + 1)] for k, v in entries.items()]
        return form

    def _leaf(self, value: object, where: str, depth: int) -> Json:
        if isinstance(value, Tensor) and value.layout is strided:
            return self._tensor(value, where, depth)
        if isinstance(value, np.ndarray):
            return self._array(value, where)
        if isinstance(value, Module):
            return self._module(value, where, depth)
        if isinstance(value, np.generic) and not isinstance(value.item(), np.generic):
            return self._encode(value.item(), where, 0)
        for kind, name, text in _LEAVES:
            if isinstance(value, kind):
                return {name: text(value)}
        if name := modules.function_name(value):
            return {"function": name}
        if kind := plain.kind_of(value):
            return {kind: self._encode(plain.KINDS[kind].apart(value), where, depth + 1)}
        self._refuse(
            CheckpointError(
                f"save: {where or 'the object'} is a "
                f"{type(value).__module__}.{type(value).__qualname__}, which has no form in a "
                "checkpoint; save its state_dict() or plain values"
            )
        )
        return None

    def _tensor(self, value: Tensor, where: str, depth: int) -> Json:
        if any(holder is value for holder in self._holders):
            self._refuse(CheckpointError(f"save: {where} contains itself"))
            return None
        if self._holders and value.is_global:
            self._refuse(CheckpointError(f"save: {where} is a global tensor"))
            return None
        try:
            needs_data(value, f"save: {where or 'the object'}")
        except OneFlowError as error:
            self._refuse(error)
            return None
        form: Form = {"tensor": "", "requires_grad": value.requires_grad}
        if isinstance(value, Parameter):
            form["parameter"] = True
        if value.is_cuda and not value.is_global:
            form["cuda"] = True
        self.found.append(Found(value, where, form))
        if not value.is_global and vars(value):  # those of a global tensor may differ by rank
            form["attributes"] = self._attributes(value, where, depth)
        return form

    def _attributes(self, value: Tensor, where: str, depth: int) -> Json:
        """A user's own attributes of a tensor; those that have no form are left out, with a
        warning.
        """
        kept = []
        self._holders.append(value)
        for name, own in vars(value).items():
            if not isinstance(name, str):
                continue
            error, self.error = self.error, None
            place, count = f"{where or 'the object'}.{name}", len(self.found)
            form = self._encode(own, place, depth + 1)
            if self.error is None:
                kept.append([name, form])
            else:
                del self.found[count:]
                self._is_endless = False
                warnings.warn(f"{self.error}; the attribute is left out", stacklevel=2)
            self.error = error
        self._holders.pop()
        return cast(Json, kept)

    def _array(self, value: Array, where: str) -> Json:
        if not has_form(value.dtype):
            self._refuse(
                CheckpointError(
                    f"save: {where or 'the object'} is an array of {value.dtype}, which has no "
                    "form in a checkpoint"
                )
            )
            return None
        form: Form = {"ndarray": ""}
        self.found.append(Found(value, where, form))
        return form

    def _refuse(self, error: OneFlowError) -> None:
        self.error = self.error or error


_SEQUENCES: tuple[tuple[Any, str], ...] = (
    (Size, "size"),
    (tuple, "tuple"),
    (list, "list"),
    (set, "set"),
)
_LEAVES: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
    (float, "float", str),
    (int, "int", str),
    (str, "str", str),
    (bytes, "bytes", lambda b: base64.b64encode(b).decode()),
    (complex, "complex", lambda c: [c.real, c.imag]),
    (DType, "dtype", lambda d: d.name),
    (Device, "device", str),
    (Placement, "placement", lambda p: p.notation),
    (Sbp, "sbp", str),
)


def decode(
    form: object,
    tensor: Callable[[str, bool, bool, bool], object],
    array: Callable[[str], object],
    module: Callable[[str, modules.Tables], object] = modules.as_tree,
) -> Any:
    """The inverse of `Encoder`.  tensor: gives what is stored under a name, told whether it asks
    for gradients, whether it is a parameter, and whether it is local and was on a GPU; array:
    likewise.  module: makes a module of the name of its class and its tables.  Raises
    CheckpointError.
    """

    def inner(form: object) -> Any:
        return decode(form, tensor, array, module)

    if form is None or isinstance(form, (bool, int, float, str)):
        return form
    if not isinstance(form, dict) or not form:
        raise CheckpointError(f"load: not a value of a checkpoint: {str(form)[:80]}")
    kind = next(iter(form))
    content = form[kind]
    if kind == "tensor":
        flags = (bool(form.get(name)) for name in ("requires_grad", "parameter", "cuda"))
        made = tensor(_text(content), *flags)
        if isinstance(made, Tensor):
            for name, own in _decode_pairs("dict", form.get("attributes", []), inner).items():
                vars(made)[_text(name)] = own
        return made
    if kind == "ndarray":
        return array(_text(content))
    if kind in ("dict", "odict"):
        return _decode_pairs(kind, content, inner)
    if kind == "module":
        tables = {k: _decode_pairs("dict", v, inner) for k, v in form.items() if k != kind}
        return module(_text(content), tables)
    if kind in _MAKERS:
        return _MAKERS[kind](inner(v) for v in _list(content))
    if kind in _PARSERS:
        try:
            return _PARSERS[kind](content)
        except (ValueError, TypeError, OneFlowError) as error:
            raise CheckpointError(f"load: not a {kind}: {str(content)[:80]}") from error
    if kind in plain.KINDS:
        try:
            return plain.KINDS[kind].make(inner(content))
        except (ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"load: not a {kind}: {str(content)[:80]}") from error
    raise CheckpointError(
        f"load: unknown kind of value {kind!r}; the file may be of a newer version"
    )


def places(form: Json) -> dict[str, str]:
    """Map each stored tensor and array to its first place in the tree, by its stored name: keys
    and indices with dots between them. `form` has been decoded once, or comes from a checked
    manifest.
    """
    found: dict[str, str] = {}
    left: list[tuple[str, Json]] = [("", form)]
    while left:
        where, one = left.pop()
        if not isinstance(one, dict) or not one:
            continue
        kind = next(iter(one))
        if kind in ("tensor", "ndarray"):
            found.setdefault(_text(one[kind]), where)
        elif kind in ("dict", "odict"):
            left += reversed(_placed(where, one[kind]))
        elif kind == "module":
            parts = [p for k, pairs in one.items() if k != kind for p in _placed(where, pairs)]
            left += reversed(parts)
        elif kind in plain.KINDS:
            left.append((where, one[kind]))
        elif kind in _MAKERS:
            inner = [(_below(where, i), value) for i, value in enumerate(_list(one[kind]))]
            left += reversed(inner)
    return found


def _placed(where: str, pairs: object) -> list[tuple[str, Any]]:
    """Return the values of a table with the place of each."""
    whole = [p for p in _list(pairs) if isinstance(p, list) and len(p) == 2]
    return [(_below(where, key), value) for key, value in whole]


def _below(where: str, key: object) -> str:
    key = next(iter(key.values())) if isinstance(key, dict) and len(key) == 1 else key
    return f"{where}.{key}" if where else f"{key}"


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
    "function": modules.function_named,
}


def _decode_pairs(kind: str, content: object, inner: Callable[[Any], Any]) -> Any:
    made: dict[Any, Any] = OrderedDict() if kind == "odict" else {}
    for pair in _list(content):
        if not isinstance(pair, list) or len(pair) != 2:
            raise CheckpointError(f"load: not a key and a value: {str(pair)[:80]}")
        key, value = (inner(form) for form in pair)
        try:
            made[key] = value
        except TypeError as error:
            raise CheckpointError(f"load: a key that cannot be one: {str(pair[0])[:80]}") from error
    return made


def _list(content: object) -> list[Any]:
    if not isinstance(content, list):
        raise CheckpointError(f"load: expected a list, got {str(content)[:80]}")
    return content


def _text(content: Json) -> str:
    if not isinstance(content, str):
        raise CheckpointError(f"load: expected a name, got {str(content)[:80]}")
    return content
