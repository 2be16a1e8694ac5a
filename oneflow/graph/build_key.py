"""The key of a trace: a digest of all that calling `build` again could depend on.

A graph is traced anew only where that could give another trace. So the key is read off the
program instead of running it: the graph's modules with their attributes, hooks and tensors, the
optimizers, the arguments, and the code of `build` and of every function it may call, with the
globals, cells and defaults that this code names. What lies inside of this package is known by the
package's version, as long as nothing in it was replaced.

Attributes of modules of Python are followed by name, chain by chain: `F.gelu` reads one function of
`F`. Objects are taken whole; methods of their classes are read if any code in reach names them.

Whatever cannot be read so raises `Unkeyed`: objects of classes written in C, functions that set
attributes, import, print or ask for files, times, the environment or random numbers. Then `build`
is run, as it is for whoever changes something while it runs: a key that is another one after the
trace than before is none.
"""

from __future__ import annotations

import abc
import builtins
import enum
import functools
import hashlib
import marshal
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from oneflow import surfaces
from oneflow.amp import autocasting
from oneflow.core.config import current_config, inputs_may_move
from oneflow.core.device import Device, chosen_device
from oneflow.core.dtype import DType
from oneflow.core.location import package_file
from oneflow.core.placement import Placement
from oneflow.core.sbp import Sbp
from oneflow.core.size import Size
from oneflow.core.tensor_type import TensorType
from oneflow.distributed.world import world
from oneflow.functional.promotion import get_default_dtype
from oneflow.functional.random_state import default_generator
from oneflow.graph.code_facts import Chain, facts_of
from oneflow.graph.package_state import ROOT, PackageState
from oneflow.nn.forward_hooks import everywhere
from oneflow.nn.module import Module
from oneflow.nn.parameter import Buffer, Parameter
from oneflow.optim.optimizer import Optimizer
from oneflow.tensor import grad_mode
from oneflow.tensor.modes import current_global_mode
from oneflow.tensor.tensor import Tensor

PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes, type(Ellipsis)))
_VALUES = PLAIN | {list, tuple, dict}
_MEMBER = frozenset(("_value_", "_name_", "__objclass__", "_sort_order_"))
"""Attributes of each member of an enumeration."""
_ABSENT = object()

_BUILTINS = frozenset(
    ("abs", "all", "any", "bool", "bytes", "callable", "chr", "classmethod", "complex", "dict",
     "divmod", "enumerate", "filter", "float", "int", "isinstance", "issubclass", "iter", "len",
     "list", "map", "max", "min", "next", "object", "ord", "pow", "property", "range", "reversed",
     "round", "slice", "sorted", "staticmethod", "str", "sum", "super", "tuple", "type", "zip")
)  # fmt: skip
"""Builtins that read and change nothing but their arguments."""

_STDLIB = frozenset(
    ("abc", "collections", "contextlib", "copy", "dataclasses", "enum", "functools", "itertools",
     "math", "numbers", "operator", "string", "types", "typing")
)  # fmt: skip
"""Modules of the standard library whose functions read nothing but their arguments."""

_ROOMS = tuple(
    f"{ROOT}.{room}"
    for room in (
        "functional.", "nn.", "nn", "tensor.", "ops.", "core.", "amp.", "autograd.", "optim.",
        "graph.", "distributions.", "signal.", "linalg", "fft", "special", "surfaces",
    )
)  # fmt: skip
"""Parts of this package whose functions give the same for the same arguments."""

_CLOSED = frozenset(
    f"{ROOT}.{name}"
    for name in (
        "functional.random_state", "tensor.printing", "nn.utils.parametrize", "nn.parallel",
        "nn.modules.ranks", "core.config", "core.rng",
    )
)  # fmt: skip
"""Modules inside of these parts that read or change other things."""

_NUMPY = frozenset(("prod", "pi", "inf", "e", "nan", "newaxis"))
_MAKING = frozenset(
    ("__init__", "__new__", "__init_subclass__", "__class_getitem__", "__set_name__", "__del__",
     "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__repr__", "__str__",
     "__post_init__", "__deepcopy__", "__copy__", "__getnewargs__", "__getnewargs_ex__",
     "__doc__", "__module__", "__dict__", "__weakref__", "__qualname__", "__annotations__",
     "__parameters__", "__orig_bases__", "__firstlineno__", "__static_attributes__",
     "__dataclass_fields__", "__dataclass_params__", "__match_args__", "__abstractmethods__",
     "__annotate__", "__annotate_func__", "__annotations_cache__", "__type_params__")
)  # fmt: skip
"""Entries of classes that calls of an instance do not read, unless code names them."""

