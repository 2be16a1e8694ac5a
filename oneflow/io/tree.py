"""Python values as JSON, with tensors taken out into a table by name.

Numbers, strings, True, False and None stand for themselves; everything else is an object with one
key that names its kind: {"list": [...]}, {"dict": [[key, value], ...]}, {"tensor": "t0", ...}.
A module of `oneflow.nn` is the name of its class and tables (io/modules.py), a function that it
calls the name in `nn.functional`. An object of another class is {"object": its class's name,
"state": ...}, a class or a function {"named": ...}; io/safe_names.py says which names are followed.
Mutable values that stand in several places, or in themselves, are there once, with an "id"; their
other places are {"ref": id}.
"""

from __future__ import annotations

import base64
import enum
import math
import types
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np

from oneflow.core.device import Device
from oneflow.core.dtype import DType
from oneflow.core.errors import CheckpointError, InternalError, OneFlowError
from oneflow.core.json_values import Json
from oneflow.core.placement import Placement
from oneflow.core.sbp import Sbp
from oneflow.core.size import Size
from oneflow.io import modules, objects, plain
from oneflow.io.container import has_form
from oneflow.io.safe_names import name_of
from oneflow.kernels.array import Array
from oneflow.nn.module import Module
from oneflow.nn.parameter import Parameter
from oneflow.tensor.formats import strided
from oneflow.tensor.tensor import Tensor, needs_data

MAX_DEPTH = 200


Form: TypeAlias = dict[str, Json]


