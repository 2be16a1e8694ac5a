"""The way back from the form of a tree (io/tree.py) to its values."""

from __future__ import annotations

import base64
import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from oneflow.core.device import Device
from oneflow.core.dtype import dtype_of
from oneflow.core.errors import CheckpointError, OneFlowError
from oneflow.core.json_values import Json
from oneflow.core.placement import parse_placement
from oneflow.core.sbp import parse_sbp
from oneflow.core.size import Size
from oneflow.io import modules, objects, plain
from oneflow.io.safe_names import Names
from oneflow.nn.module import Module
from oneflow.tensor.tensor import Tensor

Form: TypeAlias = dict[str, Json]
T = TypeVar("T")


class Making(Protocol):
    """Makers of modules, objects and code by name."""

    def module(self, name: str) -> Any:
        """Return an empty module of the layer of that name in `oneflow.nn`."""

    def fill_module(self, made: object, tables: modules.Tables) -> None:
        """Give a module its tables."""

    def instance(self, name: str) -> Any:
        """Return an object without a state of the class of that name."""

    def fill_instance(self, made: object, state: object) -> None:
        """Give it its state."""

    def named(self, name: str) -> Any:
        """Return the class or the function of that name."""

    def class_of(self, name: str) -> type | None:
        """Return the class that a plain value had, None to leave the value plain."""

    def enum(self, name: str, value: object, is_plain: bool) -> Any:
        """Return the member of an enum. is_plain: its value says enough."""

    def partial(self, function: object, args: object, keywords: object) -> Any:
        """Return a function with some of its arguments."""


class AsTree:
    """Makes nothing but plain containers: for listing a file's contents."""

    def module(self, _: str) -> Any:
        return {}

    def fill_module(self, made: object, tables: modules.Tables) -> None:
        whole = {key: value for table in tables.values() for key, value in table.items()}
        cast(dict[Any, Any], made).update(whole)

    def instance(self, _: str) -> Any:
        return {}

    def fill_instance(self, made: object, state: object) -> None:
        whole = state if isinstance(state, dict) else {"state": state}
        cast(dict[Any, Any], made).update(whole)

    def named(self, name: str) -> Any:
        return name

    def class_of(self, _: str) -> None:
        return None

    def enum(self, _name: str, value: object, _plain: bool) -> Any:
        return value

    def partial(self, function: object, args: object, keywords: object) -> Any:
        return [function, args, keywords]