_SAVING = frozenset(
    ("extra_repr", "state_dict", "load_state_dict", "_load_from_state_dict",
     "_save_to_state_dict", "reset_parameters")
)  # fmt: skip
_CONSTRUCTORS = ("__init__", "__new__", "__post_init__", "__class_getitem__")
_IDS = frozenset(("_places", "_passes"))
"""Attributes of optimizers that only find things faster."""

_HEAP = 1 << 9  # of a class that Python code has made
_BASES = (object, dict, OrderedDict, list, tuple, int, float, str)
_TEXTS = (DType, Device, Sbp, TensorType, np.dtype)

_registered = vars(abc)["_get_dump"]
"""Gives the classes that are registered with an abstract class, and what it has found out."""

package = PackageState()


class Unkeyed(Exception):
    """Something that a trace may depend on cannot be put in a key."""


class BuildKey:
    """A key under construction.

    names: of the tensors that the graph knows beforehand, by id.
    """

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._tokens: list[Any] = []
        self._seen: dict[int, int] = {}
        self._kept: list[object] = []
        """The objects that `_seen` knows by their ids, so that they live as long."""
        self._arrays: dict[int, int] = {}
        self.tensors: list[Tensor] = []
        """All tensors in reach, in the order in which they were found."""
        self.named: set[str] = set()
        """Attributes that code in reach reads."""
        self._classes: list[tuple[type, set[str]]] = []
        """Classes in reach, and their entries that were read."""
        self._own_classes: dict[type, None] = {}
        """Classes of this package in reach, to which the program may have added values."""
        self._constructs = False
        """Whether code in reach may call the class of any object."""
        self._texts: dict[int, str] = {}

    def add(self, *parts: object) -> None:
        for part in parts:
            self._visit(part)

    def add_object(self, x: object, attributes: dict[str, Any]) -> None:
        """Adds an object of which only these attributes count."""
        self._note(x)
        self._class(type(x), is_called=False)
        self._tokens.append(len(attributes))
        self._items(attributes.items())

    def digest(self) -> str:
        """Return the key of all that was added."""
        self._read_methods()
        self._read_values()
        self._read_methods()  # of objects in those values
        data = marshal.dumps(self._tokens, 0)  # no references: equal for equal tokens
        return hashlib.blake2b(data, digest_size=16).hexdigest()

    # ---- objects ---------------------------------------------------------------------------------

    def _visit(self, x: object) -> None:
        kind = type(x)
        if kind in PLAIN:
            self._tokens.append(x)
            return
        seen = self._seen.get(id(x))
        if seen is not None:
            self._tokens.append(("again", seen))
            return
        read = _READERS.get(kind)
        if read is None:
            read = _reader_of(kind)
        read(self, x)

    def _note(self, x: object) -> int:
        index = self._seen[id(x)] = len(self._kept)
        self._kept.append(x)
        return index

    def _tensor(self, x: Tensor) -> None:
        extra = x._extra
        if x.value is not None or x._grad_fn is not None:
            raise Unkeyed("a tensor with a history")
        if extra is not None and (extra.view is not None or extra.hooks or extra.post_accumulate):
            raise Unkeyed("a tensor that is a view, or that has hooks")
        if x.__class__ is not Tensor and (held := getattr(x, "__dict__", None)):
            self._visit(held)
        index = self._note(x)
        array, placement = x._array, x._placement
        lies = None
        if array is not None:
            lies = self._arrays.setdefault(id(array), index), array.strides
        self._tokens.append(
            (
                x.__class__.__name__,
                tuple(x.meta.shape),
                x.meta.dtype.name,
                self._text(x._device),
                None if placement is None else self._text(placement),
                None if x._sbp is None else str(x._sbp),
                x._requires_grad,
                lies,
                None if extra is None else extra.retains,
                self._names.get(id(x)),
            )
        )
        self.tensors.append(x)
        if x.grad is None:
            self._tokens.append(None)
        else:
            self._visit(x.grad)

    def _text(self, x: object) -> str:
        """The text of a device or placement, of which many tensors share one."""
        found = self._texts.get(id(x))
        if found is None:
            found = self._texts[id(x)] = repr(x)
            self._kept.append(x)
        return found

    def _list(self, x: list[Any] | tuple[Any, ...]) -> None:
        self._note(x)
        self._tokens.append((type(x).__name__, len(x)))
        for item in x:
            self._visit(item)

    def _dict(self, x: dict[Any, Any]) -> None:
        self._note(x)
        self._tokens.append((type(x).__name__, len(x)))
        self._items(x.items())

    def _items(self, items: Iterable[tuple[Any, Any]]) -> None:
        tokens, visit = self._tokens, self._visit
        for key, value in items:
            if type(key) is str:
                tokens.append(key)
            else:
                visit(key)
            if type(value) in PLAIN:
                tokens.append(value)
            else:
                visit(value)

    def _defaultdict(self, x: defaultdict[Any, Any]) -> None:
        self._visit(x.default_factory)
        self._dict(x)

    def _set(self, x: set[Any] | frozenset[Any]) -> None:
        if len(x) > 1:
            raise Unkeyed("a set, whose order is another one in each process")
        self._note(x)
        self._tokens.append((type(x).__name__, len(x)))
        for item in x:
            self._visit(item)

    def _array_of(self, x: np.ndarray[Any, Any]) -> None:
        if x.nbytes > 4096 or x.dtype.hasobject:
            raise Unkeyed("a large array")
        self._note(x)
        self._tokens.append(("array", str(x.dtype), x.shape, x.tobytes()))

    def _scalar(self, x: np.generic) -> None:
        self._tokens.append((type(x).__name__, str(x.dtype), x.tobytes()))

    def _written(self, x: object) -> None:
        self._tokens.append((type(x).__name__, str(x)))

    def _placement(self, x: Placement) -> None:
        self._tokens.append(("placement", self._text(x)))

    def _size(self, x: Size) -> None:
        self._tokens.append(("size", tuple(x)))

    def _slice(self, x: slice | range) -> None:
        self._tokens.append(("slice",) if isinstance(x, slice) else ("range",))
        self.add(x.start, x.stop, x.step)

    def _enum(self, x: enum.Enum) -> None:
        self._note(x)
        self._tokens.append(("enum", x.name))
        self.add(type(x), x.value)
        self._items((k, v) for k, v in vars(x).items() if k not in _MEMBER)

    def _generator(self, x: object) -> None:
        if x is not default_generator:
            raise Unkeyed("a generator of random numbers")
        self._tokens.append(("default generator",))

    def _partial(self, x: functools.partial[Any]) -> None:
        self._note(x)
        self._tokens.append(("partial",))
        self.add(x.func, x.args, x.keywords, vars(x))

    def _method(self, x: types.MethodType) -> None:
        self._note(x)
        self._tokens.append(("method",))
        self.add(x.__func__, x.__self__)

    def _wrapping(self, x: staticmethod[..., Any] | classmethod[Any, ..., Any]) -> None:
        self._note(x)
        self._tokens.append((type(x).__name__,))
        self._visit(x.__func__)

    def _property(self, x: property) -> None:
        self._note(x)
        self._tokens.append(("property",))
        self.add(x.fget, x.fset, x.fdel)

    def _slot(self, x: types.MemberDescriptorType) -> None:
        self._tokens.append(("slot", x.__name__))

    def _proxy(self, x: object) -> None:
        raise Unkeyed(f"a {type(x).__module__}.{type(x).__qualname__}")

    def _module(self, x: types.ModuleType) -> None:
        raise Unkeyed(f"module {x.__name__} as an object")

    def _instance(self, x: object) -> None:
        """An object of a class of Python: its class and all its attributes."""
        kind = type(x)
        self._note(x)
        self._tokens.append(("object",))
        self._class(kind, is_called=False)
        attributes = _attributes_of(x)
        if issubclass(kind, Module):
            attributes = {k: v for k, v in attributes.items() if k != _UNSAVED}
        elif issubclass(kind, Optimizer):
            attributes = {k: v for k, v in attributes.items() if k not in _IDS}
        self._tokens.append(len(attributes))
        self._items(attributes.items())
        for slot in _slots_of(kind):
            self._visit(_slot_value(slot, x))
        for base, content in _CONTENTS:
            if issubclass(kind, base):
                self._visit(content(x))
                break

    # ---- code ------------------------------------------------------------------------------------

    def _function(self, x: types.FunctionType) -> None:
        self._note(x)
        home = x.__module__
        code = x.__code__
        if package_file(code.co_filename) and not code.co_filename.startswith("<"):
            self._own_function(x)
            return
        if home in _STDLIB and x.__globals__ is vars(sys.modules[home]):
            if home == "copy":
                raise Unkeyed("copy, which calls methods that no code names")
            self._tokens.append(("function", home, x.__qualname__))
            return
        facts = facts_of(code)
        if facts.refusal:
            raise Unkeyed(facts.refusal)
        self._tokens.append(("code", facts.digest))
        self._constructs |= facts.asks_classes
        self.named |= facts.names
        self.add(x.__defaults__, x.__kwdefaults__, x.__dict__)
        cells = dict(zip(code.co_freevars, x.__closure__ or (), strict=True))
        for chain in facts.chains:
            self._follow(chain, x, cells)

    def _own_function(self, x: types.FunctionType) -> None:
        """A function of this package."""
        self._tokens.append(("own", x.__module__, x.__qualname__, x.__code__.co_firstlineno))
        _check_room(x.__module__, x.__qualname__)
        if x.__closure__ and not _is_public(x):
            self.add(*(_content(cell) for cell in x.__closure__))
        if x.__defaults__ or x.__kwdefaults__:
            self.add(x.__defaults__, x.__kwdefaults__)

    def _follow(
        self, chain: Chain, function: types.FunctionType, cells: dict[str, types.CellType]
    ) -> None:
        """Reads what a chain of names stands for, as far as it goes through modules."""
        if chain.is_cell:
            value = _content(cells[chain.name])
        else:
            value = function.__globals__.get(chain.name, _ABSENT)
            if value is _ABSENT:
                value = getattr(builtins, chain.name, _ABSENT)
        attributes = iter(chain.attributes)
        while isinstance(value, types.ModuleType):
            name = next(attributes, None)
            if name is None:
                raise Unkeyed(f"module {value.__name__} as an object, in {function.__qualname__}")
            value = self._member(value, name)
        self._tokens.append((chain.name, chain.is_cell))
        self._visit("no such name" if value is _ABSENT else value)

    def _member(self, module: types.ModuleType, name: str) -> Any:
        """An attribute of a module."""
        home = module.__name__
        self._tokens.append(("of", home, name))
        if home.partition(".")[0] == ROOT:
            return getattr(module, name, _ABSENT)
        if home == "numpy" and name not in _NUMPY:
            found = vars(module).get(name)
            if not isinstance(found, np.ufunc | type):
                raise Unkeyed(f"numpy.{name}")
        if home.partition(".")[0] in sys.stdlib_module_names and home not in _STDLIB:
            raise Unkeyed(f"{home}.{name}")
        is_plain = "__getattr__" not in vars(module) and type(module) is types.ModuleType
        if not is_plain and name not in vars(module):
            raise Unkeyed(f"{home}.{name}")
        return vars(module).get(name, _ABSENT)

    def _builtin(self, x: types.BuiltinFunctionType) -> None:
        owner = x.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            self._check_builtin(x.__module__, x.__name__)
            self._tokens.append(("builtin", x.__module__, x.__qualname__))
            return
        raise Unkeyed(f"the method {x.__qualname__} of an object")

    def _check_builtin(self, home: str | None, name: str) -> None:
        if home == "builtins":
            if name not in _BUILTINS:
                raise Unkeyed(f"{name}()")
        elif (home or "").lstrip("_") not in _STDLIB:
            raise Unkeyed(f"{home}.{name}")

    def _ufunc(self, x: np.ufunc) -> None:
        if vars(np).get(x.__name__) is not x:
            raise Unkeyed(f"{x.__name__}, a ufunc that is not one of NumPy's")
        self._tokens.append(("ufunc", x.__name__))

    def _type(self, x: type) -> None:
        self._class(x, is_called=True)

    def _class(self, x: type, *, is_called: bool) -> None:
        """A class; is_called: code may make objects of it."""
        seen = self._seen.get(id(x))
        if seen is not None:
            self._tokens.append(("again", seen))
        else:
            self._note(x)
            self._new_class(x)
        if is_called:
            self._tokens.append(("called",))
            self._construct(x)

    def _construct(self, x: type) -> None:
        """Reads the constructors of a class that code may call."""
        for cls in x.__mro__:
            for known, read in self._classes:
                if known is cls:
                    self._entries(cls, read, [n for n in _CONSTRUCTORS if n in vars(cls)])

    def _new_class(self, x: type) -> None:
        home = x.__module__
        self._tokens.append(("class", home, x.__qualname__))
        root = home.partition(".")[0]
        if root == ROOT:
            _check_room(home, x.__qualname__)
            for base in x.__mro__:
                if base.__module__.partition(".")[0] == ROOT:
                    self._own_classes[base] = None
            return
        if home == "builtins":
            if x.__name__ not in _BUILTINS and not issubclass(x, BaseException):
                raise Unkeyed(x.__name__)
            return
        if root == "numpy":
            if not issubclass(x, np.generic | np.ndarray | np.dtype):
                raise Unkeyed(f"{home}.{x.__qualname__}")
            return
        if home in _STDLIB or home.lstrip("_") in _STDLIB:
            if home == "operator" and x.__name__ in ("attrgetter", "methodcaller"):
                raise Unkeyed(f"operator.{x.__name__}, which takes names from strings")
            return
        if root in sys.stdlib_module_names and root != "__main__":
            raise Unkeyed(f"{home}.{x.__qualname__}")
        if not x.__flags__ & _HEAP:
            raise Unkeyed(f"{home}.{x.__qualname__}, which is not written in Python")
        if not _is_plain_metaclass(type(x)):
            raise Unkeyed(f"{x.__qualname__}, whose class is {type(x).__qualname__}")
        if _has_more_instances(x):
            raise Unkeyed(f"{x.__qualname__}, of which objects may be that are not derived from it")
        for base in x.__bases__:
            self._class(base, is_called=False)
        self._classes.append((x, set()))
        if isinstance(x, enum.EnumMeta):
            self._visit(x._member_map_)

    def _read_methods(self) -> None:
        """Reads entries of classes until the code in reach names no more of them."""
        count = -1
        while count != len(self._tokens):
            count = len(self._tokens)
            for cls, read in list(self._classes):
                self._entries(cls, read, [n for n in vars(cls) if self._is_read(cls, n)])

    def _read_values(self) -> None:
        """Reads plain values of this package's classes, where a program may put its own."""
        for cls in list(self._own_classes):
            for name in sorted(self.named & vars(cls).keys()):
                if type(value := vars(cls)[name]) in _VALUES:
                    self._tokens.append(("value of", cls.__module__, cls.__qualname__, name))
                    self._visit(value)

    def _entries(self, cls: type, read: set[str], names: Iterable[str]) -> None:
        for name in names:
            if name not in read:
                read.add(name)
                self._tokens.append(("entry", self._seen[id(cls)], name))
                self._visit(vars(cls)[name])

    def _is_read(self, cls: type, name: str) -> bool:
        """Whether code may read this entry of a class: it is named somewhere, or Python calls it,
        or this package, in which a base has an entry of that name.
        """
        if name in _CONSTRUCTORS:
            return self._constructs
        if name == "_abc_impl":
            return False
        if name in _MAKING:
            return name in self.named and not _is_made_repr(vars(cls)[name])
        if name == "__hash__" and "__dataclass_fields__" in vars(cls):
            return False  # of the fields
        if name in self.named or (name.startswith("__") and name.endswith("__")):
            return True
        own = (b for b in cls.__mro__ if b.__module__.partition(".")[0] == ROOT)
        return name not in _SAVING and any(name in vars(b) for b in own)


