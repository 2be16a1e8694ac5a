"""A reader of pickles that runs no code: it follows the opcodes, knows containers, numbers, strings
and tensors, imports nothing and calls nothing that the file names. Anything else that a file asks
for is refused by name.
"""

from __future__ import annotations

import pickletools
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar

from oneflow.core.errors import CheckpointError

MAX_NUM_OPCODES = 50_000_000
_MARK = object()


T = TypeVar("T")


class Name:
    """A global that a pickle names: never looked up, only compared."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Shell:
    """An object under construction: its arguments, and the state given to it."""

    __slots__ = ("args", "cls", "state")

    def __init__(self, cls: Name, args: tuple[Any, ...]) -> None:
        self.cls = cls
        self.args = args
        self.state: Any = None


Build = Callable[[Name, tuple[Any, ...]], object]  # (name, arguments) -> value
SetState = Callable[[object, object], object]  # (value, state) -> value


class Reader:
    """A reader of one pickle, with the meanings that it gives to the names in the pickle.

    make: the result of calling a named global. set_state: the object with its state.
    constant: the value of a named global itself. persistent: the storage of a persistent id.
    All raise CheckpointError for names they do not know.
    """

    def __init__(
        self,
        make: Build,
        set_state: SetState,
        constant: Callable[[Name], object],
        persistent: Callable[[object], object],
    ) -> None:
        self._make = make
        self._set_state = set_state
        self._constant = constant
        self._persistent = persistent
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def read(self, data: bytes | BinaryIO) -> Any:
        """The value in `data`, or the next one in a file. Raises CheckpointError for malformed or
        refused content.
        """
        try:
            for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
                if count > MAX_NUM_OPCODES:
                    raise CheckpointError(
                        f"load: the pickle has more than {MAX_NUM_OPCODES} opcodes"
                    )
                if opcode.name == "STOP":
                    return self._plain(self._stack.pop())
                self._step(opcode.name, argument)
        except (
            IndexError,
            KeyError,
            ValueError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            raise CheckpointError(f"load: the pickle is malformed: {error}") from error
        raise CheckpointError("load: the pickle has no end")

    def _step(self, name: str, argument: object) -> None:
        if name in _IGNORED:
            return
        if name in _PUSHED:
            self._stack.append(argument)
            return
        if name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
            return
        if name in _EMPTY:
            self._stack.append(_EMPTY[name]())
            return
        handler = getattr(self, f"_op_{name.lower()}", None)
        if handler is None:
            raise CheckpointError(f"load: the pickle uses the opcode {name}, which is not accepted")
        handler(argument)

    # ---- memory of what was seen -----------------------------------------------------------------

    def _op_put(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    _op_binput = _op_long_binput = _op_put

    def _op_memoize(self, _: object) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _op_get(self, index: int) -> None:
        self._stack.append(self._memo[index])

    _op_binget = _op_long_binget = _op_get

    # ---- containers ------------------------------------------------------------------------------

    def _op_mark(self, _: object) -> None:
        self._stack.append(_MARK)

    def _since_mark(self) -> list[Any]:
        items: list[Any] = []
        while self._stack[-1] is not _MARK:
            items.append(self._stack.pop())
        self._stack.pop()
        return [self._plain(i) for i in reversed(items)]

    def _op_tuple(self, _: object) -> None:
        self._stack.append(tuple(self._since_mark()))

    def _op_list(self, _: object) -> None:
        self._stack.append(self._since_mark())

    def _op_dict(self, _: object) -> None:
        items = self._since_mark()
        self._stack.append(dict(zip(items[::2], items[1::2], strict=True)))

    def _op_tuple1(self, _: object) -> None:
        self._stack[-1:] = [tuple(map(self._plain, self._stack[-1:]))]

    def _op_tuple2(self, _: object) -> None:
        self._stack[-2:] = [tuple(map(self._plain, self._stack[-2:]))]

    def _op_tuple3(self, _: object) -> None:
        self._stack[-3:] = [tuple(map(self._plain, self._stack[-3:]))]

    def _op_append(self, _: object) -> None:
        item = self._plain(self._stack.pop())
        _as(list, self._stack[-1]).append(item)

    def _op_appends(self, _: object) -> None:
        items = self._since_mark()
        _as(list, self._stack[-1]).extend(items)

    def _op_additems(self, _: object) -> None:
        items = self._since_mark()
        _as(set, self._stack[-1]).update(items)

    def _op_setitem(self, _: object) -> None:
        value, key = self._plain(self._stack.pop()), self._plain(self._stack.pop())
        _as(dict, self._stack[-1])[key] = value

    def _op_setitems(self, _: object) -> None:
        items = self._since_mark()
        _as(dict, self._stack[-1]).update(zip(items[::2], items[1::2], strict=True))

    def _op_pop(self, _: object) -> None:
        self._stack.pop()

    # ---- names and what is made with them --------------------------------------------------------

    def _op_global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._stack.append(Name(module, name))

    def _op_stack_global(self, _: object) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._stack.append(Name(str(module), str(name)))

    def _op_reduce(self, _: object) -> None:
        args, called = self._stack.pop(), self._stack.pop()
        self._stack.append(self._call(called, args))

    def _op_newobj(self, _: object) -> None:
        args, cls = self._stack.pop(), self._stack.pop()
        self._stack.append(self._call(cls, args))

    def _call(self, called: object, args: object) -> object:
        if not isinstance(called, Name) or not isinstance(args, tuple):
            raise CheckpointError("load: the pickle calls something that is no name")
        if any(isinstance(argument, range) for argument in args):
            raise CheckpointError("load: the pickle makes something of a range: it may be endless")
        if called.module == "collections" and called.name in _COLLECTIONS:
            return _COLLECTIONS[called.name](*args)
        if called.module in ("builtins", "__builtin__") and called.name in _BUILTINS:
            return _BUILTINS[called.name](*args)
        return self._make(called, args)

    def _op_build(self, _: object) -> None:
        state = self._plain(self._stack.pop())
        old = self._stack[-1]
        new = old if isinstance(old, OrderedDict) else self._set_state(old, state)
        self._stack[-1] = new
        if new is not old:
            self._memo = {k: new if v is old else v for k, v in self._memo.items()}

    def _op_binpersid(self, _: object) -> None:
        self._stack.append(self._persistent(self._stack.pop()))

    def _plain(self, value: object) -> object:
        """A name that is used as a value stands for a constant."""
        if value is _MARK:
            raise CheckpointError("load: the pickle is malformed: a mark where a value belongs")
        if not isinstance(value, Name):
            return value
        if value.module in ("builtins", "__builtin__") and value.name in _FACTORIES:
            return _FACTORIES[value.name]  # what makes the missing values of a defaultdict
        return self._constant(value)


def _as(kind: type[T], value: object) -> T:
    if not isinstance(value, kind):
        raise CheckpointError(f"load: the pickle puts items into a {type(value).__name__}")
    return value


_COLLECTIONS: dict[str, Callable[..., Any]] = {
    "OrderedDict": OrderedDict,
    "defaultdict": defaultdict,
    "Counter": Counter,
}
_BUILTINS: dict[str, Any] = {
    kind.__name__: kind for kind in (set, list, tuple, dict, frozenset, range, slice)
}
_BUILTINS["xrange"] = range  # its name in the protocols of Python 2
_FACTORIES = _BUILTINS | {kind.__name__: kind for kind in (int, float, str, bool)}
_IGNORED = frozenset(("PROTO", "FRAME"))
_PUSHED = frozenset(
    [
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "UNICODE",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
    ]
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": set,
}