class AsObjects:
    """Makes modules of ours, and objects of the classes that `names` follows."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def module(self, name: str) -> Any:
        return modules.blank(name)

    def fill_module(self, made: object, tables: modules.Tables) -> None:
        modules.fill(cast(Module, made), tables)

    def instance(self, name: str) -> Any:
        return objects.blank(self._names.kind(name))

    def fill_instance(self, made: object, state: object) -> None:
        objects.fill(made, state)

    def named(self, name: str) -> Any:
        return self._names.value(name)

    def class_of(self, name: str) -> type | None:
        return self._names.kind(name) if self._names.may(name) else None

    def enum(self, name: str, value: object, is_plain: bool) -> Any:
        if is_plain and not self._names.may(name):
            return value
        return objects.enum_member(self._names.kind(name), value)

    def partial(self, function: object, args: object, keywords: object) -> Any:
        call, named = cast(Callable[..., Any], function), cast(dict[str, Any], keywords)
        return functools.partial(call, *cast(list[Any], args), **named)


def decode(
    form: object,
    tensor: Callable[[str, bool, bool, bool], object],
    array: Callable[[str], object],
    making: Making | None = None,
) -> Any:
    """The inverse of `Encoder`.  tensor: gives the tensor of a name, told whether it asks
    for gradients, whether it is a parameter, and whether it is local and was on a GPU; array:
    likewise.  making: see above; None: AsTree.  Raises CheckpointError.
    """
    return _Decoder(tensor, array, making or AsTree()).value(form)


class _Decoder:
    def __init__(
        self,
        tensor: Callable[[str, bool, bool, bool], object],
        array: Callable[[str], object],
        making: Making,
    ) -> None:
        self._tensor, self._array, self._making = tensor, array, making
        self._shared: dict[object, Any] = {}

    def value(self, form: object) -> Any:
        if form is None or isinstance(form, (bool, int, float, str)):
            return form
        if not isinstance(form, dict) or not form:
            raise CheckpointError(f"load: not a value of a checkpoint: {str(form)[:80]}")
        kind = next(iter(form))
        handler = _HANDLERS.get(kind)
        if handler is not None:
            return handler(self, form, form[kind])
        if kind in _PARSERS:
            return _converted(kind, form[kind], _PARSERS[kind])
        if kind in plain.KINDS:
            return _converted(kind, self.value(form[kind]), plain.KINDS[kind].make)
        raise CheckpointError(
            f"load: unknown kind of value {kind!r}; the file may be of a newer version"
        )

    # ---- values that may stand in several places -------------------------------------------------

    def _note(self, form: Form, made: T) -> Any:
        """Take note of a mutable value before its contents are decoded."""
        if "id" in form:
            self._shared[_number(form["id"])] = made
        return made

    def ref(self, _: Form, number: Json) -> Any:
        try:
            return self._shared[_number(number)]
        except KeyError:
            raise CheckpointError(f"load: nothing has the id {number}") from None

    def pairs(self, form: Form, content: Json) -> Any:
        made = self._container(form, OrderedDict if "odict" in form else dict)
        self._fill_pairs(made, content)
        return self._with_state(form, made)

    def items(self, form: Form, content: Json) -> Any:
        made = self._container(form, list if "list" in form else set)
        for one in list_of(content):
            _put(made, self.value(one))
        return self._with_state(form, made)

    def _container(self, form: Form, base: type) -> Any:
        kind = self._class_of(form)
        if kind is None:
            return self._note(form, base())
        if not issubclass(kind, dict if base is OrderedDict else base):
            raise CheckpointError(f"load: {kind.__qualname__} is no {base.__name__}")
        return self._note(form, objects.blank(kind))

    def _with_state(self, form: Form, made: object) -> Any:
        if "class" in form and "state" in form:
            state = self.value(form["state"])
            if type(made) not in (dict, OrderedDict, list, set):
                objects.fill(made, state)
        return made

    def _class_of(self, form: Form) -> type | None:
        return self._making.class_of(text_of(form["class"])) if "class" in form else None

    def a_tuple(self, form: Form, content: Json) -> Any:
        made = tuple(self.value(one) for one in list_of(content))
        kind = self._class_of(form)
        if kind is None:
            return made
        if not issubclass(kind, tuple):
            raise CheckpointError(f"load: {kind.__qualname__} is no tuple")
        return tuple.__new__(kind, made)

    def size(self, _: Form, content: Json) -> Any:
        return Size(self.value(one) for one in list_of(content))

    def module(self, form: Form, content: Json) -> Any:
        made = self._note(form, self._making.module(text_of(content)))
        tables = {
            key: self._table(pairs) for key, pairs in form.items() if key not in ("module", "id")
        }
        self._making.fill_module(made, tables)
        return made

    def instance(self, form: Form, content: Json) -> Any:
        made = self._note(form, self._making.instance(text_of(content)))
        self._making.fill_instance(made, self.value(form.get("state")))
        return made

    def dataclass(self, form: Form, content: Json) -> Any:
        kind = self._class_of(form)
        made = self._note(form, plain.namespace({}) if kind is None else objects.blank(kind))
        fields = self.value(content)
        if not isinstance(fields, dict):
            raise CheckpointError(f"load: not a dataclass: {str(content)[:80]}")
        if kind is None:
            vars(made).update((str(name), value) for name, value in fields.items())
        else:
            objects.set_fields(made, fields)
        return made

    def namespace(self, form: Form, content: Json) -> Any:
        made = self._note(form, plain.namespace({}))
        vars(made).update((str(k), v) for k, v in _dict(self.value(content)).items())
        return made

    def partial(self, _: Form, content: Json) -> Any:
        parts = self.value(content)
        if not isinstance(parts, list) or len(parts) != 3:
            raise CheckpointError(f"load: not a partial: {str(content)[:80]}")
        try:
            return self._making.partial(*parts)
        except TypeError as error:
            raise CheckpointError(f"load: not a partial: {str(content)[:80]}") from error

    # ---- values by name --------------------------------------------------------------------------

    def named(self, _: Form, content: Json) -> Any:
        return self._making.named(text_of(content))

    def enum(self, form: Form, content: Json) -> Any:
        value = self.value(form.get("value"))
        return self._making.enum(text_of(content), value, bool(form.get("plain")))

    def tensor(self, form: Form, content: Json) -> Any:
        flags = (bool(form.get(name)) for name in ("requires_grad", "parameter", "cuda"))
        made = self._tensor(text_of(content), *flags)
        if isinstance(made, Tensor):
            vars(made).update(self._table(form.get("attributes", [])))
        return made

    def array(self, _: Form, content: Json) -> Any:
        return self._array(text_of(content))

    def _table(self, content: Json) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        self._fill_pairs(made, content)
        return made

    def _fill_pairs(self, made: dict[Any, Any], content: Json) -> None:
        put = OrderedDict.__setitem__ if isinstance(made, OrderedDict) else dict.__setitem__
        for pair in list_of(content):
            if not isinstance(pair, list) or len(pair) != 2:
                raise CheckpointError(f"load: not a key and a value: {str(pair)[:80]}")
            key, value = self.value(pair[0]), self.value(pair[1])
            try:
                put(made, key, value)
            except TypeError as error:
                raise CheckpointError(
                    f"load: a key that cannot be one: {str(pair[0])[:80]}"
                ) from error


_HANDLERS: dict[str, Callable[[_Decoder, Form, Json], Any]] = {
    "tensor": _Decoder.tensor,
    "ndarray": _Decoder.array,
    "ref": _Decoder.ref,
    "dict": _Decoder.pairs,
    "odict": _Decoder.pairs,
    "list": _Decoder.items,
    "set": _Decoder.items,
    "tuple": _Decoder.a_tuple,
    "size": _Decoder.size,
    "module": _Decoder.module,
    "object": _Decoder.instance,
    "dataclass": _Decoder.dataclass,
    "namespace": _Decoder.namespace,
    "partial": _Decoder.partial,
    "named": _Decoder.named,
    "enum": _Decoder.enum,
}
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


def _converted(kind: str, content: Json, make: Callable[[Any], Any]) -> Any:
    try:
        return make(content)
    except (ValueError, TypeError, AttributeError, OneFlowError) as error:
        raise CheckpointError(f"load: not a {kind}: {str(content)[:80]}") from error


def _put(made: list[Any] | set[Any], value: object) -> None:
    if isinstance(made, list):
        list.append(made, value)
        return
    try:
        set.add(made, value)
    except TypeError as error:
        raise CheckpointError(f"load: a set cannot hold {str(value)[:80]}") from error


def _number(content: Json) -> int:
    if type(content) is not int:
        raise CheckpointError(f"load: expected an id, got {str(content)[:80]}")
    return content


def _dict(content: Json) -> dict[Any, Any]:
    if not isinstance(content, dict):
        raise CheckpointError(f"load: expected a table, got {str(content)[:80]}")
    return content


def names_of_code(form: Json) -> list[str]:
    """List the classes and functions that a tree names, each once, beside layers of ours. `form`
    has been decoded once.
    """
    found: dict[str, None] = {}
    left = [form]
    while left:
        one = left.pop()
        if isinstance(one, list):
            left += reversed(one)
        elif isinstance(one, dict):
            kind = next(iter(one), "")
            if kind in ("object", "named", "enum"):
                found[text_of(one[kind])] = None
            elif "class" in one:
                found[text_of(one["class"])] = None
            left += reversed(list(one.values()))
    return list(found)


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
            found.setdefault(text_of(one[kind]), where)
        elif kind in ("dict", "odict"):
            left += reversed(_placed(where, one[kind]))
        elif kind == "module":
            parts = [p for k, pairs in one.items() if k != kind for p in _placed(where, pairs)]
            left += reversed(parts)
        elif kind == "object":
            left.append((where, one.get("state")))
        elif kind in plain.KINDS:
            left.append((where, one[kind]))
        elif kind in ("list", "set", "tuple", "size"):
            inner = [(_below(where, i), value) for i, value in enumerate(list_of(one[kind]))]
            left += reversed(inner)
    return found


def _placed(where: str, pairs: Json) -> list[tuple[str, Any]]:
    """Return the values of a table with the place of each."""
    whole = [p for p in list_of(pairs) if isinstance(p, list) and len(p) == 2]
    return [(_below(where, key), value) for key, value in whole]


def _below(where: str, key: object) -> str:
    key = next(iter(key.values())) if isinstance(key, dict) and len(key) == 1 else key
    if key in ("_parameters", "_buffers", "_modules"):
        return where  # tables of a module
    return f"{where}.{key}" if where else f"{key}"


def list_of(content: Json) -> list[Any]:
    if not isinstance(content, list):
        raise CheckpointError(f"load: expected a list, got {str(content)[:80]}")
    return content


def text_of(content: Json) -> str:
    if not isinstance(content, str):
        raise CheckpointError(f"load: expected a name, got {str(content)[:80]}")
    return content