_UNSAVED = "_non_persistent_buffers_set"

# What an object holds as a dict, list or number, asked without calling methods of its own class.
_CONTENTS: tuple[tuple[type, Callable[[Any], object]], ...] = (
    (OrderedDict, lambda x: list(OrderedDict.items(x))),
    (dict, lambda x: list(dict.items(x))),
    (list, lambda x: list(list.__iter__(x))),
    (tuple, lambda x: list(tuple.__iter__(x))),
    (int, int.__int__),
    (float, float.__float__),
    (str, str.__str__),
)


def _attributes_of(x: object) -> dict[str, Any]:
    try:
        found: dict[str, Any] = object.__getattribute__(x, "__dict__")
    except AttributeError:  # an object of slots alone
        return {}
    return found


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty yet
        return "no value"


def _is_made_repr(x: object) -> bool:
    """Whether an entry of a class is a text of its fields that `dataclass` has written."""
    made = x.__dict__.get("__wrapped__", x) if type(x) is types.FunctionType else None
    if type(made) is not types.FunctionType:
        return False
    return made.__name__ == "__repr__" and made.__code__.co_filename == "<string>"


def _has_more_instances(x: type) -> bool:
    """Whether `isinstance` may ask more than the classes from which an object's is derived."""
    if vars(x).get("_is_runtime_protocol"):
        return True
    return isinstance(x, abc.ABCMeta) and bool(_registered(x)[0])