@dataclass
class Found:
    """A tensor or an array in a tree. where: its place, for messages.  form: the part of the tree
    that names it.
    """

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

    An object without a form is kept in `error`, so that the ranks can first tell each other.
    """

    def __init__(self, value: object) -> None:
        self.found: list[Found] = []
        self.error: OneFlowError | None = None
        self._is_endless = False
        self._holders: list[Tensor] = []
        """Tensors whose attributes are being taken apart."""
        self._known: dict[int, tuple[object, Form]] = {}
        """Mutable values by their `id`, each with its form, which may still be unfinished."""
        self._num_shared = 0
        self._kept_alive: list[object] = []
        """States made on the way: while they live, no other value has their `id`."""
        self.form = self._encode(value, "", 0)

    def name(self, name_of: Callable[[int, Found], str]) -> dict[str, Found]:
        """Give each tensor and array found its name; those that share one are stored once."""
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
        if isinstance(value, enum.Enum):
            return self._enum(value, where, depth)
        if type(value) is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if id(value) in self._known:
            return self._again(self._known[id(value)][1])
        for kind, name in ((OrderedDict, "odict"), (dict, "dict")):
            if isinstance(value, kind):
                form = self._begun(value, {name: None})
                form[name] = cast(Json, self._pairs(value, where, depth))
                return self._with_class(form, value, where, depth)
        for sequence, name in _SEQUENCES:
            if isinstance(value, sequence):
                items = sorted(value, key=repr) if name == "set" else value
                form = {name: None} if name == "tuple" else self._begun(value, {name: None})
                form[name] = [
                    self._encode(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(items)
                ]
                return self._with_class(form, value, where, depth)
        return self._leaf(value, where, depth)

    def _begun(self, value: object, form: Form) -> Form:
        """Note the form of a mutable value, before its contents are looked at."""
        self._known[id(value)] = value, form
        return form

    def _again(self, form: Form) -> Json:
        if "id" not in form:
            form["id"] = self._num_shared
            self._num_shared += 1
        return {"ref": form["id"]}

    def _with_class(self, form: Form, value: object, where: str, depth: int) -> Form:
        """The form of a plain container, with the name of its class if that is none of Python's:
        it is read as a plain one where the name is not followed.
        """
        if type(value) in _PLAIN or not (name := name_of(type(value))):
            return form
        form["class"] = name
        if own := getattr(value, "__dict__", None):
            self._attempt(form, "state", own, where, depth)
        return form

    def _attempt(
        self, form: Form, key: str, value: object, where: str, depth: int
    ) -> OneFlowError | None:
        """Add the form of `value`, or return why it has none, and leave nothing of it behind."""
        error, self.error = self.error, None
        num_found, num_known = len(self.found), len(self._known)
        made = self._encode(value, where, depth + 1)
        failed, self.error = self.error, error
        if failed is None:
            form[key] = made
            return None
        del self.found[num_found:]
        for one in list(self._known)[num_known:]:
            del self._known[one]
        self._is_endless = False
        return failed

    def _pairs(self, value: dict[Any, Any], where: str, depth: int) -> list[Any]:
        return [
            [
                self._encode(k, f"key {k!r} of {where or 'the object'}", depth + 1),
                self._encode(v, f"{where}[{k!r}]", depth + 1),
            ]
            for k, v in value.items()
        ]

    def _module(self, value: Module, where: str, depth: int) -> Json:
        name = modules.class_name(value)
        if name is None:
            return self._object(value, where, depth)
        form = self._begun(value, {"module": name})
        at = f"{where or 'the object'}."
        for table, entries in modules.tables(value).items():
            form[table] = [[k, self._encode(v, at + k, depth + 1)] for k, v in entries.items()]
        return form

    def _object(self, value: object, where: str, depth: int) -> Json:
        try:
            state = objects.state_of(value, where)
        except CheckpointError as error:
            self._refuse(error)
            return None
        name = self._named(type(value), where, "is of a class that")
        if name is None:
            return None
        form = self._begun(value, {"object": name, "state": None})
        self._kept_alive.append(state)
        form["state"] = self._encode_state(state, where, depth)
        return form

    def _encode_state(self, state: object, where: str, depth: int) -> Json:
        if type(state) is not dict:
            return self._encode(state, where, depth + 1)
        at = f"{where or 'the object'}."
        pairs = [
            [self._encode(k, at, depth + 1), self._encode(v, f"{at}{k}", depth + 1)]
            for k, v in state.items()
        ]
        return {"dict": cast(Json, pairs)}

    def _named(self, value: object, where: str, what: str) -> str | None:
        """Return the name of a class or a function, None if it has no form here."""
        name = name_of(value)
        if name is not None and not self._holders:
            return name
        why = "is code, which a tensor's attribute cannot hold" if name else "is found by no name"
        dotted = f"{value.__module__}.{getattr(value, '__qualname__', '')}"
        self._refuse(
            CheckpointError(
                f"save: {where or 'the object'} {what} {why} ({dotted}), so it has no form in a "
                "checkpoint; define it in a module, outside of functions, or save a state_dict() "
                "or plain values"
            )
        )
        return None

    def _enum(self, value: enum.Enum, where: str, depth: int) -> Json:
        name = self._named(type(value), where, "is of a class that")
        form: Form = {"enum": name, "value": self._encode(value.value, where, depth + 1)}
        if isinstance(value, int | str | float):
            form["plain"] = True
        return form

    def _code(self, value: object, where: str) -> Json:
        return {"named": self._named(value, where, f"is a {type(value).__name__} that")}

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
            form: Form = {kind: None}
            if kind in plain.MUTABLE:
                self._begun(value, form)
            parts = plain.KINDS[kind].apart(value)
            self._kept_alive.append(parts)
            form[kind] = self._encode(parts, where, depth + 1)
            return self._with_class(form, value, where, depth) if kind == "dataclass" else form
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            return self._code(value, where)
        return self._object(value, where, depth)

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
            form: Form = {}
            place = f"{where or 'the object'}.{name}"
            error = self._attempt(form, "", own, place, depth)
            if error is None:
                kept.append([name, form[""]])
            else:
                warnings.warn(f"{error}; the attribute is left out", stacklevel=2)
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
_PLAIN = (dict, OrderedDict, defaultdict, list, tuple, set, Size)