def _is_plain_metaclass(kind: type) -> bool:
    return kind.__module__ in ("builtins", "abc", "enum", "typing") or (
        kind.__module__.partition(".")[0] == ROOT
    )


def _is_public(x: types.FunctionType) -> bool:
    """Whether users find the function under its name: then this package alone has made it."""
    spaces = surfaces.index()
    return any(
        x.__name__ in spaces[space] and surfaces.find(space, x.__name__) is x
        for space in ("F", "flow")
    )


def _check_room(home: str, what: str) -> None:
    """Raises Unkeyed for a part of this package that reads or changes more than its arguments."""
    if home == ROOT or (home.startswith(_ROOMS) and home not in _CLOSED):
        return
    raise Unkeyed(f"{home}.{what}")


def _slots_of(kind: type) -> Iterable[types.MemberDescriptorType]:
    for cls in kind.__mro__:
        for value in vars(cls).values():
            if type(value) is types.MemberDescriptorType:
                yield value


def _slot_value(slot: types.MemberDescriptorType, x: object) -> object:
    try:
        return slot.__get__(x)
    except AttributeError:
        return "no value"


_READERS: dict[type, Callable[[BuildKey, Any], None]] = {
    Tensor: BuildKey._tensor,
    Parameter: BuildKey._tensor,
    Buffer: BuildKey._tensor,
    list: BuildKey._list,
    tuple: BuildKey._list,
    dict: BuildKey._dict,
    OrderedDict: BuildKey._dict,
    defaultdict: BuildKey._defaultdict,
    set: BuildKey._set,
    frozenset: BuildKey._set,
    np.ndarray: BuildKey._array_of,
    Placement: BuildKey._placement,
    Size: BuildKey._size,
    slice: BuildKey._slice,
    range: BuildKey._slice,
    type(default_generator): BuildKey._generator,
    functools.partial: BuildKey._partial,
    types.MethodType: BuildKey._method,
    staticmethod: BuildKey._wrapping,
    classmethod: BuildKey._wrapping,
    property: BuildKey._property,
    types.MemberDescriptorType: BuildKey._slot,
    types.ModuleType: BuildKey._module,
    types.FunctionType: BuildKey._function,
    types.BuiltinFunctionType: BuildKey._builtin,
    np.ufunc: BuildKey._ufunc,
    type(NotImplemented): BuildKey._written,
    type: BuildKey._type,
}


def _reader_of(kind: type) -> Callable[[BuildKey, Any], None]:
    """The reader for objects of a class that was not met before."""
    read: Callable[[BuildKey, Any], None]
    if issubclass(kind, type):
        read = BuildKey._type
    elif issubclass(kind, types.ModuleType):
        read = BuildKey._module
    elif issubclass(kind, Tensor):
        read = BuildKey._proxy
    elif issubclass(kind, _TEXTS):
        read = BuildKey._written
    elif issubclass(kind, np.generic):
        read = BuildKey._scalar
    elif issubclass(kind, enum.Enum):
        read = BuildKey._enum
    elif all(cls.__flags__ & _HEAP or cls in _BASES for cls in kind.__mro__):
        root = kind.__module__.partition(".")[0]
        is_stdlib = root in sys.stdlib_module_names and root != "__main__"
        read = BuildKey._proxy if is_stdlib else BuildKey._instance
    else:
        read = BuildKey._proxy
    if kind.__module__.partition(".")[0] == ROOT:  # of others there may be classes without end
        _READERS[kind] = read
    return read


def surroundings() -> tuple[object, ...]:
    """The things that traces depend on besides the graph and the program's code."""

    mode = current_global_mode()
    here = world()
    is_recorded = {
        name: value for name, value in vars(grad_mode.state).items() if name != "enabled"
    }
    return (
        here.rank,
        here.world_size,
        repr(current_config()),
        inputs_may_move(),
        get_default_dtype(),
        (mode.is_enabled, mode._placement, mode._sbp),
        vars(everywhere),
        vars(autocasting._settings),
        is_recorded,
        chosen_device(),
    )
